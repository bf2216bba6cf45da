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
//! A vector is checked entry by entry (`vectors`). Of the functions that check the length of a buffer
//! for fortified programs, such as `__read_chk`, only the buffer is looked at. `fread` and `fwrite`
//! hand large blocks to the kernel by calls inside libc, so they are interposed themselves.
//!
//! Cost: 5 instructions for a buffer that is not guarded.

#![allow(unsafe_code, reason = "interposes libc's functions, and copies between buffers")]
#![cfg_attr(test, allow(dead_code, reason = "a test binary keeps its own functions"))]

mod vectors;

use core::arch::naked_asm;
use core::ffi::CStr;
use core::ptr::NonNull;

use fieldstone_wire::guard::Access;

use crate::next::{self, Next, searched_at_first_call};
use crate::range::{self, BASE, SPAN};
use crate::report::{self, Incident};
use crate::unwind::Caller;
use crate::{dispositions, ending, raw, start};
use vectors::{VectorPlace, fill_vector, use_vector};

/// What an entry has on the stack: six arguments, the return address, and a seventh argument.
type Arguments = [usize; 8];

/// Whether a call was made here, and its result.
#[repr(C)]
pub(crate) struct Outcome {
    is_done: usize,
    result: isize,
}

const PASS: Outcome = Outcome { is_done: 0, result: 0 };

type Function = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;

/// Where a call has its buffer: the numbers of arguments.
#[derive(Clone, Copy)]
struct Buffer {
    address: usize,
    /// Its bytes, or the bytes of an item.
    size: usize,
    /// The number of items.
    items: Option<usize>,
}

impl Buffer {
    const fn at(address: usize, size: usize) -> Self {
        Self { address, size, items: None }
    }

    const fn of_items(address: usize, size: usize, items: usize) -> Self {
        Self { address, size, items: Some(items) }
    }

    /// Address and bytes.
    fn range(self, arguments: &Arguments) -> (usize, usize) {
        (arguments[self.address], arguments[self.size].saturating_mul(self.items.map_or(1, |items| arguments[items])))
    }

    /// The bytes that a call with this result stored.
    fn stored(self, arguments: &Arguments, result: isize) -> usize {
        let count = usize::try_from(result).unwrap_or(0);
        if self.items.is_some() { count.saturating_mul(arguments[self.size]) } else { count }
    }
}

/// Defines the exported function `$name` in a module of this name. `$test` are the instructions that
/// jump to 3 for a call that needs no check; `$check` gets the next function, the arguments and the
/// registers of the caller, and `$place`.
macro_rules! checked_call {
    ($name:ident, $check:ident, $place:expr, [$($test:expr),*]) => {
        mod $name {
            use super::*;

            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero byte"),
            };

            searched_at_first_call!(NEXT, boot, search, next::find_into(&NEXT, NAME));

            pub(super) fn prepare() {
                search();
            }

            unsafe extern "C" fn check(arguments: &Arguments, sp: *const usize, bp: usize) -> Outcome {
                // SAFETY: the entry passes its caller's registers and arguments.
                unsafe { $check(&NEXT, arguments, $place, Caller::new(sp, bp)) }
            }

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
                    check = sym check,
                    next = sym NEXT,
                    base = sym BASE,
                    span = sym SPAN,
                )
            }
        }
    };
}

/// Defines all checked calls, and `prepare`, which searches the next functions of all.
macro_rules! checked_calls {
    (
        buffers { $($name:ident($check:ident, $register:literal, $buffer:expr);)* }
        vectors { $($vector_name:ident($vector_check:ident, $place:expr);)* }
    ) => {
        $(checked_call!(
            $name,
            $check,
            $buffer,
            [
                concat!("mov rax, ", $register),
                "sub rax, qword ptr [rip + {base}]",
                "cmp rax, qword ptr [rip + {span}]",
                "jae 3f"
            ]
        );)*
        $(checked_call!(
            $vector_name,
            $vector_check,
            $place,
            ["mov rax, qword ptr [rip + {base}]", "test rax, rax", "jz 3f", "mov rax, qword ptr [rip + {span}]"]
        );)*

        /// Searches all functions, while no lock can be held.
        pub(crate) fn prepare() {
            $($name::prepare();)*
            $($vector_name::prepare();)*
        }
    };
}

checked_calls! {
    buffers {
        read(fill_buffer, "rsi", Buffer::at(1, 2));
        pread(fill_buffer, "rsi", Buffer::at(1, 2));
        pread64(fill_buffer, "rsi", Buffer::at(1, 2));
        recv(fill_buffer, "rsi", Buffer::at(1, 2));
        recvfrom(fill_buffer, "rsi", Buffer::at(1, 2));
        readlink(fill_buffer, "rsi", Buffer::at(1, 2));
        readlinkat(fill_buffer, "rdx", Buffer::at(2, 3));
        getrandom(fill_buffer, "rdi", Buffer::at(0, 1));
        fread(fill_buffer, "rdi", Buffer::of_items(0, 1, 2));
        fread_unlocked(fill_buffer, "rdi", Buffer::of_items(0, 1, 2));
        __read_chk(fill_buffer, "rsi", Buffer::at(1, 2));
        __pread_chk(fill_buffer, "rsi", Buffer::at(1, 2));
        __pread64_chk(fill_buffer, "rsi", Buffer::at(1, 2));
        __recv_chk(fill_buffer, "rsi", Buffer::at(1, 2));
        __recvfrom_chk(fill_buffer, "rsi", Buffer::at(1, 2));
        __readlink_chk(fill_buffer, "rsi", Buffer::at(1, 2));
        __readlinkat_chk(fill_buffer, "rdx", Buffer::at(2, 3));
        __fread_chk(fill_buffer, "rdi", Buffer::of_items(0, 2, 3));
        __fread_unlocked_chk(fill_buffer, "rdi", Buffer::of_items(0, 2, 3));
        write(use_buffer, "rsi", Buffer::at(1, 2));
        pwrite(use_buffer, "rsi", Buffer::at(1, 2));
        pwrite64(use_buffer, "rsi", Buffer::at(1, 2));
        send(use_buffer, "rsi", Buffer::at(1, 2));
        sendto(use_buffer, "rsi", Buffer::at(1, 2));
        fwrite(use_buffer, "rdi", Buffer::of_items(0, 1, 2));
        fwrite_unlocked(use_buffer, "rdi", Buffer::of_items(0, 1, 2));
    }
    vectors {
        readv(fill_vector, VectorPlace::Arguments);
        preadv(fill_vector, VectorPlace::Arguments);
        preadv64(fill_vector, VectorPlace::Arguments);
        recvmsg(fill_vector, VectorPlace::Message);
        writev(use_vector, VectorPlace::Arguments);
        pwritev(use_vector, VectorPlace::Arguments);
        pwritev64(use_vector, VectorPlace::Arguments);
        sendmsg(use_vector, VectorPlace::Message);
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
    if !start::keeps_going() {
        ending::complete();
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
unsafe fn call(next: &Next, [a, b, c, d, e, f, _, g]: Arguments) -> isize {
    // SAFETY: the functions take at most seven words; further ones are ignored.
    unsafe { next.function::<Function>()(a, b, c, d, e, f, g) }
}

/// A call that reads its buffer.
unsafe fn use_buffer(_next: &Next, arguments: &Arguments, place: Buffer, caller: Caller) -> Outcome {
    let (buffer, bytes) = place.range(arguments);
    if let Some(room) = excess(buffer, bytes) {
        report_excess(buffer, room, bytes, Access::Read, caller);
    }
    PASS
}

/// A call that fills its buffer.
unsafe fn fill_buffer(next: &Next, arguments: &Arguments, place: Buffer, caller: Caller) -> Outcome {
    let (buffer, bytes) = place.range(arguments);
    let Some(room) = excess(buffer, bytes) else { return PASS };
    let Some(copy) = raw::map(bytes) else { return PASS };
    let mut changed = *arguments;
    changed[place.address] = copy.as_ptr() as usize;
    // SAFETY: the copy has the length that the caller passes.
    let result = unsafe { call(next, changed) };
    let arrived = place.stored(arguments, result).min(bytes);
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
