//! The output of `fieldstone run --region --stats FILE`: the data behind the schema
//! `fieldstone-run/1`.
//!
//! For each process of the tree that had a primary region: what the region served, what stayed
//! outside and why, and which pages the kernel really gave.
//!
//! Addresses are JSON numbers. They are page-aligned and below 2^57, so a reader that keeps numbers
//! as doubles has them exactly.

use crate::quantity::{bytes, count};
use crate::{GuardStats, PagingStats};
use fieldstone_wire::Remedy;
use serde::{Deserialize, Serialize};

/// One run of a program with its memory in a primary region.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RunStats {
    /// Always [`RunStats::SCHEMA`].
    pub schema: String,
    /// Version of the tool that ran it.
    #[serde(default)]
    pub tool_version: String,
    /// Program and arguments, as given.
    pub command: Vec<String>,
    /// The requested page kind: `4k`, `folio-64k`, `thp`, `hugetlb`, `hugetlb-1g`.
    pub page_kind: String,
    /// Process id of the primary process.
    pub primary_pid: u32,
    /// Name of the primary process.
    pub primary_name: String,
    /// How the program ended: `exit 0`, `signal 11 (SIGSEGV)`.
    pub outcome: String,
    /// The processes that had a region, the primary one among them.
    pub processes: Vec<ProcessStats>,
    /// The counts of guarded allocations; `None` without `--guard`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guard: Option<GuardStats>,
    /// The counts of paging; `None` without `--resident`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paging: Option<PagingStats>,
}

impl RunStats {
    /// Schema string of this version.
    pub const SCHEMA: &'static str = "fieldstone-run/1";

    /// The primary process, if it had a region.
    pub fn primary(&self) -> Option<&ProcessStats> {
        self.processes.iter().find(|process| process.primary)
    }
}

/// One process of the tree.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessStats {
    /// Process id.
    pub pid: u32,
    /// Process id of its parent.
    pub parent_pid: u32,
    /// Name (`/proc/PID/comm`).
    pub name: String,
    /// Whether this is the primary process of the tree.
    pub primary: bool,
    /// What its region counted.
    pub region: RegionStats,
}

/// What one primary region counted, from the start of its process to its end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegionStats {
    /// First address of the region (the BASE of seed 003_).
    pub base: u64,
    /// First address after it (LIMIT).
    pub limit: u64,
    /// Bytes handed out from it, all calls together.
    pub served_bytes: u64,
    /// Calls (mmap, brk, mremap) that it served.
    pub served_calls: u64,
    /// Largest number of its bytes that were handed out at one time.
    pub mapped_peak_bytes: u64,
    /// What was left to the kernel, an entry for each reason.
    pub outside: Vec<Outside>,
    /// Bytes that `--reserve` mapped at the start.
    pub reserve_bytes: u64,
    /// Bytes of `--reserve` that the kernel refused.
    pub reserve_refused_bytes: u64,
    /// Bytes of the reserve that `--prefault` did not touch, since there was not enough memory.
    pub reserve_untouched_bytes: u64,
    /// hugetlb memory that moved to ordinary pages, because of a fork or a call for a part of a
    /// huge page.
    pub demoted_bytes: u64,
    /// Memory that was to be on hugetlb pages and is on transparent ones: the pool was empty, or
    /// userfaultfd is not permitted.
    pub fell_back_bytes: u64,
    /// Resident pages, from the kernel's tables, when the region was largest.
    pub pages: Vec<PageShare>,
    /// Where `pages` was read, such as `smaps` or `pagemap+kpageflags`.
    pub pages_source: String,
    /// Private read-write anonymous memory that was resident inside the region, when most was.
    pub private_rw_inside_bytes: u64,
    /// The same, outside of it, on the requested pages at the program's own addresses.
    pub private_rw_in_place_bytes: u64,
    /// The same, outside of it and not served: what `outside` explains.
    pub private_rw_outside_bytes: u64,
    /// Of these three, what was on pages of 2 MiB or more.
    pub private_rw_huge_bytes: u64,
    /// Why the rest of them was on small pages, as far as the mappings show it.
    pub small_pages: Vec<SmallPages>,
    /// Resident shared writable memory, which is not served: a file in memory, shared with other
    /// processes or mapped twice.
    pub shared_rw_bytes: u64,
    /// Whether the process had switched transparent huge pages off (`PR_SET_THP_DISABLE`).
    pub huge_pages_disabled: bool,
    /// Physical contiguity, where `/proc/PID/pagemap` shows frame numbers (root).
    pub contiguity: Option<Contiguity>,
}

impl RegionStats {
    /// Resident private read-write memory, in bytes: inside the region, in place, and outside.
    pub fn private_rw_bytes(&self) -> u64 {
        let served = self.private_rw_inside_bytes.saturating_add(self.private_rw_in_place_bytes);
        served.saturating_add(self.private_rw_outside_bytes)
    }

    /// Share that some `bytes` have of the private read-write memory, from 0 to 1; none if there is
    /// no such memory.
    pub fn share_of(&self, bytes: u64) -> Option<f64> {
        let all = self.private_rw_bytes();
        (all > 0).then(|| bytes as f64 / all as f64)
    }

    /// Share of the private read-write memory that is inside the region.
    pub fn inside_share(&self) -> Option<f64> {
        self.share_of(self.private_rw_inside_bytes)
    }

    /// Share of the private read-write memory that is served, inside the region or in place.
    pub fn served_share(&self) -> Option<f64> {
        self.share_of(self.private_rw_inside_bytes.saturating_add(self.private_rw_in_place_bytes))
    }
}

impl RegionStats {
    /// What of the reserve was not granted or not prefaulted, and a reserve that is.
    pub fn reserve_words(&self) -> Option<String> {
        let (granted, refused) = (self.reserve_bytes, self.reserve_refused_bytes);
        let all = granted.saturating_add(refused);
        let mut facts = Vec::new();
        if refused > 0 {
            facts.push(format!(
                "the kernel granted {} of {} (a limit, or not enough memory)",
                bytes(granted),
                bytes(all)
            ));
        }
        if self.reserve_untouched_bytes > 0 {
            let touched = granted.saturating_sub(self.reserve_untouched_bytes);
            facts.push(format!("{} of {} are prefaulted (available memory)", bytes(touched), bytes(granted)));
        }
        let usable_mib = granted.saturating_sub(self.reserve_untouched_bytes) >> 20;
        let remedy = Some(usable_mib).filter(|mib| *mib > 0).map(|mib| format!("--reserve {mib}M"));
        (!facts.is_empty()).then(|| format!("--reserve: {}{}", facts.join("; "), Remedy(remedy)))
    }

    /// Programs that the process started and that cannot carry the agent.
    pub fn unserved_programs(&self) -> u64 {
        self.outside.iter().filter(|outside| outside.reason == UNSERVED_PROGRAMS).map(|outside| outside.calls).sum()
    }

    /// Why the process has no region at all.
    pub fn no_region_reason(&self) -> Option<&str> {
        self.outside.iter().find_map(|outside| outside.reason.strip_prefix("everything: "))
    }
}

/// The reason that counts programs which the agent could not follow.
pub const UNSERVED_PROGRAMS: &str = "programs started that cannot carry the agent";

/// A message on programs that were started and not served; `None` for no programs.
pub fn unserved_words(programs: u64) -> Option<String> {
    let (programs, were) = match programs {
        0 => return None,
        1 => ("1 program".to_owned(), "was"),
        more => (format!("{} programs", count(more)), "were"),
    };
    Some(format!(
        "{programs} started by others {were} not served: statically linked, set-user-id, 32-bit or of another C library{}",
        Remedy(Some(
            "`fieldstone run --region -- PROGRAM` for the program itself, or `fieldstone attach --huge PID` while it runs"
        ))
    ))
}

/// Memory that the region left to the kernel for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outside {
    /// The reason, such as `MAP_FIXED`, `file mapping`, `larger than the reserve`.
    pub reason: String,
    /// Calls.
    pub calls: u64,
    /// Bytes that they requested.
    pub bytes: u64,
    /// Bytes of it that were resident when the process had most memory.
    #[serde(default)]
    pub resident_bytes: u64,
}

/// Private read-write memory that was on small pages for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmallPages {
    /// The reason, to follow the bytes in a sentence.
    pub reason: String,
    /// Resident bytes.
    pub bytes: u64,
}

/// Memory in one page kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageShare {
    /// Page kind: `4k`, `folio-64k` (or another folio size), `thp`, `hugetlb`, `hugetlb-1g`;
    /// `smaller` where `4k` and folios cannot be distinguished.
    pub kind: String,
    /// Resident bytes in such pages.
    pub bytes: u64,
}

/// How contiguous the region's memory is physically.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contiguity {
    /// Longest run of neighbouring frames.
    pub longest_run_bytes: u64,
    /// Median run, weighted by bytes: half of the memory is in runs at least this long.
    pub median_run_bytes: u64,
    /// Number of runs.
    pub runs: u64,
}
