//! System calls that change the program's memory, recorded between its accesses.
//!
//! Private anonymous memory is what a primary region would serve, whatever its current protection:
//! language runtimes reserve it without access and open it in parts. Other mappings are recorded
//! too, since they replace what was mapped before.

use std::ffi::c_uint;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::sites::RECORDER_RANGE;
use fieldstone_wire::trace::{MemoryEvent, PATH_BYTES};

use crate::guest_memory;
use crate::huge_pages;
use crate::qemu::Id;
use crate::thread::{SyscallArguments, thread_state};
use crate::trace::{guest_base, trace};

/// The numbers of the guest's system calls, those of x86-64.
mod guest_calls {
    pub(super) const MMAP: i64 = 9;
    pub(super) const MPROTECT: i64 = 10;
    pub(super) const MUNMAP: i64 = 11;
    pub(super) const BRK: i64 = 12;
    pub(super) const MREMAP: i64 = 25;
    pub(super) const CLONE: i64 = 56;
    pub(super) const FORK: i64 = 57;
    pub(super) const VFORK: i64 = 58;
    pub(super) const EXECVE: i64 = 59;
    pub(super) const EXECVEAT: i64 = 322;
    pub(super) const CLONE3: i64 = 435;
}

const PAGE_BYTES: u64 = 4096;
const EXECS: [i64; 2] = [guest_calls::EXECVE, guest_calls::EXECVEAT];

/// The end of the heap of brk; 0 until the first call. The child of a fork continues with its
/// parent's.
static BREAK: AtomicU64 = AtomicU64::new(0);

/// Calls that start a process or a thread. Events of the caller are submitted before it starts.
const STARTS: [i64; 4] = [guest_calls::FORK, guest_calls::VFORK, guest_calls::CLONE, guest_calls::CLONE3];

/// A system call begins.
#[allow(clippy::too_many_arguments, reason = "QEMU's type")]
pub(crate) extern "C" fn on_syscall(
    _: Id,
    number: c_uint,
    call: i64,
    first: u64,
    second: u64,
    third: u64,
    fourth: u64,
    _: u64,
    _: u64,
    _: u64,
    _: u64,
) {
    let Some(thread) = thread_state(number) else { return };
    thread.arguments = SyscallArguments([first, second, third, fourth]);
    // Another thread may wait for memory that this one allocated.
    if STARTS.contains(&call) || thread.has_unshared_allocations() {
        thread.flush();
    }
    if EXECS.contains(&call) {
        record_program(if call == guest_calls::EXECVE { first } else { second });
        // A successful exec does not return, and nothing after it is traced.
        thread.close_lane();
        trace().execs.fetch_add(1, Relaxed);
    }
}

/// A system call has returned.
pub(crate) extern "C" fn on_syscall_return(_: Id, number: c_uint, call: i64, result: i64) {
    if EXECS.contains(&call) {
        trace().execs.fetch_sub(1, Relaxed);
    }
    let Some(thread) = thread_state(number) else { return };
    let Ok(result) = u64::try_from(result) else { return };
    let SyscallArguments([first, second, third, fourth]) = thread.arguments;
    let pages = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES);
    if makes_code(call, third, fourth) {
        trace().generated.fetch_add(1, Relaxed);
    }
    let event = match call {
        guest_calls::MMAP => {
            let is_anonymous = is_private_anonymous(fourth);
            // The new mapping may replace an old one.
            huge_pages::unmapped(&(result..result.saturating_add(pages(second))));
            if is_anonymous {
                huge_pages::advise(result, pages(second), third, fourth);
            }
            Some((MemoryEvent::Map, [result, pages(second), u64::from(is_anonymous), 0]))
        }
        guest_calls::MUNMAP => {
            huge_pages::unmapped(&(first..first.saturating_add(pages(second))));
            Some((MemoryEvent::Unmap, [first, pages(second), 0, 0]))
        }
        guest_calls::MREMAP => {
            huge_pages::moved(&(first..first.saturating_add(pages(second))));
            Some((MemoryEvent::Move, [first, pages(second), result, pages(third)]))
        }
        guest_calls::BRK => break_event(result),
        _ => None,
    };
    // Mappings of the site recorder are not the program's.
    let event = event.filter(|(_, [address, ..])| !RECORDER_RANGE.contains(address));
    if let Some((event, operands)) = event {
        thread.record_event(event, operands, true);
    }
}

/// Records the path of the program that exec starts.
fn record_program(path: u64) {
    let mut bytes = [0; PATH_BYTES];
    let length = guest_memory::read_string(path.wrapping_add(guest_base()), &mut bytes[..PATH_BYTES - 1]);
    bytes[length..].fill(0);
    trace().program.iter().zip(bytes).for_each(|(place, byte)| place.store(byte, Relaxed));
}

/// Whether the call makes memory to which the program can write code; no loader does that.
fn makes_code(call: i64, protection: u64, flags: u64) -> bool {
    let runs = protection & u64::from(libc::PROT_EXEC.cast_unsigned()) != 0;
    runs && (call == guest_calls::MPROTECT || call == guest_calls::MMAP && is_private_anonymous(flags))
}

fn is_private_anonymous(flags: u64) -> bool {
    let has = |flag: i32| flags & u64::from(flag.cast_unsigned()) != 0;
    has(libc::MAP_ANONYMOUS) && has(libc::MAP_PRIVATE)
}

fn break_event(now: u64) -> Option<(MemoryEvent, [u64; 4])> {
    let before = BREAK.swap(now, Relaxed);
    match now {
        _ if before == 0 || now == before => None,
        _ if now > before => Some((MemoryEvent::Map, [before, now - before, 1, 0])),
        _ => Some((MemoryEvent::Unmap, [now, before - now, 0, 0])),
    }
}
