//! `fs_fault`: what a handler may ask and answer, in a signal too. And the handler itself, as a closure.

#![allow(unsafe_code, reason = "exports symbols; calls functions of C's; reads a page that C gives")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::slice;

use fieldstone_pages::{Access, Fault, Outcome};

use crate::answer::{Answer, Refusal, answer_in_handler, given};
use crate::list::FsRange;
use crate::memory::range;

/// `fs_handler`.
pub(crate) type Handler = Option<unsafe extern "C" fn(&Fault<'_>, *mut c_void) -> c_uint>;

/// A handler with its `user` pointer.
#[derive(Clone, Copy)]
struct Callback {
    handler: unsafe extern "C" fn(&Fault<'_>, *mut c_void) -> c_uint,
    user: *mut c_void,
}

// SAFETY: the header says that handlers run in other threads, several at a time, and that what `user` points to must bear it.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Callback {
    fn call(&self, fault: &Fault<'_>) -> Outcome {
        // SAFETY: a function of the header's type; the fault outlives the call.
        match unsafe { (self.handler)(fault, self.user) } {
            0 => Outcome::Resolved,
            _ => Outcome::Chain,
        }
    }
}

/// A handler of C's as one of Rust's.
pub(crate) fn handler(
    handler: Handler,
    user: *mut c_void,
) -> Result<impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static, Refusal> {
    let handler = handler.ok_or(Refusal::Argument("the handler is null: give a function"))?;
    let callback = Callback { handler, user };
    Ok(move |fault: &Fault<'_>| callback.call(fault))
}

/// A page's contents. Refuses null; the size is checked by who fills.
pub(crate) fn contents<'a>(contents: *const u8, bytes: usize) -> Result<&'a [u8], Refusal> {
    if contents.is_null() || isize::try_from(bytes).is_err() {
        return Err(Refusal::Argument("the contents are null, or of no possible size"));
    }
    // SAFETY: the header asks for a buffer of this size; it is not kept.
    Ok(unsafe { slice::from_raw_parts(contents, bytes) })
}

/// An answer to a fault, without a message.
fn answered(fault: Option<&Fault<'_>>, call: impl FnOnce(&Fault<'_>) -> Answer) -> c_int {
    answer_in_handler(|| call(given(fault)?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_address(fault: Option<&Fault<'_>>) -> *mut c_void {
    fault.map_or(null_mut(), |fault| std::ptr::with_exposed_provenance_mut(fault.address()))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_offset(fault: Option<&Fault<'_>>) -> usize {
    fault.map_or(0, Fault::offset)
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_page(fault: Option<&Fault<'_>>) -> FsRange {
    fault.map_or(FsRange::default(), |fault| FsRange::of(&fault.page()))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_access(fault: Option<&Fault<'_>>) -> c_uint {
    fault.map_or(0, |fault| c_uint::from(fault.access() == Access::Write))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_thread(fault: Option<&Fault<'_>>) -> c_int {
    fault.map_or(0, |fault| fault.thread().cast_signed())
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_context(fault: Option<&Fault<'_>>) -> *mut c_void {
    fault.map_or(null_mut(), Fault::context)
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_unprotect(fault: Option<&Fault<'_>>) -> c_int {
    answered(fault, |fault| Ok(fault.unprotect()?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_protect_others(fault: Option<&Fault<'_>>, offset: usize, bytes: usize) -> c_int {
    answered(fault, |fault| Ok(fault.protect_others(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_unprotect_others(fault: Option<&Fault<'_>>, offset: usize, bytes: usize) -> c_int {
    answered(fault, |fault| Ok(fault.unprotect_others(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_fill(fault: Option<&Fault<'_>>, page: *const u8, bytes: usize) -> c_int {
    answered(fault, |fault| Ok(fault.fill(contents(page, bytes)?)?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_zero(fault: Option<&Fault<'_>>) -> c_int {
    answered(fault, |fault| Ok(fault.zero()?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_move(fault: Option<&Fault<'_>>, from: *mut u8) -> c_int {
    // SAFETY: the header asks for a page of private anonymous memory that nobody uses; a null page is refused by the kernel.
    answered(fault, |fault| Ok(unsafe { fault.move_from(from) }?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_poison(fault: Option<&Fault<'_>>) -> c_int {
    answered(fault, |fault| Ok(fault.poison()?))
}
