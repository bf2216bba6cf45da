//! `/proc/PID/stat`: the resource usage and the parent of one process.
//!
//! Source: proc_pid_stat(5). The command's name is in parentheses and may itself contain spaces and
//! parentheses, so fields are counted from the *last* `)`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result, kernel_file};

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// On a CPU or ready to run.
    Running,
    /// Asleep, interruptibly or idle.
    Sleeping,
    /// Asleep in the kernel, uninterruptibly.
    DiskSleep,
    /// Stopped by a signal or a tracer.
    Stopped,
    /// Ended, not yet reaped.
    Zombie,
    /// Ended and being reaped.
    Dead,
    /// A state letter unknown to this crate.
    Other(char),
}

impl State {
    /// Whether the process has ended.
    #[must_use]
    pub const fn has_ended(self) -> bool {
        matches!(self, Self::Zombie | Self::Dead)
    }

    const fn from_letter(letter: char) -> Self {
        match letter {
            'R' => Self::Running,
            'S' | 'I' => Self::Sleeping,
            'D' => Self::DiskSleep,
            'T' | 't' => Self::Stopped,
            'Z' => Self::Zombie,
            'X' | 'x' => Self::Dead,
            other => Self::Other(other),
        }
    }
}

/// The fields of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// Process id.
    pub pid: u32,
    /// The command's name, truncated by the kernel to 15 bytes.
    pub comm: String,
    /// Its state.
    pub state: State,
    /// Parent process id; 0 for the first process of a pid namespace.
    pub ppid: u32,
    /// Process group.
    pub pgrp: u32,
    /// Session.
    pub session: u32,
    /// Page faults without disk reads.
    pub minor_faults: u64,
    /// Page faults with disk reads.
    pub major_faults: u64,
    /// User-mode time of all its threads.
    pub user_ns: u64,
    /// Kernel-mode time of all its threads.
    pub system_ns: u64,
    /// Number of threads.
    pub threads: u64,
    /// Start time in clock ticks since boot. Together with the pid it identifies a process
    /// uniquely, because pids are reused.
    pub start_ticks: u64,
    /// Size of the address space.
    pub virtual_bytes: u64,
    /// Resident memory, without hugetlb pages.
    pub resident_bytes: u64,
}

/// Reads `/proc/PID/stat`.
///
/// # Errors
/// [`Error::NoSuchProcess`] when it has ended and been reaped.
pub fn stat(pid: u32) -> Result<Stat> {
    let path = PathBuf::from(format!("/proc/{pid}/stat"));
    let bytes = fs::read(&path).map_err(|source| Error::process_file(pid, "read", &path, source))?;
    let line = String::from_utf8_lossy(&bytes);
    parse_stat(&line).ok_or_else(|| Error::malformed(&path, line))
}

/// Whether a process or thread has ended, reaped or not; true if it cannot be read. The first
/// thread of a process stays listed until all others have ended.
#[must_use]
pub fn has_ended(pid: u32) -> bool {
    stat(pid).map_or(true, |stat| stat.state.has_ended())
}

/// The command's name of a process, truncated to 15 bytes: `/proc/PID/comm`.
///
/// # Errors
/// As [`stat`].
pub fn comm(pid: u32) -> Result<String> {
    let path = PathBuf::from(format!("/proc/{pid}/comm"));
    let bytes = fs::read(&path).map_err(|source| Error::process_file(pid, "read", &path, source))?;
    Ok(String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned())
}

/// Whether a process has transparent huge pages disabled (`PR_SET_THP_DISABLE`). False if unknown.
#[must_use]
pub fn has_thp_disabled(pid: u32) -> bool {
    let status = kernel_file::text(format!("/proc/{pid}/status")).unwrap_or_default();
    kernel_file::field(&status, "THP_enabled") == Some("0")
}

/// The executable of a process: `/proc/PID/exe`. The path of a removed file ends in ` (deleted)`.
///
/// # Errors
/// As [`stat`]; [`Error::NoSuchProcess`] also for kernel threads and zombies, which have no
/// executable.
pub fn exe(pid: u32) -> Result<PathBuf> {
    let link = format!("/proc/{pid}/exe");
    fs::read_link(&link).map_err(|source| Error::process_file(pid, "read", Path::new(&link), source))
}

/// Parses a line of `/proc/PID/stat`; `None` for any other text.
#[must_use]
pub fn parse_stat(line: &str) -> Option<Stat> {
    let (pid, rest) = line.split_once(" (")?;
    let (comm, rest) = rest.rsplit_once(')')?;
    // fields[0] is field 3 of the manual page, the state.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |manual: usize| fields.get(manual - 3)?.parse::<u64>().ok();
    // Ids of a namespace that is not visible here are 0 or -1.
    let id = |manual: usize| fields.get(manual - 3)?.parse::<i32>().ok().map(|id| u32::try_from(id).unwrap_or(0));
    let page_bytes = u64::try_from(rustix::param::page_size()).ok()?;
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    Some(Stat {
        pid: pid.parse().ok()?,
        comm: comm.to_owned(),
        state: State::from_letter(fields.first()?.chars().next()?),
        ppid: id(4)?,
        pgrp: id(5)?,
        session: id(6)?,
        minor_faults: number(10)?,
        major_faults: number(12)?,
        user_ns: number(14)?.saturating_mul(tick_ns),
        system_ns: number(15)?.saturating_mul(tick_ns),
        threads: number(20)?,
        start_ticks: number(22)?,
        virtual_bytes: number(23)?,
        resident_bytes: number(24)?.saturating_mul(page_bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "4242 (a) (b c) S 17 4242 4242 34816 -1 4194304 120 0 3 0 250 50 1 2 20 0 4 0 98765 10485760 256 \
                        18446744073709551615 1 1 0 0 0 0 0 4096 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0";

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = parse_stat(LINE).unwrap();
        assert_eq!((stat.pid, stat.comm.as_str(), stat.state, stat.ppid), (4242, "a) (b c", State::Sleeping, 17));
        assert_eq!((stat.minor_faults, stat.major_faults, stat.threads, stat.start_ticks), (120, 3, 4, 98765));
        let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        assert_eq!((stat.user_ns, stat.system_ns), (250 * tick_ns, 50 * tick_ns));
        assert_eq!(stat.virtual_bytes, 10_485_760);
        assert_eq!(stat.resident_bytes, 256 * u64::try_from(rustix::param::page_size()).unwrap());
    }

    #[test]
    fn other_text_is_not_parsed() {
        for text in ["", "1", "1 (x", "1 (x)", "1 (x) R 2 3", "a (x) R 1 1 1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"] {
            assert_eq!(parse_stat(text), None, "{text:?}");
        }
    }

    #[test]
    fn our_own_line_has_our_ids() {
        let own = stat(std::process::id()).unwrap();
        assert_eq!(own.ppid, std::os::unix::process::parent_id());
        assert!(own.resident_bytes > 0 && own.threads > 0 && !own.state.has_ended());
        assert_eq!(comm(own.pid).unwrap(), own.comm);
        assert_eq!(exe(own.pid).unwrap(), std::env::current_exe().unwrap());
    }

    #[test]
    fn a_missing_process_is_an_error() {
        // Above the largest possible pid (4 Mi).
        assert!(matches!(stat(0x7fff_fff0), Err(Error::NoSuchProcess { pid: 0x7fff_fff0 })));
        assert!(matches!(comm(0x7fff_fff0), Err(Error::NoSuchProcess { .. })));
    }
}
