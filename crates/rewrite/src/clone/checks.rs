//! Which checks a clone needs, and where.
//!
//! ```text
//!   rule      lo ─────────────────────────────── hi
//!   accesses        [low …)  …  […  high)            of one base and index, displacements low to high
//!   check     0 <= base + index * scale + low - lo <= (hi - lo) - (high - low)
//! ```

use std::collections::BTreeMap;

use iced_x86::{Code, Instruction, InstructionInfoFactory};

use super::Redirect;
use crate::assembly::{Assembly, Label};
use crate::effect::Effect;
use crate::error::{Error, Refused, Result};
use crate::flow::Flow;
use crate::guard::Scratch;
use crate::loops::Loop;
use crate::operand::Operand;
use crate::page::Rule;
use crate::registers::bit;

/// All accesses of one base and index lie in a rule's bytes.
#[derive(Debug, Clone)]
pub(super) struct Check {
    /// Of one of them.
    operand: Operand,
    rule: Rule,
    /// The lowest displacement.
    low: i64,
    /// The highest, and the bytes there.
    high: i64,
}

/// The checks of a loop, and its redirected instructions.
#[derive(Debug, Default)]
pub(super) struct Checks {
    /// Of registers that the loop does not write.
    pub(super) at_entry: Vec<Check>,
    /// Of others, by the instruction before which they stand.
    pub(super) before: BTreeMap<u64, Check>,
    /// The redirected instructions, where they lay.
    pub(super) redirected: BTreeMap<u64, Instruction>,
    /// Registers that each redirected instruction reads.
    pub(super) reads: BTreeMap<u64, u16>,
}

impl Check {
    fn new(operand: Operand, rule: &Rule) -> Self {
        let high = operand.displacement.saturating_add(i64::from(operand.bytes));
        Self { operand, rule: rule.clone(), low: operand.displacement, high }
    }

    /// The registers of the address.
    pub(super) fn registers(&self) -> u16 {
        bit(self.operand.base) | bit(self.operand.index)
    }

    /// How far into the rule the lowest access may begin. None where they do not fit.
    fn span(&self) -> Option<i32> {
        let room =
            i128::from(self.rule.bytes.end - self.rule.bytes.start) - (i128::from(self.high) - i128::from(self.low));
        i32::try_from(room).ok().filter(|span| *span >= 0)
    }

    /// Takes an access of the same registers and the same rule with it, if all still fit.
    fn take(&mut self, operand: &Operand, rule: &Rule) -> bool {
        let same =
            (self.operand.base, self.operand.index, self.operand.scale) == (operand.base, operand.index, operand.scale);
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

    /// Goes to `failed` unless the check holds.
    pub(super) fn emit(&self, code: &mut Assembly, scratch: Scratch, failed: Label) {
        // Made only of accesses that fit: there is a span.
        let span = self.span().unwrap_or(-1);
        scratch.distance(code, &self.operand, self.low, self.rule.bytes.start);
        code.compare(scratch.register, span);
        code.jump(Code::Ja_rel32_64, failed.target());
    }
}

impl Checks {
    /// The checks for `redirects` in the loop.
    ///
    /// # Errors
    /// [`Error::Refused`] when one of them cannot be redirected or is not in the loop.
    pub(super) fn of(flow: &Flow, within: &Loop, redirects: &[Redirect]) -> Result<Self> {
        let mut factory = InstructionInfoFactory::new();
        let effects: BTreeMap<u64, Effect> = flow
            .instructions_in(within)
            .map(|instruction| (instruction.ip(), Effect::of(instruction, &mut factory)))
            .collect();
        let written = effects.values().fold(0, |written, effect| written | effect.writes);
        let mut checks = Self::default();
        let mut varying: BTreeMap<u64, (Operand, &Rule)> = BTreeMap::new();
        for Redirect { ip, rule } in redirects {
            let refused = |reason| Error::refused(*ip, reason);
            let effect = effects.get(ip).ok_or_else(|| refused(Refused::NotInLoop))?;
            let instruction = &flow.instructions[ip];
            let operand = Operand::of(instruction, &mut factory)?;
            let check = Check::new(operand, rule);
            check.span().ok_or_else(|| refused(Refused::Straddles))?;
            checks.redirected.insert(*ip, operand.redirected(instruction, rule.delta)?);
            checks.reads.insert(*ip, effect.reads);
            if operand.is_absolute() {
                let inside = rule.holds(operand.displacement.cast_unsigned(), operand.bytes);
                inside.then_some(()).ok_or_else(|| refused(Refused::OutsideRule))?;
            } else if check.registers() & written == 0 {
                add(&mut checks.at_entry, check, &operand, rule);
            } else {
                varying.insert(*ip, (operand, rule));
            }
        }
        for start in &within.blocks {
            let instructions = flow.instructions_of(&flow.blocks[start]);
            checks.before.extend(in_block(instructions, &varying, &effects));
        }
        Ok(checks)
    }
}

/// Takes the access into one of the checks, or adds its own.
fn add(checks: &mut Vec<Check>, check: Check, operand: &Operand, rule: &Rule) {
    if !checks.iter_mut().any(|other| other.take(operand, rule)) {
        checks.push(check);
    }
}

/// The checks of a block, by the first access of each.
fn in_block<'a>(
    instructions: impl Iterator<Item = &'a Instruction>,
    varying: &BTreeMap<u64, (Operand, &Rule)>,
    effects: &BTreeMap<u64, Effect>,
) -> Vec<(u64, Check)> {
    let mut done = Vec::new();
    // Checks whose registers are still as they were checked.
    let mut open: Vec<(u64, Check)> = Vec::new();
    for instruction in instructions {
        let ip = instruction.ip();
        if let Some((operand, rule)) = varying.get(&ip)
            && !open.iter_mut().any(|(_, check)| check.take(operand, rule))
        {
            open.push((ip, Check::new(*operand, rule)));
        }
        let writes = effects[&ip].writes;
        done.extend(open.extract_if(.., |(_, check)| check.registers() & writes != 0));
    }
    done.extend(open);
    done
}
