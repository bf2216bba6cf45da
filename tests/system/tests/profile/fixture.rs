//! What the tests stand on: the command with a directory of its own, and eyes for what it leaves behind.
//!
//! Every process that a command starts inherits a variable of its test's own, so whatever is left of it can be found in
//! `/proc`, however it was reparented.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use assert_cmd::assert::OutputAssertExt;
use fieldstone_report::{Profile, Saved};
use tempfile::TempDir;

use crate::binaries;
pub(crate) use crate::binaries::workload;
use crate::common::{lock_file, wait_until};

/// A command with a directory of its own.
pub(crate) struct Fixture {
    pub(crate) directory: TempDir,
    temporary: TempDir,
    mark: String,
    /// Held as long as the test: shared, or alone by the one that switches transparent pages off.
    _turn: File,
}

impl Fixture {
    /// `None`, told as a skip, where the workloads are not built.
    pub(crate) fn new() -> Option<Self> {
        Self::with(File::lock_shared)
    }

    /// The same, while no other test has a fixture: for one that changes the machine's settings.
    pub(crate) fn alone() -> Option<Self> {
        Self::with(File::lock)
    }

    fn with(lock: fn(&File) -> std::io::Result<()>) -> Option<Self> {
        if !workload("odd").exists() || !workload("gups").exists() {
            println!("SKIP workloads not built: run make build");
            return None;
        }
        let (directory, temporary) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mark = directory.path().display().to_string();
        let turn = lock_file("fieldstone-transparent.lock");
        lock(&turn).unwrap();
        Some(Self { directory, temporary, mark, _turn: turn })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `fieldstone profile`, with words split at spaces.
    pub(crate) fn command(&self, options: &str, program: &[&str]) -> Command {
        let mut command = Command::new(binaries::command());
        command.arg("profile").args(options.split_whitespace()).arg("--").args(program);
        command.env("FIELDSTONE_TEST_MARK", &self.mark).env("TMPDIR", self.temporary.path());
        command.env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).stdin(Stdio::null());
        command
    }

    /// Runs it to its end, and checks that nothing is left.
    pub(crate) fn profile(&self, options: &str, program: &[&str]) -> Output {
        let output = self.command(options, program).output().unwrap();
        self.check_nothing_left();
        output
    }

    /// Runs it, which must fail with code 2; what it said.
    pub(crate) fn refused(&self, options: &str, program: &[&str]) -> String {
        let output = self.profile(options, program);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        output.assert().code(2).stdout("");
        said
    }

    /// Runs it with `--json`, which must end with `code`; what was measured.
    pub(crate) fn measured(&self, options: &str, program: &[&str], code: i32) -> Profile {
        let file = self.path("profile.json");
        let output = self.profile(&format!("{options} --json {}", file.display()), program);
        output.assert().code(code);
        load(&file)
    }

    /// Processes that came of the command and still run.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let mark = format!("FIELDSTONE_TEST_MARK={}", self.mark);
        let is_ours = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
        };
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
    }

    /// Waits until a process of the command is called `comm`; its number.
    pub(crate) fn wait_for(&self, comm: &str) -> u32 {
        let called = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == comm);
        wait_until(comm, || self.processes().into_iter().find(called))
    }

    /// No process (the one that gives settings back needs a moment), no file.
    pub(crate) fn check_nothing_left(&self) {
        wait_until("every process to be gone", || self.processes().is_empty().then_some(()));
        let left: Vec<_> = fs::read_dir(self.temporary.path()).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

pub(crate) fn load(file: &Path) -> Profile {
    match Saved::load(file) {
        Ok(Saved::Profile(profile)) => *profile,
        other => panic!("{other:?}"),
    }
}

/// Starts a command whose standard error is read until a line has `words`.
pub(crate) fn start_until(command: &mut Command, words: &str) -> Started {
    let mut child = Started(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(words) {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended without saying {words:?}");
    }
    // Read on, so that it never writes into a closed pipe.
    std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
    child
}

/// A command that runs; it does not outlive a test that fails.
pub(crate) struct Started(Child);

impl Started {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// How it ended: its code, or none where a signal ended it.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Which folio sizes are given to which memory, by the names of their directories.
pub(crate) fn folio_modes() -> Vec<(String, String)> {
    let sizes = fs::read_dir("/sys/kernel/mm/transparent_hugepage").into_iter().flatten().flatten();
    let mode = |entry: fs::DirEntry| {
        let mode = fs::read_to_string(entry.path().join("enabled")).ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), mode))
    };
    let mut modes: Vec<_> = sizes.filter_map(mode).collect();
    modes.sort();
    modes
}
