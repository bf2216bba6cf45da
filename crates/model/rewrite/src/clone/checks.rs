//! The checks that a clone needs, and their places.
//!
//! ```text
//!   rule      lo ─────────────────────────────── hi
//!   accesses        [low …)  …  […  high)            of one base and index, displacements low to high
//!   check     0 <= base + index * scale + low - lo <= (hi - lo) - (high - low)
//! ```

use std::collections::BTreeMap;

use iced_x86::{Code, Instruction, InstructionInfoFactory, Register};

use crate::assembly::{Assembly, Label};
use crate::effect::InstructionEffect;
use crate::error::{Error, RefusalReason, Result};
use crate::flow::Flow;
use crate::guard::Scratch;
use crate::loops::Loop;
use crate::operand::Operand;
use crate::page::RemapRule;
use crate::redirect::Redirect;
use crate::registers::bit;
use crate::slots::FrameState;

/// The check that all accesses of one base and index are in a rule's bytes.
#[derive(Debug, Clone)]
pub(super) struct Check {
    /// The operand of one of them.
    operand: Operand,
    rule: RemapRule,
    /// The lowest displacement.
    low: i64,
    /// The highest displacement plus the bytes there.
    high: i64,
    /// The only permitted value of the register, if it was read from a slot.
    only: Option<u64>,
}

/// The checks of a loop, and its redirected instructions.
#[derive(Debug, Default)]
pub(super) struct CheckPlan {
    /// Checks of registers that the loop does not write.
    pub(super) at_entry: Vec<Check>,
    /// Other checks, by the instruction that they precede.
    pub(super) before: BTreeMap<u64, Check>,
    /// The redirected instructions, by their original addresses.
    pub(super) redirected: BTreeMap<u64, Instruction>,
    /// Instructions that read a checked slot again, with the register and its value.
    pub(super) known: BTreeMap<u64, (Register, u64)>,
    /// Registers that each redirected instruction uses. If its check fails, the instruction may
    /// fault, and a handler may continue behind it.
    pub(super) touches: BTreeMap<u64, u16>,
}

impl Check {
    fn new(operand: Operand, rule: &RemapRule) -> Self {
        let high = operand.displacement.saturating_add(i64::from(operand.bytes));
        Self { operand, rule: rule.clone(), low: operand.displacement, high, only: None }
    }

    /// The registers of the address.
    pub(super) fn registers(&self) -> u16 {
        bit(self.operand.base) | bit(self.operand.index)
    }

    /// Maximum offset in the rule of the lowest access. `None` if the accesses do not fit.
    fn span(&self) -> Option<i32> {
        let room =
            i128::from(self.rule.bytes.end - self.rule.bytes.start) - (i128::from(self.high) - i128::from(self.low));
        i32::try_from(room).ok().filter(|span| *span >= 0)
    }

    /// Includes an access with the same registers and rule, if all accesses still fit. Returns
    /// whether it did.
    fn take(&mut self, operand: &Operand, rule: &RemapRule) -> bool {
        let same =
            (self.operand.base, self.operand.index, self.operand.scale) == (operand.base, operand.index, operand.scale);
        if let Some(value) = self.only.filter(|_| same) {
            return holds(rule, operand, value);
        }
        if !same || self.rule != *rule {
            return false;
        }
        let other = Self::new(*operand, rule);
        let wider = Self { low: self.low.min(other.low), high: self.high.max(other.high), ..self.clone() };
        if wider.span().is_none() {
            return false;
        }
        *self = wider;
        true
    }

    /// The register at a fixed distance from the address, with the first and last permitted values.
    /// `None` for an address of several registers.
    pub(super) fn range(&self) -> Option<(Register, u64, u64)> {
        let Operand { base, index, scale, .. } = self.operand;
        let register = match (base, index) {
            (base, Register::None) => base,
            (Register::None, index) if scale == 1 => index,
            _ => return None,
        };
        if let Some(value) = self.only {
            return Some((register, value, value));
        }
        let first = self.rule.bytes.start.wrapping_sub(self.low.cast_unsigned());
        let last = first.checked_add(u64::try_from(self.span()?).ok()?)?;
        Some((register, first, last))
    }

    /// Jumps to `failed` unless the check passes.
    pub(super) fn emit(&self, code: &mut Assembly, scratch: Scratch, failed: Label) {
        // The check consists of accesses that fit, so there is a span.
        let span = self.span().unwrap_or(-1);
        scratch.distance(code, &self.operand, self.low, self.rule.bytes.start);
        code.compare(scratch.register, span);
        code.jump(Code::Ja_rel32_64, failed.target());
    }
}

impl CheckPlan {
    /// The checks for `redirects` in the loop.
    ///
    /// # Errors
    /// [`Error::Refused`] if one of them cannot be redirected or is not in the loop.
    pub(super) fn of(flow: &Flow, within: &Loop, redirects: &[Redirect]) -> Result<Self> {
        let mut factory = InstructionInfoFactory::new();
        let effects: BTreeMap<u64, InstructionEffect> = flow
            .copied_instructions(within)
            .map(|instruction| (instruction.ip(), InstructionEffect::of(instruction, &mut factory)))
            .collect();
        let written = effects.values().fold(0, |written, effect| written | effect.writes);
        let mut checks = Self::default();
        let mut varying: BTreeMap<u64, Varying<'_>> = BTreeMap::new();
        for Redirect { ip, rule, expected } in redirects {
            let refused = |reason| Error::refused(*ip, reason);
            let effect = effects.get(ip).ok_or_else(|| refused(RefusalReason::NotInLoop))?;
            let instruction = &flow.instructions[ip];
            let operand = Operand::of(instruction, &mut factory)?;
            let check = Check::new(operand, rule);
            check.span().ok_or_else(|| refused(RefusalReason::Straddles))?;
            checks.redirected.insert(*ip, operand.redirected(instruction, rule.delta)?);
            checks.touches.insert(*ip, effect.registers());
            if operand.is_absolute() {
                let inside = rule.holds(operand.displacement.cast_unsigned(), operand.bytes);
                inside.then_some(()).ok_or_else(|| refused(RefusalReason::OutsideRule))?;
            } else if check.registers() & written == 0 {
                add(&mut checks.at_entry, check, &operand, rule);
            } else {
                varying.insert(*ip, Varying { operand, rule, expected: *expected });
            }
        }
        for start in &within.blocks {
            let instructions = flow.instructions_until_call(&flow.blocks[start]);
            checks.in_block(instructions, &varying, &effects);
        }
        Ok(checks)
    }
}

/// Includes an access in one of the checks, or adds a new check.
fn add(checks: &mut Vec<Check>, check: Check, operand: &Operand, rule: &RemapRule) {
    if !checks.iter_mut().any(|other| other.take(operand, rule)) {
        checks.push(check);
    }
}

/// An access whose registers the loop writes.
#[derive(Debug, Clone, Copy)]
struct Varying<'a> {
    operand: Operand,
    rule: &'a RemapRule,
    expected: Option<u64>,
}

impl Varying<'_> {
    /// The register's value by the expected address, if that address is in the rule.
    fn value(&self) -> Option<u64> {
        let value = self.expected?.wrapping_sub(self.operand.displacement.cast_unsigned());
        (self.operand.index == Register::None && holds(self.rule, &self.operand, value)).then_some(value)
    }
}

impl CheckPlan {
    /// Checks of one block, each before its first access.
    fn in_block<'a>(
        &mut self,
        instructions: impl Iterator<Item = &'a Instruction>,
        varying: &BTreeMap<u64, Varying<'_>>,
        effects: &BTreeMap<u64, InstructionEffect>,
    ) {
        let (mut frame, mut factory) = (FrameState::default(), InstructionInfoFactory::new());
        // Checks whose registers have not changed since.
        let mut open: Vec<(u64, Check)> = Vec::new();
        for instruction in instructions {
            let ip = instruction.ip();
            if let Some(value) = frame.known(instruction) {
                self.known.insert(ip, (instruction.op0_register(), value));
            }
            if let Some(access) = varying.get(&ip)
                && !is_held(&frame, access)
                && !open.iter_mut().any(|(_, check)| check.take(&access.operand, access.rule))
            {
                let only = access.value().filter(|_| frame.holds(access.operand.base).is_some());
                only.iter().for_each(|&value| frame.check(access.operand.base, value));
                open.push((ip, Check { only, ..Check::new(access.operand, access.rule) }));
            }
            let effect = &effects[&ip];
            self.before.extend(open.extract_if(.., |(_, check)| check.registers() & effect.writes != 0));
            frame.pass(instruction, effect, self.redirected.contains_key(&ip), &mut factory);
        }
        self.before.extend(open);
    }
}

/// Whether the register of an access is known to have a permitted value.
fn is_held(frame: &FrameState, access: &Varying<'_>) -> bool {
    let held = frame.holds(access.operand.base).flatten().filter(|_| access.operand.index == Register::None);
    held.is_some_and(|value| holds(access.rule, &access.operand, value))
}

/// Whether an access is in a rule's bytes if its register has this value.
fn holds(rule: &RemapRule, operand: &Operand, value: u64) -> bool {
    rule.holds(value.wrapping_add_signed(operand.displacement), operand.bytes)
}
