//! The running process that a command is given by number.

use std::fs;

use anyhow::bail;
use fieldstone_sys::process::has_ended;
use fieldstone_wire::Remedy;

/// Fails if there is no process `pid`. `operation` is a verb with its object, such as `repair`.
pub(crate) fn check_exists(operation: &str, pid: u32) -> anyhow::Result<()> {
    if has_ended(pid) {
        bail!("cannot {operation} process {pid}: it does not exist or has ended{}", Remedy(Some("ps -e")));
    }
    Ok(())
}

/// The command line of process `pid`; empty for a kernel thread or without permission.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for the commands that exist on x86-64 only"))]
pub(crate) fn command_line(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}
