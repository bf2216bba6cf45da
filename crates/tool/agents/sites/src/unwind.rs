//! The return addresses above a stack pointer, by the unwinder of libgcc and the unwind tables of
//! each file.
//!
//! ```text
//! higher | frame 1                                   CFA of frame 0: the stack pointer of its caller
//!        | return address into frame 1   <- CFA - 8
//!        | frame 0: called malloc
//!        | return address into frame 0   <- sp
//! lower  | the recorder's frames, and the unwinder's
//! ```
//!
//! The unwinder reports for each frame an address in it and the CFA of the frame below. The first
//! recorded frame is the one whose return address is at `sp`; the frames below belong to the
//! recorder.

#![allow(unsafe_code, reason = "calls the unwinder, and reads return addresses on the stack")]

use core::ffi::{c_int, c_void};

use fieldstone_wire::sites::FRAMES;

#[repr(C)]
struct Context([u8; 0]);

const CONTINUE: c_int = 0;
const STOP: c_int = 4;
/// The most frames of the recorder and the unwinder below the first recorded frame.
const MAX_SKIPPED_FRAMES: usize = 32;

#[link(name = "gcc_s")]
unsafe extern "C" {
    fn _Unwind_Backtrace(visit: unsafe extern "C" fn(*mut Context, *mut c_void) -> c_int, data: *mut c_void) -> c_int;
    fn _Unwind_GetIPInfo(context: *mut Context, before_instruction: *mut c_int) -> usize;
    fn _Unwind_GetCFA(context: *mut Context) -> usize;
}

/// The address of the return address of a call of the malloc family.
pub(crate) type StackPointer = *const u64;

/// An unwound stack.
pub(crate) struct CallStack {
    sp: u64,
    depth: usize,
    frames: [u64; FRAMES],
    places: [u64; FRAMES],
    skipped: usize,
    /// Whether each frame's address is on the stack at its place.
    is_checkable: bool,
}

/// Unwinds from `sp` upwards. If the unwinder fails, the stack has the caller only.
pub(crate) fn stack(sp: StackPointer) -> CallStack {
    let mut stack =
        CallStack { sp: sp as u64, depth: 0, frames: [0; FRAMES], places: [0; FRAMES], skipped: 0, is_checkable: true };
    // SAFETY: the callback gets a pointer to `stack`, which outlives the call.
    unsafe { _Unwind_Backtrace(visit, (&raw mut stack).cast()) };
    if stack.depth == 0 {
        // SAFETY: the caller's return address is at `sp`.
        stack.add(unsafe { *sp }, sp as u64);
    }
    stack
}

unsafe extern "C" fn visit(context: *mut Context, stack: *mut c_void) -> c_int {
    // SAFETY: `stack` passed a pointer to its local, which no other code uses during the call.
    let stack = unsafe { &mut *stack.cast::<CallStack>() };
    let mut interrupted = 0;
    // SAFETY: the unwinder passes a valid context for this call.
    let (address, place) =
        unsafe { (_Unwind_GetIPInfo(context, &raw mut interrupted) as u64, _Unwind_GetCFA(context) as u64 - 8) };
    if stack.depth == 0 && place != stack.sp {
        stack.skipped += 1;
        return if stack.skipped < MAX_SKIPPED_FRAMES { CONTINUE } else { STOP };
    }
    if address == 0 {
        return STOP;
    }
    if interrupted == 0 {
        stack.add(address, place);
    } else {
        // An interrupted instruction: its address + 1 counts as a return address, as after a call.
        stack.is_checkable = false;
        stack.add(address + 1, place);
    }
    if stack.depth < FRAMES { CONTINUE } else { STOP }
}

impl CallStack {
    fn add(&mut self, address: u64, place: u64) {
        self.frames[self.depth] = address;
        self.places[self.depth] = place;
        // SAFETY: the unwinder found the word between the frame's stack pointer and this function's
        // frame.
        self.is_checkable =
            self.is_checkable && unsafe { *core::ptr::with_exposed_provenance::<u64>(place as usize) } == address;
        self.depth += 1;
    }

    /// The stack pointer at which the stack begins.
    pub(crate) fn sp(&self) -> u64 {
        self.sp
    }

    /// Return addresses, innermost first.
    pub(crate) fn frames(&self) -> &[u64] {
        &self.frames[..self.depth]
    }

    /// The distance of each return address from the stack pointer, in words. `None` if they are not
    /// all on the stack in ascending order.
    pub(crate) fn offsets_from_sp(&self) -> Option<[u32; FRAMES]> {
        let rising = self.places[..self.depth].is_sorted_by(|low, high| low < high);
        let mut above = [0; FRAMES];
        for (above, place) in above.iter_mut().zip(&self.places[..self.depth]) {
            *above = u32::try_from(place.checked_sub(self.sp)? / 8).ok()?;
        }
        (rising && self.is_checkable).then_some(above)
    }
}
