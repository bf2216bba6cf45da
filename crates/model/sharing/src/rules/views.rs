//! Which owner goes to which view: owners that meet on a line to different ones, the others to as few as will do.

use std::collections::BTreeSet;

use super::page::PageMap;
use super::{Move, Refusal, Refused};

/// The moves of a page. Owners choose in the order in which they lie in it: the first view that no owner has whom they meet.
pub(super) fn moves(map: &PageMap, most_views: u32) -> Result<Vec<Move>, Refused> {
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
            let why = Refusal::TooManyOwners { needed: view + 1, views: most_views };
            return Err(map.refused(bytes.start, why));
        }
        views[owner] = Some(view);
        moves.push(Move { bytes, view, threads: map.owners()[owner].clone() });
    }
    Ok(moves)
}

/// The first view that no owner has who is on a line with this one.
fn free_view(owner: usize, lines: &[BTreeSet<u64>], views: &[Option<u32>]) -> u32 {
    let meets = |other: &usize| !lines[owner].is_disjoint(&lines[*other]);
    let taken: BTreeSet<u32> = (0..lines.len()).filter(meets).filter_map(|other| views[other]).collect();
    (0..).find(|view| !taken.contains(view)).unwrap_or(u32::MAX)
}
