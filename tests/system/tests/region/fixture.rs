//! The fixture of the tests: the command, and the programs that it runs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use fieldstone_report::{ProcessStats, RegionStats, RunStats};
use fieldstone_sys::smaps;
use tempfile::TempDir;

use crate::binaries;

/// `fieldstone run --region`, with options split at spaces.
pub(crate) fn region(options: &str, program: &[&str]) -> Command {
    let mut command = Command::new(binaries::command());
    command.args(["run", "--region"]).args(options.split_whitespace()).arg("--").args(program);
    command.env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).stdin(Stdio::null());
    command
}

/// Runs `fieldstone attach --huge`, with options split at spaces. `None`, printed as a skip, if
/// this user may not.
pub(crate) fn collapsed(pid: u32, options: &str) -> Option<Output> {
    let output = collapse_command(pid, options).output().unwrap();
    let message = stderr(&output);
    if output.status.code() == Some(2) && (message.contains("CAP_SYS_NICE") || message.contains("from 6.1 on")) {
        println!("SKIP memory may not be collapsed from outside: {}", message.trim());
        return None;
    }
    Some(output)
}

/// `fieldstone attach --huge`, with options split at spaces.
pub(crate) fn collapse_command(pid: u32, options: &str) -> Command {
    let mut command = Command::new(binaries::command());
    command.args(["attach", "--huge", &pid.to_string()]).args(options.split_whitespace()).stdin(Stdio::null());
    command
}

/// A program that has printed a line and waits for the end of its standard input.
pub(crate) struct Waiting {
    pub(crate) running: Child,
    pub(crate) line: String,
}

impl Waiting {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut running = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(running.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        Self { running, line }
    }

    /// Closes its standard input and returns its exit status.
    pub(crate) fn end(mut self) -> ExitStatus {
        drop(self.running.stdin.take());
        self.running.wait().unwrap()
    }
}

/// Bytes on transparent huge pages in the mapping of process `pid` that contains `address`.
pub(crate) fn huge_at(pid: u32, address: u64) -> u64 {
    let mappings = smaps::read(pid).unwrap();
    mappings.iter().find(|mapping| mapping.range().contains(&address)).unwrap().anon_huge_bytes
}

/// Runs a program in a region.
pub(crate) fn run(options: &str, program: &[&str]) -> Output {
    region(options, program).output().unwrap()
}

/// Runs a program with `--stats`. Returns its output and the statistics.
pub(crate) fn counted(options: &str, program: &[&str]) -> (Output, RunStats) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stats.json");
    let output = run(&format!("{options} --stats {}", file.display()), program);
    let text = fs::read_to_string(&file).unwrap_or_default();
    let stats = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}: {}", stderr(&output)));
    (output, stats)
}

/// As [`counted`], for a program that must succeed. Returns the statistics of its primary process.
pub(crate) fn primary(options: &str, program: &[&str]) -> RegionStats {
    let (output, stats) = counted(options, program);
    assert!(output.status.success(), "{}", stderr(&output));
    stats.primary().unwrap().region.clone()
}

/// The bytes under reasons that contain `words`.
pub(crate) fn outside(stats: &RegionStats, words: &str) -> u64 {
    stats.outside.iter().filter(|outside| outside.reason.contains(words)).map(|outside| outside.bytes).sum()
}

/// Whether bytes are counted under a reason that contains `words`.
pub(crate) fn has_reason(process: &ProcessStats, words: &str) -> bool {
    process.region.outside.iter().any(|outside| outside.reason.contains(words))
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The path of a workload; `None`, printed as a skip, if it is not built.
pub(crate) fn workload(name: &str) -> Option<String> {
    let file = binaries::workload(name);
    if !file.exists() {
        println!("SKIP workloads not built: run make build");
        return None;
    }
    Some(file.to_str().unwrap().to_owned())
}

/// Compiles a C program. Returns its directory and path; `None`, printed as a skip, if it cannot be
/// compiled.
pub(crate) fn compiled(source: &str, options: &[&str]) -> Option<(TempDir, String)> {
    let directory = tempfile::tempdir().unwrap();
    let (code, file) = (directory.path().join("program.c"), directory.path().join("program"));
    fs::write(&code, source).unwrap();
    let built = Command::new("cc").arg("-o").args([&file, &code]).args(options).output();
    match built {
        Ok(output) if output.status.success() => Some((directory, file.to_str().unwrap().to_owned())),
        _ => {
            let may_be_missing = |option: &&str| option.starts_with("-static") || option.starts_with("-fsanitize");
            assert!(options.iter().any(may_be_missing), "cc {options:?}");
            println!("SKIP cc {} does not work here", options.join(" "));
            None
        }
    }
}

/// The child of `pid` that is called `name`.
pub(crate) fn child(pid: u32, name: &str) -> Option<u32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let called = |child: &u32| fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim() == name);
    listed.split_whitespace().filter_map(|child| child.parse().ok()).find(called)
}

pub(crate) fn is_running(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

/// Whether memory with huge-page advice gets transparent huge pages, as far as free ones exist.
pub(crate) fn has_transparent() -> bool {
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let has = enabled.contains("[always]") || enabled.contains("[madvise]");
    if !has {
        println!("SKIP transparent huge pages are switched off");
    }
    // Earlier tests may have fragmented memory. Without the right to compact it, it stays so.
    let _ = fs::write("/proc/sys/vm/compact_memory", "1");
    has
}
