//! Moves memory off hugetlb pages while the program runs.
//!
//! The kernel refuses page-grained calls on hugetlb memory. It also kills a child that reads a page
//! which its parent wrote after the pool became empty. So before such a call, and before each fork,
//! ordinary (transparent) pages with the same contents replace the hugetlb pages. Other threads
//! continue meanwhile:
//!
//! ```text
//! 1. userfaultfd write-protects the pages: writers wait, readers continue
//! 2. pages that the kernel has pinned stay (crate::pin_detection)
//! 3. the contents of the others are copied to fresh memory elsewhere in the region
//! 4. mremap(MREMAP_FIXED) puts the copy in their place, atomically for all other threads
//! 5. the protection ends: the writers continue on the copy
//! ```
//!
//! If step 1 or 2 is not permitted at the start, [`is_supported`] reports that, and hugetlb is not
//! used. If it is not permitted later, because the program dropped privileges or installed a
//! seccomp filter, the pages stay and new memory is not on hugetlb. Each page that stays is counted
//! under its reason.

#![allow(unsafe_code, reason = "copies and replaces the program's pages, and speaks to userfaultfd")]

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::{PageKind, PlacementReason};

use crate::hugetlb::{mark_all_busy, settled_state};
use crate::pin_detection::{self, PinState};
use crate::placement::{self, READ_WRITE, apply_page_kind, granules};
use crate::raw::RawResult;
use crate::state::{TABLE, address_of, count, forbid_new_hugetlb, kind, may_have_hugetlb, set_kind, set_no_hugetlb};
use crate::table::{GIANT, GRANULE, GranuleState, PAGE};
use crate::write_protection::{self, WriteProtector};
use crate::{numa_policy, raw};

/// Granules copied at a time: bounds the extra memory and the number of resulting mappings.
const BATCH: usize = 32;

/// The number of calls that are mapping hugetlb memory; a fork waits until it is zero.
static HUGETLB_MAPPINGS: AtomicUsize = AtomicUsize::new(0);

/// Counts one call that maps hugetlb memory until it is dropped.
pub(crate) struct HugetlbMappingGuard(());

impl HugetlbMappingGuard {
    pub(crate) fn begin() -> Self {
        HUGETLB_MAPPINGS.fetch_add(1, SeqCst);
        Self(())
    }
}

impl Drop for HugetlbMappingGuard {
    fn drop(&mut self) {
        HUGETLB_MAPPINGS.fetch_sub(1, SeqCst);
    }
}

/// Whether memory can be moved off hugetlb pages in this process. Opens the descriptors for that.
pub(crate) fn is_supported() -> bool {
    let is_supported = write_protection::open_stored() && pin_detection::open_stored();
    if !is_supported {
        write_protection::discard();
    }
    is_supported
}

/// Moves the pages of the range off hugetlb, so that they accept page-grained calls. False if a
/// page has to stay, which is counted with its reason.
pub(crate) fn make_ordinary(address: usize, bytes: usize, reason: PlacementReason) -> bool {
    migrate(units(granules(address, bytes)), reason)
}

/// Extends a range of granules to whole hugetlb pages.
fn units(range: Range<usize>) -> Range<usize> {
    if range.is_empty() {
        return range;
    }
    let giant = |granule: usize| settled_state(granule) == GranuleState::Giant;
    let start = if giant(range.start) { range.start / GIANT * GIANT } else { range.start };
    let end = if giant(range.end - 1) { range.end.next_multiple_of(GIANT) } else { range.end };
    start..end
}

/// Before a fork: moves all memory off hugetlb pages, and stops using them.
pub(crate) fn before_fork() {
    if !may_have_hugetlb() {
        return;
    }
    if kind() != PageKind::Small4k {
        set_kind(PageKind::Thp);
    }
    // The wait is bounded: a thread that clears pages in the kernel must not block the fork
    // forever.
    for _ in 0..100_000 {
        if HUGETLB_MAPPINGS.load(SeqCst) == 0 {
            break;
        }
        raw::yield_now();
    }
    placement::drop_reserve(GranuleState::ReservedHuge);
    if migrate(0..TABLE.high(), PlacementReason::DemotedByFork) {
        set_no_hugetlb();
        write_protection::discard();
        pin_detection::discard();
    }
}

/// In the child: the other threads of the parent do not exist, and their operations are unfinished.
pub(crate) fn after_fork() {
    HUGETLB_MAPPINGS.store(0, SeqCst);
    for granule in 0..TABLE.high() {
        if TABLE.state(granule) == GranuleState::Busy
            && let Some(pages) = TABLE.pages(granule)
        {
            // The pages stay used and are lost: no thread owns them, and they are never allocated
            // twice.
            TABLE.set_full(granule, pages, GranuleState::Split);
        }
    }
}

fn migrate(range: Range<usize>, reason: PlacementReason) -> bool {
    let mut next = range.start;
    let mut complete = true;
    while next < range.end {
        let state = settled_state(next);
        let held = match state {
            // A page of 1 GiB moves as a whole; `units` made the range start at its first granule.
            GranuleState::Giant => {
                if mark_all_busy(&(next..next + GIANT), state) {
                    GIANT
                } else {
                    0
                }
            }
            GranuleState::Huge => {
                TABLE.mark_busy(next..next + numa_policy::uniform_granules(next, BATCH.min(range.end - next)), state)
            }
            other => {
                // A thread that keeps it Busy for so long may be moving it.
                complete &= other != GranuleState::Busy;
                next += 1;
                continue;
            }
        };
        // Zero means that another thread changed the granule first; the next iteration reads its
        // new state.
        if held > 0 {
            complete &= replace(next..next + held, state, reason);
            next += held;
        }
    }
    complete
}

/// Replaces busy hugetlb granules by copies on transparent pages and ends their Busy state. True if
/// all were replaced.
fn replace(held: Range<usize>, state: GranuleState, reason: PlacementReason) -> bool {
    let (address, bytes) = (address_of(held.start), held.len() * GRANULE);
    let fault = WriteProtector::get().ok_or(PlacementReason::KeptNoUserfault);
    let fault = match fault.and_then(|fault| fault.write_protect(address, bytes).map(|()| fault)) {
        Ok(fault) => fault,
        Err(why) => return finish(held, state, Err(why)),
    };
    let mut pins = [PinState::Unknown; GIANT];
    pin_detection::detect_with_retries(address, &mut pins[..held.len()]);
    let mut complete = true;
    let mut first = held.start;
    while first < held.end {
        let pin = pins[first - held.start];
        let is_alike = |&granule: &usize| state == GranuleState::Giant || pins[granule - held.start] == pin;
        let run = first..first + (first..held.end).take_while(is_alike).count();
        let outcome = match pin {
            PinState::Unpinned => replace_by_copy(address_of(first), run.len()).map(|()| reason),
            PinState::Pinned => Err(PlacementReason::KeptPinned),
            PinState::Unknown => Err(PlacementReason::KeptUnseen),
        };
        fault.release(address_of(first), run.len() * GRANULE);
        first = run.end;
        complete &= finish(run, state, outcome);
    }
    complete
}

/// Ends the Busy state of granules that were moved (`Ok`, with the cause) or not (`Err`, with the
/// reason). True if moved.
fn finish(held: Range<usize>, state: GranuleState, outcome: Result<PlacementReason, PlacementReason>) -> bool {
    let moved = outcome.is_ok();
    count(outcome.unwrap_or_else(|why| why), held.len() * GRANULE);
    if matches!(outcome, Err(PlacementReason::KeptNoUserfault | PlacementReason::KeptUnseen)) {
        forbid_new_hugetlb();
    }
    held.for_each(|granule| finish_granule(granule, moved, state));
    moved
}

fn finish_granule(granule: usize, moved: bool, state: GranuleState) {
    match TABLE.pages(granule).filter(|_| moved) {
        Some(pages) => placement::split_after_migration(granule, pages),
        None => TABLE.set_state(granule, state),
    }
}

/// Replaces whole granules of one NUMA policy by a copy on ordinary pages. No thread may write to
/// them meanwhile.
///
/// # Errors
/// The reason why the granules stay.
fn replace_by_copy(address: usize, granules: usize) -> Result<(), PlacementReason> {
    let bytes = granules * GRANULE;
    let mapped = placement::map_granules(granules, 1, |scratch| raw::map_new(scratch, bytes, READ_WRITE, 0));
    let first = mapped.map_err(mapping_failure)?;
    let scratch = address_of(first);
    numa_policy::copy_policy(address, scratch, bytes);
    apply_page_kind(scratch, bytes, 0);
    copy_present(address, scratch, granules);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the copy replaces its original, whose writers wait; the kernel swaps the mappings
    // under its lock.
    let moved = unsafe { raw::mremap(scratch, bytes, bytes, flags, address) };
    let outcome = if raw::failed(moved) { Err(PlacementReason::KeptMappings) } else { Ok(()) };
    if outcome.is_err() {
        // SAFETY: this call mapped the scratch memory and has not published it.
        unsafe { raw::munmap(scratch, bytes) };
    }
    (first..first + granules).for_each(|granule| TABLE.free(granule));
    outcome
}

/// The reason why the kernel mapped no memory for a copy. Too many mappings and too little memory
/// have the same errno, but too many mappings also refuse a page without access, which needs no
/// memory.
fn mapping_failure(errno: RawResult) -> PlacementReason {
    // SAFETY: without a fixed address the kernel picks a free range, so no mapping is replaced.
    let trial = unsafe { raw::map_anonymous(0, PAGE, libc::PROT_NONE, libc::MAP_NORESERVE) };
    if !raw::failed(trial) {
        // SAFETY: this function mapped the page just now.
        unsafe { raw::munmap(trial.cast_unsigned(), PAGE) };
    }
    match errno {
        _ if errno == -(libc::ENOSPC as RawResult) => PlacementReason::KeptNoRoom,
        _ if raw::failed(trial) && raw::limit(libc::RLIMIT_AS) == usize::MAX => PlacementReason::KeptMappings,
        _ => PlacementReason::KeptNoMemory,
    }
}

/// Copies the granules that pin data; untouched ones read as zeroes in source and target.
fn copy_present(from: usize, to: usize, granules: usize) {
    for granule in 0..granules {
        let offset = granule * GRANULE;
        let mut resident = [0u8; GRANULE / PAGE];
        let vector = resident.as_mut_ptr() as usize;
        // SAFETY: the kernel writes one byte for each page of a granule, the length of `resident`.
        let known = unsafe { raw::syscall(libc::SYS_mincore, [from + offset, GRANULE, vector, 0, 0, 0]) };
        if raw::failed(known) || resident[0] & 1 == 1 {
            let source = core::ptr::with_exposed_provenance::<u8>(from + offset);
            let target = core::ptr::with_exposed_provenance_mut::<u8>(to + offset);
            // SAFETY: both ranges are mapped, a granule long and disjoint; userfaultfd blocks
            // writers to the source.
            unsafe { core::ptr::copy_nonoverlapping(source, target, GRANULE) };
        }
    }
}
