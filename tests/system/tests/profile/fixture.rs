//! The fixture of the tests: the command in its own directory, and checks for remaining processes
//! and files.
//!
//! Every process that a command starts inherits a variable of its test, so that it can be found in
//! `/proc` after its parent has ended.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use assert_cmd::assert::OutputAssertExt;
use fieldstone_report::{Profile, SavedFile};
use tempfile::TempDir;

use crate::binaries;
pub(crate) use crate::binaries::workload;
use crate::common::{lock_file, wait_until};

/// A directory in which the command runs.
pub(crate) struct Fixture {
    pub(crate) directory: TempDir,
    temporary: TempDir,
    mark: String,
    /// Locked during the test: shared, or exclusive for a test that disables transparent pages.
    _turn: File,
}

impl Fixture {
    /// `None`, printed as a skip, if the workloads are not built.
    pub(crate) fn new() -> Option<Self> {
        Self::with(File::lock_shared)
    }

    /// As [`Self::new`], while no other test has a fixture: for a test that changes settings of
    /// the machine.
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

    /// `fieldstone profile`, with options split at spaces.
    pub(crate) fn command(&self, options: &str, program: &[&str]) -> Command {
        let mut command = Command::new(binaries::command());
        command.arg("profile").args(options.split_whitespace()).arg("--").args(program);
        command.env("FIELDSTONE_TEST_MARK", &self.mark).env("TMPDIR", self.temporary.path());
        command.env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).stdin(Stdio::null());
        command
    }

    /// Runs the command, and checks that nothing remains.
    pub(crate) fn profile(&self, options: &str, program: &[&str]) -> Output {
        let output = self.command(options, program).output().unwrap();
        self.check_nothing_left();
        output
    }

    /// Runs the command, which must fail with code 2. Returns its standard error.
    pub(crate) fn refused(&self, options: &str, program: &[&str]) -> String {
        let output = self.profile(options, program);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        output.assert().code(2).stdout("");
        message
    }

    /// Runs the command with `--json`, which must return `code`. Returns the measurements.
    pub(crate) fn measured(&self, options: &str, program: &[&str], code: i32) -> Profile {
        let file = self.path("profile.json");
        let output = self.profile(&format!("{options} --json {}", file.display()), program);
        output.assert().code(code);
        load(&file)
    }

    /// The running processes that the command started.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let mark = format!("FIELDSTONE_TEST_MARK={}", self.mark);
        let is_ours = |pid: &u32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes())
        };
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
    }

    /// Waits until a process of the command is called `comm`. Returns its number.
    pub(crate) fn wait_for(&self, comm: &str) -> u32 {
        let called = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == comm);
        wait_until(comm, || self.processes().into_iter().find(called))
    }

    /// Checks that no process remains (the one that restores settings needs a moment), and no
    /// file.
    pub(crate) fn check_nothing_left(&self) {
        wait_until("every process to be gone", || self.processes().is_empty().then_some(()));
        let left: Vec<_> = fs::read_dir(self.temporary.path()).unwrap().flatten().map(|entry| entry.path()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

pub(crate) fn load(file: &Path) -> Profile {
    match SavedFile::load(file) {
        Ok(SavedFile::Profile(profile)) => *profile,
        other => panic!("{other:?}"),
    }
}

/// Starts a command and reads its standard error until a line contains `words`.
pub(crate) fn start_until(command: &mut Command, words: &str) -> RunningCommand {
    let mut child = RunningCommand(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains(words) {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "it ended without saying {words:?}");
    }
    // Read on, so that it never writes to a closed pipe.
    std::thread::spawn(move || lines.read_to_end(&mut Vec::new()));
    child
}

/// A running command, killed when dropped.
pub(crate) struct RunningCommand(Child);

impl RunningCommand {
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Waits for its end. Returns its exit code, or `None` if a signal ended it.
    pub(crate) fn code(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for RunningCommand {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The modes of all folio sizes, with the names of their directories.
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
