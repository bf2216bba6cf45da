//! The calls that have a vector of buffers: `readv` and its relatives.
//!
//! A call that reads memory is checked entry by entry. A call that writes to an entry that does not
//! fit gets one buffer of the agent in place of the vector, whose contents are then distributed.
//!
//! Cost: a loop over the entries of each vector.

#![allow(unsafe_code, reason = "reads the program's vectors, and copies to its buffers")]

use fieldstone_wire::guard::Access;

use super::{Arguments, Outcome, PASS, call, copy_out, excess, report_excess};
use crate::next::Next;
use crate::raw;
use crate::unwind::Caller;

/// The most entries of a vector: `IOV_MAX`.
const ENTRIES: usize = 1024;

/// Where a call has its vector.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum VectorPlace {
    /// Address and number of entries are the second and third argument.
    Arguments,
    /// In the `msghdr` at the second argument.
    Message,
}

/// The vector of a call; empty if there is none.
///
/// # Safety
/// The arguments have to be valid for the call.
unsafe fn vector<'a>(arguments: &Arguments, place: VectorPlace) -> &'a [libc::iovec] {
    let (start, count) = match place {
        VectorPlace::Arguments => (arguments[1] as *const libc::iovec, arguments[2]),
        VectorPlace::Message => {
            // SAFETY: the caller of recvmsg or sendmsg passes a record.
            let message = unsafe { &*core::ptr::with_exposed_provenance::<libc::msghdr>(arguments[1]) };
            (message.msg_iov.cast_const(), message.msg_iovlen)
        }
    };
    if start.is_null() || count > ENTRIES {
        return &[];
    }
    // SAFETY: the caller passes this many entries.
    unsafe { core::slice::from_raw_parts(start, count) }
}

/// A call that reads the buffers of a vector.
pub(super) unsafe fn use_vector(_next: &Next, arguments: &Arguments, place: VectorPlace, caller: Caller) -> Outcome {
    // SAFETY: the entry passes the program's arguments.
    for entry in unsafe { vector(arguments, place) } {
        if let Some(room) = excess(entry.iov_base as usize, entry.iov_len) {
            report_excess(entry.iov_base as usize, room, entry.iov_len, Access::Read, caller);
        }
    }
    PASS
}

/// A call that fills the buffers of a vector.
pub(super) unsafe fn fill_vector(next: &Next, arguments: &Arguments, place: VectorPlace, caller: Caller) -> Outcome {
    // SAFETY: the entry passes the program's arguments.
    let entries = unsafe { vector(arguments, place) };
    let has_excess = |entry: &libc::iovec| excess(entry.iov_base as usize, entry.iov_len);
    if !entries.iter().any(|entry| has_excess(entry).is_some()) {
        return PASS;
    }
    let total = entries.iter().fold(0_usize, |sum, entry| sum.saturating_add(entry.iov_len));
    let Some(copy) = raw::map(total.max(1)) else { return PASS };
    let joined = libc::iovec { iov_base: copy.as_ptr().cast(), iov_len: total };
    // SAFETY: one entry of the same total length replaces the vector.
    let result = unsafe { fill_joined(next, arguments, place, &joined) };
    let mut arrived = usize::try_from(result).unwrap_or(0).min(total);
    let mut done = 0;
    for entry in entries {
        let (buffer, here) = (entry.iov_base as usize, arrived.min(entry.iov_len));
        let room = has_excess(entry).unwrap_or(entry.iov_len);
        // SAFETY: the buffer has `room` bytes, and the copy `total`.
        unsafe { copy_out(copy.add(done), buffer, here.min(room)) };
        if here > room {
            report_excess(buffer, room, here, Access::Write, caller);
        }
        (done, arrived) = (done + entry.iov_len, arrived - here);
    }
    // SAFETY: mapped above and not used any more.
    unsafe { raw::unmap(copy, total.max(1)) };
    Outcome { is_done: 1, result }
}

/// Makes the call with another vector.
unsafe fn fill_joined(next: &Next, arguments: &Arguments, place: VectorPlace, joined: &libc::iovec) -> isize {
    let mut changed = *arguments;
    // SAFETY: the caller passes a vector as long as the program's, whose other arguments stay.
    unsafe {
        match place {
            VectorPlace::Arguments => {
                (changed[1], changed[2]) = (core::ptr::from_ref(joined) as usize, 1);
                call(next, changed)
            }
            VectorPlace::Message => {
                let message = &mut *core::ptr::with_exposed_provenance_mut::<libc::msghdr>(arguments[1]);
                let (start, count) = (message.msg_iov, message.msg_iovlen);
                (message.msg_iov, message.msg_iovlen) = (core::ptr::from_ref(joined).cast_mut(), 1);
                let result = call(next, changed);
                (message.msg_iov, message.msg_iovlen) = (start, count);
                result
            }
        }
    }
}
