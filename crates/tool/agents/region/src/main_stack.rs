//! `--also stacks`: the stack of the main thread on the requested pages, in place.
//!
//! ```text
//!  limit                                         the agent   the kernel's top
//!    |- - |granule|granule|granule|granule|granule|- - - - - - - -|
//!    |    | advised                               | unchanged     |
//!    ^ the byte that grows the stack: on a small page, below the advised range
//! ```
//!
//! The kernel grows this stack page by page, and uses a huge page only for a range that is
//! completely mapped. So the stack is grown to its limit at once, by one byte that the kernel
//! writes there: if the stack cannot grow, the call fails without a fault. The part above the last
//! whole granule stays on small pages, since the top is not aligned.

#![allow(unsafe_code, reason = "grows the stack")]

use fieldstone_wire::PlacementReason;
use fieldstone_wire::span::SpanKind;

use crate::placement::apply_page_kind;
use crate::raw;
use crate::spans::KNOWN_SPANS;
use crate::state::count;
use crate::table::{GRANULE, PAGE};

/// The size to which an unlimited stack is grown.
const MAX_BYTES: usize = 64 << 20;

/// Grows the stack to its limit and requests the page kind for it. Only for the main thread.
pub(crate) fn grow_and_advise() {
    let local = core::hint::black_box(0_u8);
    let end = core::ptr::from_ref(&local).addr() / GRANULE * GRANULE;
    let lowest = top().saturating_sub(limit().min(MAX_BYTES)).next_multiple_of(PAGE);
    let start = lowest.next_multiple_of(GRANULE);
    if start >= end {
        count(PlacementReason::FirstStackKept, 0);
        return;
    }
    let arguments = [lowest, 1, libc::GRND_NONBLOCK as usize, 0, 0, 0];
    // SAFETY: the byte is below the stack pointer, so no live data of the stack is overwritten.
    let is_grown = !raw::failed(unsafe { raw::syscall(libc::SYS_getrandom, arguments) });
    if is_grown {
        apply_page_kind(start, end - start, 0);
        KNOWN_SPANS.note(start, end - start, SpanKind::Memory(PlacementReason::FirstStack));
    }
    count(if is_grown { PlacementReason::FirstStack } else { PlacementReason::FirstStackKept }, end - start);
}

fn limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let arguments = [0, libc::RLIMIT_STACK as usize, 0, &raw mut limit as usize, 0, 0];
    // SAFETY: the kernel writes one `rlimit` record, which `limit` is.
    unsafe { raw::syscall(libc::SYS_prlimit64, arguments) };
    limit.rlim_cur as usize
}

/// The end of the stack: the last string that the kernel puts there is the path of the executed
/// program.
fn top() -> usize {
    // SAFETY: `getauxval` reads the auxiliary vector and has no precondition.
    let name = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const core::ffi::c_char;
    if name.is_null() {
        return 0;
    }
    // SAFETY: `AT_EXECFN` points to a C string on the stack, which the kernel wrote.
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
