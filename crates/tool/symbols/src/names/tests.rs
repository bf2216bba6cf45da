//! A small program compiled in several ways, and what is known of its code in each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::*;

/// `main` calls `work`, which calls `inlined`, which calls `xmalloc`, which calls `malloc`: each on a line of its own, told
/// by its comment.
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

fn line_of(call: &str) -> u32 {
    let mark = format!("/* line of {call} */");
    let before = SOURCE.lines().take_while(|line| !line.contains(&mark)).count();
    u32::try_from(before).unwrap() + 1
}

fn compile(room: &TempDir, options: &str) -> PathBuf {
    let (source, program) = (room.path().join("site.c"), room.path().join("site"));
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

/// The call of `callee` in `caller`: the last byte of the instruction, as objdump sees it.
fn call(listing: &str, caller: &str, callee: &str) -> u64 {
    let body = listing.lines().skip_while(|line| !line.ends_with(&format!("<{caller}>:")));
    let mut after = body.skip_while(|line| !(line.contains("call") && line.contains(&format!("<{callee}"))));
    after.next().unwrap_or_else(|| panic!("{caller} does not call {callee}: {listing}"));
    let next = after.find_map(|line| u64::from_str_radix(line.split(':').next()?.trim(), 16).ok());
    next.expect("something follows the call") - 1
}

fn stack(program: &Path, listing: &str) -> Vec<Frame> {
    let calls = [("xmalloc", "malloc@plt"), ("work", "xmalloc"), ("main", "work")];
    let frame = |(caller, callee)| Frame { module: Some(program.to_owned()), offset: call(listing, caller, callee) };
    calls.map(frame).to_vec()
}

fn functions(name: &SiteName) -> Vec<(&str, Known)> {
    name.stack.iter().map(|frame| (frame.function.as_str(), frame.known)).collect()
}

#[test]
fn debug_info_gives_each_function_and_line() {
    let room = tempfile::tempdir().unwrap();
    let program = compile(&room, "-g -O1 -fno-inline-small-functions");
    let name = Symbols::default().name(&stack(&program, &objdump(&program)));
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
    let room = tempfile::tempdir().unwrap();
    let program = compile(&room, "-g -O2");
    let name = Symbols::default().name(&stack(&program, &objdump(&program)));
    let all = Known::DebugInfo;
    assert_eq!(functions(&name), [("xmalloc", all), ("inlined", all), ("work", all), ("main", all)]);
    assert_eq!((name.function.as_str(), name.line), ("inlined", Some(line_of("xmalloc"))));
}

#[test]
fn without_debug_info_the_symbols_name_functions() {
    let room = tempfile::tempdir().unwrap();
    let program = compile(&room, "-O2 -g0");
    let name = Symbols::default().name(&stack(&program, &objdump(&program)));
    assert_eq!(functions(&name), [("xmalloc", Known::Symbol), ("work", Known::Symbol), ("main", Known::Symbol)]);
    assert_eq!((name.function.as_str(), name.file, name.line), ("work", None, None), "what was inlined is not known");
}

#[test]
fn a_stripped_file_has_its_exported_functions_and_their_neighbourhood() {
    let room = tempfile::tempdir().unwrap();
    // Of the three only `xmalloc` is exported; `work` lies somewhere behind it.
    let program =
        compile(&room, "-O2 -g0 -fno-toplevel-reorder -fno-reorder-functions -Wl,--export-dynamic-symbol=xmalloc");
    let frames = stack(&program, &objdump(&program));
    assert!(Command::new("strip").arg(&program).status().unwrap().success());
    let name = Symbols::default().name(&frames[..2]);
    assert_eq!(name.stack[0].function, "xmalloc");
    assert_eq!(name.stack[0].known, Known::Symbol);
    assert_eq!(name.stack[1].known, Known::Nearby);
    assert!(name.stack[1].function.starts_with("xmalloc+0x"), "{name:?}");
}

#[test]
fn a_function_that_jumps_to_the_allocator_is_named_by_its_caller_s_call() {
    let room = tempfile::tempdir().unwrap();
    let program = compile(&room, "-g -O2 -DJUMPING");
    let listing = objdump(&program);
    let frames = [Frame { module: Some(program), offset: call(&listing, "work", "table_new") }];
    let name = Symbols::default().name(&frames);
    let all = Known::DebugInfo;
    assert_eq!(functions(&name), [("table_new", all), ("work", all)]);
    assert_eq!((name.function.as_str(), name.line), ("table_new", Some(line_of("table_new"))));
}

#[test]
fn without_any_symbol_there_is_the_address() {
    let room = tempfile::tempdir().unwrap();
    let program = compile(&room, "-O2 -s");
    let frames = [Frame { module: Some(program), offset: 0x10 }, Frame { module: None, offset: 0x7000 }];
    let gone = Frame { module: Some("/no/such/lib.so".into()), offset: 0x123 };
    let name = Symbols::default().name(&[frames[0].clone(), frames[1].clone(), gone]);
    let known = Known::Address;
    assert_eq!(functions(&name), [("site+0x10", known), ("0x7000", known), ("lib.so+0x123", known)]);
    assert_eq!(name.function, "site+0x10");
}

#[test]
fn debug_info_that_is_kept_apart_is_found_by_its_build_id() {
    let libc = "/usr/lib/x86_64-linux-gnu/libc.so.6";
    let Some(apart) = Module::debug_info_apart(Path::new(libc)) else {
        println!("SKIP there is no debug info of the C library here");
        return;
    };
    let listing = Command::new("nm").arg(&apart).output().unwrap();
    let listing = String::from_utf8(listing.stdout).unwrap();
    let line = listing.lines().find(|line| line.ends_with(" T __libc_calloc")).unwrap();
    let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    let name = Symbols::default().name(&[Frame { module: Some(libc.into()), offset: address + 8 }]);
    let outermost = name.stack.last().unwrap();
    assert_eq!(outermost.known, Known::DebugInfo, "{name:?}");
    assert!(outermost.function.contains("calloc") && outermost.line.is_some(), "{name:?}");
}

#[test]
fn a_record_leads_to_addresses_in_files() {
    let sites = record();
    let module = sites.intern_module(0x5000, 0x5000..0x9000, b"/bin/x");
    let number =
        sites.intern(&[0x6001, 0x100], |_| std::array::from_fn(|place| if place == 0 { module } else { u16::MAX }));
    let frames = frames_of(&sites, sites.site(number).unwrap());
    let expected = [Frame { module: Some("/bin/x".into()), offset: 0x1000 }, Frame { module: None, offset: 0xff }];
    assert_eq!(frames, expected);
}

#[allow(unsafe_code, reason = "a record is made as the kernel makes it: of zeroes")]
pub(super) fn record() -> Box<Sites> {
    // SAFETY: all zeroes are a valid record: numbers and atomics.
    unsafe { Box::<Sites>::new_zeroed().assume_init() }
}
