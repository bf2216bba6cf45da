//! The names of a process, and its number in its own pid namespace.
//!
//! The agent identifies its process by the name of the executable file or by `argv[0]`, and by the
//! number that getpid(2) returns. In a container that number differs from the one outside. The
//! kernel lists both in the `NSpid` line of `/proc/PID/status`, innermost last.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fieldstone_sys::process;

/// A process's names and number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The base names of the executable file and of `argv[0]`; `comm` if neither can be read.
    names: Vec<String>,
    /// The process's number in its own pid namespace.
    pub(crate) inner_pid: u32,
}

impl Identity {
    /// Reads the identity of process `pid` from `/proc`; `comm` is its name of at most 15 bytes.
    pub(crate) fn of(pid: u32, comm: &str) -> Self {
        let exe = process::exe(pid).ok();
        // The kernel appends this to the path of a file that was unlinked.
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
    pub(crate) fn with_names(names: Vec<String>, inner_pid: u32) -> Self {
        Self { names, inner_pid }
    }

    /// Whether both names are known. During an exec the kernel does not yet show `argv[0]`.
    pub(crate) fn is_complete(&self) -> bool {
        self.names.len() == 2
    }

    /// Whether the process has this name.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }
}

/// The number of process `pid` in its own pid namespace; `pid` if the kernel does not report it.
#[must_use]
pub fn inner_pid(pid: u32) -> u32 {
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
    fn the_innermost_pid_is_used() {
        assert_eq!(innermost("Name:\tx\nNSpid:\t4242\t17\t1\nNSpgid:\t1\n"), Some(1));
        assert_eq!(innermost("NSpid:\t4242\n"), Some(4242));
        assert_eq!(innermost("Name:\tx\n"), None);
        assert_eq!(inner_pid(std::process::id()), std::process::id());
    }

    #[test]
    fn a_process_has_the_names_of_its_file_and_of_argv0() {
        let mut child = std::process::Command::new("sh");
        std::os::unix::process::CommandExt::arg0(&mut child, "-other");
        let mut child = child.args(["-c", "read line"]).stdin(std::process::Stdio::piped()).spawn().unwrap();
        let identity = loop {
            let identity = Identity::of(child.id(), "comm");
            if identity.is_complete() {
                break identity;
            }
            std::thread::yield_now();
        };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(identity.has_name("-other"), "{identity:?}");
        assert!(identity.has_name("sh") || identity.has_name("dash") || identity.has_name("bash"), "{identity:?}");
        assert!(!identity.has_name("comm"));
    }

    #[test]
    fn an_ended_process_keeps_its_comm() {
        assert!(Identity::of(0x7fff_fff0, "gone").has_name("gone"));
    }
}
