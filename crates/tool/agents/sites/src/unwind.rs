//! The return addresses above a place on the stack, by the unwinder of libgcc and the tables of each file.
//!
//! ```text
//! higher | frame 1                                   CFA of frame 0: where frame 0's caller had its stack pointer
//!        | return address into frame 1   <- CFA - 8
//!        | frame 0: called malloc
//!        | return address into frame 0   <- sp
//! lower  | our own frames, and the unwinder's
//! ```
//!
//! The unwinder tells of each frame an address in it and the CFA of the frame below. The first frame that counts is the one
//! whose address lies at `sp`; all below are ours.

#![allow(unsafe_code, reason = "calls the unwinder, and reads the stack where it says that return addresses lie")]

use core::ffi::{c_int, c_void};

use fieldstone_wire::sites::FRAMES;

use crate::stack::StackPointer;

#[repr(C)]
struct Context([u8; 0]);

const GO_ON: c_int = 0;
const STOP: c_int = 4;
/// Frames of ours and of the unwinder that may lie below the first that counts.
const OUR_FRAMES: usize = 32;

#[link(name = "gcc_s")]
unsafe extern "C" {
    fn _Unwind_Backtrace(see: unsafe extern "C" fn(*mut Context, *mut c_void) -> c_int, with: *mut c_void) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut Context, before_instruction: *mut c_int) -> usize;
    fn _Unwind_GetCFA(context: *mut Context) -> usize;
}

/// A stack that was unwound.
pub(crate) struct Stack {
    sp: u64,
    depth: usize,
    frames: [u64; FRAMES],
    places: [u64; FRAMES],
    skipped: usize,
    /// Whether each frame's address lies at its place.
    checkable: bool,
}

/// Unwinds from `sp` upwards. Where the unwinder cannot do it, there is the caller alone.
pub(crate) fn stack(sp: StackPointer) -> Stack {
    let mut stack =
        Stack { sp: sp as u64, depth: 0, frames: [0; FRAMES], places: [0; FRAMES], skipped: 0, checkable: true };
    // SAFETY: `see` gets the stack that lives here, and only during the call.
    unsafe { _Unwind_Backtrace(see, (&raw mut stack).cast()) };
    if stack.depth == 0 {
        // SAFETY: the caller's return address is there.
        stack.add(unsafe { *sp }, sp as u64);
    }
    stack
}

unsafe extern "C" fn see(context: *mut Context, stack: *mut c_void) -> c_int {
    // SAFETY: what `stack` passed.
    let stack = unsafe { &mut *stack.cast::<Stack>() };
    let mut interrupted = 0;
    // SAFETY: the unwinder's own context.
    let (address, place) =
        unsafe { (_Unwind_GetIPInfo(context, &raw mut interrupted) as u64, _Unwind_GetCFA(context) as u64 - 8) };
    if stack.depth == 0 && place != stack.sp {
        stack.skipped += 1;
        return if stack.skipped < OUR_FRAMES { GO_ON } else { STOP };
    }
    if address == 0 {
        return STOP;
    }
    if interrupted == 0 {
        stack.add(address, place);
    } else {
        // The instruction that was interrupted, as if it were the call before the next one.
        stack.checkable = false;
        stack.add(address + 1, place);
    }
    if stack.depth < FRAMES { GO_ON } else { STOP }
}

impl Stack {
    fn add(&mut self, address: u64, place: u64) {
        self.frames[self.depth] = address;
        self.places[self.depth] = place;
        // SAFETY: below the stack pointer that the frame had, as every return address, and above ours.
        self.checkable =
            self.checkable && unsafe { *core::ptr::with_exposed_provenance::<u64>(place as usize) } == address;
        self.depth += 1;
    }

    /// The stack pointer that it begins at.
    pub(crate) fn sp(&self) -> u64 {
        self.sp
    }

    /// Return addresses, innermost first.
    pub(crate) fn frames(&self) -> &[u64] {
        &self.frames[..self.depth]
    }

    /// How many words above the stack pointer each lies; `None` where they do not lie on the stack, one above the other.
    pub(crate) fn places_above_sp(&self) -> Option<[u32; FRAMES]> {
        let rising = self.places[..self.depth].is_sorted_by(|low, high| low < high);
        let mut above = [0; FRAMES];
        for (above, place) in above.iter_mut().zip(&self.places[..self.depth]) {
            *above = u32::try_from(place.checked_sub(self.sp)? / 8).ok()?;
        }
        (rising && self.checkable).then_some(above)
    }
}
