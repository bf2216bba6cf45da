//! A copy of a loop whose accesses are redirected: nothing is added in the loop where the addresses' registers stay as they are.
//!
//! ```text
//!   entry:  base + displacements in the rule's bytes? ── no ──→ the original
//!   head':  add [base + displacement + delta], 1            ←─┐
//!           mov rdx, [slot]                                   │
//!           rdx + displacements in the rule's bytes? ── no ───┼→ the original, at the access
//!           add [rdx + displacement + delta], 1               │
//!           jne head' ────────────────────────────────────────┘
//!           jmp to what follows the original loop
//! ```
//! An access whose registers nothing in the loop writes is checked where the clone is entered, once for all that share them
//! and a rule. Others are checked where they are, once for all that follow in the block with the same registers unchanged. A
//! check covers all its accesses from the first byte to the last, so it may fail early, which costs speed and nothing else. Pointers that are
//! read again and again from the stack frame are checked for one value (`slots`).
//! Absolute addresses are checked now.
//!
//! Between the instructions, and where a check begins, registers, flags and the stack are the original's, so that a signal can be told of an
//! original instruction ([`LoopClone::map`]). In a check only dead registers and flags differ, and, where none is dead, the
//! stack pointer and the one that was saved.
//!
//! A call is made by the original: the return address would be the clone's, and unwinding would end there. So is what comes behind it in its
//! block.
//!
//! Source: Taylor, *Cachekata*, sections 5.2 and 5.3: the loop is copied whole. There a guard stands before each access.

mod checks;

use std::collections::BTreeMap;

use iced_x86::{Code, FlowControl, Instruction, OpKind, Register};
use serde::{Deserialize, Serialize};

use crate::assembly::{Assembly, Label};
use crate::error::{Error, RefusalReason, Result};
use crate::flow::{BasicBlock, Flow, calls};
use crate::guard::Scratch;
use crate::liveness::Liveness;
use crate::loops::Loop;
use crate::page::LINE_BYTES;
use crate::patch::{TRAP, copied_address};
use crate::redirect::Redirect;
use checks::{Check, Checks};

/// What is to be cloned, and how.
#[derive(Debug, Clone, Copy)]
pub struct ClonePlan<'a> {
    /// The flow that the loop is of.
    pub flow: &'a Flow,
    /// The loop.
    pub within: &'a Loop,
    /// What is needed where in the flow.
    pub liveness: &'a Liveness,
    /// The accesses to redirect, each once.
    pub redirects: &'a [Redirect],
    /// Instructions that a patch overwrites, and where their copies are: [`crate::patch::HeadCopy::moved`].
    pub moved: &'a [(u64, u64)],
    /// Where else than at the head the clone can be entered: instructions of the loop, before any check of their block.
    pub enter: &'a [u64],
    /// Where the clone is to lie.
    pub at: u64,
    /// Whether the copy of the head is to begin a cache line, behind bytes that are never run: a short loop is fetched from one line then.
    pub aligned: bool,
}

/// A copy of a loop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopClone {
    /// Where it lies.
    pub at: u64,
    /// Its code.
    pub code: Vec<u8>,
    /// Where it is entered in the state before the head.
    pub entry: u64,
    /// All entries: the original instruction, and where to enter in the state before it.
    pub entries: Vec<(u64, u64)>,
    /// Addresses in the clone at which the program's state is that before an original instruction, and which one.
    pub map: Vec<(u64, u64)>,
    /// Where failed checks lead: the address in the clone, and the original instruction that it goes on at.
    pub failures: Vec<(u64, u64)>,
    /// Checks in the loop.
    pub guards: usize,
    /// Those of them that save a register or the flags.
    pub saving_guards: usize,
}

impl LoopClone {
    /// Makes the clone.
    ///
    /// # Errors
    /// [`Error::Refused`]: an instruction is not in the loop, or behind a call, cannot be redirected, or not from there; an entry would
    /// pass by a check.
    pub fn new(plan: &ClonePlan<'_>) -> Result<Self> {
        let (made, head) = Self::make(plan)?;
        let padding = head.wrapping_neg() % LINE_BYTES;
        if !plan.aligned || padding == 0 {
            return Ok(made);
        }
        let (moved, _) = Self::make(&ClonePlan { at: plan.at + padding, ..*plan })?;
        let code = (0..padding).map(|_| TRAP).chain(moved.code).collect();
        Ok(Self { at: plan.at, code, ..moved })
    }

    /// The clone, and where the copy of the head is in it.
    fn make(plan: &ClonePlan<'_>) -> Result<(Self, u64)> {
        let checks = Checks::of(plan.flow, plan.within, plan.redirects)?;
        let mut builder = Builder {
            plan,
            checks,
            code: Assembly::default(),
            copies: BTreeMap::new(),
            entries: Vec::new(),
            spots: Vec::new(),
            failures: Vec::new(),
            words: BTreeMap::new(),
            guards: 0,
            saving_guards: 0,
        };
        for instruction in plan.flow.copied_instructions(plan.within) {
            let label = builder.code.label();
            builder.copies.insert(instruction.ip(), label);
        }
        for ip in plan.enter.iter().filter(|ip| **ip != plan.within.head).copied() {
            builder.entry(ip, false)?;
        }
        let head_first = plan.within.blocks.first() == Some(&plan.within.head);
        builder.entry(plan.within.head, head_first)?;
        builder.body()?;
        builder.cold_ends();
        builder.finish()
    }
}

/// A check in the loop that failed.
struct FailureExit {
    label: Label,
    scratch: Scratch,
    ip: u64,
}

struct Builder<'a> {
    plan: &'a ClonePlan<'a>,
    checks: Checks,
    code: Assembly,
    /// For each original instruction its copy, with the check before it.
    copies: BTreeMap<u64, Label>,
    entries: Vec<(u64, Label)>,
    spots: Vec<(u64, Label)>,
    failures: Vec<FailureExit>,
    /// What checks compare with, behind the code.
    words: BTreeMap<u64, Label>,
    guards: usize,
    saving_guards: usize,
}

impl Builder<'_> {
    /// An entry for whoever is about to run the instruction at `ip`; the copy follows or is jumped to.
    fn entry(&mut self, ip: u64, falls_through: bool) -> Result<()> {
        let copy = *self.copies.get(&ip).ok_or_else(|| Error::refused(ip, RefusalReason::NotInLoop))?;
        let block = self.plan.flow.block_at(ip).map_or(ip, |block| block.start);
        if self.checks.before.range(block..ip).next().is_some() {
            return Err(Error::refused(ip, RefusalReason::BehindCheck));
        }
        let entry = self.code.here();
        self.entries.push((ip, entry));
        self.spots.push((ip, entry));
        if self.checks.at_entry.is_empty() {
            if !falls_through {
                self.code.jump(Code::Jmp_rel32_64, copy.target());
            }
            return Ok(());
        }
        let checks = self.checks.at_entry.clone();
        let touched = self.checks.touches.values().fold(0, |used, touched| used | touched);
        self.check(ip, &checks, touched)?;
        if !falls_through {
            self.code.jump(Code::Jmp_rel32_64, copy.target());
        }
        Ok(())
    }

    fn body(&mut self) -> Result<()> {
        let ClonePlan { flow, within, .. } = *self.plan;
        let blocks: Vec<&BasicBlock> = within.blocks.iter().map(|start| &flow.blocks[start]).collect();
        for (index, block) in blocks.iter().enumerate() {
            let mut last = &flow.instructions[&block.last];
            for instruction in flow.instructions_until_call(block) {
                self.copy(instruction)?;
                last = instruction;
            }
            if calls(last) {
                continue;
            }
            let follows = blocks.get(index + 1).is_some_and(|next| next.start == block.end);
            if last.flow_control() != FlowControl::UnconditionalBranch && !follows {
                let target = self.target(block.end);
                self.code.jump(Code::Jmp_rel32_64, target);
            }
        }
        Ok(())
    }

    fn copy(&mut self, instruction: &Instruction) -> Result<()> {
        let ip = instruction.ip();
        let label = self.copies[&ip];
        self.code.place(label);
        self.spots.push((ip, label));
        if calls(instruction) {
            self.code.jump(Code::Jmp_rel32_64, copied_address(self.plan.moved, ip));
            return Ok(());
        }
        if let Some(check) = self.checks.before.get(&ip).cloned() {
            self.guard(ip, &check)?;
        }
        if let Some(&(register, value)) = self.checks.known.get(&ip) {
            // From no word beside the code: a load would wait where this does not.
            self.code.load(register, value);
            return Ok(());
        }
        let mut copy = match self.checks.redirected.get(&ip) {
            Some(redirected) => *redirected,
            None => *instruction,
        };
        if copy.op0_kind() == OpKind::NearBranch64 {
            copy.set_near_branch64(self.target(instruction.near_branch_target()));
        }
        self.code.push(copy);
        Ok(())
    }

    fn guard(&mut self, ip: u64, check: &Check) -> Result<()> {
        let scratch = self.check(ip, std::slice::from_ref(check), self.checks.touches[&ip])?;
        self.guards += 1;
        self.saving_guards += usize::from(scratch.saves());
        let checked = self.code.here();
        self.spots.push((ip, checked));
        Ok(())
    }

    /// Checks before the instruction at `ip` or its copy, one of which that fails leads on at the original. A register in none of `touched` is
    /// taken only where addresses are made of several.
    fn check(&mut self, ip: u64, checks: &[Check], touched: u16) -> Result<Scratch> {
        let live = self.plan.liveness.before(ip);
        let used = checks.iter().fold(touched, |used, check| used | check.registers());
        let scratch = if checks.iter().all(|check| check.range().is_some()) {
            Scratch::without(live)
        } else {
            Scratch::choose(live, used).map_err(|why| Error::refused(ip, why))?
        };
        let failed = self.code.label();
        scratch.save(&mut self.code);
        for check in checks {
            match check.range() {
                Some(range) => self.compare(range, failed),
                None => check.emit(&mut self.code, scratch, failed),
            }
        }
        scratch.restore(&mut self.code);
        self.failures.push(FailureExit { label: failed, scratch, ip });
        Ok(scratch)
    }

    /// Goes to `failed` unless the register has one of these values.
    fn compare(&mut self, (register, first, last): (Register, u64, u64), failed: Label) {
        let ends = [(first, Code::Jb_rel32_64), (last, Code::Ja_rel32_64)];
        let one = [(first, Code::Jne_rel32_64)];
        for &(value, jump) in if first == last { one.as_slice() } else { ends.as_slice() } {
            let word = self.word(value);
            self.code.compare_with(register, word);
            self.code.jump(jump, failed.target());
        }
    }

    /// Where a number lies behind the code.
    fn word(&mut self, value: u64) -> Label {
        let Self { code, words, .. } = self;
        *words.entry(value).or_insert_with(|| code.label())
    }

    /// Failed checks, behind the loop: all as it was, and on in the original.
    fn cold_ends(&mut self) {
        for FailureExit { label, scratch, ip } in &self.failures {
            self.code.place(*label);
            scratch.restore(&mut self.code);
            self.code.jump(Code::Jmp_rel32_64, copied_address(self.plan.moved, *ip));
        }
    }

    /// Where a jump to an original address leads: into the clone if that has a block there.
    fn target(&self, original: u64) -> u64 {
        if self.plan.within.blocks.contains(&original) {
            self.copies[&original].target()
        } else {
            copied_address(self.plan.moved, original)
        }
    }

    fn finish(mut self) -> Result<(LoopClone, u64)> {
        let at = self.plan.at;
        for (&value, &label) in &self.words {
            self.code.place(label);
            self.code.word(value);
        }
        let encoded = self.code.encode(at, self.plan.within.head)?;
        let place = |label: Label| encoded.address(label);
        let found = |(ip, label): &(u64, Label)| Some((place(*label)?, *ip));
        let mut map: Vec<(u64, u64)> = self.spots.iter().filter_map(found).collect();
        map.sort_unstable();
        map.dedup();
        let entries: Vec<(u64, u64)> =
            self.entries.iter().filter_map(|(ip, label)| Some((*ip, place(*label)?))).collect();
        let head = self.plan.within.head;
        let entry = entries.iter().find(|(ip, _)| *ip == head).map_or(at, |(_, entry)| *entry);
        let copy = self.copies.get(&head).and_then(|label| place(*label)).unwrap_or(at);
        let failures = self.failures.iter().filter_map(|cold| Some((place(cold.label)?, cold.ip))).collect();
        let clone = LoopClone {
            at,
            entry,
            entries,
            map,
            failures,
            guards: self.guards,
            saving_guards: self.saving_guards,
            code: encoded.bytes,
        };
        Ok((clone, copy))
    }
}

#[cfg(test)]
mod tests;
