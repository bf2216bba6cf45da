//! The view of each owner: owners on one line get different views; the number of views is small.

use std::collections::BTreeSet;

use super::page::PageLabels;
use super::{ByteMove, PlanRefusal, RefusedLine};

/// The moves of a page. Algorithm: greedy colouring. In the order of addresses, each owner takes
/// the first view that no owner on one of its lines has.
pub(super) fn moves(map: &PageLabels, most_views: u32) -> Result<Vec<ByteMove>, RefusedLine> {
    let ranges = map.ranges();
    let line_bytes = map.line_bytes();
    let mut lines: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); map.owners().len()];
    for (bytes, owner) in &ranges {
        lines[*owner].extend(bytes.start / line_bytes..bytes.end.div_ceil(line_bytes));
    }
    let mut views: Vec<Option<u32>> = vec![None; lines.len()];
    let mut moves = Vec::with_capacity(ranges.len());
    for (bytes, owner) in ranges {
        let view = match views[owner] {
            Some(view) => view,
            None => free_view(owner, &lines, &views),
        };
        if view >= most_views {
            let why = PlanRefusal::TooManyOwners { needed: view + 1, views: most_views };
            return Err(map.refused(bytes.start, why));
        }
        views[owner] = Some(view);
        moves.push(ByteMove { bytes, view, threads: map.owners()[owner].clone() });
    }
    Ok(moves)
}

/// The first view that no owner on a common line has.
fn free_view(owner: usize, lines: &[BTreeSet<u64>], views: &[Option<u32>]) -> u32 {
    let meets = |other: &usize| !lines[owner].is_disjoint(&lines[*other]);
    let taken: BTreeSet<u32> = (0..lines.len()).filter(meets).filter_map(|other| views[other]).collect();
    (0..).find(|view| !taken.contains(view)).unwrap_or(u32::MAX)
}
