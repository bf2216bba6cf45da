//! Unstable rules: a line whose rules change too often is given up.
//!
//! Threads may exchange their bytes faster than rules can follow, or two rules may each make the
//! other wrong. Each change stops or slows the threads that use the bytes, so frequent changes cost
//! more than the sharing. Such a line is restored and stays so.
//!
//! Source: Taylor, *Cachekata*, section 7.1, leaves this open ("what to do if we find ourselves
//! oscillating between rewritelets remains a mystery at this stage").

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::rules::ByteMove;

/// Permitted number of changes: rules are made, corrected once or twice as more threads appear,
/// removed after a trial, and made again.
pub const MOST_CHANGES: usize = 6;

/// Time in which they are counted, in nanoseconds: 10 s. Programs with longer phases are followed.
pub const WITHIN_NS: u64 = 10_000_000_000;

/// The decision about a change of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeDecision {
    /// The rules are in force already.
    Same,
    /// Make the change.
    Change,
    /// There were too many changes: remove the rules in force and ignore the line.
    GiveUp,
}

/// The changes of rules so far, by line.
#[derive(Debug, Clone)]
pub struct RuleHistory {
    most_changes: usize,
    within_ns: u64,
    lines: BTreeMap<u64, LineRecord>,
}

#[derive(Debug, Clone, Default)]
struct LineRecord {
    in_force: Vec<ByteMove>,
    /// Times of changes, oldest first.
    changes_ns: VecDeque<u64>,
    given_up: bool,
}

impl Default for RuleHistory {
    fn default() -> Self {
        Self::new(MOST_CHANGES, WITHIN_NS)
    }
}

impl RuleHistory {
    /// Lines are given up if their rules change more than `most_changes` times in `within_ns`.
    #[must_use]
    pub fn new(most_changes: usize, within_ns: u64) -> Self {
        Self { most_changes, within_ns, lines: BTreeMap::new() }
    }

    /// Decides about new rules for the line at this address; empty `moves` remove its rules. A
    /// change counts as made.
    pub fn change(&mut self, line: u64, moves: &[ByteMove], now_ns: u64) -> ChangeDecision {
        let record = self.lines.entry(line).or_default();
        if record.given_up {
            return if moves.is_empty() { ChangeDecision::Same } else { ChangeDecision::GiveUp };
        }
        if record.in_force == moves {
            return ChangeDecision::Same;
        }
        let earliest = now_ns.saturating_sub(self.within_ns);
        record.changes_ns.retain(|&at| at >= earliest);
        record.changes_ns.push_back(now_ns);
        if record.changes_ns.len() > self.most_changes {
            *record = LineRecord { given_up: true, ..LineRecord::default() };
            return ChangeDecision::GiveUp;
        }
        record.in_force = moves.to_vec();
        ChangeDecision::Change
    }

    /// Whether the line was given up.
    #[must_use]
    pub fn has_given_up(&self, line: u64) -> bool {
        self.lines.get(&line).is_some_and(|record| record.given_up)
    }

    /// Forgets a line whose memory was freed. New memory there has no history.
    pub fn forget(&mut self, line: u64) {
        self.lines.remove(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::{ChangeDecision, RuleHistory};
    use crate::rules::ByteMove;

    fn moves(view: u32) -> [ByteMove; 1] {
        [ByteMove { bytes: 8..16, view, threads: vec![1] }]
    }

    #[test]
    fn alternating_rules_are_given_up() {
        let mut history = RuleHistory::new(4, 1000);
        let step = |history: &mut RuleHistory, at: u64| history.change(0, &moves(u32::from(at.is_multiple_of(2))), at);
        assert!((0..4).all(|at| step(&mut history, at) == ChangeDecision::Change));
        assert_eq!(history.change(0, &moves(0), 4), ChangeDecision::Same, "nothing changes");
        assert!(!history.has_given_up(0));
        assert_eq!(step(&mut history, 4), ChangeDecision::GiveUp);
        assert!(history.has_given_up(0) && !history.has_given_up(64));
        assert_eq!(step(&mut history, 1 << 40), ChangeDecision::GiveUp, "permanently");
        assert_eq!(history.change(0, &[], 5), ChangeDecision::Same, "nothing is in force");
        assert_eq!(history.change(64, &moves(0), 5), ChangeDecision::Change, "another line");
        history.forget(0);
        assert_eq!(step(&mut history, 6), ChangeDecision::Change);
    }

    #[test]
    fn slow_changes_are_followed() {
        let mut history = RuleHistory::new(2, 1000);
        for at in 0..50_u64 {
            assert_eq!(
                history.change(0, &moves(u32::from(at.is_multiple_of(2))), at * 501),
                ChangeDecision::Change,
                "{at}"
            );
        }
    }

    #[test]
    fn removing_rules_is_a_change() {
        let mut history = RuleHistory::new(3, 1000);
        assert_eq!(history.change(0, &[], 0), ChangeDecision::Same);
        assert_eq!(history.change(0, &moves(0), 1), ChangeDecision::Change);
        assert_eq!(history.change(0, &[], 2), ChangeDecision::Change);
        assert_eq!(history.change(0, &moves(0), 3), ChangeDecision::Change);
        assert_eq!(history.change(0, &[], 4), ChangeDecision::GiveUp);
    }
}
