//! Who a process is: the names it goes by, and its number as it sees it itself.
//!
//! The agent knows its process by the name of its file or the one it was called by, and by the number that getpid(2)
//! tells it. In a pid namespace of its own (a container) that number is another than ours; the kernel lists both in the
//! `NSpid` line of `/proc/PID/status`, innermost last.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fieldstone_sys::process;

/// A process's names and number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// Its file's name, and the one it was called by; the kernel's short name where neither can be read.
    names: Vec<String>,
    /// Its number in its own pid namespace.
    pub(crate) inner_pid: u32,
}

impl Identity {
    /// Asks the kernel about `pid`; `comm` is its short name.
    pub(crate) fn of(pid: u32, comm: &str) -> Self {
        let exe = process::exe(pid).ok();
        // A file that was replaced while it runs ends so.
        let file = exe.as_deref().and_then(base_name).map(|name| name.trim_end_matches(" (deleted)").to_owned());
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let called = arguments.split(|&byte| byte == 0).next().and_then(|word| base_name(OsStr::from_bytes(word)));
        let mut names: Vec<String> = file.into_iter().chain(called).collect();
        if names.is_empty() {
            names.push(comm.to_owned());
        }
        Self { names, inner_pid: inner_pid(pid) }
    }

    #[cfg(test)]
    pub(crate) fn named(names: Vec<String>, inner_pid: u32) -> Self {
        Self { names, inner_pid }
    }

    /// Whether both names are known. In the midst of an exec the second is not there yet.
    pub(crate) fn is_whole(&self) -> bool {
        self.names.len() == 2
    }

    /// Whether `name` is one of its names.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }
}

/// The number that process `pid` knows itself by; `pid` where the kernel does not say.
pub(crate) fn inner_pid(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    innermost(&status).unwrap_or(pid)
}

fn innermost(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

fn base_name(path: impl AsRef<Path>) -> Option<String> {
    path.as_ref().file_name().map(|name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_number_counts() {
        assert_eq!(innermost("Name:\tx\nNSpid:\t4242\t17\t1\nNSpgid:\t1\n"), Some(1));
        assert_eq!(innermost("NSpid:\t4242\n"), Some(4242));
        assert_eq!(innermost("Name:\tx\n"), None);
        assert_eq!(inner_pid(std::process::id()), std::process::id());
    }

    #[test]
    fn a_process_is_called_as_its_file_and_as_it_was_called() {
        let mut child = std::process::Command::new("sh");
        std::os::unix::process::CommandExt::arg0(&mut child, "-other");
        let mut child = child.args(["-c", "read line"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let identity = loop {
            let identity = Identity::of(child.id(), "comm");
            if identity.is_whole() {
                break identity;
            }
            std::thread::yield_now();
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(identity.is_called("-other"), "{identity:?}");
        assert!(identity.is_called("sh") || identity.is_called("dash") || identity.is_called("bash"), "{identity:?}");
        assert!(!identity.is_called("comm"));
    }

    #[test]
    fn a_process_that_has_gone_keeps_its_short_name() {
        assert!(Identity::of(0x7fff_fff0, "gone").is_called("gone"));
    }
}
