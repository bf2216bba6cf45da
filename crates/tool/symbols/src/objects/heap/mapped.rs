//! Blocks that malloc maps by themselves: a header at the start of pages of their own.
//!
//! ```text
//!   mapping │ 0 │ bytes of the mapping | 2 │ user bytes ...                    │ next block, or another mapping
//!           │ 0 │ as before            │ lead │ rest | 2 │ user bytes, aligned │ where an alignment was asked for
//! ```
//! The kernel shows neighbours as one mapping. Blocks that follow each other are walked from its start; where something else is among
//! them, the pages before the address are looked at for a header, 16 MiB of them: a block that begins farther away is then not found.

use std::ops::Range;

use fieldstone_rewrite::Memory;

use crate::objects::read::words;

const PAGE_BYTES: u64 = 4096;
const FLAGS: u64 = 7;
const MAPPED: u64 = 2;
const HEADER: u64 = 16;
/// The least that lies before an aligned block's header.
const LEAST_LEAD: u64 = 32;
/// Blocks that are walked past, and pages that are looked at.
const MOST_BLOCKS: usize = 4096;
const MOST_PAGES: usize = 4096;

/// The user's bytes of the block that has `address`; `own` is where the mapping begins that the kernel shows for it.
pub(super) fn block(memory: &dyn Memory, span: &Range<u64>, own: u64, address: u64) -> Option<Range<u64>> {
    let chunk = walked(memory, own, span.end, address)
        .or_else(|| walked(memory, span.start, span.end, address))
        .or_else(|| before(memory, span, address))?;
    let start = aligned(memory, &chunk) + HEADER;
    (start..chunk.end).contains(&address).then_some(start..chunk.end)
}

/// From the block at `from` to the one that has `address`.
fn walked(memory: &dyn Memory, from: u64, end: u64, address: u64) -> Option<Range<u64>> {
    let mut at = from;
    for _ in 0..MOST_BLOCKS {
        let chunk = chunk(memory, at, end)?;
        if chunk.contains(&address) {
            return Some(chunk);
        }
        at = chunk.end;
    }
    None
}

/// The nearest block before `address` that reaches it.
fn before(memory: &dyn Memory, span: &Range<u64>, address: u64) -> Option<Range<u64>> {
    let page = address - address % PAGE_BYTES;
    let pages = (0..MOST_PAGES as u64).map_while(|back| page.checked_sub(back * PAGE_BYTES));
    let mut chunks = pages.take_while(|&at| at >= span.start).filter_map(|at| chunk(memory, at, span.end));
    chunks.find(|chunk| chunk.contains(&address))
}

fn chunk(memory: &dyn Memory, at: u64, end: u64) -> Option<Range<u64>> {
    let [before, field] = words::<2>(memory, at)?;
    let bytes = field & !FLAGS;
    let sound = before == 0 && field & FLAGS == MAPPED && bytes >= PAGE_BYTES && bytes.is_multiple_of(PAGE_BYTES);
    let behind = at.checked_add(bytes).filter(|&behind| sound && behind <= end)?;
    Some(at..behind)
}

/// Where the header is that counts: one for each alignment is looked for.
fn aligned(memory: &dyn Memory, chunk: &Range<u64>) -> u64 {
    let bytes = chunk.end - chunk.start;
    let leads = (5..47).map_while(|bits| {
        let alignment = 1_u64 << bits;
        let lead = (chunk.start + HEADER).next_multiple_of(alignment) - HEADER - chunk.start;
        let lead = if lead < LEAST_LEAD { lead + alignment } else { lead };
        (lead + HEADER < bytes).then_some(lead)
    });
    let is_header = |lead: &u64| words::<2>(memory, chunk.start + lead) == Some([*lead, (bytes - lead) | MAPPED]);
    leads.into_iter().find(is_header).map_or(chunk.start, |lead| chunk.start + lead)
}
