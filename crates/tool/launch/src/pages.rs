//! Having the pages that were asked for: settings turned and pools filled for the time of a run, and given back.

use fieldstone_sys::huge_pages::{self, FolioMode, Mode};
use fieldstone_sys::knob::{KnobSetting, PoolReservation, Restorer};
use fieldstone_wire::PageKind;

use crate::error::{Error, Result};

const HUGE_2M: u64 = PageKind::Hugetlb2m.page_bytes();
const FOLIO_64K: u64 = PageKind::Folio64k.page_bytes();

/// What is held for a run; dropping it gives everything back.
#[derive(Debug, Default)]
#[must_use = "dropping it gives the pages back"]
pub struct Held {
    /// Dropped, they are given back.
    knobs: Vec<KnobSetting>,
    pool: Option<PoolReservation>,
    shortfall: Option<String>,
}

impl Held {
    /// What is missing, in a sentence, where the pool has fewer pages than were wanted.
    #[must_use]
    pub fn shortfall(&self) -> Option<&str> {
        self.shortfall.as_deref()
    }
}

/// Makes pages of `kind` available. `bytes` is how much hugetlb memory has to be there; zero takes the pool as it is.
///
/// # Errors
/// [`Error::PageKind`] with the command that would help, when this user may not.
pub fn hold(restorer: &Restorer, kind: PageKind, bytes: u64) -> Result<Held> {
    match kind {
        PageKind::Small4k => Ok(Held::default()),
        PageKind::Thp => check_transparent(),
        PageKind::Folio64k => hold_folios(restorer),
        PageKind::Hugetlb2m | PageKind::Hugetlb1g => fill_pool(restorer, kind, bytes),
    }
}

fn check_transparent() -> Result<Held> {
    match huge_pages::transparent().mode_of(HUGE_2M) {
        Some(Mode::Always | Mode::Madvise) => Ok(Held::default()),
        Some(_) => Err(refused(
            PageKind::Thp,
            "they are switched off; `echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled` switches them on for programs that ask",
        )),
        None => Err(refused(PageKind::Thp, "this kernel has none")),
    }
}

/// The kernel gives the largest folio that is allowed: while 64 KiB ones are wanted, 2 MiB ones are switched off.
fn hold_folios(restorer: &Restorer) -> Result<Held> {
    let modes = huge_pages::transparent();
    if modes.mode_of(FOLIO_64K).is_none() {
        return Err(refused(PageKind::Folio64k, "this kernel has no folios of several sizes (Linux 6.8 has)"));
    }
    let mut held = Held::default();
    for (folio_bytes, wanted) in folio_changes(&modes.folios) {
        held.knobs.push(restorer.set(&huge_pages::mode_path(folio_bytes), wanted)?);
    }
    Ok(held)
}

/// Which folio sizes have to be set to what, so that 64 KiB is the largest one to be had.
fn folio_changes(folios: &[FolioMode]) -> Vec<(u64, &'static str)> {
    let change = |folio: &FolioMode| match (folio.folio_bytes, folio.mode) {
        (FOLIO_64K, Mode::Never) => Some((FOLIO_64K, "madvise")),
        (larger, Mode::Always | Mode::Madvise) if larger > FOLIO_64K => Some((larger, "never")),
        _ => None,
    };
    folios.iter().filter_map(change).collect()
}

fn fill_pool(restorer: &Restorer, kind: PageKind, bytes: u64) -> Result<Held> {
    let page = kind.page_bytes();
    let wanted = bytes.div_ceil(page);
    let Some(pool) = huge_pages::settled_pool(page, wanted) else {
        return Err(refused(kind, "this kernel has no pool of that page size"));
    };
    let mut held = Held::default();
    let mut why = "no more memory was contiguous enough; try soon after boot".to_owned();
    if wanted > pool.available() {
        // Surplus pages are somebody's already, and a raised pool takes them over before it gets new ones.
        match restorer.raise_pool(page, wanted - pool.available() + pool.surplus) {
            Ok(raised) => held.pool = Some(raised),
            Err(error) if pool.available() == 0 => return Err(error.into()),
            Err(error) => why = error.to_string(),
        }
    }
    let got = huge_pages::settled_pool(page, wanted).map_or(0, |pool| pool.available());
    if wanted > 0 && got == 0 {
        return Err(refused(kind, "no memory is contiguous enough for one; try soon after boot"));
    }
    held.shortfall = shortfall(kind, got, wanted, &why);
    Ok(held)
}

fn shortfall(kind: PageKind, got: u64, wanted: u64, why: &str) -> Option<String> {
    let short = format!(
        "the pool of {kind} pages has {got} of the {wanted} that were wanted: what does not fit stays on ordinary pages ({why})"
    );
    (got < wanted).then_some(short)
}

fn refused(kind: PageKind, why: &str) -> Error {
    Error::PageKind { kind: kind.name(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's own list, with modes of our choice.
    fn modes(wanted: &[(u64, Mode)]) -> Vec<FolioMode> {
        let mut folios = huge_pages::transparent().folios;
        folios.truncate(wanted.len());
        for (folio, &(folio_bytes, mode)) in folios.iter_mut().zip(wanted) {
            (folio.folio_bytes, folio.mode) = (folio_bytes, mode);
        }
        folios
    }

    #[test]
    fn only_what_stands_in_the_way_of_64k_is_changed() {
        let wanted =
            [(16 << 10, Mode::Always), (64 << 10, Mode::Never), (128 << 10, Mode::Never), (HUGE_2M, Mode::Madvise)];
        let folios = modes(&wanted);
        if folios.len() < wanted.len() {
            println!("SKIP this kernel has no folios of several sizes");
            return;
        }
        assert_eq!(folio_changes(&folios), [(64 << 10, "madvise"), (HUGE_2M, "never")]);
        assert_eq!(folio_changes(&modes(&[(64 << 10, Mode::Always), (HUGE_2M, Mode::Never)])), []);
    }

    #[test]
    fn a_pool_that_is_too_small_is_told() {
        assert_eq!(shortfall(PageKind::Hugetlb2m, 5, 5, "x"), None);
        let told = shortfall(PageKind::Hugetlb2m, 300, 1100, "memory is scattered").unwrap();
        assert!(told.contains("300 of the 1100") && told.contains("memory is scattered"), "{told}");
    }
}
