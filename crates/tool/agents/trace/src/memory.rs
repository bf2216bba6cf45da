//! System calls that change what memory the program has, told between its accesses.
//!
//! Private anonymous memory is what a primary region would hold, whatever its protection at the moment: run times reserve
//! it inaccessible and open it bit by bit. All other memory is told as mapped too, since it takes the place of what was there.

use std::ffi::c_uint;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::sites::RECORDER_RANGE;
use fieldstone_wire::trace::{MemoryEvent, PATH_BYTES};

use crate::guest;
use crate::huge;
use crate::qemu::Id;
use crate::thread::{Asked, of};
use crate::trace::{guest_base, trace};

/// The numbers of the guest's system calls: x86-64's, whatever runs QEMU.
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

/// Where the heap of brk begins and ends; 0 until the first call. A fork's child goes on from its parent's.
static BREAK: AtomicU64 = AtomicU64::new(0);

/// They begin a process, or a thread: what it finds there is told before it begins.
const BEGINNINGS: [i64; 4] = [guest_calls::FORK, guest_calls::VFORK, guest_calls::CLONE, guest_calls::CLONE3];

/// A system call begins.
#[allow(clippy::too_many_arguments, reason = "QEMU's type")]
pub(crate) extern "C" fn called(
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
    let Some(thread) = of(number) else { return };
    thread.asked = Asked([first, second, third, fourth]);
    // Another thread may wait for what this one was given.
    if BEGINNINGS.contains(&call) || thread.has_untold() {
        thread.flush();
    }
    if EXECS.contains(&call) {
        note_program(if call == guest_calls::EXECVE { first } else { second });
        // It does not come back if it succeeds, and nothing after it is seen.
        thread.leave();
        trace().execs.fetch_add(1, Relaxed);
    }
}

/// A system call has returned.
pub(crate) extern "C" fn returned(_: Id, number: c_uint, call: i64, result: i64) {
    if EXECS.contains(&call) {
        trace().execs.fetch_sub(1, Relaxed);
    }
    let Some(thread) = of(number) else { return };
    let Ok(result) = u64::try_from(result) else { return };
    let Asked([first, second, third, fourth]) = thread.asked;
    let pages = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES);
    if makes_code(call, third, fourth) {
        trace().generated.fetch_add(1, Relaxed);
    }
    let event = match call {
        guest_calls::MMAP => {
            let anonymous = is_private_anonymous(fourth);
            // It may lie over something that was there.
            huge::give_back(&(result..result.saturating_add(pages(second))));
            if anonymous {
                huge::ask(result, pages(second), third, fourth);
            }
            Some((MemoryEvent::Map, [result, pages(second), u64::from(anonymous), 0]))
        }
        guest_calls::MUNMAP => {
            huge::give_back(&(first..first.saturating_add(pages(second))));
            Some((MemoryEvent::Unmap, [first, pages(second), 0, 0]))
        }
        guest_calls::MREMAP => {
            huge::forget(&(first..first.saturating_add(pages(second))));
            Some((MemoryEvent::Move, [first, pages(second), result, pages(third)]))
        }
        guest_calls::BRK => moved_break(result),
        _ => None,
    };
    // What the site recorder maps is not the program's.
    let event = event.filter(|(_, [address, ..])| !RECORDER_RANGE.contains(address));
    if let Some((event, operands)) = event {
        thread.tell(event, operands, true);
    }
}

/// Notes which program is started in the place of this one.
fn note_program(path: u64) {
    let mut bytes = [0; PATH_BYTES];
    let length = guest::read_string(path.wrapping_add(guest_base()), &mut bytes[..PATH_BYTES - 1]);
    bytes[length..].fill(0);
    trace().program.iter().zip(bytes).for_each(|(place, byte)| place.store(byte, Relaxed));
}

/// Whether memory is asked for that the program can write code into: no loader does that.
fn makes_code(call: i64, protection: u64, flags: u64) -> bool {
    let runs = protection & u64::from(libc::PROT_EXEC.cast_unsigned()) != 0;
    runs && (call == guest_calls::MPROTECT || call == guest_calls::MMAP && is_private_anonymous(flags))
}

fn is_private_anonymous(flags: u64) -> bool {
    let has = |flag: i32| flags & u64::from(flag.cast_unsigned()) != 0;
    has(libc::MAP_ANONYMOUS) && has(libc::MAP_PRIVATE)
}

fn moved_break(now: u64) -> Option<(MemoryEvent, [u64; 4])> {
    let before = BREAK.swap(now, Relaxed);
    match now {
        _ if before == 0 || now == before => None,
        _ if now > before => Some((MemoryEvent::Map, [before, now - before, 1, 0])),
        _ => Some((MemoryEvent::Unmap, [now, before - now, 0, 0])),
    }
}
