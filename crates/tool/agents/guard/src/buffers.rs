//! System calls that read or write a buffer.
//!
//! The kernel raises no signal at a guard: a read that does not fit returns what fits, and a write
//! from a freed object fails with EFAULT. So the functions of libc are interposed:
//!
//! ```text
//! buffer outside the guarded range      next function (a jump)
//! buffer fits in its object             next function
//! the call reads memory past the end    report, then next function
//! the call writes memory                call with a buffer of the agent; report if more arrived than
//!                                       fits; copy what fits
//! ```
//! Checked are read, pread, recv, recvfrom, readv, recvmsg, and write, pwrite, send, sendto, writev,
//! sendmsg. A vector is checked entry by entry; if one does not fit, the call gets a copy of the
//! vector. Not checked are calls inside libc, as fread and fwrite make them for large blocks.
//!
//! Cost: 3 instructions for a buffer that is not guarded; a loop over the entries of a vector.

#![allow(unsafe_code, reason = "interposes libc's functions, and copies between buffers")]
#![cfg_attr(test, allow(dead_code, reason = "a test binary keeps its own functions"))]

use core::arch::naked_asm;
use core::ffi::c_void;
use core::ptr::NonNull;

use fieldstone_wire::guard::Access;

use crate::next::{self, Next, searched_at_first_call};
use crate::range::{self, BASE, SPAN};
use crate::report::{self, Incident};
use crate::unwind::Caller;
use crate::{dispositions, raw, start};

/// The arguments of a call, as many as registers.
type Arguments = [usize; 6];

/// Whether a call was made here, and its result.
#[repr(C)]
pub(crate) struct Outcome {
    is_done: usize,
    result: isize,
}

const PASS: Outcome = Outcome { is_done: 0, result: 0 };

/// The most entries of a vector: `IOV_MAX`.
const ENTRIES: usize = 1024;

type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize;

/// Defines the exported function `$name`. `$test` are the instructions that jump to 3 for a call
/// that needs no check; `$check` gets the arguments and the caller's registers.
macro_rules! checked_call {
    ($name:ident, $literal:literal, $next:ident, $boot:ident, $search:ident, $check:path, [$($test:literal),*]) => {
        searched_at_first_call!($next, $boot, $search, next::find_into(&$next, $literal));

        /// Interposes the function of this name.
        ///
        /// # Safety
        /// The caller upholds the contract of the interposed function.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            naked_asm!(
                $($test,)*
                "push r9", "push r8", "push rcx", "push rdx", "push rsi", "push rdi",
                "sub rsp, 8",
                "lea rdi, [rsp + 8]",       // the arguments
                "lea rsi, [rsp + 56]",      // the address of the return address
                "mov rdx, rbp",
                "call {check}",
                "add rsp, 8",
                "pop rdi", "pop rsi",
                "test rax, rax",
                "mov rax, rdx",
                "pop rdx", "pop rcx", "pop r8", "pop r9",
                "jz 3f",
                "ret",
                "3:",
                "jmp qword ptr [rip + {next}]",
                check = sym $check,
                next = sym $next,
                base = sym BASE,
                span = sym SPAN,
            )
        }
    };
}

macro_rules! buffer_call {
    ($name:ident, $literal:literal, $next:ident, $boot:ident, $search:ident, $check:ident, $direction:ident) => {
        checked_call!(
            $name,
            $literal,
            $next,
            $boot,
            $search,
            $check,
            ["mov rax, rsi", "sub rax, qword ptr [rip + {base}]", "cmp rax, qword ptr [rip + {span}]", "jae 3f"]
        );

        unsafe extern "C" fn $check(arguments: &Arguments, sp: *const usize, bp: usize) -> Outcome {
            // SAFETY: the entry passes its caller's registers and arguments.
            unsafe { $direction(&$next, arguments, Caller::new(sp, bp)) }
        }
    };
}

macro_rules! vector_call {
    ($name:ident, $literal:literal, $next:ident, $boot:ident, $search:ident, $check:ident, $vector:expr, $direction:ident) => {
        checked_call!(
            $name,
            $literal,
            $next,
            $boot,
            $search,
            $check,
            ["mov rax, qword ptr [rip + {base}]", "test rax, rax", "jz 3f", "mov rax, qword ptr [rip + {span}]"]
        );

        unsafe extern "C" fn $check(arguments: &Arguments, sp: *const usize, bp: usize) -> Outcome {
            // SAFETY: the entry passes its caller's registers and arguments.
            unsafe { $direction(&$next, arguments, $vector, Caller::new(sp, bp)) }
        }
    };
}

buffer_call!(read, c"read", READ, boot_read, search_read, check_read, fill_buffer);
buffer_call!(pread, c"pread", PREAD, boot_pread, search_pread, check_pread, fill_buffer);
buffer_call!(pread64, c"pread64", PREAD64, boot_pread64, search_pread64, check_pread64, fill_buffer);
buffer_call!(recv, c"recv", RECV, boot_recv, search_recv, check_recv, fill_buffer);
buffer_call!(recvfrom, c"recvfrom", RECVFROM, boot_recvfrom, search_recvfrom, check_recvfrom, fill_buffer);
buffer_call!(write, c"write", WRITE, boot_write, search_write, check_write, use_buffer);
buffer_call!(pwrite, c"pwrite", PWRITE, boot_pwrite, search_pwrite, check_pwrite, use_buffer);
buffer_call!(pwrite64, c"pwrite64", PWRITE64, boot_pwrite64, search_pwrite64, check_pwrite64, use_buffer);
buffer_call!(send, c"send", SEND, boot_send, search_send, check_send, use_buffer);
buffer_call!(sendto, c"sendto", SENDTO, boot_sendto, search_sendto, check_sendto, use_buffer);
vector_call!(readv, c"readv", READV, boot_readv, search_readv, check_readv, VectorPlace::Arguments, fill_vector);
vector_call!(
    recvmsg,
    c"recvmsg",
    RECVMSG,
    boot_recvmsg,
    search_recvmsg,
    check_recvmsg,
    VectorPlace::Message,
    fill_vector
);
vector_call!(writev, c"writev", WRITEV, boot_writev, search_writev, check_writev, VectorPlace::Arguments, use_vector);
vector_call!(
    sendmsg,
    c"sendmsg",
    SENDMSG,
    boot_sendmsg,
    search_sendmsg,
    check_sendmsg,
    VectorPlace::Message,
    use_vector
);

/// Where a call has its vector.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VectorPlace {
    /// Address and number of entries are the second and third argument.
    Arguments,
    /// In the `msghdr` at the second argument.
    Message,
}

/// Searches all functions, while no lock can be held.
pub(crate) fn prepare() {
    for search in [
        search_read as extern "C" fn() -> *mut c_void,
        search_pread,
        search_pread64,
        search_recv,
        search_recvfrom,
        search_write,
        search_pwrite,
        search_pwrite64,
        search_send,
        search_sendto,
        search_readv,
        search_recvmsg,
        search_writev,
        search_sendmsg,
    ] {
        search();
    }
}

/// The bytes of a buffer that are in its object, if `bytes` do not fit. `None` for a buffer that
/// fits, that is not guarded, or whose address has never been an object.
fn excess(buffer: usize, bytes: usize) -> Option<usize> {
    let slots = range::slots().filter(|slots| slots.owns(buffer))?;
    let room = slots.room(buffer)?;
    (room < bytes && slots.explain(buffer + room).is_some()).then_some(room)
}

/// Reports an access of a system call behind the `room` bytes at `buffer`, and ends the process
/// unless it is to keep going.
fn report_excess(buffer: usize, room: usize, bytes: usize, access: Access, caller: Caller) {
    let Some(slots) = range::slots() else { return };
    let Some(finding) = slots.explain(buffer + room) else { return };
    report::report(&Incident { slots, finding: &finding, access, bytes: bytes - room, caller });
    if !start::settings().is_some_and(|settings| settings.keep_going) {
        dispositions::restore_default(libc::SIGSEGV);
        raw::set_blocked(libc::SIGSEGV, false);
        raw::signal_thread(libc::SIGSEGV, None);
        raw::exit(128 + libc::SIGSEGV);
    }
}

/// Calls the next function.
///
/// # Safety
/// The arguments have to be valid for it.
unsafe fn call(next: &Next, [a, b, c, d, e, f]: Arguments) -> isize {
    // SAFETY: the functions take at most six words; further ones are ignored.
    unsafe { next.function::<Function>()(a, b, c, d, e, f) }
}

/// A call that reads the buffer of its second argument.
unsafe fn use_buffer(_next: &Next, arguments: &Arguments, caller: Caller) -> Outcome {
    if let Some(room) = excess(arguments[1], arguments[2]) {
        report_excess(arguments[1], room, arguments[2], Access::Read, caller);
    }
    PASS
}

/// A call that fills the buffer of its second argument.
unsafe fn fill_buffer(next: &Next, arguments: &Arguments, caller: Caller) -> Outcome {
    let (buffer, bytes) = (arguments[1], arguments[2]);
    let Some(room) = excess(buffer, bytes) else { return PASS };
    let Some(copy) = raw::map(bytes) else { return PASS };
    let mut changed = *arguments;
    changed[1] = copy.as_ptr() as usize;
    // SAFETY: the copy has the length that the caller passes.
    let result = unsafe { call(next, changed) };
    let arrived = usize::try_from(result).unwrap_or(0).min(bytes);
    // SAFETY: the object has `room` bytes at `buffer`, and the copy `bytes`.
    unsafe { copy_out(copy, buffer, arrived.min(room)) };
    // SAFETY: mapped above and not used any more.
    unsafe { raw::unmap(copy, bytes) };
    if arrived > room {
        report_excess(buffer, room, arrived, Access::Write, caller);
    }
    Outcome { is_done: 1, result }
}

unsafe fn copy_out(copy: NonNull<u8>, buffer: usize, bytes: usize) {
    // SAFETY: the caller guarantees both lengths; the copy is not part of the program's memory.
    unsafe {
        core::ptr::copy_nonoverlapping(copy.as_ptr(), core::ptr::with_exposed_provenance_mut(buffer), bytes);
    }
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
unsafe fn use_vector(_next: &Next, arguments: &Arguments, place: VectorPlace, caller: Caller) -> Outcome {
    // SAFETY: the entry passes the program's arguments.
    for entry in unsafe { vector(arguments, place) } {
        if let Some(room) = excess(entry.iov_base as usize, entry.iov_len) {
            report_excess(entry.iov_base as usize, room, entry.iov_len, Access::Read, caller);
        }
    }
    PASS
}

/// A call that fills the buffers of a vector.
unsafe fn fill_vector(next: &Next, arguments: &Arguments, place: VectorPlace, caller: Caller) -> Outcome {
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
