//! What the tests stand on: the command, the programs it is given, and the hugetlb pool for one test at a time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use fieldstone_report::{ProcessStats, RegionStats, RunStats};
use tempfile::TempDir;

/// Longer than anything takes that works.
const PATIENCE: Duration = Duration::from_secs(30);
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

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

pub(crate) fn wait_until<T>(what: &str, mut happens: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(it) = happens() {
            return it;
        }
        assert!(since.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
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

/// Sends a signal to a process, or with a minus before its number to its group.
pub(crate) fn kill(signal: &str, target: &str) {
    let status = Command::new("kill").args([&format!("-{signal}"), "--", target]).status().unwrap();
    assert!(status.success(), "kill -{signal} {target}");
}

/// The pool of 2 MiB pages, for one test at a time, with so many free pages; given back when it is dropped.
pub(crate) struct Pool {
    before: u64,
    _alone: File,
}

impl Pool {
    /// `None`, told as a skip, where this user cannot or the memory is not there.
    pub(crate) fn of(free: u64) -> Option<Self> {
        let path = std::env::temp_dir().join("fieldstone-hugetlb.lock");
        let alone = File::open(&path).or_else(|_| File::options().create(true).append(true).open(&path)).unwrap();
        alone.lock().unwrap();
        let (Some(pages), Some(there)) = (pool("nr_hugepages"), pool("free_hugepages")) else {
            println!("SKIP no hugetlb pool");
            return None;
        };
        let (promised, surplus) = (reserved_pages(), pool("surplus_hugepages").unwrap_or(0));
        let this = Self { before: pages - surplus, _alone: alone };
        let wanted = pages - there + promised + free;
        if set_pool(wanted).is_err() {
            println!("SKIP not root: the hugetlb pool cannot be changed");
            return None;
        }
        if pool("nr_hugepages") != Some(wanted) {
            println!("SKIP not enough memory for a hugetlb pool of {free} pages");
            return None;
        }
        Some(this)
    }
}

/// Pages of the pool that are promised to somebody.
pub(crate) fn reserved_pages() -> u64 {
    pool("resv_hugepages").unwrap_or(0)
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = set_pool(self.before);
    }
}

fn set_pool(pages: u64) -> std::io::Result<()> {
    fs::write(format!("{POOL}/nr_hugepages"), pages.to_string())
}

fn pool(file: &str) -> Option<u64> {
    fs::read_to_string(PathBuf::from(POOL).join(file)).ok()?.trim().parse().ok()
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
