//! The first thread's stack on the pages asked for, where it is: `--also stacks`.
//!
//! ```text
//!  limit                                         the agent   the kernel's top
//!    |- - |granule|granule|granule|granule|granule|- - - - - - - -|
//!    |    | advised                               | as it is      |
//!    ^ the byte by which it is grown: a small page, so outside of what is advised
//! ```
//!
//! The kernel grows this stack page by page, and puts a huge page only where all of it is mapped already. So the stack is
//! grown to its limit at once, by a byte that the kernel writes there: where it may not grow, the call fails, and the
//! program lives. What lies above the last whole granule stays on small pages, for the stack's top is not aligned.

#![allow(unsafe_code, reason = "grows the stack")]

use fieldstone_wire::PlacementReason;
use fieldstone_wire::span::SpanKind;

use crate::place::settle;
use crate::raw;
use crate::spans::KNOWN;
use crate::state::count;
use crate::table::{GRANULE, PAGE};

/// An unlimited stack is grown so far.
const MOST: usize = 64 << 20;

/// Grows the stack to its limit and asks for the kind of page on it. For the first thread.
pub(crate) fn settle_ahead() {
    let here = core::hint::black_box(0_u8);
    let end = core::ptr::from_ref(&here).addr() / GRANULE * GRANULE;
    let lowest = top().saturating_sub(limit().min(MOST)).next_multiple_of(PAGE);
    let start = lowest.next_multiple_of(GRANULE);
    if start >= end {
        count(PlacementReason::FirstStackKept, 0);
        return;
    }
    let arguments = [lowest, 1, libc::GRND_NONBLOCK as usize, 0, 0, 0];
    // SAFETY: below everything that is on the stack: nobody has anything there.
    let grown = !raw::failed(unsafe { raw::syscall(libc::SYS_getrandom, arguments) });
    if grown {
        settle(start, end - start, 0);
        KNOWN.note(start, end - start, SpanKind::Memory(PlacementReason::FirstStack));
    }
    count(if grown { PlacementReason::FirstStack } else { PlacementReason::FirstStackKept }, end - start);
}

fn limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let arguments = [0, libc::RLIMIT_STACK as usize, 0, &raw mut limit as usize, 0, 0];
    // SAFETY: the kernel writes one record.
    unsafe { raw::syscall(libc::SYS_prlimit64, arguments) };
    limit.rlim_cur as usize
}

/// The stack's end: the name by which the program was executed is the last thing that the kernel puts there.
fn top() -> usize {
    // SAFETY: reads the kernel's own words.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const core::ffi::c_char;
    if name.is_null() {
        return 0;
    }
    // SAFETY: a C string that the kernel put there.
    let bytes = unsafe { core::ffi::CStr::from_ptr(name) }.count_bytes();
    (name.addr() + bytes + 1 + size_of::<usize>()).next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stack_ends_where_the_kernel_says() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).unwrap();
        let end = stack.split(['-', ' ']).nth(1).unwrap();
        assert_eq!(top(), usize::from_str_radix(end, 16).unwrap());
        assert!(limit() > 0);
    }
}
