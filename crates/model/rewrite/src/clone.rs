//! A copy of a loop whose accesses are redirected. An access with loop-invariant registers costs
//! nothing extra in the loop.
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
//! Algorithm: an access whose registers the loop does not write is checked at the entry, once for
//! all accesses with these registers and this rule. Other accesses are checked in place, once for
//! all that follow in the block with the same registers unchanged. A check covers its accesses from
//! the first byte to the last. So it may fail early, which costs speed only. Pointers read from
//! stack slots are checked for one value (`slots`). Absolute addresses are checked when the clone
//! is made.
//!
//! Invariants: between instructions and at the start of a check, registers, flags and stack equal
//! the original's. So a signal can be attributed to an original instruction ([`LoopClone::map`]).
//! Inside a check, only dead registers and flags differ; if none is dead, also the stack pointer
//! and the saved register. The original makes all calls, because a return address in the clone
//! would break unwinding. It also executes what follows a call in its block.
//!
//! Source: Taylor, *Cachekata*, sections 5.2 and 5.3: the whole loop is copied. There a guard
//! precedes each access.

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
use checks::{Check, CheckPlan};

/// Input for a clone.
#[derive(Debug, Clone, Copy)]
pub struct ClonePlan<'a> {
    /// The flow that contains the loop.
    pub flow: &'a Flow,
    /// The loop.
    pub within: &'a Loop,
    /// Liveness in the flow.
    pub liveness: &'a Liveness,
    /// The accesses to redirect, each once.
    pub redirects: &'a [Redirect],
    /// Instructions that a patch overwrites, with their copies: [`crate::patch::HeadCopy::moved`].
    pub moved: &'a [(u64, u64)],
    /// Further entries beside the head: instructions of the loop, before any check of their block.
    pub enter: &'a [u64],
    /// Address of the clone.
    pub at: u64,
    /// Whether the copy of the head starts a cache line, behind padding. A short loop is then
    /// fetched from one line.
    pub aligned: bool,
}

/// A copy of a loop.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopClone {
    /// Its address.
    pub at: u64,
    /// Its code.
    pub code: Vec<u8>,
    /// The entry for a thread at the head.
    pub entry: u64,
    /// All entries: an original instruction, and the entry for a thread at it.
    pub entries: Vec<(u64, u64)>,
    /// Addresses in the clone where the program's state is that before an original instruction,
    /// with that instruction.
    pub map: Vec<(u64, u64)>,
    /// Exits of failed checks: the address in the clone, and the original instruction that follows.
    #[serde(rename = "colds")]
    pub failures: Vec<(u64, u64)>,
    /// Number of checks in the loop.
    pub guards: usize,
    /// Number of these that save a register or the flags.
    pub saving_guards: usize,
}

impl LoopClone {
    /// Makes the clone.
    ///
    /// # Errors
    /// [`Error::Refused`] if an instruction is not in the loop, follows a call, or cannot be
    /// redirected, and if an entry would bypass a check.
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

    /// Makes the clone; returns the address of the head's copy too.
    fn make(plan: &ClonePlan<'_>) -> Result<(Self, u64)> {
        let checks = CheckPlan::of(plan.flow, plan.within, plan.redirects)?;
        let mut builder = CloneBuilder {
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
        builder.failure_exits();
        builder.finish()
    }
}

/// The exit of a failed check.
struct FailureExit {
    label: Label,
    scratch: Scratch,
    ip: u64,
}

struct CloneBuilder<'a> {
    plan: &'a ClonePlan<'a>,
    checks: CheckPlan,
    code: Assembly,
    /// For each original instruction, its copy with the check before it.
    copies: BTreeMap<u64, Label>,
    entries: Vec<(u64, Label)>,
    spots: Vec<(u64, Label)>,
    failures: Vec<FailureExit>,
    /// Operands of comparisons, behind the code.
    words: BTreeMap<u64, Label>,
    guards: usize,
    saving_guards: usize,
}

impl CloneBuilder<'_> {
    /// An entry for a thread at the instruction at `ip`. The copy follows, or the entry jumps to
    /// it.
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
            // An immediate needs no load, so it causes no wait.
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

    /// Checks before the instruction at `ip` or its copy. If one fails, the thread continues in the
    /// original. A scratch register, needed only for addresses of several registers, is none of
    /// `touched`.
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

    /// Jumps to `failed` unless the register is in this range.
    fn compare(&mut self, (register, first, last): (Register, u64, u64), failed: Label) {
        let ends = [(first, Code::Jb_rel32_64), (last, Code::Ja_rel32_64)];
        let one = [(first, Code::Jne_rel32_64)];
        for &(value, jump) in if first == last { one.as_slice() } else { ends.as_slice() } {
            let word = self.word(value);
            self.code.compare_with(register, word);
            self.code.jump(jump, failed.target());
        }
    }

    /// Label of a number behind the code.
    fn word(&mut self, value: u64) -> Label {
        let Self { code, words, .. } = self;
        *words.entry(value).or_insert_with(|| code.label())
    }

    /// Exits of failed checks, behind the loop. They restore all state and continue in the
    /// original.
    fn failure_exits(&mut self) {
        for FailureExit { label, scratch, ip } in &self.failures {
            self.code.place(*label);
            scratch.restore(&mut self.code);
            self.code.jump(Code::Jmp_rel32_64, copied_address(self.plan.moved, *ip));
        }
    }

    /// The target of a jump to an original address: in the clone if the clone has that block.
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
        let failures = self.failures.iter().filter_map(|exit| Some((place(exit.label)?, exit.ip))).collect();
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
