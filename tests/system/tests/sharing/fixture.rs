//! The programs of `bench/workloads/src/sharing`, built for the test, and the command on them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tempfile::TempDir;

use crate::binaries;

/// A way to run the command.
pub(crate) type Run = fn(&[&str], &Path, &[&str]) -> Option<Output>;

/// Runs until two threads ran at the same time.
const ATTEMPTS: u32 = 4;

/// A folder with a program in it, and both processors for it alone, as far as these tests go.
pub(crate) struct Fixture {
    directory: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Fixture {
    /// `None`, told as a skip, where this user may not look into other processes or there is no C compiler.
    pub(crate) fn new() -> Option<Self> {
        if Command::new("cc").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIP there is no C compiler");
            return None;
        }
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Self { directory: tempfile::tempdir().unwrap(), _alone: alone })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Builds a program of the workloads.
    pub(crate) fn build(&self, name: &str, options: &[&str]) -> PathBuf {
        self.compile("cc", name, &workload(&format!("{name}.c")), options)
    }

    /// Builds a program of the workloads that is in C++; `None`, reported as a skip, where there is no compiler for it.
    pub(crate) fn build_cpp(&self, name: &str, options: &[&str]) -> Option<PathBuf> {
        if Command::new("c++").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIP there is no C++ compiler");
            return None;
        }
        let options = [&["-std=c++17"], options].concat();
        Some(self.compile("c++", name, &workload(&format!("{name}.cpp")), &options))
    }

    /// Builds this text of C.
    pub(crate) fn build_text(&self, name: &str, text: &str, options: &[&str]) -> PathBuf {
        let source = self.path(&format!("{name}.c"));
        std::fs::write(&source, text).unwrap();
        self.compile("cc", name, &source, options)
    }

    fn compile(&self, compiler: &str, name: &str, source: &Path, options: &[&str]) -> PathBuf {
        let program = self.path(&format!("{name}{}", options.concat().replace('-', "")));
        let built =
            Command::new(compiler).args(options).args(["-pthread", "-o"]).arg(&program).arg(source).arg("-lm").status();
        assert!(built.unwrap().success(), "{name}");
        program
    }
}

/// A file of the workloads.
fn workload(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/workloads/src/sharing").join(name)
}

/// The command, with no input.
pub(crate) fn fieldstone(arguments: &[&str]) -> Command {
    let mut command = Command::new(binaries::command());
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs it on a program. `None`, told as a skip, where the kernel or its settings forbid it.
pub(crate) fn run(options: &[&str], program: &Path, arguments: &[&str]) -> Option<Output> {
    let mut command = fieldstone(options);
    let output = command.arg("--").arg(program).args(arguments).output().unwrap();
    if is_forbidden(&said(&output)) {
        return None;
    }
    Some(output)
}

/// Whether it said that the kernel or its settings forbid it; that is told as a skip.
pub(crate) fn is_forbidden(said: &str) -> bool {
    let settings = ["perf_event_paranoid", "ptrace_scope", "unprivileged_userfaultfd"];
    let is_forbidden = settings.iter().any(|setting| said.contains(setting));
    if is_forbidden {
        println!("SKIP other processes may not be looked into: {}", said.trim());
    }
    is_forbidden
}

/// The same for a program whose threads are to run at the same time. `None`, told as a skip, where they do not: then they do not fight.
pub(crate) fn run_together(options: &[&str], program: &Path, arguments: &[&str]) -> Option<Output> {
    for _ in 0..ATTEMPTS {
        let output = run(options, program, arguments)?;
        if ran_together(&said(&output)) {
            return Some(output);
        }
    }
    did_not_run_together(program);
    None
}

/// Whether a program's two threads ran at the same time, as it says itself.
pub(crate) fn ran_together(said: &str) -> bool {
    let number = said.lines().find_map(|line| line.strip_suffix(" processors at work"));
    number.and_then(|number| number.trim().parse().ok()).unwrap_or(0.0) >= 1.6
}

pub(crate) fn did_not_run_together(program: &Path) {
    println!("SKIP two threads of {} did not run at the same time", program.display());
}

/// What it said on standard error.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The seconds that a program's threads took, as it says itself.
pub(crate) fn kernel_s(output: &Output) -> f64 {
    let said = said(output);
    let seconds = said.lines().find_map(|line| line.strip_prefix("kernel: ")?.trim().parse().ok());
    seconds.unwrap_or_else(|| panic!("no time: {said}"))
}

/// The program's own last word.
pub(crate) fn checksum(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("checksum:"));
    line.unwrap_or_else(|| panic!("no checksum: {text}{}", said(output))).to_owned()
}

/// So many iterations that `counters` takes about so long here, its threads sharing nothing: an iteration takes one cycle or six, by the
/// processor.
pub(crate) fn iterations_for(program: &Path, seconds: f64) -> String {
    const TRIED: u32 = 100_000_000;
    let times = (0..3).map(|_| {
        let begun = Instant::now();
        let output = Command::new(program).args(["--pattern", "padded", "--iterations", &TRIED.to_string()]).output();
        assert!(output.is_ok_and(|output| output.status.success()), "{}", program.display());
        begun.elapsed().as_secs_f64()
    });
    let fastest = times.fold(f64::INFINITY, f64::min);
    format!("{:.0}", f64::from(TRIED) * seconds / fastest)
}

/// Sends SIGINT, as a terminal's Ctrl-C does.
pub(crate) fn interrupt(pid: u32) {
    let status = Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill -INT {pid}");
}
