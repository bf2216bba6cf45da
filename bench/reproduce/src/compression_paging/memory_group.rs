//! A memory control group of version 1 with swap space of its own: zram, a file, or none.
//!
//! ```text
//! this process                       sh memory_group.sh (ignores signals)
//! MemoryGroup::new ─ start ────────▶ lock, make the group, add the swap space
//!                  ◀──────── ready ─
//! dropped, or this process killed ─▶ kill the processes, remove swap space, group and file
//! ```
//! The shell does all the work and holds the lock, so nothing remains after a kill of this process.
//! Swap space serves all programs of a machine, so one group exists at a time: others wait.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::RunFailure;
use crate::sibling_programs::Missing;

const SCRIPT: &str = include_str!("memory_group.sh");
/// Moves the shell into the group and becomes the program.
const ENTER: &str = r#"echo $$ > "$0" && exec "$@""#;
/// Bytes by which the limit sinks at once. A group whose limit drops at once is killed more often.
const STEP_BYTES: u64 = 16 << 20;
const STEP_TIME_LIMIT: Duration = Duration::from_secs(20);

/// Where a group's pages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapSpace {
    /// Nowhere; only pages of files leave memory.
    None,
    /// A new zram device that compresses by lz4.
    Zram,
    /// A new file on the disk.
    File,
}

/// A control group whose limit can be lowered. Dropping it kills its processes.
#[derive(Debug)]
pub struct MemoryGroup {
    directory: PathBuf,
    guard: Child,
}

impl MemoryGroup {
    /// Makes a group without a limit, and its swap space of `swap_bytes`. Waits for other groups.
    ///
    /// # Errors
    /// [`Missing`] if this machine or this user cannot.
    pub fn new(swap: SwapSpace, swap_bytes: u64) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let hierarchy = memory_hierarchy().ok_or_else(|| Missing("no memory control groups of version 1".into()))?;
        let name = format!("fieldstone-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let directory = hierarchy.join(&name);
        let kind = match swap {
            SwapSpace::None => "none",
            SwapSpace::Zram => "zram",
            SwapSpace::File => "file",
        };
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh", kind]).arg(&directory).arg(disk_directory().join(name));
        command.arg(swap_bytes.to_string()).arg(lock_file()?);
        // In a process group of its own: `timeout -s KILL` kills the whole group.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let guard = command.spawn().context("cannot start sh")?;
        let mut this = Self { directory, guard };
        this.wait_until_ready().map(|()| this)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let output = self.guard.stdout.take().context("the output is piped")?;
        let mut reason = Vec::new();
        // Terminates: the shell ends, or gets the lock that another one keeps for a run.
        for line in BufReader::new(output).lines() {
            match line?.as_str() {
                "ready" => return Ok(()),
                line => reason.push(line.to_owned()),
            }
        }
        Err(Missing(format!("no control group with swap space: {}", reason.join("; "))).into())
    }

    /// The command of a program that runs in the group.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", ENTER]).arg(self.directory.join("cgroup.procs")).arg(program);
        command
    }

    /// Lowers the limit to `bytes`, in steps.
    ///
    /// # Errors
    /// [`RunFailure::Hung`] if the kernel cannot reclaim so much; an error of a file.
    pub fn lower_limit(&self, bytes: u64) -> Result<()> {
        let mut limit = self.usage_bytes()?;
        while limit > bytes {
            limit = limit.saturating_sub(STEP_BYTES).max(bytes);
            self.set_limit(limit)?;
        }
        self.set_limit(bytes)
    }

    /// Removes the limit.
    ///
    /// # Errors
    /// An error of a file.
    pub fn remove_limit(&self) -> Result<()> {
        self.write_limit("-1")?.context("the kernel removes a limit at once")
    }

    fn usage_bytes(&self) -> Result<u64> {
        let path = self.directory.join("memory.usage_in_bytes");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        text.trim().parse().with_context(|| format!("{} contains {text}", path.display()))
    }

    fn set_limit(&self, bytes: u64) -> Result<()> {
        let since = Instant::now();
        while self.write_limit(&bytes.to_string())?.is_none() {
            ensure!(since.elapsed() < STEP_TIME_LIMIT, RunFailure::Hung);
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// `None` if the kernel tried to reclaim memory and could not.
    fn write_limit(&self, limit: &str) -> Result<Option<()>> {
        let path = self.directory.join("memory.limit_in_bytes");
        match fs::write(&path, limit) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(None),
            result => result.map(Some).with_context(|| format!("cannot write {}", path.display())),
        }
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

/// A directory on a disk for files that must not take memory: `$TMPDIR`, or `/var/tmp`.
pub(super) fn disk_directory() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

/// Where the memory controller of version 1 is mounted.
fn memory_hierarchy() -> Option<PathBuf> {
    hierarchy_of(&fs::read_to_string("/proc/mounts").ok()?)
}

fn hierarchy_of(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let [_, place, kind, options, ..] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        (kind == "cgroup" && options.split(',').any(|option| option == "memory")).then(|| Path::new(place).to_owned())
    })
}

/// The file that the shell locks. It may belong to another user; reading it is enough.
fn lock_file() -> Result<PathBuf> {
    let path = std::env::temp_dir().join("fieldstone-swap.lock");
    let file = File::open(&path).or_else(|_| File::options().create(true).append(true).open(&path));
    file.with_context(|| format!("cannot open {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group whose swap space is on; `None`, printed as a skip, if this machine cannot.
    fn group(swap: SwapSpace) -> Option<MemoryGroup> {
        match MemoryGroup::new(swap, 64 << 20) {
            Ok(group) => Some(group),
            Err(error) => {
                println!("SKIP no control group with swap space: {error}");
                None
            }
        }
    }

    fn is_swap_on(name: &str) -> bool {
        fs::read_to_string("/proc/swaps").unwrap().contains(name)
    }

    /// The name of the swap space of the group, by its priority.
    fn own_swap() -> String {
        let swaps = fs::read_to_string("/proc/swaps").unwrap();
        let line = swaps.lines().find(|line| line.ends_with("32767")).expect(&swaps);
        line.split_whitespace().next().unwrap().to_owned()
    }

    #[test]
    fn a_dropped_group_leaves_nothing() {
        for swap in [SwapSpace::None, SwapSpace::Zram, SwapSpace::File] {
            let Some(group) = group(swap) else { return };
            let name = if swap == SwapSpace::None { "none".to_owned() } else { own_swap() };
            let mut child = group.command("sleep").arg("1000").spawn().unwrap();
            let directory = group.directory.clone();
            while fs::read_to_string(directory.join("cgroup.procs")).unwrap().is_empty() {
                sleep(Duration::from_millis(1));
            }
            drop(group);
            assert!(!child.wait().unwrap().success(), "its processes are killed");
            assert!(!directory.exists() && !is_swap_on(&name) && !Path::new(&name).is_file(), "{name}");
            if let Some(device) = name.strip_prefix("/dev/") {
                assert!(!Path::new("/sys/block").join(device).exists(), "{device}");
            }
        }
    }

    /// As after a kill of this process: only the end of the pipe reaches the shell.
    #[test]
    fn the_shell_removes_everything_when_the_pipe_closes() {
        let Some(mut group) = group(SwapSpace::Zram) else { return };
        let swap = own_swap();
        let mut child = group.command("sleep").arg("1000").spawn().unwrap();
        let shell = rustix::process::Pid::from_child(&group.guard);
        rustix::process::kill_process(shell, rustix::process::Signal::TERM).unwrap();
        assert_eq!(rustix::process::getpgid(Some(shell)), Ok(shell), "a kill of this process group spares it");
        assert!(is_swap_on(&swap), "a signal of a terminal does not end the shell");
        drop(group.guard.stdin.take());
        let since = Instant::now();
        while group.directory.exists() && since.elapsed() < Duration::from_secs(20) {
            sleep(Duration::from_millis(10));
        }
        assert!(!group.directory.exists() && !is_swap_on(&swap));
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_limit_moves_memory_to_the_swap_space() {
        let Some(group) = group(SwapSpace::Zram) else { return };
        let script = "x=$(head -c 30000000 /dev/zero | tr '\\0' x); sleep 1000";
        let mut child = group.command("sh").args(["-c", script]).spawn().unwrap();
        let since = Instant::now();
        while group.usage_bytes().unwrap() < 30_000_000 && since.elapsed() < Duration::from_secs(20) {
            sleep(Duration::from_millis(10));
        }
        group.lower_limit(16 << 20).unwrap();
        assert!(group.usage_bytes().unwrap() <= 16 << 20);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn only_the_memory_controller_of_version_1_counts() {
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw,memory 0 0\ncgroup /a cgroup rw,cpu 0 0\n";
        assert_eq!(hierarchy_of(mounts), None);
        let mounts = format!("{mounts}cgroup /b cgroup rw,relatime,memory 0 0\n");
        assert_eq!(hierarchy_of(&mounts), Some("/b".into()));
    }
}
