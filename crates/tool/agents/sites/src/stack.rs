//! From a stack pointer to a site: from a cache of stacks, else by unwinding.
//!
//! Unwinding reads tables and takes about ten thousand instructions, but a program allocates at few
//! places with few different stacks. So each thread caches, for a return address at a stack
//! pointer, the site, and how far above the stack pointer each return address of the site was:
//!
//! ```text
//! sp + 0          return address into frame 0    == site's frame 0 ?
//! sp + places[1]  return address into frame 1    == site's frame 1 ?
//! sp + places[2]  ...                            a dozen loads, all equal: the same stack
//! ```
//!
//! Each word is read only if all below it are equal: a return address determines the function whose
//! frame is above it, and with frames of fixed length the place of the next return address in the
//! current stack.
//!
//! Limits: with a frame of variable length (`alloca`) the next return address may be elsewhere, and
//! a stale word may be equal by chance. Such a stack can be mistaken for an earlier one at the same
//! place through the same function. A stack that cannot be checked (the address of an interrupted
//! frame is in a signal's context) is not cached.

#![allow(unsafe_code, reason = "reads return addresses on the stack and the mapped cache")]

use core::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::sites::{Announcement, CACHE_BYTES, FRAMES, Sites};

use crate::modules;
use crate::start::with_errno_restored;
use crate::thread::ThreadGuard;
use crate::unwind::{self, CallStack, StackPointer};

/// A stack in the cache, one cache line.
#[repr(C, align(64))]
struct CachedStack {
    sp: u64,
    site: u32,
    depth: u32,
    /// The distance of each return address from `sp` in words.
    places: [u32; FRAMES],
}

/// Stacks cached for one return address at one place: the wrapper of an allocator has many callers.
const WAYS: usize = 8;
const SETS: usize = CACHE_BYTES / (WAYS * size_of::<CachedStack>());

/// The number of the site that calls from `sp`; 0 if the table of sites is full.
pub(crate) fn site(sites: &Sites, thread: &ThreadGuard, sp: StackPointer) -> u32 {
    let cached = thread.cache().map(|cache| set(cache, sp));
    if let Some(set) = cached {
        // SAFETY: a set of this thread's cache, which it enters once at a time: zeroes, or entries
        // written below.
        let entry = (0..WAYS).map(|way| unsafe { &*set.add(way) }).find(|entry| entry.matches(sites, sp));
        if let Some(entry) = entry {
            return entry.site;
        }
    }
    thread.mailbox().announce(Announcement::Quiet);
    let (stack, number) = with_errno_restored(|| {
        let stack = unwind::stack(sp);
        let number = sites.intern(stack.frames(), modules::of_frames);
        (stack, number)
    });
    if let Some((set, cached_stack)) = cached.zip(CachedStack::of(&stack, number)) {
        // The ways are replaced in turn.
        let next_way = thread.mailbox().turn.load(Relaxed);
        thread.mailbox().turn.store(next_way.wrapping_add(1), Relaxed);
        // SAFETY: the set is in this thread's cache, and no reference to the entry exists now.
        unsafe { set.add(next_way as usize % WAYS).write(cached_stack) };
    }
    number
}

/// The first entry of the set for this return address and place.
fn set(cache: u64, sp: StackPointer) -> *mut CachedStack {
    // SAFETY: the caller's return address is at `sp`.
    let called_from = unsafe { *sp };
    let hash = (called_from ^ (sp as u64).rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    core::ptr::with_exposed_provenance_mut::<CachedStack>(cache as usize)
        .wrapping_add((hash >> 32) as usize % SETS * WAYS)
}

impl CachedStack {
    fn of(stack: &CallStack, site: u32) -> Option<Self> {
        let places = stack.offsets_from_sp()?;
        (site != 0).then(|| Self { sp: stack.sp(), site, depth: stack.frames().len() as u32, places })
    }

    /// Whether the stack above `sp` is the cached one.
    fn matches(&self, sites: &Sites, sp: StackPointer) -> bool {
        let Some(site) = sites.site(self.site).filter(|_| self.sp == sp as u64) else { return false };
        let frames = site.frames();
        frames.len() == self.depth as usize
            && frames.zip(self.places).all(|((frame, _), place)| {
                // SAFETY: all lower return addresses are equal, so the frames exist and the word is
                // in the stack.
                frame == unsafe { *sp.add(place as usize) }
            })
    }
}
