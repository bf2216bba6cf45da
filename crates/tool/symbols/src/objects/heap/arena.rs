//! Finds heaps of thread arenas: memory at a multiple of 64 MiB that starts with a `heap_info`.
//!
//! ```text
//!   heap_info    0  address of the arena
//!                8  previous heap, 0 in the first
//!               16  bytes in use
//!               24  writable bytes
//!               32  page size (since glibc 2.35)
//!   the arena follows in the first heap
//! ```
//! Source: glibc, `malloc/arena.c`.

use fieldstone_rewrite::ReadableMemory;

use super::ChunkArea;
use crate::objects::maps::{Maps, is_mapped};
use crate::objects::words::read_words;

/// Alignment and largest size of a heap.
const HEAP_BYTES: u64 = 64 << 20;
const PAGE_BYTES: u64 = 4096;
/// Size of a `heap_info`; it depends on the version.
const INFO_BYTES: std::ops::RangeInclusive<u64> = 0x20..=0x40;
/// Smallest size of an arena. The first chunk is searched within [`SCAN_BYTES`] behind it.
const ARENA_BYTES: u64 = 0x400;
const SCAN_BYTES: u64 = 4096;

/// The heap that contains `address`; `None` without a valid `heap_info`.
pub(super) fn area(memory: &dyn ReadableMemory, maps: &Maps, address: u64) -> Option<ChunkArea> {
    let heap = start(address);
    let span = maps.span(heap, is_mapped)?;
    let [arena, before, bytes, writable] = read_words::<4>(memory, heap)?;
    let is_valid = (PAGE_BYTES..=HEAP_BYTES).contains(&bytes)
        && bytes.is_multiple_of(PAGE_BYTES)
        && (bytes..=HEAP_BYTES).contains(&writable)
        && INFO_BYTES.contains(&(arena - start(arena)))
        && before.is_multiple_of(HEAP_BYTES);
    let end = heap.checked_add(bytes).filter(|&end| is_valid && address < end && end <= span.end)?;
    let (from, scan) = if start(arena) == heap {
        (before == 0).then_some((arena + ARENA_BYTES, SCAN_BYTES))?
    } else {
        (before != 0 && is_first_heap(memory, arena)).then_some((heap + (arena - start(arena)), 0))?
    };
    // In a later heap the position of the first chunk is known, so the search tries one address.
    Some(ChunkArea { from, scan: scan.max(1), end, main: false })
}

fn is_first_heap(memory: &dyn ReadableMemory, arena: u64) -> bool {
    read_words::<2>(memory, start(arena)).is_some_and(|[own, before]| own == arena && before == 0)
}

const fn start(address: u64) -> u64 {
    address & !(HEAP_BYTES - 1)
}
