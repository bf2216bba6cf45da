//! The run time and its drivers as they are installed, and the compilers and linkers of this machine.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The crate's own folder.
pub(crate) const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Folder with the run time, built once for all tests of a binary.
pub(crate) fn library() -> &'static Path {
    static BUILT: OnceLock<tempfile::TempDir> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let out = tempfile::tempdir().unwrap();
            let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stacks");
            let built = Command::new(format!("{HERE}/../driver/build")).arg(out.path()).arg(target).output().unwrap();
            assert!(built.status.success(), "{}", text(&built));
            out
        })
        .path()
}

/// All that a process printed.
pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A driver with the run time that was built: `c` or `c++`.
pub(crate) fn driver(language: &str, compiler: &str) -> Command {
    let (name, variable) =
        if language == "c" { ("fieldstone-cc", "FIELDSTONE_CC") } else { ("fieldstone-c++", "FIELDSTONE_CXX") };
    let mut command = Command::new(library().join(name));
    command.env(variable, compiler);
    command.arg(format!("-I{HERE}/../include"));
    command
}

/// The compilers of a language that are there.
pub(crate) fn compilers(language: &str) -> Vec<&'static str> {
    let all = [("gcc", "g++"), ("clang", "clang++")];
    let named = all.into_iter().map(|(c, cxx)| if language == "c" { c } else { cxx });
    named.filter(|compiler| there(compiler)).collect()
}

/// The linkers that are there, as -fuse-ld names them.
pub(crate) fn linkers() -> Vec<&'static str> {
    let all = [("bfd", "ld.bfd"), ("gold", "ld.gold"), ("lld", "ld.lld"), ("mold", "ld.mold")];
    all.into_iter().filter(|(_, file)| there(file)).map(|(name, _)| name).collect()
}

/// Whether a program is installed; says SKIP if not.
pub(crate) fn there(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if !found.status.success() {
        println!("SKIP {program} is not installed");
    }
    found.status.success()
}

/// A program of the folder `programs`, compiled; where it lies.
pub(crate) fn compile(mut driver: Command, name: &str, options: &[&str], variant: &str) -> PathBuf {
    let program = library().join(format!("{}-{variant}", name.replace('.', "-")));
    let source = format!("{HERE}/tests/programs/{name}");
    let made = driver.arg("-g").args(options).arg("-o").arg(&program).arg(source).output().unwrap();
    assert!(made.status.success(), "{name} {variant}: {}", text(&made));
    program
}

/// A program to be run, for two minutes at most: one that loops with signals blocked is ended as well.
pub(crate) fn program(path: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "120"]).arg(path);
    command
}

/// Runs a program to its good end; what it printed.
pub(crate) fn run(command: &mut Command) -> String {
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{command:?}: {}\n{}", ran.status, text(&ran));
    String::from_utf8(ran.stdout).unwrap()
}
