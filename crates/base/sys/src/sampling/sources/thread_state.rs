//! A thread's state in `/proc`, read without allocation, for the tracer process, which must not
//! allocate. Source: proc_pid_stat(5).

use std::ffi::CStr;
use std::fmt::Write;
use std::ops::Deref;

use rustix::fs::{CWD, Mode, OFlags, openat};

/// Whether a thread of the process runs, and its CPU; `None` if it does not exist.
pub(super) fn thread_state(pid: libc::pid_t, tid: libc::pid_t) -> Option<(bool, u32)> {
    let file = openat(CWD, &*path(pid, Some(tid))?, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0; 1024];
    let got = rustix::io::read(&file, &mut bytes).ok()?;
    parse_state(bytes.get(..got)?)
}

/// State and CPU of a line of `/proc/PID/stat`: fields 1 and 37 after the name in parentheses.
fn parse_state(line: &[u8]) -> Option<(bool, u32)> {
    let end = line.iter().rposition(|&byte| byte == b')')?;
    let mut fields = line.get(end + 2..)?.split(|byte| byte.is_ascii_whitespace());
    let runs = fields.next()? == b"R";
    let cpu = std::str::from_utf8(fields.nth(35)?).ok()?.parse().ok()?;
    Some((runs, cpu))
}

/// A path in `/proc`, stored inline.
pub(super) struct ProcPath {
    /// The last byte stays zero.
    bytes: [u8; 64],
    len: usize,
}

impl Write for ProcPath {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.len + text.len();
        let free = self.bytes.get_mut(self.len..end).filter(|_| end < 64).ok_or(std::fmt::Error)?;
        free.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

impl Deref for ProcPath {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

/// The path of a process's thread list, or of a thread's stat.
pub(super) fn path(pid: libc::pid_t, tid: Option<libc::pid_t>) -> Option<ProcPath> {
    let mut path = ProcPath { bytes: [0; 64], len: 0 };
    match tid {
        None => write!(path, "/proc/{pid}/task").ok()?,
        Some(tid) => write!(path, "/proc/{pid}/task/{tid}/stat").ok()?,
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_has_state_and_cpu() {
        let line = b"4242 (a) R (b) S 17 4242 4242 34816 -1 4194304 120 0 3 0 250 50 1 2 20 0 4 0 98765 10485760 256 \
                     18446744073709551615 1 1 0 0 0 0 0 4096 0 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(parse_state(line), Some((false, 3)));
        assert_eq!(parse_state(b"1 (x) R 1"), None);
        assert_eq!(parse_state(b""), None);
    }

    #[test]
    fn the_calling_thread_runs_on_a_cpu() {
        let (pid, tid) = (rustix::process::getpid(), rustix::thread::gettid());
        let raw = |id: rustix::process::Pid| id.as_raw_nonzero().get();
        let (runs, cpu) = thread_state(raw(pid), raw(tid)).unwrap();
        assert!(runs && cpu < 65_536, "{cpu}");
        // Process 1 is no thread of this process.
        assert_eq!(thread_state(raw(pid), 1), None);
    }

    #[test]
    fn the_longest_path_fits() {
        assert_eq!(path(i32::MAX, Some(i32::MAX)).unwrap().to_bytes(), b"/proc/2147483647/task/2147483647/stat");
        assert_eq!(path(7, None).unwrap().to_bytes(), b"/proc/7/task");
    }
}
