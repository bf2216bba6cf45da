//! `fs_fault`: the operations of a handler, also in a signal; and the handler itself, as a closure.

#![allow(unsafe_code, reason = "exports symbols; calls C functions; reads a page passed by C")]

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::slice;

use fieldstone_pages::{Access, Fault, Outcome};

use crate::list::FsRange;
use crate::memory::range;
use crate::result::{CallError, CallResult, non_null, run_call_in_handler};

/// `fs_handler`.
pub(crate) type CHandler = Option<unsafe extern "C" fn(&Fault<'_>, *mut c_void) -> c_uint>;

/// A handler with its `user` pointer.
#[derive(Clone, Copy)]
struct Callback {
    handler: unsafe extern "C" fn(&Fault<'_>, *mut c_void) -> c_uint,
    user: *mut c_void,
}

// SAFETY: the header requires that `user` may be used by handlers in several threads at a time.
unsafe impl Send for Callback {}
// SAFETY: the header requires that `user` may be used by handlers in several threads at a time.
unsafe impl Sync for Callback {}

impl Callback {
    fn call(&self, fault: &Fault<'_>) -> Outcome {
        // SAFETY: the function has the header's type, and the fault outlives the call.
        match unsafe { (self.handler)(fault, self.user) } {
            0 => Outcome::Resolved,
            _ => Outcome::Chain,
        }
    }
}

/// Converts a C handler to a Rust handler.
pub(crate) fn handler(
    handler: CHandler,
    user: *mut c_void,
) -> Result<impl Fn(&Fault<'_>) -> Outcome + Send + Sync + 'static, CallError> {
    let handler = handler.ok_or(CallError::Argument("the handler is null: pass a function"))?;
    let callback = Callback { handler, user };
    Ok(move |fault: &Fault<'_>| callback.call(fault))
}

/// A page's contents. Refuses null; the callee checks the size.
pub(crate) fn contents<'a>(contents: *const u8, bytes: usize) -> Result<&'a [u8], CallError> {
    if contents.is_null() || isize::try_from(bytes).is_err() {
        return Err(CallError::Argument("the contents are null or too large"));
    }
    // SAFETY: the header requires a buffer of this size; it is not kept after the call.
    Ok(unsafe { slice::from_raw_parts(contents, bytes) })
}

/// Runs an operation on a fault, without a message.
fn on_fault(fault: Option<&Fault<'_>>, call: impl FnOnce(&Fault<'_>) -> CallResult) -> c_int {
    run_call_in_handler(|| call(non_null(fault)?))
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
    on_fault(fault, |fault| Ok(fault.unprotect()?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_protect_others(fault: Option<&Fault<'_>>, offset: usize, bytes: usize) -> c_int {
    on_fault(fault, |fault| Ok(fault.protect_others(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_unprotect_others(fault: Option<&Fault<'_>>, offset: usize, bytes: usize) -> c_int {
    on_fault(fault, |fault| Ok(fault.unprotect_others(range(offset, bytes))?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_fill(fault: Option<&Fault<'_>>, page: *const u8, bytes: usize) -> c_int {
    on_fault(fault, |fault| Ok(fault.fill(contents(page, bytes)?)?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_zero(fault: Option<&Fault<'_>>) -> c_int {
    on_fault(fault, |fault| Ok(fault.zero()?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_move(fault: Option<&Fault<'_>>, from: *mut u8) -> c_int {
    // SAFETY: the header requires an unused page of private anonymous memory; the kernel refuses a
    // null page.
    on_fault(fault, |fault| Ok(unsafe { fault.move_from(from) }?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_fault_poison(fault: Option<&Fault<'_>>) -> c_int {
    on_fault(fault, |fault| Ok(fault.poison()?))
}
