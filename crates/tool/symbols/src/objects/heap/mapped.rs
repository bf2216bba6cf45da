//! Finds blocks with their own mapping: whole pages that start with a chunk header.
//!
//! ```text
//!   malloc          │ 0 │ bytes of the mapping | 2 │ user bytes ...                     │ next block
//!   aligned_alloc   │ 0 │ bytes of the mapping | 2 │ lead │ rest | 2 │ user bytes       │
//! ```
//! The kernel shows adjacent mappings as one. Adjacent blocks are walked from the start of the
//! mapping. If other memory is among them, the pages below the address are searched for a header.
//! That search covers 16 MiB, so it misses a block that starts farther below.

use std::ops::Range;

use fieldstone_rewrite::ReadableMemory;

use crate::objects::words::read_words;

const PAGE_BYTES: u64 = 4096;
const FLAGS: u64 = 7;
const MAPPED: u64 = 2;
const HEADER: u64 = 16;
/// Smallest distance from the start of the mapping to the header of an aligned block.
const MIN_LEAD: u64 = 32;
/// Limits of blocks in a walk and of pages in a search.
const MAX_BLOCKS: usize = 4096;
const MAX_PAGES: usize = 4096;

/// The user bytes of the block that contains `address`. `own` is the start of its mapping, and
/// `span` the adjacent mappings.
pub(super) fn block(memory: &dyn ReadableMemory, span: &Range<u64>, own: u64, address: u64) -> Option<Range<u64>> {
    let chunk = walk(memory, own, span.end, address)
        .or_else(|| walk(memory, span.start, span.end, address))
        .or_else(|| search(memory, span, address))?;
    let start = header(memory, &chunk) + HEADER;
    (start..chunk.end).contains(&address).then_some(start..chunk.end)
}

/// Walks from the block at `from` to the one that contains `address`.
fn walk(memory: &dyn ReadableMemory, from: u64, end: u64, address: u64) -> Option<Range<u64>> {
    let mut at = from;
    for _ in 0..MAX_BLOCKS {
        let chunk = chunk(memory, at, end)?;
        if chunk.contains(&address) {
            return Some(chunk);
        }
        at = chunk.end;
    }
    None
}

/// Searches the pages below `address` for a header of a block that contains it.
fn search(memory: &dyn ReadableMemory, span: &Range<u64>, address: u64) -> Option<Range<u64>> {
    let page = address - address % PAGE_BYTES;
    let pages = (0..MAX_PAGES as u64).map_while(|back| page.checked_sub(back * PAGE_BYTES));
    let mut chunks = pages.take_while(|&at| at >= span.start).filter_map(|at| chunk(memory, at, span.end));
    chunks.find(|chunk| chunk.contains(&address))
}

fn chunk(memory: &dyn ReadableMemory, at: u64, end: u64) -> Option<Range<u64>> {
    let [before, field] = read_words::<2>(memory, at)?;
    let bytes = field & !FLAGS;
    let is_valid = before == 0 && field & FLAGS == MAPPED && bytes >= PAGE_BYTES && bytes.is_multiple_of(PAGE_BYTES);
    let chunk_end = at.checked_add(bytes).filter(|&chunk_end| is_valid && chunk_end <= end)?;
    Some(at..chunk_end)
}

/// The address of the block's header. That of an aligned block is searched for every possible
/// alignment.
fn header(memory: &dyn ReadableMemory, chunk: &Range<u64>) -> u64 {
    let bytes = chunk.end - chunk.start;
    let leads = (5..47).map_while(|bits| {
        let alignment = 1_u64 << bits;
        let lead = (chunk.start + HEADER).next_multiple_of(alignment) - HEADER - chunk.start;
        let lead = if lead < MIN_LEAD { lead + alignment } else { lead };
        (lead + HEADER < bytes).then_some(lead)
    });
    let is_header = |lead: &u64| read_words::<2>(memory, chunk.start + lead) == Some([*lead, (bytes - lead) | MAPPED]);
    leads.into_iter().find(is_header).map_or(chunk.start, |lead| chunk.start + lead)
}
