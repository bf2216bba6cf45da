//! Limits on the memory of a process: its control group, its rlimits, and kernel settings.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::Serialize;

pub use crate::cgroup::CgroupMemory;
use crate::machine::machine;
use crate::{cgroup, kernel_file};

/// The kernel's policy for memory that exceeds physical memory: `vm.overcommit_memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Overcommit {
    /// 0: obvious overcommits are refused.
    Heuristic,
    /// 1: nothing is refused.
    Always,
    /// 2: committed memory must exist; `MAP_NORESERVE` has no effect.
    Strict,
}

/// The limits. `None` means unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Limits {
    /// The control group's memory controller, if any.
    pub cgroup: Option<CgroupMemory>,
    /// `RLIMIT_AS`: all mappings, `PROT_NONE` included.
    pub address_space_bytes: Option<u64>,
    /// `RLIMIT_DATA`: private writable mappings and the heap.
    pub data_bytes: Option<u64>,
    /// `RLIMIT_MEMLOCK`.
    pub locked_bytes: Option<u64>,
    /// `vm.max_map_count`: mappings per process.
    pub max_map_count: Option<u64>,
    /// `vm.overcommit_memory`; `None` if it cannot be read.
    pub overcommit: Option<Overcommit>,
    /// `kernel.yama.ptrace_scope`: 0 any process of the user, 1 descendants only, 2 root only, 3
    /// none. `None` without Yama, which equals 0.
    pub ptrace_scope: Option<u64>,
    /// Total swap space.
    pub swap_total_bytes: u64,
    /// Free swap space.
    pub swap_free_bytes: u64,
}

/// Raises the soft limit `RLIMIT_NOFILE` to the hard limit. Child processes inherit it.
///
/// # Errors
/// The errno of setrlimit.
pub fn raise_descriptors() -> std::io::Result<()> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

/// Reads the limits of this process.
#[must_use]
pub fn limits() -> Limits {
    let meminfo = kernel_file::text("/proc/meminfo").unwrap_or_default();
    let meminfo = |name| kernel_file::field_bytes(&meminfo, name).unwrap_or(0);
    Limits {
        cgroup: cgroup::cgroup_memory(),
        address_space_bytes: getrlimit(Resource::As).current,
        data_bytes: getrlimit(Resource::Data).current,
        locked_bytes: getrlimit(Resource::Memlock).current,
        max_map_count: kernel_file::number("/proc/sys/vm/max_map_count"),
        overcommit: kernel_file::number("/proc/sys/vm/overcommit_memory").and_then(overcommit),
        ptrace_scope: kernel_file::number("/proc/sys/kernel/yama/ptrace_scope"),
        swap_total_bytes: meminfo("SwapTotal"),
        swap_free_bytes: meminfo("SwapFree"),
    }
}

/// Memory that can be allocated without reclaim, by the machine and the memory control group.
#[must_use]
pub fn free_memory_bytes() -> u64 {
    let left = cgroup::cgroup_memory().and_then(|group| Some(group.limit_bytes?.saturating_sub(group.usage_bytes?)));
    machine().memory_available_bytes.min(left.unwrap_or(u64::MAX))
}

fn overcommit(mode: u64) -> Option<Overcommit> {
    [Overcommit::Heuristic, Overcommit::Always, Overcommit::Strict].into_iter().nth(usize::try_from(mode).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_match_their_numbers() {
        assert_eq!(
            [0, 1, 2].map(overcommit),
            [Overcommit::Heuristic, Overcommit::Always, Overcommit::Strict].map(Some)
        );
        assert_eq!(overcommit(3), None);
    }

    #[test]
    fn this_process_is_within_its_limits() {
        let found = limits();
        let own = crate::process::stat(std::process::id()).unwrap();
        assert!(found.address_space_bytes.is_none_or(|limit| own.virtual_bytes <= limit));
        assert!(found.swap_free_bytes <= found.swap_total_bytes);
        assert!(found.max_map_count.is_some_and(|count| count > 0) && found.overcommit.is_some());
    }
}
