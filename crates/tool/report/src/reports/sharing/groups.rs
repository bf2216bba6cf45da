//! Findings by object: the lines of one array have one remedy.

use crate::document::{Unit, Value};
use crate::quantity::address;
use crate::sharing::{LineReport, MemoryKind, MemoryOwner, Sharing};
use fieldstone_sharing::{LayoutAdvice, LineCost, Redesign, Verdict};
use fieldstone_stats::Interval;
use std::collections::BTreeSet;

/// The findings on one object, heaviest first.
pub(super) struct Group<'a> {
    pub(super) lines: Vec<&'a LineReport>,
    /// What they cost together.
    pub(super) cost: LineCost,
}

/// An object by its name and address, or a line.
type GroupKey<'a> = (Option<(&'a str, u64)>, u64);

/// All findings, by object, the one that costs most first.
pub(super) fn by_object(sharing: &Sharing) -> Vec<Group<'_>> {
    let mut by_object: Vec<(GroupKey<'_>, Vec<&LineReport>)> = Vec::new();
    for found in heaviest_first(&sharing.findings) {
        let key = key(found);
        match by_object.iter_mut().find(|(other, _)| *other == key) {
            Some((_, lines)) => lines.push(found),
            None => by_object.push((key, vec![found])),
        }
    }
    let mut groups: Vec<Group> =
        by_object.into_iter().map(|(_, lines)| Group { cost: together(lines.iter().copied()), lines }).collect();
    groups.sort_by(|a, b| b.cost.share.likely.total_cmp(&a.cost.share.likely));
    groups
}

/// Lines by what they cost.
pub(super) fn heaviest_first(lines: &[LineReport]) -> Vec<&LineReport> {
    let mut lines: Vec<&LineReport> = lines.iter().collect();
    lines.sort_by(|a, b| {
        let order = b.cost.share.likely.total_cmp(&a.cost.share.likely);
        order.then_with(|| a.judged.line.address.cmp(&b.judged.line.address))
    });
    lines
}

/// The object that the line belongs to; where none is known, or several meet, the line itself.
fn key(found: &LineReport) -> GroupKey<'_> {
    match found.places.as_slice() {
        [place] if place.address > 0 => (Some((place.name.as_str(), place.address)), 0),
        _ => (None, found.judged.line.address),
    }
}

/// What lines cost together: as much as the one that costs most, if the same loop iterations use
/// all of them; at most the sum of their costs.
pub(super) fn together<'a>(lines: impl Iterator<Item = &'a LineReport>) -> LineCost {
    // A file may say anything; without samples there is no share.
    let none = Interval { low: 0.0, likely: 0.0, high: 0.0 };
    let nothing = LineCost { on_line: 0.0, all: 0.0, share: none, max_gain: 0.0 };
    let costs = lines.filter_map(|found| LineCost::new(found.cost.on_line, found.cost.all));
    costs.fold(nothing, |sum, cost| {
        let heavier = if cost.share.likely > sum.share.likely { cost } else { sum };
        let high = (sum.share.high + cost.share.high).min(1.0);
        LineCost { share: Interval { high, ..heavier.share }, max_gain: high, ..heavier }
    })
}

/// The share of the threads' time, with its interval.
pub(super) fn cost_value(cost: &LineCost) -> Value {
    Unit::Share.estimate(cost.share)
}

/// The same in words: `58.0 % (55.1–61.2)`.
pub(super) fn cost(cost: &LineCost) -> String {
    cost_value(cost).to_string()
}

impl Group<'_> {
    /// The object, in the shortest words: `lreg_args`, `hits and misses`, `the line at 0x5580`.
    pub(super) fn name(&self) -> String {
        whose(self.lines[0])
    }

    /// The objects with all that is known of them.
    pub(super) fn places(&self) -> &[MemoryOwner] {
        &self.lines[0].places
    }

    /// The remedies of the heaviest line that has any, one for each contended object on it.
    pub(super) fn redesigns(&self) -> Vec<&Redesign> {
        let mut of_lines = self.lines.iter().map(|found| found.redesigns().collect::<Vec<_>>());
        of_lines.find(|of_line| !of_line.is_empty()).unwrap_or_default()
    }

    /// What to change, a sentence each. Names the object if there are several.
    pub(super) fn advice(&self) -> Vec<String> {
        let redesigns = self.redesigns();
        if let [one] = redesigns.as_slice() {
            return one.advice_words().collect();
        }
        if !redesigns.is_empty() {
            let words =
                |of: &&Redesign| of.advice_words().map(|advice| format!("{}: {advice}", of.object)).collect::<Vec<_>>();
            return redesigns.iter().flat_map(words).collect();
        }
        let bytes = self.lines.iter().map(|found| found.judged.line.bytes).max().unwrap_or(64);
        vec![LayoutAdvice::Part { to: bytes.into() }.words("")]
    }

    /// The threads whose bytes share lines falsely.
    pub(super) fn threads(&self) -> BTreeSet<u32> {
        let verdicts = self.lines.iter().map(|found| &found.judged.verdict);
        verdicts
            .flat_map(|verdict| verdict.movable().iter().chain(verdict.shared()))
            .flat_map(|owner| owner.threads.iter().copied())
            .collect()
    }

    /// Whether any of it is truly shared too.
    pub(super) fn is_mixed(&self) -> bool {
        self.lines.iter().any(|found| matches!(found.judged.verdict, Verdict::Mixed { .. }))
    }

    /// Whether each of its lines would be repaired. A repair does not consider pairs of lines, and
    /// does not move stacks.
    pub(super) fn is_repairable(&self) -> bool {
        let can_move = |found: &LineReport| found.places.iter().all(|place| place.kind != MemoryKind::Stack);
        let is_repairable =
            |found: &LineReport| found.refused.is_none() && !found.judged.only_as_pair() && can_move(found);
        self.lines.iter().all(|found| is_repairable(found))
    }
}

/// The objects of a line, in the shortest words.
pub(super) fn whose(found: &LineReport) -> String {
    let names: Vec<String> = found.places.iter().map(MemoryOwner::short).collect();
    match names.as_slice() {
        [] => format!("the line at {}", address(found.judged.line.address)),
        [one] => one.clone(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::fixture;

    #[test]
    fn the_lines_of_one_array_are_one_group() {
        let sharing = fixture::regression();
        let groups = by_object(&sharing);
        let names: Vec<(String, usize)> = groups.iter().map(|group| (group.name(), group.lines.len())).collect();
        assert_eq!(names, [("lreg_args".to_owned(), 3)]);
        assert_eq!(groups[0].threads().into_iter().collect::<Vec<_>>(), [100, 101, 102, 103]);
        let costs = || sharing.findings.iter().map(|found| found.cost.share);
        let together = groups[0].cost.share;
        assert_eq!(
            together.likely,
            costs().map(|share| share.likely).fold(0.0, f64::max),
            "all lines may be used by the same iterations"
        );
        assert!(
            (together.high - costs().map(|share| share.high).sum::<f64>().min(1.0)).abs() < 1e-9,
            "or by different ones"
        );
        assert!(together.low > 0.0 && together.low < together.likely);
        assert!(groups[0].advice().iter().any(|advice| advice.contains("alignas(64)")), "{:?}", groups[0].advice());
    }

    #[test]
    fn lines_without_an_object_or_with_several_are_groups_of_their_own() {
        let mut sharing = fixture::regression();
        sharing.findings[0].places.clear();
        sharing.findings[0].redesign = None;
        let two = vec![
            MemoryOwner { name: "a".into(), ..MemoryOwner::default() },
            MemoryOwner { name: "b".into(), ..MemoryOwner::default() },
        ];
        sharing.findings[1].places = two;
        let groups = by_object(&sharing);
        let mut names: Vec<String> = groups.iter().map(Group::name).collect();
        names.sort();
        assert_eq!(names.len(), 3);
        assert_eq!(names[0], "a and b");
        let unknown = groups.iter().find(|group| group.places().is_empty()).unwrap();
        assert!(unknown.name().starts_with("the line at 0x") && unknown.advice()[0].contains("64 bytes of its own"));
    }

    #[test]
    fn each_object_on_a_line_has_its_advice() {
        let mut sharing = fixture::regression();
        for found in &mut sharing.findings {
            let other = found.redesign.clone().map(|redesign| Redesign { object: "queue".into(), ..redesign });
            found.other_redesigns.extend(other);
        }
        let advice = by_object(&sharing)[0].advice();
        assert!(advice[0].starts_with("lreg_args: declare tid with alignas(64)"), "{advice:?}");
        assert!(advice.iter().any(|one| one.starts_with("queue: declare tid with alignas(64)")), "{advice:?}");
        assert_eq!(by_object(&sharing)[0].redesigns().len(), 2);
    }

    #[test]
    fn numbers_that_make_no_sense_cost_nothing() {
        let mut sharing = fixture::regression();
        for found in &mut sharing.findings {
            (found.cost.all, found.cost.on_line) = (0.0, f64::MAX);
        }
        assert_eq!(by_object(&sharing)[0].cost.share.high, 0.0);
    }
}
