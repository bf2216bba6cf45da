//! Effective capabilities (capabilities(7)) of a process or thread.

use crate::kernel_file;

/// A capability that Fieldstone uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// `CAP_SYS_PTRACE`: read processes of all users, and open a userfaultfd for the kernel's
    /// faults.
    SysPtrace = 19,
    /// `CAP_SYS_NICE`: advise on memory of other processes.
    SysNice = 23,
}

/// Whether thread `tid` has a capability in its user namespace; `None` if `/proc` does not show it.
#[must_use]
pub fn has_capability(tid: u32, capability: Capability) -> Option<bool> {
    let status = kernel_file::text(format!("/proc/{tid}/status"))?;
    let effective = u64::from_str_radix(kernel_file::field(&status, "CapEff")?, 16).ok()?;
    Some(effective >> capability as u32 & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_match_the_kernel_s_list() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let shown = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        let shown = u64::from_str_radix(shown.trim(), 16).unwrap();
        let us = std::process::id();
        assert_eq!(has_capability(us, Capability::SysNice), Some(shown & 1 << 23 != 0));
        assert_eq!(has_capability(us, Capability::SysPtrace), Some(shown & 1 << 19 != 0));
        assert_eq!(has_capability(0x7fff_fff0, Capability::SysPtrace), None);
    }
}
