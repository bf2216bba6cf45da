//! All inputs of the verdicts in one value.

use serde::Serialize;

use crate::huge_pages::{self, HugePagePool, Transparent};
use crate::limits::{self, Limits};
use crate::machine::{self, Machine};
use crate::perf::{self, Counter, Counters};
use crate::sampling::HardwareSource;
use crate::userfault::{self, UserfaultSupport};
use crate::{collapse, pagemap, process};

/// Facts about this machine and user.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// Machine, kernel, hypervisor and container.
    pub machine: Machine,
    /// Transparent huge pages.
    pub transparent: Transparent,
    /// Hugetlb pools, smallest page size first.
    pub pools: Vec<HugePagePool>,
    /// Support of userfaultfd.
    pub userfault: UserfaultSupport,
    /// Support of performance counters.
    pub counters: Counters,
    /// Hardware that can sample accesses or branches, and whether this user can use it.
    #[serde(rename = "told_by")]
    pub hardware_sources: Vec<(HardwareSource, Counter)>,
    /// Limits.
    pub limits: Limits,
    /// Whether this user may set the kernel's huge-page settings.
    pub may_turn_knobs: bool,
    /// Whether this user can read frame numbers.
    pub frames_visible: bool,
    /// Whether the kernel can disable transparent huge pages for a program (`PR_SET_THP_DISABLE`).
    pub thp_can_be_refused: bool,
    /// Whether `qemu-x86_64` is in the path.
    pub emulator: bool,
    /// Whether this user may collapse memory of a running process.
    pub may_collapse: bool,
}

fn in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

impl Facts {
    /// Queries the system.
    #[must_use]
    pub fn gather() -> Self {
        Self {
            machine: machine::machine(),
            transparent: huge_pages::transparent(),
            pools: huge_pages::pools(),
            userfault: userfault::userfault(),
            counters: perf::counters(),
            hardware_sources: HardwareSource::ALL.map(|kind| (kind, kind.probe())).into(),
            limits: limits::limits(),
            may_turn_knobs: huge_pages::knobs_writable(),
            frames_visible: pagemap::frames_visible(),
            thp_can_be_refused: process::thp_disabled().is_ok(),
            emulator: in_path("qemu-x86_64"),
            may_collapse: collapse::is_permitted(),
        }
    }

    /// The pool of one page size.
    pub(super) fn pool(&self, page_bytes: u64) -> Option<&HugePagePool> {
        self.pools.iter().find(|pool| pool.page_bytes == page_bytes)
    }
}
