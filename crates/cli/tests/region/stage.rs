//! What the tests stand on: the command, the programs it is given.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fieldstone_report::{ProcessStats, RegionStats, RunStats};
use tempfile::TempDir;

/// `fieldstone run --region`, with options split at spaces. No agent of ours is hidden in the environment that it gets.
pub(crate) fn region(options: &str, program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fieldstone"));
    command.args(["run", "--region"]).args(options.split_whitespace()).arg("--").args(program);
    command.env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).stdin(Stdio::null());
    command
}

/// Runs a program in a region to its end.
pub(crate) fn run(options: &str, program: &[&str]) -> Output {
    region(options, program).output().unwrap()
}

/// Runs it with `--stats`; what it printed, and what was counted.
pub(crate) fn counted(options: &str, program: &[&str]) -> (Output, RunStats) {
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("stats.json");
    let output = run(&format!("{options} --stats {}", file.display()), program);
    let text = fs::read_to_string(&file).unwrap_or_default();
    let stats = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}: {}", said(&output)));
    (output, stats)
}

/// Runs it as [`counted`], to a good end; what its primary process did.
pub(crate) fn primary(options: &str, program: &[&str]) -> RegionStats {
    let (output, stats) = counted(options, program);
    assert!(output.status.success(), "{}", said(&output));
    stats.primary().unwrap().region.clone()
}

/// The bytes that were counted under a reason that contains `words`.
pub(crate) fn outside(stats: &RegionStats, words: &str) -> u64 {
    stats.outside.iter().filter(|outside| outside.reason.contains(words)).map(|outside| outside.bytes).sum()
}

/// Whether something was counted under a reason that contains `words`.
pub(crate) fn tells(process: &ProcessStats, words: &str) -> bool {
    process.region.outside.iter().any(|outside| outside.reason.contains(words))
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The file of a workload, as a word; `None`, told as a skip, where it is not built.
pub(crate) fn workload(name: &str) -> Option<String> {
    let file = Path::new(env!("CARGO_BIN_EXE_fieldstone")).with_file_name(name);
    if !file.exists() {
        println!("SKIP workloads not built: run make build");
        return None;
    }
    Some(file.to_str().unwrap().to_owned())
}

/// A compiled C program and the room that it lies in; `None`, told as a skip, where it cannot be compiled so.
pub(crate) fn compiled(source: &str, options: &[&str]) -> Option<(TempDir, String)> {
    let room = tempfile::tempdir().unwrap();
    let (code, file) = (room.path().join("program.c"), room.path().join("program"));
    fs::write(&code, source).unwrap();
    let built = Command::new("cc").arg("-o").args([&file, &code]).args(options).output();
    match built {
        Ok(output) if output.status.success() => Some((room, file.to_str().unwrap().to_owned())),
        _ => {
            println!("SKIP cc {} does not work here", options.join(" "));
            None
        }
    }
}

/// The processes below `pid`, by name.
pub(crate) fn child(pid: u32, name: &str) -> Option<u32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let called = |child: &u32| fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim() == name);
    listed.split_whitespace().filter_map(|child| child.parse().ok()).find(called)
}

pub(crate) fn is_running(pid: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit(')').next().is_some_and(|rest| !rest.trim().is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

/// Whether memory that asks for it gets transparent huge pages.
pub(crate) fn has_transparent() -> bool {
    let enabled = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let has = enabled.contains("[always]") || enabled.contains("[madvise]");
    if !has {
        println!("SKIP transparent huge pages are switched off");
    }
    has
}
