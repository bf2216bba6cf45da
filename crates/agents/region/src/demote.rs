//! Moving memory off hugetlb pages, under the program's feet.
//!
//! The kernel refuses page-grained calls on hugetlb memory, and kills a child that reads a page its parent wrote
//! after the pool ran dry. So before such a call, and before any fork, the pages concerned are replaced by transparent
//! ones with the same contents. Other threads go on meanwhile:
//!
//! ```text
//! 1. userfaultfd write-protects the pages: writers wait, readers read
//! 2. the contents are copied to fresh memory elsewhere in the region
//! 3. mremap(MREMAP_FIXED) puts the copy in their place, in one step for every other thread
//! 4. the userfaultfd is closed: the writers go on, on the copy
//! ```
//!
//! Without userfaultfd none of this is safe, and [`allowed`] keeps hugetlb from being used at all. Writers that reach
//! the pages past the page tables would be lost: see [`crate::pinned`], which keeps such a program's pages in place.

#![allow(unsafe_code, reason = "copies and replaces the program's pages, and speaks to userfaultfd")]

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::{Outside, PageKind};

use crate::huge::{at_rest, hold_all};
use crate::place::{granules, settle};
use crate::state::{TABLE, address_of, count, map_chunk, may_have_hugetlb, no_hugetlb_left, reserve, set_kind};
use crate::table::{GIANT, GRANULE, PAGE, State};
use crate::userfault::Userfault;
use crate::{pinned, policy, raw};

/// Granules copied before they are put in place: bounds the extra memory, and the number of mappings left behind.
const BATCH: usize = 32;

/// Calls that are mapping hugetlb memory right now; a fork waits for them.
static MAPPING: AtomicUsize = AtomicUsize::new(0);

/// Counts a call that maps hugetlb memory for as long as it lives.
pub(crate) struct Mapping(());

impl Mapping {
    pub(crate) fn begin() -> Self {
        MAPPING.fetch_add(1, SeqCst);
        Self(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        MAPPING.fetch_sub(1, SeqCst);
    }
}

/// Whether hugetlb memory can be moved off its pages in this process.
pub(crate) fn allowed() -> bool {
    Userfault::open().is_some()
}

/// Makes every page of the range one that the kernel's page-grained calls accept. False where there was no memory for
/// a copy; the caller's call then fails as the kernel says.
pub(crate) fn make_ordinary(address: usize, bytes: usize, reason: Outside) -> bool {
    demote(units(granules(address, bytes)), reason)
}

/// Widens a range of granules to whole hugetlb pages.
fn units(range: Range<usize>) -> Range<usize> {
    if range.is_empty() {
        return range;
    }
    let giant = |granule: usize| at_rest(granule) == State::Giant;
    let start = if giant(range.start) { range.start / GIANT * GIANT } else { range.start };
    let end = if giant(range.end - 1) { range.end.next_multiple_of(GIANT) } else { range.end };
    start..end
}

/// Before a fork: nothing stays on hugetlb pages, and nothing new goes there.
pub(crate) fn before_fork() {
    if !may_have_hugetlb() {
        return;
    }
    set_kind(PageKind::Thp);
    // Bounded: a thread that is stuck in the kernel's page clearing must not hang the fork for ever.
    for _ in 0..100_000 {
        if MAPPING.load(SeqCst) == 0 {
            break;
        }
        raw::yield_now();
    }
    for granule in reserve() {
        if TABLE.change(granule, State::ReservedHuge, State::Busy) {
            // SAFETY: a reserved granule belongs to nobody.
            unsafe { raw::munmap(address_of(granule), GRANULE) };
            TABLE.free(granule);
        }
    }
    if demote(0..TABLE.high(), Outside::DemotedByFork) {
        no_hugetlb_left();
    }
}

/// In the child: the parent's other threads are gone, and with them what they were in the middle of.
pub(crate) fn after_fork() {
    MAPPING.store(0, SeqCst);
    for granule in 0..TABLE.high() {
        if TABLE.state(granule) == State::Busy
            && let Some(pages) = TABLE.pages(granule, map_chunk)
        {
            // Nobody owns the pages that stay used: they are lost, and never given twice.
            TABLE.own(granule, pages, State::Split);
        }
    }
}

fn demote(range: Range<usize>, reason: Outside) -> bool {
    let mut next = range.start;
    let mut complete = true;
    let mut userfault = None;
    while next < range.end {
        let state = at_rest(next);
        let held = match state {
            // A page of 1 GiB moves as one; `units` saw to it that the run starts on its first granule.
            State::Giant => {
                if hold_all(&(next..next + GIANT), state) {
                    GIANT
                } else {
                    0
                }
            }
            State::Huge => TABLE.hold(next..next + policy::uniform(next, BATCH.min(range.end - next)), state),
            _ => {
                next += 1;
                continue;
            }
        };
        // Zero: another thread was faster, and the next look shows what it made of the granule.
        if held > 0 {
            if userfault.is_none() && !pinned::possible() {
                userfault = Userfault::open();
            }
            let moved = userfault.as_ref().is_some_and(|fault| replace(fault, next, held));
            (next..next + held).for_each(|granule| let_go(granule, moved, state));
            count(if moved { reason } else { Outside::DemotionFailed }, held * GRANULE);
            complete &= moved;
            next += held;
        }
    }
    complete
}

fn let_go(granule: usize, moved: bool, state: State) {
    match TABLE.pages(granule, map_chunk).filter(|_| moved) {
        Some(pages) => TABLE.disown(granule, pages),
        None => TABLE.set_state(granule, state),
    }
}

/// Replaces held hugetlb granules by a copy on transparent pages.
fn replace(userfault: &Userfault, first: usize, granules: usize) -> bool {
    let (address, bytes) = (address_of(first), granules * GRANULE);
    let moved = userfault.write_protect(address, bytes) && copy_over(address, granules);
    if !moved {
        userfault.write_unprotect(address, bytes);
    }
    moved
}

/// Puts a copy on ordinary pages in the place of whole granules of one policy. Nobody may write to them meanwhile.
fn copy_over(address: usize, granules: usize) -> bool {
    let bytes = granules * GRANULE;
    let Some(first) = TABLE.claim_free(granules, 1) else { return false };
    let scratch = address_of(first);
    let read_write = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: NOREPLACE never takes the place of a mapping; the granules were claimed by this call.
    let mapped = unsafe { raw::map_anonymous(scratch, bytes, read_write, libc::MAP_FIXED_NOREPLACE) };
    let mut done = !raw::failed(mapped);
    if done {
        policy::copy(address, scratch, bytes);
        settle(scratch, bytes, 0);
        copy_present(address, scratch, granules);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the copy takes the place of its original, whose writers wait; the kernel swaps both under its lock.
        done = !raw::failed(unsafe { raw::mremap(scratch, bytes, bytes, flags, address) });
    }
    if !done {
        // SAFETY: the scratch memory is this call's own.
        unsafe { raw::munmap(scratch, bytes) };
    }
    (first..first + granules).for_each(|granule| TABLE.free(granule));
    done
}

/// Copies the granules that hold anything; untouched ones read as zeroes on either side.
fn copy_present(from: usize, to: usize, granules: usize) {
    for granule in 0..granules {
        let offset = granule * GRANULE;
        let mut resident = [0u8; GRANULE / PAGE];
        let vector = resident.as_mut_ptr() as usize;
        // SAFETY: the kernel writes one byte a page of the range into `resident`, which has as many.
        let known = unsafe { raw::syscall(libc::SYS_mincore, [from + offset, GRANULE, vector, 0, 0, 0]) };
        if raw::failed(known) || resident[0] & 1 == 1 {
            let source = core::ptr::with_exposed_provenance::<u8>(from + offset);
            let target = core::ptr::with_exposed_provenance_mut::<u8>(to + offset);
            // SAFETY: both are mapped, a granule long and apart; the source's writers wait at the userfaultfd.
            unsafe { core::ptr::copy_nonoverlapping(source, target, GRANULE) };
        }
    }
}
