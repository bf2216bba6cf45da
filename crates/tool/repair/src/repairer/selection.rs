//! Which lines are worth a repair, and whether a plan in force covers a new one. Pure functions.

use std::collections::HashSet;
use std::ops::Range;

use fieldstone_remap::PageRequest;
use fieldstone_rewrite::page::LINE_BYTES;
use fieldstone_sharing::{ByteMove, JudgedLine, LineCost, PagePlan};

use crate::tuning::{REPAIR_MIN_SHARE, REPAIR_MIN_WEIGHT};

/// Whether a line is shared falsely, is accessed often enough, and costs enough.
pub(crate) fn is_worth_repair(judged: &JudgedLine, cost: Option<&LineCost>) -> bool {
    let weight = judged.line.weight;
    // Laps do not fade. A weight of 1 shows that some of them are recent.
    let has_many_laps = || cost.is_some_and(|cost| cost.on_line >= 2.0 * REPAIR_MIN_WEIGHT);
    let is_heavy = weight >= REPAIR_MIN_WEIGHT || weight >= 1.0 && has_many_laps();
    judged.verdict.is_finding() && is_heavy && costs_enough(cost)
}

/// Whether the lower bound of a line's cost is at least [`REPAIR_MIN_SHARE`].
pub(crate) fn costs_enough(cost: Option<&LineCost>) -> bool {
    cost.is_some_and(|cost| cost.share.low >= REPAIR_MIN_SHARE)
}

/// The share of the threads' time that the costliest line of a plan takes, 0 to 1.
pub(super) fn largest_share(plan: &PagePlan, judged: &[(JudgedLine, Option<LineCost>)]) -> f64 {
    let is_planned = |judged: &JudgedLine| plan.lines.contains(&judged.line.address);
    let costs = judged.iter().filter(|(judged, _)| is_planned(judged)).filter_map(|(_, cost)| cost.as_ref());
    costs.fold(0.0, |most, cost| cost.share.likely.max(most))
}

/// Whether more than half of the weight of a line is from instructions in cooldown.
pub(super) fn is_mostly_cooling(judged: &JudgedLine, is_cooling: impl Fn(u64) -> bool) -> bool {
    let sites = || judged.line.threads.iter().flat_map(|thread| &thread.sites);
    let cooling: HashSet<u64> = sites().map(|site| site.site).filter(|&site| is_cooling(site)).collect();
    let all: f32 = sites().map(|site| site.weight).sum();
    let from_cooling: f32 = sites().filter(|site| cooling.contains(&site.site)).map(|site| site.weight).sum();
    from_cooling * 2.0 > all
}

/// The moves of a plan that have a byte on the line at this address.
pub(super) fn moves_on_line(plan: &PagePlan, line: u64) -> Vec<ByteMove> {
    plan.moves.iter().filter(|one| is_on_line(&one.bytes, line)).cloned().collect()
}

/// Whether one of these bytes is on the line at this address.
pub(super) const fn is_on_line(bytes: &Range<u64>, line: u64) -> bool {
    bytes.start < line + LINE_BYTES && line < bytes.end
}

/// Whether the plan in force covers a new one: each new move is within a move in force, and
/// separated bytes are separated in force too.
pub(super) fn covers(in_force: &PagePlan, new: &PagePlan) -> bool {
    let holder = |one: &ByteMove| {
        let contains = |wide: &&ByteMove| wide.bytes.start <= one.bytes.start && one.bytes.end <= wide.bytes.end;
        in_force.moves.iter().find(contains)
    };
    new.moves.iter().all(|one| {
        holder(one).is_some_and(|held| {
            let is_separate =
                |other: &ByteMove| other.view == one.view || holder(other).is_none_or(|wide| wide.view != held.view);
            new.moves.iter().all(is_separate)
        })
    })
}

/// The request to `remap` for a plan: one owner per view.
pub(super) fn remap_request(plan: &PagePlan, consolidated: bool) -> PageRequest {
    let bytes_of = |view| plan.moves.iter().filter(|one| one.view == view).map(|one| one.bytes.clone()).collect();
    PageRequest { page: plan.page, owners: (0..plan.views).map(bytes_of).collect(), consolidated, watched: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(moves: &[(u64, u64, u32)]) -> PagePlan {
        let one = |&(start, end, view): &(u64, u64, u32)| ByteMove { bytes: start..end, view, threads: Vec::new() };
        let views = moves.iter().map(|one| one.2 + 1).max().unwrap_or(0);
        PagePlan { page: 0x1000, views, moves: moves.iter().map(one).collect(), lines: vec![0x1000] }
    }

    #[test]
    fn a_plan_that_separates_the_same_bytes_stays_in_force() {
        let in_force = plan(&[(0x1000, 0x1010, 0), (0x1010, 0x1040, 1)]);
        for (new, is_covered) in [
            (plan(&[(0x1000, 0x1010, 0), (0x1010, 0x1040, 1)]), true),
            (plan(&[(0x1000, 0x1008, 1), (0x1010, 0x1018, 0)]), true),
            (plan(&[(0x1010, 0x1018, 0), (0x1018, 0x1020, 1)]), false),
            (plan(&[(0x1008, 0x1018, 0)]), false),
            (plan(&[(0x1080, 0x1088, 0)]), false),
        ] {
            assert_eq!(covers(&in_force, &new), is_covered, "{new:?}");
        }
    }

    #[test]
    fn each_view_is_an_owner() {
        let request = remap_request(&plan(&[(0x1000, 0x1008, 0), (0x1008, 0x1010, 1), (0x1040, 0x1048, 0)]), false);
        assert_eq!(request.owners, [vec![0x1000..0x1008, 0x1040..0x1048], std::iter::once(0x1008..0x1010).collect()]);
    }
}
