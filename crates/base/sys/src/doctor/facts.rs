//! Everything that a verdict may lean on, in one value.

use serde::Serialize;

use crate::huge_pages::{self, Pool, Transparent};
use crate::limits::{self, Limits};
use crate::machine::{self, Machine};
use crate::perf::{self, Counter, Counters};
use crate::sampling::Hardware;
use crate::userfault::{self, Userfault};
use crate::{collapse, pagemap, process};

/// What was found on this machine, for this user.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// The machine, its kernel and what stands between.
    pub machine: Machine,
    /// Transparent huge pages.
    pub transparent: Transparent,
    /// Hugetlb pools, smallest page first.
    pub pools: Vec<Pool>,
    /// userfaultfd.
    pub userfault: Userfault,
    /// Counters.
    pub counters: Counters,
    /// What processors tell of accesses and jumps by, and whether this one does.
    pub told_by: Vec<(Hardware, Counter)>,
    /// Bounds.
    pub limits: Limits,
    /// Whether this user may turn the kernel's huge-page knobs.
    pub may_turn_knobs: bool,
    /// Whether this user sees which frames memory lies on.
    pub frames_visible: bool,
    /// Whether the kernel can take transparent huge pages from a program (`PR_SET_THP_DISABLE`).
    pub thp_can_be_refused: bool,
    /// Whether `qemu-x86_64` is in the path.
    pub emulator: bool,
    /// Whether this user may put a running process's memory on huge pages.
    pub may_collapse: bool,
}

fn in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

impl Facts {
    /// Asks the system.
    #[must_use]
    pub fn gather() -> Self {
        Self {
            machine: machine::machine(),
            transparent: huge_pages::transparent(),
            pools: huge_pages::pools(),
            userfault: userfault::userfault(),
            counters: perf::counters(),
            told_by: Hardware::ALL.map(|kind| (kind, kind.tried())).into(),
            limits: limits::limits(),
            may_turn_knobs: huge_pages::knobs_writable(),
            frames_visible: pagemap::frames_visible(),
            thp_can_be_refused: process::thp_disabled().is_ok(),
            emulator: in_path("qemu-x86_64"),
            may_collapse: collapse::is_permitted(),
        }
    }

    /// The pool of one page size.
    pub(super) fn pool(&self, page_bytes: u64) -> Option<&Pool> {
        self.pools.iter().find(|pool| pool.page_bytes == page_bytes)
    }
}
