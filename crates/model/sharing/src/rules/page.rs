//! A page, byte by byte: the owner of each byte, and the adjacent bytes that one access includes.
//!
//! ```text
//!   labels   . . A A A A . . B B B B H H . . a a a a        . unused   A, B owners   H stays   a owned by A,
//!   joined       ─ ─ ─       ─ ─ ─   ─                                                     on a line without finding
//! ```

use std::ops::Range;

use super::{PAGE_BYTES, PlanRefusal, RefusedLine};
use crate::line_use::{LineUse, ThreadUse};
use crate::verdict::{ByteOwner, JudgedLine, Verdict};
use crate::windows::LEAST_COMMON;

/// Compilers emit accesses of aligned words: boundaries between words split none of them.
const WORD: usize = 8;

/// The label of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteLabel {
    /// It was not accessed in any sample.
    Unused,
    /// It stays: it is truly shared, or on a line without a finding.
    Stays,
    /// It moves with this owner.
    Owner(usize),
    /// It is on a line without a finding, and only this owner uses it.
    OwnedElsewhere(usize),
}

/// The kind of access that includes a byte and the next one, in increasing priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Joint {
    None,
    Plain,
    Atomic,
}

/// The labels of a page.
#[derive(Debug)]
pub(super) struct PageLabels {
    start: u64,
    labels: Vec<ByteLabel>,
    /// For each byte, the access that includes it and the next one.
    joints: Vec<Joint>,
    /// The threads of each owner.
    owners: Vec<Vec<u32>>,
    /// The findings that are not refused.
    findings: Vec<Range<u64>>,
    /// The access that includes the last byte of the page before and the first of this one.
    entered: Joint,
}

impl PageLabels {
    /// The labels of a page before ranges grow, from its lines and the line before it, if that is
    /// known. Refuses a line with enclosed bytes.
    pub(super) fn new(
        page: u64,
        lines: &[&JudgedLine],
        before: Option<&LineUse>,
        is_refused: impl Fn(u64) -> bool,
    ) -> Result<Self, RefusedLine> {
        let bytes = index(PAGE_BYTES);
        let mut map = Self {
            start: page,
            labels: vec![ByteLabel::Unused; bytes],
            joints: vec![Joint::None; bytes],
            owners: Vec::new(),
            findings: Vec::new(),
            entered: before.map_or(Joint::None, |line| joint_behind(line, line.bytes - 1)),
        };
        let (findings, others): (Vec<&JudgedLine>, Vec<&JudgedLine>) =
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

    /// The threads of each owner.
    pub(super) fn owners(&self) -> &[Vec<u32>] {
        &self.owners
    }

    /// Bytes of a line or of a pair.
    pub(super) fn line_bytes(&self) -> u64 {
        self.findings.first().map_or(PAGE_BYTES, |line| line.end - line.start)
    }

    /// The ranges that move, by address, with their owners.
    pub(super) fn ranges(&self) -> Vec<(Range<u64>, usize)> {
        self.runs().into_iter().map(|(run, owner)| (self.address(run.start)..self.address(run.end), owner)).collect()
    }

    /// Grows the ranges over unused bytes: gaps, the rest of words, and bytes of one access.
    pub(super) fn grow(&mut self) {
        for (run, owner) in self.runs() {
            let start = run.start / WORD * WORD;
            self.grow_run(start..run.end.next_multiple_of(WORD), &run, owner);
        }
        self.close_gaps();
        for (run, owner) in self.runs() {
            let joined = |byte: usize| self.joints[byte] != Joint::None;
            let start = (1..=run.start).rev().find(|&byte| !joined(byte - 1)).unwrap_or(0);
            let end = (run.end..self.labels.len()).find(|&byte| !joined(byte - 1)).unwrap_or(self.labels.len());
            self.grow_run(start..end, &run, owner);
        }
        self.close_gaps();
    }

    /// Checks that no boundary splits an access.
    pub(super) fn check(&self) -> Result<(), RefusedLine> {
        for (run, _) in self.runs() {
            let before = run.start.checked_sub(1).map_or(self.entered, |byte| self.joints[byte]);
            let borders = [(before, run.start, run.start), (self.joints[run.end - 1], run.end, run.end - 1)];
            for (joint, border, inside) in borders {
                let border = self.address(border);
                let why = match joint {
                    Joint::None => continue,
                    Joint::Plain => PlanRefusal::Splits { border },
                    Joint::Atomic => PlanRefusal::AtomicStraddles { border },
                };
                return Err(self.refused(self.address(inside), why));
            }
        }
        Ok(())
    }

    /// The line to refuse for a problem at an address: the finding that contains it, else the
    /// nearest one, whose range has grown to it.
    pub(super) fn refused(&self, address: u64, why: PlanRefusal) -> RefusedLine {
        let apart = |line: &&Range<u64>| line.start.saturating_sub(address).max((address + 1).saturating_sub(line.end));
        let line = self.findings.iter().min_by_key(apart).map_or(self.start, |line| line.start);
        RefusedLine { line, why }
    }

    fn label_finding(&mut self, verdict: &Verdict) {
        for (at, shared) in verdict.shared().iter().enumerate() {
            if at == 0 {
                self.label(shared, ByteLabel::Stays);
            } else {
                self.label_owner(shared);
            }
        }
        verdict.movable().iter().for_each(|owner| self.label_owner(owner));
    }

    fn label_owner(&mut self, owner: &ByteOwner) {
        let number = self.owners.iter().position(|threads| *threads == owner.threads).unwrap_or(self.owners.len());
        if number == self.owners.len() {
            self.owners.push(owner.threads.clone());
        }
        self.label(owner, ByteLabel::Owner(number));
    }

    fn label(&mut self, owner: &ByteOwner, label: ByteLabel) {
        for range in &owner.bytes {
            let bytes = self.offset(range.start)..self.offset(range.end);
            self.labels[bytes].fill(label);
        }
    }

    /// Labels a line without a finding: a byte of a single owner can move with it, other used bytes
    /// stay.
    fn label_other(&mut self, line: &LineUse) {
        let first = self.offset(line.address);
        for byte in 0..line.bytes as usize {
            let users = users_of(line, byte);
            if !users.is_empty() {
                let owner = self.owners.iter().position(|threads| *threads == users);
                self.labels[first + byte] = owner.map_or(ByteLabel::Stays, ByteLabel::OwnedElsewhere);
            }
        }
    }

    fn join(&mut self, line: &LineUse) {
        let first = self.offset(line.address);
        for bit in 0..line.bytes {
            self.joints[first + bit as usize] = joint_behind(line, bit);
        }
    }

    /// Checks that in no word the bytes of one owner enclose those of another.
    fn check_words(&self) -> Result<(), RefusedLine> {
        for word in (0..self.labels.len()).step_by(WORD) {
            let mut seen: Vec<ByteLabel> = Vec::with_capacity(WORD);
            for &label in self.labels[word..word + WORD].iter().filter(|label| **label != ByteLabel::Unused) {
                if seen.last() == Some(&label) {
                    continue;
                }
                let moves = matches!(label, ByteLabel::Owner(_))
                    || seen.iter().any(|label| matches!(label, ByteLabel::Owner(_)));
                if seen.contains(&label) && moves {
                    let word = self.address(word);
                    return Err(self.refused(word, PlanRefusal::Interleaved { word }));
                }
                seen.push(label);
            }
        }
        Ok(())
    }

    /// Runs of bytes of one owner, by address.
    fn runs(&self) -> Vec<(Range<usize>, usize)> {
        let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
        for (byte, label) in self.labels.iter().enumerate() {
            let ByteLabel::Owner(owner) = *label else { continue };
            match runs.last_mut() {
                Some((run, last)) if run.end == byte && *last == owner => run.end += 1,
                _ => runs.push((byte..byte + 1, owner)),
            }
        }
        runs
    }

    /// Grows `run` at both ends, inside `room`, over bytes that are unused or owned by `owner`
    /// alone.
    fn grow_run(&mut self, room: Range<usize>, run: &Range<usize>, owner: usize) {
        let is_free =
            |label: ByteLabel| matches!(label, ByteLabel::Unused) || label == ByteLabel::OwnedElsewhere(owner);
        for byte in (room.start..run.start).rev() {
            if !is_free(self.labels[byte]) {
                break;
            }
            self.labels[byte] = ByteLabel::Owner(owner);
        }
        for byte in run.end..room.end {
            if !is_free(self.labels[byte]) {
                break;
            }
            self.labels[byte] = ByteLabel::Owner(owner);
        }
    }

    /// Fills gaps between two runs of one owner on one finding, if the gap is unused.
    fn close_gaps(&mut self) {
        let runs = self.runs();
        for ((before, owner), (behind, other)) in runs.iter().zip(runs.iter().skip(1)) {
            let gap = before.end..behind.start;
            let is_free =
                |label: &ByteLabel| matches!(label, ByteLabel::Unused) || *label == ByteLabel::OwnedElsewhere(*owner);
            let (first, last) = (self.address(before.end - 1), self.address(behind.start));
            let on_one_line = self.findings.iter().any(|line| line.contains(&first) && line.contains(&last));
            if owner == other && on_one_line && self.labels[gap.clone()].iter().all(is_free) {
                self.labels[gap].fill(ByteLabel::Owner(*owner));
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

/// The present users of a byte: the heaviest, and those that run at the same time. Threads sampled
/// in very few windows are ignored, as for findings.
fn users_of(line: &LineUse, byte: usize) -> Vec<u32> {
    let weight = |thread: &ThreadUse| thread.read[byte] + thread.written[byte];
    let stays = |thread: &&ThreadUse| weight(thread) > 0.0 && thread.windows.count() >= LEAST_COMMON;
    let users = || line.threads.iter().filter(stays);
    let Some(heaviest) = users().max_by(|a, b| weight(a).total_cmp(&weight(b))) else { return Vec::new() };
    let together = |user: &&ThreadUse| user.thread == heaviest.thread || user.windows.ran_with(&heaviest.windows);
    users().filter(together).map(|user| user.thread).collect()
}

/// The access that includes this byte of a line and the next one.
fn joint_behind(line: &LineUse, byte: u32) -> Joint {
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
