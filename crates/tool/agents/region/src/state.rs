//! The global state of the agent: the table, the range of the region, the options, and the slot for
//! counters.
//!
//! Invariants: all state is atomic and nothing is locked. Calls come from any thread, from signal
//! handlers, and from children whose parent forked in the middle of a call.

#![allow(unsafe_code, reason = "pointers to the mapped session and to mapped page bits become references here")]

use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::{Config, PageKind, PlacementReason, ProcessSlot, Session, mosaic};

use crate::arch::ADDRESS_SPACE_END;
use crate::raw;
use crate::table::{GRANULE, GRANULES, GranuleState, PAGE, RegionTable, TableChunk};

/// The allocation state of each address of the region.
pub(crate) static TABLE: RegionTable = RegionTable::new();

static BASE: AtomicUsize = AtomicUsize::new(0);
static KIND: AtomicU32 = AtomicU32::new(PageKind::Thp as u32);
static MOSAIC_BOUND: AtomicU64 = AtomicU64::new(mosaic::ALL);
static PREFAULT: AtomicBool = AtomicBool::new(false);
static SERVES_STACKS: AtomicBool = AtomicBool::new(false);
static IS_EXACT: AtomicBool = AtomicBool::new(false);
static IGNORES_HINTS: AtomicBool = AtomicBool::new(false);
static REENABLES_HUGE_PAGES: AtomicBool = AtomicBool::new(false);
static HUGETLB_FORBIDDEN: AtomicBool = AtomicBool::new(false);
static HUGETLB: AtomicBool = AtomicBool::new(false);
static MEMORY: AtomicUsize = AtomicUsize::new(usize::MAX);
static SESSION: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());
static SLOT: AtomicPtr<ProcessSlot> = AtomicPtr::new(core::ptr::null_mut());

/// The first granule of the reserve, and the number of granules.
static RESERVE: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
/// Bytes of the reserve that are not yet used.
static RESERVE_LEFT: AtomicUsize = AtomicUsize::new(0);

/// The granules that `--reserve` mapped. Those not yet used are `Reserved` or `ReservedHuge`.
pub(crate) fn reserve() -> Range<usize> {
    let first = RESERVE.0.load(SeqCst);
    first..first + RESERVE.1.load(SeqCst)
}

/// Sets the range of [`reserve`], all of it unused.
pub(crate) fn set_reserve(range: &Range<usize>) {
    RESERVE.0.store(range.start, SeqCst);
    RESERVE.1.store(range.len(), SeqCst);
    RESERVE_LEFT.store(range.len() * GRANULE, SeqCst);
}

/// Claims unused granules of the reserve and returns the first.
pub(crate) fn claim_reserve(idle: GranuleState, granules: usize) -> Option<usize> {
    let first = TABLE.claim_from(idle, reserve(), granules)?;
    shrink_reserve(granules);
    Some(first)
}

/// Counts `granules` of the reserve as used.
pub(crate) fn shrink_reserve(granules: usize) {
    let left = RESERVE_LEFT.fetch_sub(granules * GRANULE, SeqCst) - granules * GRANULE;
    if let Some(slot) = slot() {
        slot.reserve_left_bytes.store(left as u64, SeqCst);
    }
}

/// Bytes of the reserve that are not yet used.
pub(crate) fn reserve_left_bytes() -> usize {
    RESERVE_LEFT.load(SeqCst)
}

/// Sets the base and the options of the region. `memory` is the memory of the machine in bytes.
pub(crate) fn initialize(base: usize, config: &Config, memory: usize) {
    let kind = config.page_kind().unwrap_or(PageKind::Thp);
    KIND.store(kind as u32, SeqCst);
    HUGETLB.store(matches!(kind, PageKind::Hugetlb2m | PageKind::Hugetlb1g), SeqCst);
    MOSAIC_BOUND.store(config.mosaic_bound, SeqCst);
    PREFAULT.store(config.prefault != 0, SeqCst);
    MEMORY.store(memory, SeqCst);
    BASE.store(base, SeqCst);
}

/// The requested page kind, or the one that a missing kernel feature left.
pub(crate) fn kind() -> PageKind {
    PageKind::from_code(KIND.load(SeqCst)).unwrap_or(PageKind::Thp)
}

/// Whether the mosaic option leaves a part of the region on small pages.
pub(crate) fn is_mosaic() -> bool {
    MOSAIC_BOUND.load(SeqCst) < mosaic::ALL && kind() == PageKind::Thp
}

/// Whether a granule of the region gets the requested pages; in a mosaic only some do.
pub(crate) fn is_huge_granule(granule: usize) -> bool {
    mosaic::is_huge(granule as u64, MOSAIC_BOUND.load(SeqCst))
}

/// Whether hugetlb was requested but cannot be used safely.
pub(crate) fn is_hugetlb_forbidden() -> bool {
    HUGETLB_FORBIDDEN.load(SeqCst)
}

/// Uses transparent pages instead of the requested hugetlb pages, and counts that.
pub(crate) fn forbid_hugetlb() {
    HUGETLB.store(false, SeqCst);
    forbid_new_hugetlb();
}

/// Uses transparent pages for new memory: memory on hugetlb pages cannot be moved off them any
/// more.
pub(crate) fn forbid_new_hugetlb() {
    HUGETLB_FORBIDDEN.store(true, SeqCst);
    set_kind(PageKind::Thp);
}

/// Whether some memory may be on hugetlb pages.
pub(crate) fn may_have_hugetlb() -> bool {
    HUGETLB.load(SeqCst)
}

/// Records that no memory is on hugetlb pages, and none will be.
pub(crate) fn set_no_hugetlb() {
    HUGETLB.store(false, SeqCst);
}

/// Sets the page kind of new memory.
pub(crate) fn set_kind(kind: PageKind) {
    KIND.store(kind as u32, SeqCst);
}

/// Whether memory is touched when it is mapped.
pub(crate) fn is_prefault() -> bool {
    PREFAULT.load(SeqCst)
}

/// Whether each request maps exactly its own pages: nothing ahead, and no page shared with a
/// neighbour.
pub(crate) fn is_exact() -> bool {
    IS_EXACT.load(SeqCst)
}

/// Makes placement exact from now on.
pub(crate) fn set_exact() {
    IS_EXACT.store(true, SeqCst);
}

/// Reverts [`set_exact`].
#[cfg(test)]
pub(crate) fn clear_exact() {
    IS_EXACT.store(false, SeqCst);
}

/// Serves threads' stacks from the region from now on.
pub(crate) fn serve_stacks() {
    SERVES_STACKS.store(true, SeqCst);
}

/// Whether threads' stacks are served from the region.
pub(crate) fn are_stacks_served() -> bool {
    SERVES_STACKS.load(SeqCst)
}

/// Serves requests with a hint at another address from the region from now on.
pub(crate) fn ignore_hints() {
    IGNORES_HINTS.store(true, SeqCst);
}

/// Whether requests with a hint at another address are served from the region.
pub(crate) fn are_hints_ignored() -> bool {
    IGNORES_HINTS.load(SeqCst)
}

/// Re-enables transparent huge pages that the program disables, from now on.
pub(crate) fn reenable_huge_pages() {
    REENABLES_HUGE_PAGES.store(true, SeqCst);
}

/// Whether transparent huge pages that the program disables are re-enabled.
pub(crate) fn reenables_huge_pages() -> bool {
    REENABLES_HUGE_PAGES.load(SeqCst)
}

/// Memory of the machine in bytes.
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

/// Whether `address` is in the region.
pub(crate) fn contains(address: usize) -> bool {
    (base()..limit()).contains(&address)
}

/// Whether a part of the range is in the region. False for a range beyond the address space: the
/// kernel refuses it.
pub(crate) fn overlaps(address: usize, bytes: usize) -> bool {
    let end = address.saturating_add(bytes);
    address < limit() && end > base() && end <= ADDRESS_SPACE_END
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

/// The chunk of the table at `address`, which [`map_chunk`] returned.
pub(crate) fn chunk(address: usize) -> &'static TableChunk {
    // SAFETY: only addresses that `map_chunk` returned are stored in the table; they are
    // page-aligned, hold a whole `TableChunk`, stay mapped for the life of the process, and all
    // zeroes are a valid value of its atomics.
    unsafe { &*core::ptr::with_exposed_provenance::<TableChunk>(address) }
}

/// Maps zeroed memory for one chunk, outside the region.
pub(crate) fn map_chunk() -> Option<usize> {
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: without a fixed address the kernel picks a free range, so no mapping is replaced.
    let mapped = unsafe { raw::map_anonymous(0, size_of::<TableChunk>(), read_write, libc::MAP_NORESERVE) };
    (!raw::failed(mapped)).then_some(mapped.cast_unsigned())
}

/// Stores the mapped session and the slot of this process.
pub(crate) fn attach(session: &'static Session, slot: Option<&'static ProcessSlot>) {
    SESSION.store(core::ptr::from_ref(session).cast_mut(), SeqCst);
    set_slot(slot);
}

/// The mapped session.
pub(crate) fn session() -> Option<&'static Session> {
    // SAFETY: null or a session mapped for the life of the process; all fields that change are
    // atomic.
    unsafe { SESSION.load(SeqCst).as_ref() }
}

/// Sets the slot that counts are written to.
pub(crate) fn set_slot(slot: Option<&'static ProcessSlot>) {
    SLOT.store(slot.map_or(core::ptr::null_mut(), |slot| core::ptr::from_ref(slot).cast_mut()), SeqCst);
}

/// The slot of this process; `None` if the session has no free slot.
pub(crate) fn slot() -> Option<&'static ProcessSlot> {
    // SAFETY: null or a slot of the session, which is mapped for the life of the process.
    unsafe { SLOT.load(SeqCst).as_ref() }
}

/// Counts bytes served from the region.
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
