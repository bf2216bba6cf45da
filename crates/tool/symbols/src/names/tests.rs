//! Names of functions and lines in a small program, compiled with and without debug info and
//! symbols.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::*;

/// `main` calls `work`, which calls `inlined`, which calls `xmalloc`, which calls `malloc`. A
/// comment marks the line of each call.
const SOURCE: &str = r#"#include <stdlib.h>
void *volatile kept;
__attribute__((noinline, noclone)) void *xmalloc(size_t bytes) {
    void *block = malloc(bytes); /* line of malloc */
    kept = block;
    return block;
}
static inline __attribute__((always_inline)) void inlined(void) {
    kept = xmalloc(10); /* line of xmalloc */
}
__attribute__((noinline, noclone)) void *table_new(void) {
    return malloc(100); /* line of table_new */
}
static __attribute__((noinline, noclone)) void work(void) {
#ifdef JUMPING
    kept = table_new();
#endif
    inlined(); /* line of inlined */
    kept = 0;
}
int main(void) {
    work(); /* line of work */
    return kept != 0;
}
"#;

/// `main` with a table of lines, and debug info that does not name it: a compilation unit (tag 0x11)
/// with the addresses of its lines (0x10) and of its code (0x11, 0x12).
const LINES_ONLY: &str = r#"
.file 1 "site.c"
.globl main
.type main, @function
main:
.loc 1 7
    xor %eax, %eax
    ret
.Lend:
.size main, . - main
.section .debug_abbrev, "", @progbits
.Labbrev: .byte 1, 0x11, 0, 0x10, 0x17, 0x11, 0x01, 0x12, 0x07, 0, 0, 0
.section .debug_info, "", @progbits
    .long .Lunit_end - .Lunit
.Lunit: .short 4
    .long .Labbrev
    .byte 8, 1
    .long .Llines
    .quad main
    .quad .Lend - main
.Lunit_end:
.section .debug_line, "", @progbits
.Llines:
.section .note.GNU-stack, "", @progbits
"#;

fn line_of(call: &str) -> u32 {
    let mark = format!("/* line of {call} */");
    let before = SOURCE.lines().take_while(|line| !line.contains(&mark)).count();
    u32::try_from(before).unwrap() + 1
}

fn compile(directory: &TempDir, options: &str) -> PathBuf {
    let (source, program) = (directory.path().join("site.c"), directory.path().join("site"));
    fs::write(&source, SOURCE).unwrap();
    let mut command = Command::new("cc");
    command.args(options.split_whitespace()).arg("-o").arg(&program).arg(&source);
    assert!(command.status().unwrap().success(), "cc {options}");
    program
}

fn objdump(program: &Path) -> String {
    let output = Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(program).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// The last byte of the instruction in `caller` that calls `callee`, by objdump.
fn call(listing: &str, caller: &str, callee: &str) -> u64 {
    let body = listing.lines().skip_while(|line| !line.ends_with(&format!("<{caller}>:")));
    let mut after = body.skip_while(|line| !(line.contains("call") && line.contains(&format!("<{callee}"))));
    after.next().unwrap_or_else(|| panic!("{caller} does not call {callee}: {listing}"));
    let next = after.find_map(|line| u64::from_str_radix(line.split(':').next()?.trim(), 16).ok());
    next.expect("an instruction follows the call") - 1
}

fn stack(program: &Path, listing: &str) -> Vec<CodeLocation> {
    let calls = [("xmalloc", "malloc@plt"), ("work", "xmalloc"), ("main", "work")];
    let frame =
        |(caller, callee)| CodeLocation { module: Some(program.to_owned()), offset: call(listing, caller, callee) };
    calls.map(frame).to_vec()
}

fn functions(name: &SiteName) -> Vec<(&str, NameSource)> {
    name.stack.iter().map(|frame| (frame.function.as_str(), frame.source)).collect()
}

#[test]
fn debug_info_gives_each_function_and_line() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(&directory, "-g -O1 -fno-inline-small-functions");
    let name = Symbolizer::default().name(&stack(&program, &objdump(&program)));
    assert_eq!(name.function, "inlined", "xmalloc is a wrapper");
    assert_eq!(name.line, Some(line_of("xmalloc")));
    assert!(name.file.as_ref().unwrap().ends_with("site.c"), "{name:?}");
    assert_eq!(name.module, "site");
    let lines: Vec<_> = name.stack.iter().map(|frame| (frame.function.as_str(), frame.line.unwrap())).collect();
    let expected = ["malloc", "xmalloc", "inlined", "work"].map(line_of);
    assert_eq!(
        lines,
        [("xmalloc", expected[0]), ("inlined", expected[1]), ("work", expected[2]), ("main", expected[3])]
    );
}

#[test]
fn inlined_functions_are_frames_at_full_optimisation() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(&directory, "-g -O2");
    let name = Symbolizer::default().name(&stack(&program, &objdump(&program)));
    let all = NameSource::DebugInfo;
    assert_eq!(functions(&name), [("xmalloc", all), ("inlined", all), ("work", all), ("main", all)]);
    assert_eq!((name.function.as_str(), name.line), ("inlined", Some(line_of("xmalloc"))));
}

#[test]
fn without_debug_info_the_symbols_name_functions() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(&directory, "-O2 -g0");
    let name = Symbolizer::default().name(&stack(&program, &objdump(&program)));
    assert_eq!(
        functions(&name),
        [("xmalloc", NameSource::Symbol), ("work", NameSource::Symbol), ("main", NameSource::Symbol)]
    );
    assert_eq!((name.function.as_str(), name.file, name.line), ("work", None, None), "what was inlined is not known");
}

#[test]
fn a_function_that_the_debug_info_does_not_name_has_its_symbol_and_line() {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("site.s"), directory.path().join("site"));
    fs::write(&source, LINES_ONLY).unwrap();
    assert!(Command::new("cc").arg("-o").arg(&program).arg(&source).status().unwrap().success());
    let mut symbols = Command::new("nm");
    let symbols = String::from_utf8(symbols.arg(&program).output().unwrap().stdout).unwrap();
    let line = symbols.lines().find(|line| line.ends_with(" T main")).unwrap();
    let offset = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    let name = Symbolizer::default().frames(&[CodeLocation { module: Some(program), offset }]).remove(0);
    assert_eq!((name.function.as_str(), name.line, name.source), ("main", Some(7), NameSource::Symbol), "{name:?}");
    assert!(name.file.is_some_and(|file| file.ends_with("site.c")));
}

#[test]
fn in_a_stripped_file_the_nearest_exported_function_names_an_address() {
    let directory = tempfile::tempdir().unwrap();
    // Only `xmalloc` is exported; `work` has a higher address.
    let program =
        compile(&directory, "-O2 -g0 -fno-toplevel-reorder -fno-reorder-functions -Wl,--export-dynamic-symbol=xmalloc");
    let frames = stack(&program, &objdump(&program));
    assert!(Command::new("strip").arg(&program).status().unwrap().success());
    let name = Symbolizer::default().name(&frames[..2]);
    assert_eq!(name.stack[0].function, "xmalloc");
    assert_eq!(name.stack[0].source, NameSource::Symbol);
    assert_eq!(name.stack[1].source, NameSource::NearestSymbol);
    assert!(name.stack[1].function.starts_with("xmalloc+0x"), "{name:?}");
}

#[test]
fn a_function_with_a_tail_call_is_named_by_the_call_in_its_caller() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(&directory, "-g -O2 -DJUMPING");
    let listing = objdump(&program);
    let frames = [CodeLocation { module: Some(program), offset: call(&listing, "work", "table_new") }];
    let name = Symbolizer::default().name(&frames);
    let all = NameSource::DebugInfo;
    assert_eq!(functions(&name), [("table_new", all), ("work", all)]);
    assert_eq!((name.function.as_str(), name.line), ("table_new", Some(line_of("table_new"))));
}

#[test]
fn without_symbols_the_name_is_the_address() {
    let directory = tempfile::tempdir().unwrap();
    let program = compile(&directory, "-O2 -s");
    let frames = [CodeLocation { module: Some(program), offset: 0x10 }, CodeLocation { module: None, offset: 0x7000 }];
    let gone = CodeLocation { module: Some("/no/such/lib.so".into()), offset: 0x123 };
    let name = Symbolizer::default().name(&[frames[0].clone(), frames[1].clone(), gone]);
    let source = NameSource::Address;
    assert_eq!(functions(&name), [("site+0x10", source), ("0x7000", source), ("lib.so+0x123", source)]);
    assert_eq!(name.function, "site+0x10");
}

#[test]
fn separate_debug_info_is_found_by_build_id() {
    let libc = "/usr/lib/x86_64-linux-gnu/libc.so.6";
    let Some(separate) = SymbolFile::separate_debug_file(Path::new(libc)) else {
        println!("SKIP there is no debug info of the C library here");
        return;
    };
    let listing = Command::new("nm").arg(&separate).output().unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    let line = listing.lines().find(|line| line.ends_with(" T __libc_calloc")).unwrap();
    let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    let name = Symbolizer::default().name(&[CodeLocation { module: Some(libc.into()), offset: address + 8 }]);
    let outermost = name.stack.last().unwrap();
    assert_eq!(outermost.source, NameSource::DebugInfo, "{name:?}");
    assert!(outermost.function.contains("calloc") && outermost.line.is_some(), "{name:?}");
}

#[test]
fn recorded_frames_become_addresses_in_files() {
    let sites = record();
    let module = sites.intern_module(0x5000, 0x5000..0x9000, b"/bin/x");
    let number =
        sites.intern(&[0x6001, 0x100], |_| std::array::from_fn(|place| if place == 0 { module } else { u16::MAX }));
    let frames = site_frames(&sites, sites.site(number).unwrap());
    let expected =
        [CodeLocation { module: Some("/bin/x".into()), offset: 0x1000 }, CodeLocation { module: None, offset: 0xff }];
    assert_eq!(frames, expected);
}

#[allow(unsafe_code, reason = "creates a record of zeros, as the kernel does")]
pub(super) fn record() -> Box<Sites> {
    // SAFETY: `Sites` consists of integers and atomics, for which all zeros are a valid value.
    unsafe { Box::<Sites>::new_zeroed().assume_init() }
}
