//! Rules that keep changing: a line whose bytes are moved again and again is given up.
//!
//! A program may change its mind about who uses which bytes faster than rules can follow, or two rules may each make the
//! other look wrong. Every change stops or slows the threads that use the bytes; more than a few of them in a short time
//! cost more than the sharing did. The paper leaves it open ("what to do if we find ourselves oscillating between
//! rewritelets remains a mystery at this stage", section 7.1); here such a line goes back to where it was, and stays there.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::rules::Move;

/// Changes that are fine: rules are made, corrected once or twice as more threads show up, taken back after a trial, made
/// once more.
pub const MOST_CHANGES: usize = 6;

/// In so many nanoseconds: ten seconds, so that a program whose phases last longer is followed.
pub const WITHIN_NS: u64 = 10_000_000_000;

/// What to do with a change of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// The rules are the ones in force.
    Same,
    /// Make the change.
    Change,
    /// Too many changes: take back what is in force, and leave the line alone.
    GiveUp,
}

/// The changes of rules so far, by line.
#[derive(Debug, Clone)]
pub struct History {
    most_changes: usize,
    within_ns: u64,
    lines: BTreeMap<u64, Record>,
}

#[derive(Debug, Clone, Default)]
struct Record {
    in_force: Vec<Move>,
    /// When rules changed, oldest first.
    changes_ns: VecDeque<u64>,
    given_up: bool,
}

impl Default for History {
    fn default() -> Self {
        Self::new(MOST_CHANGES, WITHIN_NS)
    }
}

impl History {
    /// Lines are given up when their rules change more than `most_changes` times in `within_ns`.
    #[must_use]
    pub fn new(most_changes: usize, within_ns: u64) -> Self {
        Self { most_changes, within_ns, lines: BTreeMap::new() }
    }

    /// The rules of the line at this address are to be `moves`; none: they are taken back. A change counts as made.
    pub fn change(&mut self, line: u64, moves: &[Move], now_ns: u64) -> Step {
        let record = self.lines.entry(line).or_default();
        if record.given_up {
            return if moves.is_empty() { Step::Same } else { Step::GiveUp };
        }
        if record.in_force == moves {
            return Step::Same;
        }
        let earliest = now_ns.saturating_sub(self.within_ns);
        record.changes_ns.retain(|&at| at >= earliest);
        record.changes_ns.push_back(now_ns);
        if record.changes_ns.len() > self.most_changes {
            *record = Record { given_up: true, ..Record::default() };
            return Step::GiveUp;
        }
        record.in_force = moves.to_vec();
        Step::Change
    }

    /// Was the line given up?
    #[must_use]
    pub fn has_given_up(&self, line: u64) -> bool {
        self.lines.get(&line).is_some_and(|record| record.given_up)
    }

    /// The memory of the line was freed: what comes there next starts anew.
    pub fn forget(&mut self, line: u64) {
        self.lines.remove(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::{History, Step};
    use crate::rules::Move;

    fn moves(view: u32) -> [Move; 1] {
        [Move { bytes: 8..16, view, threads: vec![1] }]
    }

    #[test]
    fn back_and_forth_ends() {
        let mut history = History::new(4, 1000);
        let step = |history: &mut History, at: u64| history.change(0, &moves(u32::from(at.is_multiple_of(2))), at);
        assert!((0..4).all(|at| step(&mut history, at) == Step::Change));
        assert_eq!(history.change(0, &moves(0), 4), Step::Same, "nothing changes");
        assert!(!history.has_given_up(0));
        assert_eq!(step(&mut history, 4), Step::GiveUp);
        assert!(history.has_given_up(0) && !history.has_given_up(64));
        assert_eq!(step(&mut history, 1 << 40), Step::GiveUp, "for good");
        assert_eq!(history.change(0, &[], 5), Step::Same, "nothing is in force");
        assert_eq!(history.change(64, &moves(0), 5), Step::Change, "another line");
        history.forget(0);
        assert_eq!(step(&mut history, 6), Step::Change);
    }

    #[test]
    fn slow_changes_are_followed() {
        let mut history = History::new(2, 1000);
        for at in 0..50_u64 {
            assert_eq!(history.change(0, &moves(u32::from(at.is_multiple_of(2))), at * 501), Step::Change, "{at}");
        }
    }

    #[test]
    fn taking_back_is_a_change() {
        let mut history = History::new(3, 1000);
        assert_eq!(history.change(0, &[], 0), Step::Same);
        assert_eq!(history.change(0, &moves(0), 1), Step::Change);
        assert_eq!(history.change(0, &[], 2), Step::Change);
        assert_eq!(history.change(0, &moves(0), 3), Step::Change);
        assert_eq!(history.change(0, &[], 4), Step::GiveUp);
    }
}
