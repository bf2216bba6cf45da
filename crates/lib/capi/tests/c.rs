//! The C tests and examples, built by gcc and clang against both forms of the library, and run; the header against the library.
//!
//! Cargo builds all crate types of the package's library before this test, as one of them is `lib`, and puts them beside this
//! program (`target/debug/deps`), wherever CARGO_TARGET_DIR is.

#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const FLAGS: [&str; 7] = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"];
const SONAME: &str =
    concat!("libfieldstone.so.", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The library as cargo built it for this test.
fn library(name: &str) -> PathBuf {
    let file = std::env::current_exe().unwrap().with_file_name(name);
    assert!(file.exists(), "cargo builds {} before this test", file.display());
    file
}

/// A folder with the shared library under the names that an installation has.
fn installed() -> TempDir {
    let room = tempfile::tempdir().unwrap();
    for name in [SONAME, "libfieldstone.so"] {
        symlink(library("libfieldstone.so"), room.path().join(name)).unwrap();
    }
    room
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// What a tool writes; it has to succeed.
fn output(tool: &str, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let output = run(Command::new(tool).args(arguments));
    assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The compilers that are here; the others are told.
fn compilers() -> Vec<&'static str> {
    let is_here = |compiler: &&str| {
        let here = Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success());
        if !here {
            println!("SKIP cc {compiler} is not installed");
        }
        here
    };
    ["gcc", "clang"].into_iter().filter(is_here).collect()
}

/// What pkg-config would give for static linking.
fn private_libraries() -> Vec<String> {
    let template = fs::read_to_string(source("fieldstone.pc.in")).unwrap();
    let line = template.lines().find_map(|line| line.strip_prefix("Libs.private:")).unwrap();
    line.split_whitespace().map(str::to_owned).collect()
}

/// Compiles a program, and gives its path.
fn built(compiler: &str, program: &Path, options: &[&str], is_static: bool, room: &Path) -> PathBuf {
    let out = room.join("program");
    let mut command = Command::new(compiler);
    command.args(FLAGS).args(options).arg("-I").arg(source("include")).arg(program).arg("-o").arg(&out);
    if is_static {
        command.arg(library("libfieldstone.a")).args(private_libraries());
    } else {
        let folder = room.display();
        command.args([format!("-L{folder}"), format!("-Wl,-rpath,{folder}"), "-lfieldstone".to_owned()]);
    }
    let output = run(&mut command);
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    out
}

/// Runs a program that has to succeed, by each compiler and each way to link; passes on what it skips.
fn succeeds(program: &Path) {
    let room = installed();
    for compiler in compilers() {
        for is_static in [false, true] {
            let file = built(compiler, program, &["-pthread"], is_static, room.path());
            let output = run(&mut Command::new(file));
            print!("{}", String::from_utf8_lossy(&output.stdout));
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}, {compiler}, static {is_static}: {told}", program.display());
        }
    }
}

#[test]
fn memory() {
    succeeds(&source("tests/c/memory.c"));
}

#[test]
fn trapping() {
    succeeds(&source("tests/c/trapping.c"));
}

#[test]
fn tracking() {
    succeeds(&source("tests/c/tracking.c"));
}

#[test]
fn filling() {
    succeeds(&source("tests/c/filling.c"));
}

#[test]
fn isolate() {
    succeeds(&source("tests/c/isolate.c"));
}

#[test]
fn refusals() {
    succeeds(&source("tests/c/refusals.c"));
}

#[test]
fn the_write_barrier_remembers_and_its_check_finds_a_forgotten_page() {
    let program = source("examples/write_barrier.c");
    succeeds(&program);
    assert!(fs::read_to_string(&program).unwrap().lines().count() < 150);
    let room = installed();
    for compiler in compilers() {
        let file = built(compiler, &program, &["-DFORGET"], false, room.path());
        let output = run(&mut Command::new(file));
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(1) && told.contains("WRONG"), "{compiler}: {told}");
    }
}

#[test]
fn the_headers_own_example_prints_what_it_says() {
    let header = fs::read_to_string(source("include/fieldstone/pages.h")).unwrap();
    let lines = header.lines().map(|line| line.strip_prefix(" *     ").unwrap_or_default());
    let code: Vec<_> =
        lines.skip_while(|line| !line.starts_with("#include")).take_while(|line| !line.starts_with("cc ")).collect();
    let room = installed();
    let program = room.path().join("example.c");
    fs::write(&program, code.join("\n")).unwrap();
    for compiler in compilers() {
        let file = built(compiler, &program, &[], false, room.path());
        assert_eq!(output(file.to_str().unwrap(), [""; 0]), "4096 bytes at 4096\n", "{compiler}");
    }
}

#[test]
fn the_header_is_cpp_too() {
    let room = tempfile::tempdir().unwrap();
    let program = room.path().join("program.cpp");
    let code = "#include <fieldstone/pages.h>\n#include <fieldstone/remap.h>\nint main() { return fs_memory_bytes(nullptr) != 0 || remapper_isolate(nullptr, 8) == 0; }\n";
    fs::write(&program, code).unwrap();
    let flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"];
    let out = room.path().join("program");
    let linked = run(Command::new("g++").args(flags).arg(source("include")).arg(&program).arg("-o").arg(&out).args([
        library("libfieldstone.a").to_str().unwrap(),
        "-pthread",
        "-ldl",
        "-lm",
    ]));
    assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
    assert!(run(&mut Command::new(out)).status.success());
}

/// All names that are followed by a parenthesis, and begin as ours do.
fn calls(text: &str) -> BTreeSet<String> {
    let before_parentheses = text.split('(').map(|before| {
        let start = before.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(0, |at| at + 1);
        &before[start..]
    });
    let is_ours = |name: &&str| name.starts_with("fs_") || name.starts_with("remapper_");
    before_parentheses.filter(is_ours).map(str::to_owned).collect()
}

#[test]
fn headers_library_and_tests_have_the_same_functions() {
    let header = |name| calls(&fs::read_to_string(source(&format!("include/fieldstone/{name}.h"))).unwrap());
    let declared: BTreeSet<_> = header("pages").into_iter().chain(header("remap")).collect();
    let symbols =
        output("nm", [OsStr::new("-D"), OsStr::new("--defined-only"), library("libfieldstone.so").as_os_str()]);
    let exported: BTreeSet<_> =
        symbols.lines().filter_map(|line| line.split(" T ").nth(1)).map(str::to_owned).collect();
    assert!(symbols.lines().any(|line| line.ends_with(" fieldstone_isolated")), "a repairer looks for it by its name");
    assert!(declared.len() > 50, "{declared:?}");
    assert_eq!(declared, exported, "left: the header's; right: the library's");

    let mut tested = BTreeSet::new();
    for file in fs::read_dir(source("tests/c")).unwrap() {
        tested.extend(calls(&fs::read_to_string(file.unwrap().path()).unwrap()));
    }
    // These are passed on as functions.
    tested.extend(["fs_memory_anonymous", "fs_memory_shared"].map(str::to_owned));
    let untested: Vec<_> = declared.difference(&tested).collect();
    assert!(untested.is_empty(), "{untested:?}");
}

#[test]
fn the_shared_library_has_its_soname() {
    let dynamic = output("readelf", [OsStr::new("-d"), library("libfieldstone.so").as_os_str()]);
    assert!(dynamic.contains(&format!("soname: [{SONAME}]")), "{dynamic}");
}
