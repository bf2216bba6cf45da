//! A page, byte by byte: whose each byte is, and which neighbours an access took in together.
//!
//! ```text
//!   labels   . . A A A A . . B B B B H H . . a a a a        . nobody's   A, B owners   H stays   a A's, on a line
//!   joined       ─ ─ ─       ─ ─ ─   ─                                                             that is no finding
//! ```

use std::ops::Range;

use super::{PAGE_BYTES, Refusal, Refused};
use crate::line::{Line, ThreadUse};
use crate::verdict::{Judged, Owner, Verdict};
use crate::windows::LEAST_COMMON;

/// Accesses of a word, aligned, are what compilers emit: borders between words split none of them.
const WORD: usize = 8;

/// Whose a byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    /// Nobody was seen at it.
    Nobody,
    /// It stays where it is: truly shared, or on a line that is no finding.
    Stays,
    /// It moves with this owner.
    Owner(usize),
    /// On a line that is no finding; only this owner was seen at it.
    Friend(usize),
}

/// What one access took in together, what matters more last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Joint {
    None,
    Plain,
    Atomic,
}

/// A page with its findings' owners.
#[derive(Debug)]
pub(super) struct PageMap {
    start: u64,
    labels: Vec<Label>,
    /// Each byte with the one behind it.
    joints: Vec<Joint>,
    /// Owners, by their threads.
    owners: Vec<Vec<u32>>,
    /// The findings that are not refused.
    findings: Vec<Range<u64>>,
    /// What takes in the last byte of the page before and the first of this one.
    entered: Joint,
}

impl PageMap {
    /// The labels of a page before anything grows, from its lines and the one before it, if that is known. A line that
    /// alternates is refused here.
    pub(super) fn new(
        page: u64,
        lines: &[&Judged],
        before: Option<&Line>,
        is_refused: impl Fn(u64) -> bool,
    ) -> Result<Self, Refused> {
        let bytes = index(PAGE_BYTES);
        let mut map = Self {
            start: page,
            labels: vec![Label::Nobody; bytes],
            joints: vec![Joint::None; bytes],
            owners: Vec::new(),
            findings: Vec::new(),
            entered: before.map_or(Joint::None, |line| joint_behind(line, line.bytes - 1)),
        };
        let (findings, others): (Vec<&Judged>, Vec<&Judged>) =
            lines.iter().copied().partition(|judged| judged.verdict.is_finding() && !is_refused(judged.line.address));
        for judged in &findings {
            map.findings.push(judged.line.address..judged.line.end());
            map.label_finding(&judged.verdict);
        }
        others.iter().for_each(|judged| map.label_other(&judged.line));
        lines.iter().for_each(|judged| map.join(&judged.line));
        map.check_words()?;
        Ok(map)
    }

    /// The owners' threads.
    pub(super) fn owners(&self) -> &[Vec<u32>] {
        &self.owners
    }

    /// Bytes of a line, or of a pair.
    pub(super) fn line_bytes(&self) -> u64 {
        self.findings.first().map_or(PAGE_BYTES, |line| line.end - line.start)
    }

    /// The ranges that move, in order, and their owners.
    pub(super) fn ranges(&self) -> Vec<(Range<u64>, usize)> {
        self.runs().into_iter().map(|(run, owner)| (self.address(run.start)..self.address(run.end), owner)).collect()
    }

    /// Ranges take in what is nobody's: gaps, rests of words, and what accesses took in together.
    pub(super) fn grow(&mut self) {
        for (run, owner) in self.runs() {
            let start = run.start / WORD * WORD;
            self.take_in(start..run.end.next_multiple_of(WORD), &run, owner);
        }
        self.close_gaps();
        for (run, owner) in self.runs() {
            let joined = |byte: usize| self.joints[byte] != Joint::None;
            let start = (1..=run.start).rev().find(|&byte| !joined(byte - 1)).unwrap_or(0);
            let end = (run.end..self.labels.len()).find(|&byte| !joined(byte - 1)).unwrap_or(self.labels.len());
            self.take_in(start..end, &run, owner);
        }
        self.close_gaps();
    }

    /// Does any border split an access?
    pub(super) fn check(&self) -> Result<(), Refused> {
        for (run, _) in self.runs() {
            let before = run.start.checked_sub(1).map_or(self.entered, |byte| self.joints[byte]);
            let borders = [(before, run.start, run.start), (self.joints[run.end - 1], run.end, run.end - 1)];
            for (joint, border, inside) in borders {
                let border = self.address(border);
                let why = match joint {
                    Joint::None => continue,
                    Joint::Plain => Refusal::Splits { border },
                    Joint::Atomic => Refusal::AtomicStraddles { border },
                };
                return Err(self.refused(self.address(inside), why));
            }
        }
        Ok(())
    }

    /// The line to refuse for what is wrong at an address: its own if that is a finding, else the nearest finding, whose
    /// range grew as far as here.
    pub(super) fn refused(&self, address: u64, why: Refusal) -> Refused {
        let apart = |line: &&Range<u64>| line.start.saturating_sub(address).max((address + 1).saturating_sub(line.end));
        let line = self.findings.iter().min_by_key(apart).map_or(self.start, |line| line.start);
        Refused { line, why }
    }

    fn label_finding(&mut self, verdict: &Verdict) {
        for (at, shared) in verdict.shared().iter().enumerate() {
            if at == 0 {
                self.label(shared, Label::Stays);
            } else {
                self.label_owner(shared);
            }
        }
        verdict.movable().iter().for_each(|owner| self.label_owner(owner));
    }

    fn label_owner(&mut self, owner: &Owner) {
        let number = self.owners.iter().position(|threads| *threads == owner.threads).unwrap_or(self.owners.len());
        if number == self.owners.len() {
            self.owners.push(owner.threads.clone());
        }
        self.label(owner, Label::Owner(number));
    }

    fn label(&mut self, owner: &Owner, label: Label) {
        for range in &owner.bytes {
            let bytes = self.offset(range.start)..self.offset(range.end);
            self.labels[bytes].fill(label);
        }
    }

    /// A line that is no finding: a byte that one owner alone uses is its friend, every other one that is used stays.
    fn label_other(&mut self, line: &Line) {
        let first = self.offset(line.address);
        for byte in 0..line.bytes as usize {
            let users = users_of(line, byte);
            if !users.is_empty() {
                let owner = self.owners.iter().position(|threads| *threads == users);
                self.labels[first + byte] = owner.map_or(Label::Stays, Label::Friend);
            }
        }
    }

    fn join(&mut self, line: &Line) {
        let first = self.offset(line.address);
        for bit in 0..line.bytes {
            self.joints[first + bit as usize] = joint_behind(line, bit);
        }
    }

    /// Does an owner come twice in one word, with another between?
    fn check_words(&self) -> Result<(), Refused> {
        for word in (0..self.labels.len()).step_by(WORD) {
            let mut seen: Vec<Label> = Vec::with_capacity(WORD);
            for &label in self.labels[word..word + WORD].iter().filter(|label| **label != Label::Nobody) {
                if seen.last() == Some(&label) {
                    continue;
                }
                let moves =
                    matches!(label, Label::Owner(_)) || seen.iter().any(|label| matches!(label, Label::Owner(_)));
                if seen.contains(&label) && moves {
                    let word = self.address(word);
                    return Err(self.refused(word, Refusal::Interleaved { word }));
                }
                seen.push(label);
            }
        }
        Ok(())
    }

    /// Runs of one owner, in order.
    fn runs(&self) -> Vec<(Range<usize>, usize)> {
        let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
        for (byte, label) in self.labels.iter().enumerate() {
            let Label::Owner(owner) = *label else { continue };
            match runs.last_mut() {
                Some((run, last)) if run.end == byte && *last == owner => run.end += 1,
                _ => runs.push((byte..byte + 1, owner)),
            }
        }
        runs
    }

    /// Lets `run` grow inside `room`, from both ends, as far as bytes are nobody's or the owner's friends.
    fn take_in(&mut self, room: Range<usize>, run: &Range<usize>, owner: usize) {
        let is_free = |label: Label| matches!(label, Label::Nobody) || label == Label::Friend(owner);
        for byte in (room.start..run.start).rev() {
            if !is_free(self.labels[byte]) {
                break;
            }
            self.labels[byte] = Label::Owner(owner);
        }
        for byte in run.end..room.end {
            if !is_free(self.labels[byte]) {
                break;
            }
            self.labels[byte] = Label::Owner(owner);
        }
    }

    /// Fills what lies between two runs of one owner on one finding, where it is nobody's.
    fn close_gaps(&mut self) {
        let runs = self.runs();
        for ((before, owner), (behind, other)) in runs.iter().zip(runs.iter().skip(1)) {
            let gap = before.end..behind.start;
            let is_free = |label: &Label| matches!(label, Label::Nobody) || *label == Label::Friend(*owner);
            let (first, last) = (self.address(before.end - 1), self.address(behind.start));
            let on_one_line = self.findings.iter().any(|line| line.contains(&first) && line.contains(&last));
            if owner == other && on_one_line && self.labels[gap.clone()].iter().all(is_free) {
                self.labels[gap].fill(Label::Owner(*owner));
            }
        }
    }

    fn address(&self, offset: usize) -> u64 {
        self.start + offset as u64
    }

    fn offset(&self, address: u64) -> usize {
        index(address.saturating_sub(self.start).min(PAGE_BYTES))
    }
}

/// Who uses a byte now: its heaviest user, and those that run at the same time. Those that were seen in too few windows to
/// be anyone's neighbour only came by, as they do on findings.
fn users_of(line: &Line, byte: usize) -> Vec<u32> {
    let weight = |thread: &ThreadUse| thread.read[byte] + thread.written[byte];
    let stays = |thread: &&ThreadUse| weight(thread) > 0.0 && thread.windows.count() >= LEAST_COMMON;
    let users = || line.threads.iter().filter(stays);
    let Some(heaviest) = users().max_by(|a, b| weight(a).total_cmp(&weight(b))) else { return Vec::new() };
    let together = |user: &&ThreadUse| user.thread == heaviest.thread || user.windows.ran_with(&heaviest.windows);
    users().filter(together).map(|user| user.thread).collect()
}

/// What took in this byte of a line and the one behind it.
fn joint_behind(line: &Line, byte: u32) -> Joint {
    let of_thread = |thread: &ThreadUse| match (thread.joined.has(byte), thread.atomic.has(byte)) {
        (false, _) => Joint::None,
        (true, false) => Joint::Plain,
        (true, true) => Joint::Atomic,
    };
    line.threads.iter().map(of_thread).max().unwrap_or(Joint::None)
}

/// An offset in a page as an index.
#[expect(clippy::cast_possible_truncation, reason = "at most the bytes of a page")]
const fn index(offset: u64) -> usize {
    offset as usize
}
