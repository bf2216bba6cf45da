//! Having the pages that were asked for: settings turned and pools filled for the time of a run, and given back.

use fieldstone_sys::huge_pages::{self, Mode};
use fieldstone_sys::knob::{RaisedPool, Restorer, SetKnob};
use fieldstone_wire::PageKind;

use crate::error::{Error, Result};

const HUGE_2M: u64 = PageKind::Hugetlb2m.page_bytes();
const FOLIO_64K: u64 = PageKind::Folio64k.page_bytes();

/// What is held for a run; dropping it gives everything back.
#[derive(Debug, Default)]
#[must_use = "dropping it gives the pages back"]
pub struct Held {
    knobs: Vec<SetKnob>,
    pools: Vec<RaisedPool>,
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
    let is_on = |bytes| matches!(modes.mode_of(bytes), Some(Mode::Always | Mode::Madvise));
    if modes.mode_of(FOLIO_64K).is_none() {
        return Err(refused(PageKind::Folio64k, "this kernel has no folios of several sizes (Linux 6.8 has)"));
    }
    let mut held = Held::default();
    for folio in &modes.folios {
        let wanted = if folio.folio_bytes == FOLIO_64K { "madvise" } else { "never" };
        let fits = if wanted == "madvise" {
            is_on(FOLIO_64K)
        } else {
            folio.folio_bytes < FOLIO_64K || !is_on(folio.folio_bytes)
        };
        if !fits {
            held.knobs.push(restorer.set(&huge_pages::mode_path(folio.folio_bytes), wanted)?);
        }
    }
    Ok(held)
}

fn fill_pool(restorer: &Restorer, kind: PageKind, bytes: u64) -> Result<Held> {
    let page = kind.page_bytes();
    let Some(pool) = huge_pages::pool(page) else {
        return Err(refused(kind, "this kernel has no pool of that page size"));
    };
    let free = pool.free.saturating_sub(pool.reserved);
    let wanted = bytes.div_ceil(page);
    let mut held = Held::default();
    if wanted > free {
        match restorer.raise_pool(page, wanted - free) {
            Ok(raised) => held.pools.push(raised),
            Err(error) if free == 0 => return Err(error.into()),
            Err(_) => {}
        }
    }
    let got = free + held.pools.iter().map(RaisedPool::pages).sum::<u64>();
    if wanted > 0 && got == 0 {
        return Err(refused(kind, "no memory is contiguous enough for one; try soon after boot"));
    }
    Ok(held)
}

fn refused(kind: PageKind, why: &str) -> Error {
    Error::PageKind { kind: kind.name(), why: why.to_owned() }
}
