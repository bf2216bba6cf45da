//! The run time and its drivers as installed, and the compilers and linkers on this machine.

#![allow(dead_code, reason = "each test binary uses some of these")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The crate's folder.
pub(crate) const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A directory with the run time, built once for all tests of a binary.
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

/// The stdout and stderr of a process.
pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The driver of a language, `c` or `c++`, from the built directory.
pub(crate) fn driver(language: &str, compiler: &str) -> Command {
    let (name, variable) =
        if language == "c" { ("fieldstone-cc", "FIELDSTONE_CC") } else { ("fieldstone-c++", "FIELDSTONE_CXX") };
    let mut command = Command::new(library().join(name));
    command.env(variable, compiler);
    command.arg(format!("-I{HERE}/../include"));
    command
}

/// The installed compilers of a language.
pub(crate) fn compilers(language: &str) -> Vec<&'static str> {
    let all = [("gcc", "g++"), ("clang", "clang++")];
    let named = all.into_iter().map(|(c, cxx)| if language == "c" { c } else { cxx });
    named.filter(|compiler| is_installed(compiler)).collect()
}

/// The installed linkers, by their -fuse-ld names.
pub(crate) fn linkers() -> Vec<&'static str> {
    let all = [("bfd", "ld.bfd"), ("gold", "ld.gold"), ("lld", "ld.lld"), ("mold", "ld.mold")];
    all.into_iter().filter(|(_, file)| is_installed(file)).map(|(name, _)| name).collect()
}

/// Whether a program is installed; prints SKIP if not.
pub(crate) fn is_installed(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if !found.status.success() {
        println!("SKIP {program} is not installed");
    }
    found.status.success()
}

/// Compiles a program of the folder `programs` and returns its path.
pub(crate) fn compile(mut driver: Command, name: &str, options: &[&str], variant: &str) -> PathBuf {
    let program = library().join(format!("{}-{variant}", name.replace('.', "-")));
    let source = format!("{HERE}/tests/programs/{name}");
    let made = driver.arg("-g").args(options).arg("-o").arg(&program).arg(source).output().unwrap();
    assert!(made.status.success(), "{name} {variant}: {}", text(&made));
    program
}

/// A command that runs a program for at most two minutes, and kills it even if it blocks signals.
pub(crate) fn program(path: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "120"]).arg(path);
    command
}

/// Runs a command that must succeed, and returns its stdout.
pub(crate) fn run(command: &mut Command) -> String {
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{command:?}: {}\n{}", ran.status, text(&ran));
    String::from_utf8(ran.stdout).unwrap()
}
