//! Builds the C tests and examples by gcc and clang with both forms of the library, and runs them;
//! compares the header with the library.
//!
//! Cargo builds all crate types of the package's library before this test, because one of them is
//! `lib`, and puts them beside this program (`target/debug/deps`) for any CARGO_TARGET_DIR.

#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fieldstone_store::{Store, Table};
use tempfile::TempDir;

const FLAGS: [&str; 7] = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"];
const SONAME: &str =
    concat!("libfieldstone.so.", env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The library built by cargo for this test.
fn library(name: &str) -> PathBuf {
    let file = std::env::current_exe().unwrap().with_file_name(name);
    assert!(file.exists(), "cargo builds {} before this test", file.display());
    file
}

/// A directory with the shared library under the names of an installation.
fn installed() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in [SONAME, "libfieldstone.so"] {
        symlink(library("libfieldstone.so"), directory.path().join(name)).unwrap();
    }
    directory
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// The output of a tool, which must succeed.
fn output(tool: &str, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let output = run(Command::new(tool).args(arguments));
    assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The installed compilers; prints a SKIP line for others.
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

/// The static library, with the options of pkg-config for it.
fn static_library() -> Vec<String> {
    let template = fs::read_to_string(source("fieldstone.pc.in")).unwrap();
    let private = template.lines().find_map(|line| line.strip_prefix("Libs.private:")).unwrap();
    let archive = library("libfieldstone.a").into_os_string().into_string().unwrap();
    [archive].into_iter().chain(private.split_whitespace().map(str::to_owned)).collect()
}

/// Compiles a program, and returns its path.
fn built(compiler: &str, program: &Path, options: &[&str], is_static: bool, directory: &Path) -> PathBuf {
    let out = directory.join("program");
    let mut command = Command::new(compiler);
    command.args(FLAGS).args(options).arg("-I").arg(source("include")).arg(program).arg("-o").arg(&out);
    if is_static {
        command.args(static_library());
    } else {
        let folder = directory.display();
        command.args([format!("-L{folder}"), format!("-Wl,-rpath,{folder}"), "-lfieldstone".to_owned()]);
    }
    let output = run(&mut command);
    assert!(output.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    out
}

/// Runs a program, which must succeed, with each compiler and each form of the library; passes on
/// its SKIP lines.
fn succeeds(program: &Path) {
    succeeds_with(program, &["-pthread"]);
}

fn succeeds_with(program: &Path, options: &[&str]) {
    let directory = installed();
    for compiler in compilers() {
        for is_static in [false, true] {
            let file = built(compiler, program, options, is_static, directory.path());
            let output = run(&mut Command::new(file));
            print!("{}", String::from_utf8_lossy(&output.stdout));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}, {compiler}, static {is_static}: {errors}", program.display());
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
fn slots() {
    succeeds(&source("tests/c/slots.c"));
}

#[test]
fn paging() {
    succeeds(&source("tests/c/paging.c"));
}

/// The options of C that name the features of this build.
fn features() -> Vec<&'static str> {
    let features = [("-DWITH_OPENDAL", cfg!(feature = "opendal")), ("-DWITH_ZSTD", cfg!(feature = "zstd"))];
    let enabled = features.into_iter().filter(|(_, is_enabled)| *is_enabled).map(|(option, _)| option);
    enabled.chain(["-pthread"]).collect()
}

#[test]
fn checkpoint() {
    succeeds_with(&source("tests/c/checkpoint.c"), &features());
}

#[test]
fn checkpoint_refusals() {
    succeeds(&source("tests/c/checkpoint_refusals.c"));
}

/// The program repeats the declarations that other programs rely on.
#[test]
fn the_interface_of_checkpoints_is_as_declared_in_c_and_cpp() {
    for_each_language("checkpoint_interface", |program| {
        let folder = tempfile::tempdir().unwrap();
        let [saves, file] = ["saves", "one.save"].map(|name| folder.path().join(name));
        let objects = format!("fs://{}", folder.path().join("objects").display());
        run(Command::new(program).args([&saves, &file]).arg(objects))
    });
}

/// The compilers of C and C++, with the option of the language.
const LANGUAGES: [(&str, &[&str]); 4] = [
    ("gcc", &["-std=c11"]),
    ("clang", &["-std=c11"]),
    ("g++", &["-xc++", "-std=c++17"]),
    ("clang++", &["-xc++", "-std=c++17"]),
];

/// Builds a program of `tests/c` by each installed compiler of C and C++, and runs it, which must succeed.
fn for_each_language(name: &str, run_program: impl Fn(&Path) -> Output) {
    let directory = installed();
    for (compiler, language) in LANGUAGES {
        if Command::new(compiler).arg("--version").output().is_err() {
            println!("SKIP cc {compiler} is not installed");
            continue;
        }
        let program = directory.path().join("program");
        let mut command = Command::new(compiler);
        command.args(language).args(["-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]);
        command.arg(source("include")).arg(source(&format!("tests/c/{name}.c")));
        command.args(["-xnone", "-o"]).arg(&program).args(static_library());
        let built = run(&mut command);
        assert!(built.status.success(), "{compiler}: {}", String::from_utf8_lossy(&built.stderr));
        let done = run_program(&program);
        assert!(done.status.success(), "{compiler}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

/// The program repeats the declarations that other programs rely on. Each side reads what the other has written.
#[test]
fn the_interface_of_stores_is_as_declared_and_c_and_rust_read_each_other_s_files() {
    for_each_language("store_interface", |program| {
        let folder = tempfile::tempdir().unwrap();
        write_store(&folder.path().join("rust.store")).unwrap();
        let done = run(Command::new(program).arg(folder.path()));
        if done.status.success() {
            for name in ["c.store", "backup.store"] {
                read_store_of_c(&folder.path().join(name)).unwrap();
            }
            let store = Store::open(folder.path().join("rust.store")).unwrap();
            let now = store.read().unwrap();
            assert_eq!(now.table(NAMES).unwrap().get(b"grace").unwrap(), Some(&b"Hopper"[..]));
        }
        done
    });
}

const NAMES: Table<[u8], [u8]> = Table::new("names");

fn write_store(path: &Path) -> fieldstone_store::Result<()> {
    const YEARS: Table<u64, str> = Table::new("years");
    Store::open(path)?.write(|transaction| {
        let mut names = transaction.table(NAMES)?;
        names.insert(b"ada", b"Lovelace")?;
        names.insert(b"alan", &[b't'; 9000])?;
        transaction.table(YEARS)?.insert(&1815, "Ada")?;
        Ok(())
    })
}

fn read_store_of_c(path: &Path) -> fieldstone_store::Result<()> {
    const NUMBERS: Table<[u8], [u8]> = Table::new("numbers");
    const LARGE: Table<[u8], [u8]> = Table::new("large");
    let now = Store::open(path)?.read()?;
    let mut expected = (0..100).chain(900..1000).filter(|number| *number != 7).map(|number| format!("{number:04}"));
    for entry in now.table(NUMBERS)?.iter()? {
        let (key, value) = entry?;
        assert_eq!(Some(&key[..]), expected.next().as_deref().map(str::as_bytes));
        assert_eq!(value, &key[1..]);
    }
    assert_eq!(expected.next(), None);
    assert_eq!(now.table(LARGE)?.get(b"value")?, Some(&[b'x'; 5000][..]));
    assert_eq!(now.table(LARGE)?.get(b"empty")?, Some(&[][..]));
    Ok(())
}

#[test]
fn store() {
    succeeds(&source("tests/c/store.c"));
}

#[test]
fn errors_of_a_store_have_their_codes_and_name_a_remedy() {
    succeeds(&source("tests/c/store_errors.c"));
}

#[test]
fn refusals() {
    succeeds(&source("tests/c/refusals.c"));
}

#[test]
fn the_write_barrier_works_and_its_check_detects_a_forgotten_page() {
    let program = source("examples/write_barrier.c");
    succeeds(&program);
    assert!(fs::read_to_string(&program).unwrap().lines().count() < 150);
    let directory = installed();
    for compiler in compilers() {
        let file = built(compiler, &program, &["-DFORGET"], false, directory.path());
        let output = run(&mut Command::new(file));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(1) && text.contains("WRONG"), "{compiler}: {text}");
    }
}

#[test]
fn the_examples_in_the_headers_work() {
    for (header, expected) in [
        ("pages", "4096 bytes at 4096\n"),
        ("guard", "heap-buffer-overflow, 0 bytes after 24 bytes\n"),
        ("paging", "at most 8 MiB resident\n"),
        ("checkpoint", "contents after write 1\n"),
        ("store", "Ada\n"),
    ] {
        let header = fs::read_to_string(source(&format!("include/fieldstone/{header}.h"))).unwrap();
        let lines = header.lines().map(|line| line.strip_prefix(" *     ").unwrap_or_default());
        let code = lines.skip_while(|line| !line.starts_with("#include")).take_while(|line| !line.starts_with("cc "));
        let code: Vec<_> = code.collect();
        let directory = installed();
        let program = directory.path().join("example.c");
        fs::write(&program, code.join("\n")).unwrap();
        for compiler in compilers() {
            let file = built(compiler, &program, &[], false, directory.path());
            let output = run(Command::new(file).current_dir(directory.path()));
            assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{compiler}");
        }
    }
}

#[test]
fn the_headers_compile_as_cpp() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program.cpp");
    let code = "#include <fieldstone/checkpoint.h>\n#include <fieldstone/guard.h>\n#include <fieldstone/pages.h>\n#include <fieldstone/paging.h>\n#include <fieldstone/remap.h>\n#include <fieldstone/store.h>\nint main() { if (fs_store_backup(nullptr, nullptr) != FS_ERROR_ARGUMENT) return 5; if (fs_checkpoint_cancel(nullptr) != FS_ERROR_ARGUMENT) return 4; if (fs_paging_address(nullptr)) return 3; if (fs_slots_owns(nullptr, nullptr)) return 2; return fs_memory_bytes(nullptr) != 0 || remapper_isolate(nullptr, 8) == 0; }\n";
    fs::write(&program, code).unwrap();
    let flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"];
    let out = directory.path().join("program");
    let mut command = Command::new("g++");
    let linked =
        run(command.args(flags).arg(source("include")).arg(&program).arg("-o").arg(&out).args(static_library()));
    assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
    assert!(run(&mut Command::new(out)).status.success());
}

/// All names with a prefix of this library that precede a parenthesis.
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
    let header = |name: &str| calls(&fs::read_to_string(source(&format!("include/fieldstone/{name}.h"))).unwrap());
    let declared: BTreeSet<_> =
        ["pages", "remap", "guard", "paging", "checkpoint", "store"].into_iter().flat_map(header).collect();
    let symbols =
        output("nm", [OsStr::new("-D"), OsStr::new("--defined-only"), library("libfieldstone.so").as_os_str()]);
    // A build of the whole workspace with the feature `opendal` exports a checksum library, too.
    let is_of_feature = |name: &&str| name.starts_with("crc_fast_");
    let exported: BTreeSet<_> = symbols
        .lines()
        .filter_map(|line| line.split(" T ").nth(1))
        .filter(|name| !is_of_feature(name))
        .map(str::to_owned)
        .collect();
    assert!(symbols.lines().any(|line| line.ends_with(" fieldstone_isolated")), "a repairer finds it by its name");
    assert!(declared.len() > 50, "{declared:?}");
    assert_eq!(declared, exported, "left: the header's; right: the library's");

    let mut tested = BTreeSet::new();
    for file in fs::read_dir(source("tests/c")).unwrap() {
        tested.extend(calls(&fs::read_to_string(file.unwrap().path()).unwrap()));
    }
    // These are passed as function pointers.
    tested.extend(["fs_memory_anonymous", "fs_memory_shared"].map(str::to_owned));
    let untested: Vec<_> = declared.difference(&tested).collect();
    assert!(untested.is_empty(), "{untested:?}");
}

#[test]
fn the_shared_library_has_its_soname() {
    let dynamic = output("readelf", [OsStr::new("-d"), library("libfieldstone.so").as_os_str()]);
    assert!(dynamic.contains(&format!("soname: [{SONAME}]")), "{dynamic}");
}
