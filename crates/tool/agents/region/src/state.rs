//! The agent's only state: the table, where the region lies, what was asked, where to count.
//!
//! Everything is atomic and nothing is locked: calls come from any thread, from signal handlers, and from children
//! whose parent forked in the middle of a call.

#![allow(unsafe_code, reason = "pointers to the mapped session and to mapped page bits become references here")]

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::{Config, PageKind, PlacementReason, ProcessSlot, Session, mosaic};

use crate::raw;
use crate::table::{Chunk, GRANULE, GRANULES, PAGE, State, Table};

/// Who has which address.
pub(crate) static TABLE: Table = Table::new();

static BASE: AtomicUsize = AtomicUsize::new(0);
static KIND: AtomicU32 = AtomicU32::new(PageKind::Thp as u32);
static MOSAIC_BOUND: AtomicU64 = AtomicU64::new(mosaic::ALL);
static PREFAULT: AtomicBool = AtomicBool::new(false);
static STACKS: AtomicBool = AtomicBool::new(false);
static EXACT: AtomicBool = AtomicBool::new(false);
static HINTED: AtomicBool = AtomicBool::new(false);
static ENABLING: AtomicBool = AtomicBool::new(false);
static FORBIDDEN: AtomicBool = AtomicBool::new(false);
static HUGETLB: AtomicBool = AtomicBool::new(false);
static MEMORY: AtomicUsize = AtomicUsize::new(usize::MAX);
static SESSION: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());
static SLOT: AtomicPtr<ProcessSlot> = AtomicPtr::new(core::ptr::null_mut());

/// First address that no program has.
const ADDRESSES: usize = if cfg!(target_arch = "aarch64") { 1 << 48 } else { 1 << 47 };

/// The first granule that `--reserve` mapped, and how many.
static RESERVE: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
/// Bytes of it that were not given yet.
static RESERVE_LEFT: AtomicUsize = AtomicUsize::new(0);

/// The granules that `--reserve` mapped; those that were not given yet are in a state of their own.
pub(crate) fn reserve() -> Range<usize> {
    let first = RESERVE.0.load(SeqCst);
    first..first + RESERVE.1.load(SeqCst)
}

/// Sets what [`reserve`] answers. None of it is given yet.
pub(crate) fn set_reserve(range: &Range<usize>) {
    RESERVE.0.store(range.start, SeqCst);
    RESERVE.1.store(range.len(), SeqCst);
    RESERVE_LEFT.store(range.len() * GRANULE, SeqCst);
}

/// Claims granules of the reserve that were not given yet.
pub(crate) fn claim_reserve(idle: State, granules: usize) -> Option<usize> {
    let first = TABLE.claim_from(idle, reserve(), granules)?;
    reserve_shrunk(granules);
    Some(first)
}

/// So many granules of the reserve are given, or gone.
pub(crate) fn reserve_shrunk(granules: usize) {
    let left = RESERVE_LEFT.fetch_sub(granules * GRANULE, SeqCst) - granules * GRANULE;
    if let Some(slot) = slot() {
        slot.reserve_left_bytes.store(left as u64, SeqCst);
    }
}

/// Bytes of the reserve that were not given yet.
pub(crate) fn reserve_left_bytes() -> usize {
    RESERVE_LEFT.load(SeqCst)
}

/// Sets where the region begins and what memory in it shall lie on. `memory` is the machine's, in bytes.
pub(crate) fn establish(base: usize, config: &Config, memory: usize) {
    let kind = config.page_kind().unwrap_or(PageKind::Thp);
    KIND.store(kind as u32, SeqCst);
    HUGETLB.store(matches!(kind, PageKind::Hugetlb2m | PageKind::Hugetlb1g), SeqCst);
    MOSAIC_BOUND.store(config.mosaic_bound, SeqCst);
    PREFAULT.store(config.prefault != 0, SeqCst);
    MEMORY.store(memory, SeqCst);
    BASE.store(base, SeqCst);
}

/// The page kind that was asked for, or that a missing mechanism left.
pub(crate) fn kind() -> PageKind {
    PageKind::from_code(KIND.load(SeqCst)).unwrap_or(PageKind::Thp)
}

/// Whether some of the region stays on small pages by intention.
pub(crate) fn is_mosaic() -> bool {
    MOSAIC_BOUND.load(SeqCst) < mosaic::ALL && kind() == PageKind::Thp
}

/// Whether a granule of the region is to have the pages that were asked for; in a mosaic not all are.
pub(crate) fn is_picked(granule: usize) -> bool {
    mosaic::is_huge(granule as u64, MOSAIC_BOUND.load(SeqCst))
}

/// Whether hugetlb was asked for but cannot be used safely.
pub(crate) fn hugetlb_forbidden() -> bool {
    FORBIDDEN.load(SeqCst)
}

/// Hugetlb was asked for and is not used: transparent pages serve instead, and are counted.
pub(crate) fn forbid_hugetlb() {
    HUGETLB.store(false, SeqCst);
    forbid_new_hugetlb();
}

/// Memory that lies on hugetlb pages cannot be moved off them any more: new memory is given transparent ones.
pub(crate) fn forbid_new_hugetlb() {
    FORBIDDEN.store(true, SeqCst);
    set_kind(PageKind::Thp);
}

/// Whether memory may lie on hugetlb pages.
pub(crate) fn may_have_hugetlb() -> bool {
    HUGETLB.load(SeqCst)
}

/// No memory lies on hugetlb pages any more, and none will.
pub(crate) fn no_hugetlb_left() {
    HUGETLB.store(false, SeqCst);
}

/// From now on, memory is asked on `kind`.
pub(crate) fn set_kind(kind: PageKind) {
    KIND.store(kind as u32, SeqCst);
}

/// Whether memory is touched when it is mapped.
pub(crate) fn prefault() -> bool {
    PREFAULT.load(SeqCst)
}

/// Whether each request maps its own pages only: nothing ahead, and no page that comes with a neighbour's.
pub(crate) fn is_exact() -> bool {
    EXACT.load(SeqCst)
}

/// From now on placement is exact.
pub(crate) fn set_exact() {
    EXACT.store(true, SeqCst);
}

/// Ends what [`set_exact`] began.
#[cfg(test)]
pub(crate) fn clear_exact() {
    EXACT.store(false, SeqCst);
}

/// Threads' stacks come from the region from now on.
pub(crate) fn serve_stacks() {
    STACKS.store(true, SeqCst);
}

/// Whether threads' stacks come from the region.
pub(crate) fn stacks_served() -> bool {
    STACKS.load(SeqCst)
}

/// A hint at an address keeps nothing out of the region from now on.
pub(crate) fn serve_hinted() {
    HINTED.store(true, SeqCst);
}

/// Whether memory for which the program hints at an address elsewhere comes from the region.
pub(crate) fn hinted_served() -> bool {
    HINTED.load(SeqCst)
}

/// Transparent huge pages that the program has switched off are switched on again from now on.
pub(crate) fn enable_huge_pages() {
    ENABLING.store(true, SeqCst);
}

/// Whether transparent huge pages that the program has switched off are switched on again.
pub(crate) fn huge_pages_enabled() -> bool {
    ENABLING.load(SeqCst)
}

/// The machine's memory in bytes.
pub(crate) fn memory_bytes() -> usize {
    MEMORY.load(SeqCst)
}

/// First address of the region.
pub(crate) fn base() -> usize {
    BASE.load(SeqCst)
}

/// First address past the region.
pub(crate) fn limit() -> usize {
    base() + GRANULES * GRANULE
}

/// Whether `address` lies in the region.
pub(crate) fn contains(address: usize) -> bool {
    (base()..limit()).contains(&address)
}

/// Whether some of the range lies in the region. A range that runs past all addresses does not: the kernel refuses it.
pub(crate) fn touches(address: usize, bytes: usize) -> bool {
    let end = address.saturating_add(bytes);
    address < limit() && end > base() && end <= ADDRESSES
}

/// The address of a granule.
pub(crate) fn address_of(granule: usize) -> usize {
    base() + granule * GRANULE
}

/// The granule of an address of the region.
pub(crate) fn granule_of(address: usize) -> usize {
    (address - base()) / GRANULE
}

/// The page within its granule.
pub(crate) fn page_of(address: usize) -> usize {
    (address - base()) % GRANULE / PAGE
}

/// The chunk of the table that lives at `address`: zeroed memory mapped by [`map_chunk`] and never unmapped.
pub(crate) fn chunk(address: usize) -> &'static Chunk {
    // SAFETY: only addresses that `map_chunk` returned are stored in the table; they are page-aligned, hold a whole
    // `Chunk`, stay mapped for the life of the process, and all zeroes are a valid value of its atomics.
    unsafe { &*core::ptr::with_exposed_provenance::<Chunk>(address) }
}

/// Maps zeroed memory for one chunk, outside the region.
pub(crate) fn map_chunk() -> Option<usize> {
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: no address is named, so nothing that exists is touched.
    let mapped = unsafe { raw::map_anonymous(0, size_of::<Chunk>(), read_write, libc::MAP_NORESERVE) };
    (!raw::failed(mapped)).then_some(mapped.cast_unsigned())
}

/// Remembers the mapped session and this process's slot.
pub(crate) fn attach(session: &'static Session, slot: Option<&'static ProcessSlot>) {
    SESSION.store(core::ptr::from_ref(session).cast_mut(), SeqCst);
    set_slot(slot);
}

/// The mapped session.
pub(crate) fn session() -> Option<&'static Session> {
    // SAFETY: null or a session that is mapped for the life of the process; everything that changes in it is atomic.
    unsafe { SESSION.load(SeqCst).as_ref() }
}

/// Counts go here from now on.
pub(crate) fn set_slot(slot: Option<&'static ProcessSlot>) {
    SLOT.store(slot.map_or(core::ptr::null_mut(), |slot| core::ptr::from_ref(slot).cast_mut()), SeqCst);
}

/// This process's slot; `None` when the session's slots ran out.
pub(crate) fn slot() -> Option<&'static ProcessSlot> {
    // SAFETY: null or a slot of the session, which is mapped for the life of the process.
    unsafe { SLOT.load(SeqCst).as_ref() }
}

/// Counts bytes given from the region.
pub(crate) fn count_served(bytes: usize) {
    if let Some(slot) = slot() {
        slot.count_served(bytes);
    }
}

/// Counts bytes under a reason.
pub(crate) fn count(reason: PlacementReason, bytes: usize) {
    if let Some(slot) = slot() {
        slot.count_outside(reason, bytes);
    }
}
