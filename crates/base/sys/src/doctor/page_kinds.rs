//! Availability of each page kind, and the command that makes it available.
//!
//! Fieldstone itself changes two settings for a run, if it may: the folio sizes for `folio-64k`,
//! and the 2 MiB pool for a run with a reserve. The global mode of transparent pages and the 1 GiB
//! pool are left to the administrator.

use fieldstone_wire::PageKind;

use super::size::size;
use super::{CommandVerdict, Facts, Level};
use crate::huge_pages::{FolioMode, HugePagePool, ThpMode, global_mode_path, mode_path, pool_pages_path};

/// The verdict on one page kind, for `command`.
pub(super) fn kind(facts: &Facts, page_kind: PageKind, command: &str) -> CommandVerdict {
    match page_kind {
        PageKind::Small4k => base(facts, command),
        PageKind::Folio64k => folio_64k(facts, command),
        PageKind::Thp => thp(facts, command),
        PageKind::Hugetlb2m | PageKind::Hugetlb1g => hugetlb(facts, page_kind.page_bytes(), command),
    }
}

fn base(facts: &Facts, command: &str) -> CommandVerdict {
    if facts.machine.page_bytes == PageKind::Small4k.page_bytes() {
        return CommandVerdict::new(command, Level::Works, "base pages are always available", None);
    }
    let why = format!("the smallest page of this kernel is {}", size(facts.machine.page_bytes));
    CommandVerdict::new(command, Level::Limited, why, None)
}

/// The huge page of the page table's second level.
fn thp(facts: &Facts, command: &str) -> CommandVerdict {
    let huge = facts.transparent.huge_bytes.and_then(|bytes| offered(facts, bytes));
    let Some(folio) = huge else {
        return CommandVerdict::new(command, Level::Unavailable, "this kernel has no transparent huge pages", None);
    };
    let pages = format!("transparent pages of {}", size(folio.folio_bytes));
    let why = match folio.mode {
        ThpMode::Always => format!("{pages} are on for all memory"),
        ThpMode::Madvise => format!("{pages} are on for memory that requests them, which Fieldstone does"),
        ThpMode::Never => {
            let path = if folio.inherited { global_mode_path() } else { mode_path(folio.folio_bytes) };
            let remedy = format!("echo madvise | sudo tee {}", path.display());
            return CommandVerdict::new(command, Level::Unavailable, format!("{pages} are off"), Some(remedy));
        }
    };
    let mut verdict = CommandVerdict::new(command, Level::Works, why, None);
    if facts.transparent.defrag.as_deref() == Some("never") {
        let remedy = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/defrag".to_owned();
        verdict.lower(
            Level::Limited,
            "only while the kernel has free ones, because it makes none (defrag is never)",
            Some(remedy),
        );
    }
    verdict
}

/// The kernel uses the largest enabled folio size, so sizes above 64 KiB must be disabled.
fn folio_64k(facts: &Facts, command: &str) -> CommandVerdict {
    let wanted = PageKind::Folio64k.page_bytes();
    let Some(folio) = offered(facts, wanted) else {
        let why = "this kernel has no multi-size folios (Linux 6.8 has them)";
        return CommandVerdict::new(command, Level::Unavailable, why, None);
    };
    let enable = (folio.mode == ThpMode::Never).then_some((wanted, "madvise"));
    let larger =
        facts.transparent.folios.iter().filter(|other| other.folio_bytes > wanted && other.mode != ThpMode::Never);
    let changes: Vec<(u64, &str)> =
        enable.into_iter().chain(larger.map(|other| (other.folio_bytes, "never"))).collect();
    if changes.is_empty() {
        return CommandVerdict::new(command, Level::Works, "folios of 64 KiB are on, and none larger", None);
    }
    if facts.may_turn_knobs {
        let why = "the run turns folios of 64 KiB on and larger ones off, for every program";
        return CommandVerdict::new(command, Level::Works, why, None);
    }
    let command_of = |(bytes, mode): &(u64, &str)| format!("echo {mode} | sudo tee {}", mode_path(*bytes).display());
    let remedy = changes.iter().map(command_of).collect::<Vec<_>>().join(" && ");
    let why = "folios of 64 KiB must be on and larger ones off, which needs root";
    CommandVerdict::new(command, Level::Unavailable, why, Some(remedy))
}

fn offered(facts: &Facts, folio_bytes: u64) -> Option<&FolioMode> {
    facts.transparent.folios.iter().find(|folio| folio.folio_bytes == folio_bytes)
}

/// Pages of a pool.
fn hugetlb(facts: &Facts, page_bytes: u64, command: &str) -> CommandVerdict {
    let pages = format!("pages of {}", size(page_bytes));
    let Some(pool) = facts.pool(page_bytes) else {
        return CommandVerdict::new(command, Level::Unavailable, format!("this machine has no pool of {pages}"), None);
    };
    if pool.available() > 0 {
        let free = size(pool.available().saturating_mul(page_bytes));
        let why = format!("{} {pages} are free in the pool ({free})", pool.available());
        return CommandVerdict::new(command, Level::Works, why, None);
    }
    let state = format!("the pool of {pages} {}", if pool.total == 0 { "is empty" } else { "has no free page" });
    let (level, why) = if facts.may_turn_knobs && page_bytes == PageKind::Hugetlb2m.page_bytes() {
        (Level::Limited, format!("{state}; --reserve SIZE fills it for the run"))
    } else if pool.overcommit > 0 {
        (Level::Limited, format!("{state}; up to {} are made on demand", pool.overcommit))
    } else {
        (Level::Unavailable, state)
    };
    CommandVerdict::new(command, level, why, Some(remedy(facts, pool)))
}

/// Adds 2 GiB to the pool, or half of the available memory; at least one page.
fn remedy(facts: &Facts, pool: &HugePagePool) -> String {
    let bytes = (2 << 30).min(facts.machine.memory_available_bytes / 2);
    let pages = pool.total + (bytes / pool.page_bytes).max(1);
    format!("echo {pages} | sudo tee {}", pool_pages_path(pool.page_bytes).display())
}
