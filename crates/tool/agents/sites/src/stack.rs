//! From a stack pointer to a site: by what was seen at this place before, else by unwinding.
//!
//! Unwinding reads tables and takes some ten thousand instructions, but a program allocates at the same few places with the
//! same few stacks. So each thread remembers, for a return address at a stack pointer, the site, and how far above the
//! stack pointer each return address of the site lay:
//!
//! ```text
//! sp + 0          return address into frame 0    == site's frame 0 ?
//! sp + places[1]  return address into frame 1    == site's frame 1 ?
//! sp + places[2]  ...                            a dozen loads, all equal: the same stack
//! ```
//!
//! Each is read only after all below it were found equal: a return address says which function's frame is above it, and so,
//! where frames have a fixed length, that the next place is the right one, in the stack that is there now. With a frame of
//! variable length (`alloca`) the next place may lie elsewhere, and a stale word there be equal by chance: such a stack
//! can be taken for another one that was at the same place, through the same function, before.
//!
//! What cannot be checked in this way (an interrupted frame has its address in a signal's context) is not remembered.

#![allow(unsafe_code, reason = "reads return addresses on the stack and the mapped cache")]

use core::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::sites::{Announcement, CACHE_BYTES, FRAMES, Sites};

use crate::modules;
use crate::start::keeping_errno;
use crate::thread::Thread;
use crate::unwind::{self, Stack};

/// Where the return address of a call of the malloc family lies.
pub(crate) type StackPointer = *const u64;

/// What is known of a place, in one cache line.
#[repr(C, align(64))]
struct Remembered {
    sp: u64,
    site: u32,
    depth: u32,
    /// How many words above `sp` each return address lies.
    places: [u32; FRAMES],
}

/// Stacks that are remembered for the same return address at the same place: an allocator's wrapper is called by many.
const WAYS: usize = 8;
const SETS: usize = CACHE_BYTES / (WAYS * size_of::<Remembered>());

/// The number of the site that calls from `sp`; 0 when the table of sites is full.
pub(crate) fn site(sites: &Sites, thread: &Thread, sp: StackPointer) -> u32 {
    let cached = thread.cache().map(|cache| set(cache, sp));
    if let Some(set) = cached {
        // SAFETY: a set of this thread's own cache, which the thread is in once only: zeroes, or what was written below.
        let known = (0..WAYS).map(|way| unsafe { &*set.add(way) }).find(|known| known.holds(sites, sp));
        if let Some(known) = known {
            return known.site;
        }
    }
    thread.letter().announce(Announcement::Quiet);
    let (stack, number) = keeping_errno(|| {
        let stack = unwind::stack(sp);
        let number = sites.intern(stack.frames(), modules::of);
        (stack, number)
    });
    if let Some((set, remembered)) = cached.zip(Remembered::of(&stack, number)) {
        // The ways in turn.
        let turn = thread.letter().turn.load(Relaxed);
        thread.letter().turn.store(turn.wrapping_add(1), Relaxed);
        // SAFETY: as above; nothing refers to the entry now.
        unsafe { set.add(turn as usize % WAYS).write(remembered) };
    }
    number
}

/// The first of the entries of the cache where this place can be.
fn set(cache: u64, sp: StackPointer) -> *mut Remembered {
    // SAFETY: the caller's return address is there.
    let called_from = unsafe { *sp };
    let hash = (called_from ^ (sp as u64).rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    core::ptr::with_exposed_provenance_mut::<Remembered>(cache as usize)
        .wrapping_add((hash >> 32) as usize % SETS * WAYS)
}

impl Remembered {
    fn of(stack: &Stack, site: u32) -> Option<Self> {
        let places = stack.places_above_sp()?;
        (site != 0).then(|| Self { sp: stack.sp(), site, depth: stack.frames().len() as u32, places })
    }

    /// Whether the stack above `sp` is the one that is remembered.
    fn holds(&self, sites: &Sites, sp: StackPointer) -> bool {
        let Some(site) = sites.site(self.site).filter(|_| self.sp == sp as u64) else { return false };
        let frames = site.frames();
        frames.len() == self.depth as usize
            && frames.zip(self.places).all(|((frame, _), place)| {
                // SAFETY: the frames below are there (see above), so that this word is in the stack.
                frame == unsafe { *sp.add(place as usize) }
            })
    }
}
