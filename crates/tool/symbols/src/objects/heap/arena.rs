//! Arenas of threads: memory that begins at a multiple of 64 MiB and says so.
//!
//! ```text
//!   heap_info   0  the arena's address      8  the heap before      16  bytes in use      24  bytes that may be written
//!               32 (since 2.35) the size of a page; then, in the first heap, the arena itself
//! ```
//! Source: glibc, `malloc/arena.c`.

use fieldstone_rewrite::Memory;

use super::Area;
use crate::objects::maps::{Maps, is_mapped};
use crate::objects::read::words;

/// Where heaps begin, and the most that one has.
const HEAP_BYTES: u64 = 64 << 20;
const PAGE_BYTES: u64 = 4096;
/// How large a `heap_info` is, by version.
const INFO_BYTES: std::ops::RangeInclusive<u64> = 0x20..=0x40;
/// An arena is so large at least; the first chunk is found by looking for one behind that.
const ARENA_BYTES: u64 = 0x400;
const SCAN_BYTES: u64 = 4096;

/// The chunks of the heap that has `address`, if there is one.
pub(super) fn area(memory: &dyn Memory, maps: &Maps, address: u64) -> Option<Area> {
    let heap = start(address);
    let span = maps.span(heap, is_mapped)?;
    let [arena, before, bytes, writable] = words::<4>(memory, heap)?;
    let sound = (PAGE_BYTES..=HEAP_BYTES).contains(&bytes)
        && bytes.is_multiple_of(PAGE_BYTES)
        && (bytes..=HEAP_BYTES).contains(&writable)
        && INFO_BYTES.contains(&(arena - start(arena)))
        && before.is_multiple_of(HEAP_BYTES);
    let end = heap.checked_add(bytes).filter(|&end| sound && address < end && end <= span.end)?;
    let (from, scan) = if start(arena) == heap {
        (before == 0).then_some((arena + ARENA_BYTES, SCAN_BYTES))?
    } else {
        (before != 0 && is_first(memory, arena)).then_some((heap + (arena - start(arena)), 0))?
    };
    // Of a later heap it is known where the first chunk is: one place is looked at.
    Some(Area { from, scan: scan.max(1), end, main: false })
}

fn is_first(memory: &dyn Memory, arena: u64) -> bool {
    words::<2>(memory, start(arena)).is_some_and(|[own, before]| own == arena && before == 0)
}

const fn start(address: u64) -> u64 {
    address & !(HEAP_BYTES - 1)
}
