//! Makes a page kind available for a run: changes kernel settings and grows huge-page pools.
//!
//! Dropping the [`PageReservation`] restores the settings and the pool size. If this process is
//! killed, the process of [`Restorer`] restores them.

use fieldstone_report::quantity;
use fieldstone_sys::huge_pages::{self, FolioMode, ThpMode};
use fieldstone_sys::knob::{KnobSetting, PoolReservation, Restorer};
use fieldstone_sys::machine::machine;
use fieldstone_sys::warm::warm;
use fieldstone_wire::{PageKind, Remedy};

use crate::error::{Error, Result};

const HUGE_2M: u64 = PageKind::Hugetlb2m.page_bytes();
const FOLIO_64K: u64 = PageKind::Folio64k.page_bytes();

/// Attempts to add pages that the kernel did not find at first.
const MORE_RAISES: usize = 2;

/// Settings and pool pages that are changed for a run. Dropping it restores them.
#[derive(Debug, Default)]
#[must_use = "dropping it restores the settings and the pool"]
pub struct PageReservation {
    /// Restored when they are dropped.
    knobs: Vec<KnobSetting>,
    pool: Vec<PoolReservation>,
    shortfall: Option<String>,
}

impl PageReservation {
    /// A sentence for the user if the pool has fewer pages than wanted.
    #[must_use]
    pub fn shortfall(&self) -> Option<&str> {
        self.shortfall.as_deref()
    }
}

/// Makes pages of `kind` available. `bytes` is the wanted hugetlb memory; 0 leaves the pool
/// unchanged.
///
/// # Errors
/// [`Error::PageKind`] with a remedy if the kernel or this user's permissions prevent it.
pub fn reserve(restorer: &Restorer, kind: PageKind, bytes: u64) -> Result<PageReservation> {
    match kind {
        PageKind::Small4k => Ok(PageReservation::default()),
        PageKind::Thp => check_transparent(),
        PageKind::Folio64k => set_folio_modes(restorer),
        PageKind::Hugetlb2m | PageKind::Hugetlb1g => fill_pool(restorer, kind, bytes),
    }
}

fn check_transparent() -> Result<PageReservation> {
    match huge_pages::transparent().mode_of(HUGE_2M) {
        Some(ThpMode::Always | ThpMode::Madvise) => Ok(PageReservation::default()),
        Some(_) => Err(unavailable(
            PageKind::Thp,
            "they are switched off",
            Some("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
        )),
        None => Err(unavailable(PageKind::Thp, "this kernel has none", None)),
    }
}

/// Makes 64 KiB the largest enabled folio size, because the kernel allocates the largest enabled
/// one.
fn set_folio_modes(restorer: &Restorer) -> Result<PageReservation> {
    let modes = huge_pages::transparent();
    if modes.mode_of(FOLIO_64K).is_none() {
        let why = "this kernel has no folios of several sizes (Linux 6.8 has)";
        return Err(unavailable(PageKind::Folio64k, why, None));
    }
    let mut reservation = PageReservation::default();
    for (folio_bytes, wanted) in folio_changes(&modes.folios) {
        reservation.knobs.push(restorer.set(&huge_pages::mode_path(folio_bytes), wanted)?);
    }
    Ok(reservation)
}

/// The changes that make 64 KiB the largest enabled folio size: folio size in bytes, and its new
/// mode.
fn folio_changes(folios: &[FolioMode]) -> Vec<(u64, &'static str)> {
    let change = |folio: &FolioMode| match (folio.folio_bytes, folio.mode) {
        (FOLIO_64K, ThpMode::Never) => Some((FOLIO_64K, "madvise")),
        (larger, ThpMode::Always | ThpMode::Madvise) if larger > FOLIO_64K => Some((larger, "never")),
        _ => None,
    };
    folios.iter().filter_map(change).collect()
}

fn fill_pool(restorer: &Restorer, kind: PageKind, bytes: u64) -> Result<PageReservation> {
    let page = kind.page_bytes();
    let wanted = bytes.div_ceil(page);
    let Some(pool) = huge_pages::settled_pool(page, wanted) else {
        return Err(unavailable(kind, "this kernel has no pool of that page size", None));
    };
    let mut reservation = PageReservation::default();
    let (lack, remedy) = shortage(bytes, machine().memory_available_bytes);
    let mut why = format!("{lack}{}", Remedy(Some(remedy)));
    if wanted > pool.available() {
        // Surplus pages are in use, and a larger pool absorbs them before it allocates new pages.
        let added = wanted - pool.available() + pool.surplus;
        match raise(restorer, page, added) {
            Ok(raised) => reservation.pool = raised,
            Err(error) if pool.available() == 0 => return Err(error.into()),
            Err(error) => why = error.to_string(),
        }
    }
    let available = huge_pages::settled_pool(page, wanted).map_or(0, |pool| pool.available());
    if wanted > 0 && available == 0 {
        return Err(unavailable(kind, &lack, Some(remedy)));
    }
    reservation.shortfall = shortfall(kind, available, wanted, &why);
    Ok(reservation)
}

/// Adds pages to a pool, as many as the kernel finds. It drops few cached files for them, so where
/// these fill the memory it finds none. Ordinary memory makes it drop files.
fn raise(restorer: &Restorer, page: u64, pages: u64) -> fieldstone_sys::Result<Vec<PoolReservation>> {
    let mut raised = vec![restorer.raise_pool(page, pages)?];
    for _ in 0..MORE_RAISES {
        let lacking = pages.saturating_sub(raised.iter().map(PoolReservation::pages).sum());
        let room = 2 * lacking * page;
        if lacking == 0 || room > machine().memory_available_bytes {
            break;
        }
        warm(room);
        let Ok(more) = restorer.raise_pool(page, lacking) else { break };
        raised.push(more);
    }
    Ok(raised)
}

/// Why the kernel finds no more huge pages for `bytes`, and the remedy.
fn shortage(bytes: u64, free_bytes: u64) -> (String, &'static str) {
    if bytes > free_bytes {
        let free = quantity::bytes(free_bytes);
        (format!("{} do not fit in the available memory of {free}", quantity::bytes(bytes)), "a smaller --reserve")
    } else {
        ("no more memory is contiguous".to_owned(), "echo 1 | sudo tee /proc/sys/vm/compact_memory")
    }
}

fn shortfall(kind: PageKind, available: u64, wanted: u64, why: &str) -> Option<String> {
    let (why, remedy) = Remedy::split(why);
    let short = format!(
        "the pool of {kind} pages has {available} of the {wanted} requested pages, and the rest of the memory is on ordinary pages: {why}{remedy}"
    );
    (available < wanted).then_some(short)
}

fn unavailable(kind: PageKind, why: &str, remedy: Option<&str>) -> Error {
    Error::PageKind { kind: kind.name(), why: format!("{why}{}", Remedy(remedy)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's list of folio sizes, with these sizes and modes.
    fn modes(wanted: &[(u64, ThpMode)]) -> Vec<FolioMode> {
        let mut folios = huge_pages::transparent().folios;
        folios.truncate(wanted.len());
        for (folio, &(folio_bytes, mode)) in folios.iter_mut().zip(wanted) {
            (folio.folio_bytes, folio.mode) = (folio_bytes, mode);
        }
        folios
    }

    #[test]
    fn only_modes_that_prevent_64k_folios_are_changed() {
        let wanted = [
            (16 << 10, ThpMode::Always),
            (64 << 10, ThpMode::Never),
            (128 << 10, ThpMode::Never),
            (HUGE_2M, ThpMode::Madvise),
        ];
        let folios = modes(&wanted);
        if folios.len() < wanted.len() {
            println!("SKIP this kernel has no folios of several sizes");
            return;
        }
        assert_eq!(folio_changes(&folios), [(64 << 10, "madvise"), (HUGE_2M, "never")]);
        assert_eq!(folio_changes(&modes(&[(64 << 10, ThpMode::Always), (HUGE_2M, ThpMode::Never)])), []);
    }

    #[test]
    fn a_pool_that_is_too_small_is_reported() {
        assert_eq!(shortfall(PageKind::Hugetlb2m, 5, 5, "x"), None);
        let message = shortfall(PageKind::Hugetlb2m, 300, 1100, "permission denied\ntry: sudo").unwrap();
        assert!(
            message.contains("300 of the 1100") && message.ends_with(": permission denied\ntry: sudo"),
            "{message}"
        );
    }

    #[test]
    fn a_reserve_that_exceeds_the_memory_is_reported_as_such() {
        let (why, remedy) = shortage(64 << 30, 8 << 30);
        assert_eq!(why, "64 GiB do not fit in the available memory of 8 GiB");
        assert_eq!((remedy, shortage(1, 8 << 30).0.as_str()), ("a smaller --reserve", "no more memory is contiguous"));
    }
}
