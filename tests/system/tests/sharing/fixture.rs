//! The fixture of the tests: programs of `bench/workloads/src/sharing`, compiled for the test, and
//! the command.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tempfile::TempDir;

use crate::binaries;

/// A function that runs the command on a program.
pub(crate) type RunCommand = fn(&[&str], &Path, &[&str]) -> Option<Output>;

/// The most runs until two threads run at the same time.
const ATTEMPTS: u32 = 4;

/// A directory for programs. Tests with one run one at a time, so that both processors are free.
pub(crate) struct SharingFixture {
    directory: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl SharingFixture {
    /// `None`, printed as a skip, if there is no C compiler.
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

    /// Compiles a workload.
    pub(crate) fn build(&self, name: &str, options: &[&str]) -> PathBuf {
        self.compile("cc", name, &workload(&format!("{name}.c")), options)
    }

    /// Compiles a workload in C++; `None`, printed as a skip, if there is no compiler.
    pub(crate) fn build_cpp(&self, name: &str, options: &[&str]) -> Option<PathBuf> {
        if Command::new("c++").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIP there is no C++ compiler");
            return None;
        }
        let options = [&["-std=c++17"], options].concat();
        Some(self.compile("c++", name, &workload(&format!("{name}.cpp")), &options))
    }

    /// Compiles C source text.
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

/// The source file of a workload.
fn workload(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/workloads/src/sharing").join(name)
}

/// The command, with empty input.
pub(crate) fn fieldstone(arguments: &[&str]) -> Command {
    let mut command = Command::new(binaries::command());
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs the command on a program. `None`, printed as a skip, if the kernel or its settings forbid
/// it.
pub(crate) fn run(options: &[&str], program: &Path, arguments: &[&str]) -> Option<Output> {
    let mut command = fieldstone(options);
    let output = command.arg("--").arg(program).args(arguments).output().unwrap();
    if is_forbidden(&stderr(&output)) {
        return None;
    }
    Some(output)
}

/// Whether the message reports that the kernel or its settings forbid the command; printed as a
/// skip.
pub(crate) fn is_forbidden(message: &str) -> bool {
    let settings = ["perf_event_paranoid", "ptrace_scope", "unprivileged_userfaultfd"];
    let is_forbidden = settings.iter().any(|setting| message.contains(setting));
    if is_forbidden {
        println!("SKIP other processes may not be looked into: {}", message.trim());
    }
    is_forbidden
}

/// As [`run`], until the program's threads run at the same time. `None`, printed as a skip, if they
/// never do: then they do not contend.
pub(crate) fn run_together(options: &[&str], program: &Path, arguments: &[&str]) -> Option<Output> {
    for _ in 0..ATTEMPTS {
        let output = run(options, program, arguments)?;
        if ran_together(&stderr(&output)) {
            return Some(output);
        }
    }
    did_not_run_together(program);
    None
}

/// Whether the program reports that its two threads ran at the same time.
pub(crate) fn ran_together(message: &str) -> bool {
    let number = message.lines().find_map(|line| line.strip_suffix(" processors at work"));
    number.and_then(|number| number.trim().parse().ok()).unwrap_or(0.0) >= 1.6
}

pub(crate) fn did_not_run_together(program: &Path) {
    println!("SKIP two threads of {} did not run at the same time", program.display());
}

/// The standard error of a command.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The seconds of the program's threads, as the program reports.
pub(crate) fn kernel_s(output: &Output) -> f64 {
    let message = stderr(output);
    let seconds = message.lines().find_map(|line| line.strip_prefix("kernel: ")?.trim().parse().ok());
    seconds.unwrap_or_else(|| panic!("no time: {message}"))
}

/// The line with the program's result.
pub(crate) fn checksum(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.starts_with("checksum:"));
    line.unwrap_or_else(|| panic!("no checksum: {text}{}", stderr(output))).to_owned()
}

/// The iterations for which `counters` takes about `seconds` here without sharing: an iteration
/// takes one to six cycles, depending on the processor.
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

/// How many times as long `counters` takes with counters in one line as with padded ones. Some processors
/// keep the line of optimized code for many accesses: there, nothing is to be gained.
pub(crate) fn slowdown_by_sharing(program: &Path, arguments: &[&str]) -> f64 {
    let fastest = |pattern: &[&str]| {
        let times = (0..2).map(|_| kernel_s(&Command::new(program).args(arguments).args(pattern).output().unwrap()));
        times.fold(f64::INFINITY, f64::min)
    };
    fastest(&[]) / fastest(&["--pattern", "padded"])
}

/// Sends SIGINT, as Ctrl-C on a terminal.
pub(crate) fn interrupt(pid: u32) {
    let status = Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill -INT {pid}");
}
