//! Moving memory off hugetlb pages, under the program's feet.
//!
//! The kernel refuses page-grained calls on hugetlb memory, and kills a child that reads a page its parent wrote
//! after the pool ran dry. So before such a call, and before any fork, the pages concerned are replaced by transparent
//! ones with the same contents. Other threads go on meanwhile:
//!
//! ```text
//! 1. userfaultfd write-protects the pages: writers wait, readers read
//! 2. pages that the kernel holds by their frames stay as they are (crate::pinned)
//! 3. the contents of the others are copied to fresh memory elsewhere in the region
//! 4. mremap(MREMAP_FIXED) puts the copy in their place, in one step for every other thread
//! 5. the protection ends: the writers go on, on the copy
//! ```
//!
//! Where step 1 or 2 is not permitted at the start, [`allowed`] keeps hugetlb from being used at all. Where it is not
//! permitted any more, because the program dropped privileges or installed a filter, the pages stay and no new memory
//! goes to hugetlb. Each page that stays is counted under its reason.

#![allow(unsafe_code, reason = "copies and replaces the program's pages, and speaks to userfaultfd")]

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use fieldstone_wire::{PageKind, PlacementReason};

use crate::huge::{at_rest, hold_all};
use crate::pinned::{self, Hold};
use crate::place::{self, READ_WRITE, granules, settle};
use crate::raw::Raw;
use crate::state::{TABLE, address_of, count, forbid_new_hugetlb, kind, may_have_hugetlb, no_hugetlb_left, set_kind};
use crate::table::{GIANT, GRANULE, PAGE, State};
use crate::userfault::{self, Userfault};
use crate::{policy, raw};

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

/// Whether hugetlb memory can be moved off its pages in this process. Keeps open what that takes.
pub(crate) fn allowed() -> bool {
    let allowed = userfault::keep() && pinned::keep();
    if !allowed {
        userfault::discard();
    }
    allowed
}

/// Makes every page of the range one that the kernel's page-grained calls accept. False where a page has to stay on
/// hugetlb, which is counted with its reason.
pub(crate) fn make_ordinary(address: usize, bytes: usize, reason: PlacementReason) -> bool {
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
    if kind() != PageKind::Small4k {
        set_kind(PageKind::Thp);
    }
    // Bounded: a thread that is stuck in the kernel's page clearing must not hang the fork for ever.
    for _ in 0..100_000 {
        if MAPPING.load(SeqCst) == 0 {
            break;
        }
        raw::yield_now();
    }
    place::drop_reserve(State::ReservedHuge);
    if demote(0..TABLE.high(), PlacementReason::DemotedByFork) {
        no_hugetlb_left();
        userfault::discard();
        pinned::discard();
    }
}

/// In the child: the parent's other threads are gone, and with them what they were in the middle of.
pub(crate) fn after_fork() {
    MAPPING.store(0, SeqCst);
    for granule in 0..TABLE.high() {
        if TABLE.state(granule) == State::Busy
            && let Some(pages) = TABLE.pages(granule)
        {
            // Nobody owns the pages that stay used: they are lost, and never given twice.
            TABLE.own(granule, pages, State::Split);
        }
    }
}

fn demote(range: Range<usize>, reason: PlacementReason) -> bool {
    let mut next = range.start;
    let mut complete = true;
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
            other => {
                // Whoever holds it for so long may be moving it.
                complete &= other != State::Busy;
                next += 1;
                continue;
            }
        };
        // Zero: another thread was faster, and the next look shows what it made of the granule.
        if held > 0 {
            complete &= replace(next..next + held, state, reason);
            next += held;
        }
    }
    complete
}

/// Replaces held hugetlb granules by copies on transparent pages, and lets go of them. Whether all were replaced.
fn replace(held: Range<usize>, state: State, reason: PlacementReason) -> bool {
    let (address, bytes) = (address_of(held.start), held.len() * GRANULE);
    let fault = Userfault::get().ok_or(PlacementReason::KeptNoUserfault);
    let fault = match fault.and_then(|fault| fault.write_protect(address, bytes).map(|()| fault)) {
        Ok(fault) => fault,
        Err(why) => return end(held, state, Err(why)),
    };
    let mut holds = [Hold::Unknown; GIANT];
    pinned::look_patiently(address, &mut holds[..held.len()]);
    let mut complete = true;
    let mut first = held.start;
    while first < held.end {
        let hold = holds[first - held.start];
        let like = |&granule: &usize| state == State::Giant || holds[granule - held.start] == hold;
        let run = first..first + (first..held.end).take_while(like).count();
        let outcome = match hold {
            Hold::Free => copy_over(address_of(first), run.len()).map(|()| reason),
            Hold::Pinned => Err(PlacementReason::KeptPinned),
            Hold::Unknown => Err(PlacementReason::KeptUnseen),
        };
        fault.release(address_of(first), run.len() * GRANULE);
        first = run.end;
        complete &= end(run, state, outcome);
    }
    complete
}

/// Lets go of held granules that were moved for a reason, or were not. Whether they were.
fn end(held: Range<usize>, state: State, outcome: Result<PlacementReason, PlacementReason>) -> bool {
    let moved = outcome.is_ok();
    count(outcome.unwrap_or_else(|why| why), held.len() * GRANULE);
    if matches!(outcome, Err(PlacementReason::KeptNoUserfault | PlacementReason::KeptUnseen)) {
        forbid_new_hugetlb();
    }
    held.for_each(|granule| let_go(granule, moved, state));
    moved
}

fn let_go(granule: usize, moved: bool, state: State) {
    match TABLE.pages(granule).filter(|_| moved) {
        Some(pages) => place::leave_hugetlb(granule, pages),
        None => TABLE.set_state(granule, state),
    }
}

/// Puts a copy on ordinary pages in the place of whole granules of one policy. Nobody may write to them meanwhile.
///
/// # Errors
/// Why the granules stay as they are.
fn copy_over(address: usize, granules: usize) -> Result<(), PlacementReason> {
    let bytes = granules * GRANULE;
    let mapped = place::map_granules(granules, 1, |scratch| raw::map_new(scratch, bytes, READ_WRITE, 0));
    let first = mapped.map_err(why_unmapped)?;
    let scratch = address_of(first);
    policy::copy(address, scratch, bytes);
    settle(scratch, bytes, 0);
    copy_present(address, scratch, granules);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: the copy takes the place of its original, whose writers wait; the kernel swaps both under its lock.
    let moved = unsafe { raw::mremap(scratch, bytes, bytes, flags, address) };
    let outcome = if raw::failed(moved) { Err(PlacementReason::KeptMappings) } else { Ok(()) };
    if outcome.is_err() {
        // SAFETY: the scratch memory is this call's own.
        unsafe { raw::munmap(scratch, bytes) };
    }
    (first..first + granules).for_each(|granule| TABLE.free(granule));
    outcome
}

/// Why the kernel mapped no memory for a copy. Too many mappings give the same errno as too little memory, but keep out
/// even a page that needs no memory.
fn why_unmapped(errno: Raw) -> PlacementReason {
    // SAFETY: no address is named, so nothing that exists is touched.
    let trial = unsafe { raw::map_anonymous(0, PAGE, libc::PROT_NONE, libc::MAP_NORESERVE) };
    if !raw::failed(trial) {
        // SAFETY: what this function just mapped.
        unsafe { raw::munmap(trial.cast_unsigned(), PAGE) };
    }
    match errno {
        _ if errno == -(libc::ENOSPC as Raw) => PlacementReason::KeptNoRoom,
        _ if raw::failed(trial) && raw::limit(libc::RLIMIT_AS) == usize::MAX => PlacementReason::KeptMappings,
        _ => PlacementReason::KeptNoMemory,
    }
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
