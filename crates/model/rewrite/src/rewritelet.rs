//! A rewritelet for one access: the instruction with its memory redirected, and back to what follows it (Taylor, *Cachekata*,
//! section 5.3, figure 5.2).
//!
//! ```text
//!   PerRule      address in the rule? ─┬ yes: redirected ─┐       as many rewritelets as rules; the plain one faults again
//!                                      └ no:  plain ──────┤       where another rule has the bytes, and gets that one's
//!   Ladder       in piece 0? ── yes: redirected ──────────┤
//!                in piece 1? ── yes: redirected ──────────┤       one rewritelet for all rules
//!                outside, astride two: plain ─────────────┤
//!   Displaced    redirected ──────────────────────────────┴→ the next instruction: where the address is known to whoever enters
//! ```
//! At each plain or redirected instruction and at the entry all registers, flags and the stack are as the program has them, except for
//! what is dead: so a fault there is one of the original instruction, and [`Rewritelet::map`] says of which.
//!
//! [`RewriteletForm::Displaced`] is for faults: their handler knows the address, and picks the rewritelet by it. It is also the only
//! one that gets along without a near view where the operand is absolute: its address is then loaded into a scratch register.

use iced_x86::{Code, Instruction, InstructionInfoFactory, Register};
use serde::{Deserialize, Serialize};

use crate::assembly::{Assembly, Label};
use crate::effect::InstructionEffect;
use crate::error::{Error, RefusalReason, Result};
use crate::guard::Scratch;
use crate::liveness::LiveSet;
use crate::operand::Operand;
use crate::page::{PAGE_BYTES, PagePiece, RemapRule, RemappedPage};
use crate::patch::copied_address;
use crate::registers::{RSP, bit};

/// How a rewritelet finds out where its bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RewriteletForm {
    /// It asks for one rule.
    PerRule(RemapRule),
    /// It asks for one piece of a page after the other.
    Ladder(RemappedPage),
    /// It is told: this far away.
    Displaced(i64),
}

/// The access that is rewritten.
#[derive(Debug, Clone, Copy)]
pub struct AccessSite<'a> {
    /// The instruction, decoded where it lies.
    pub instruction: &'a Instruction,
    /// What is needed before it: [`LiveSet::ALL`] where nothing is known.
    pub live: LiveSet,
    /// Instructions that a patch has overwritten, and where their copies are.
    pub moved: &'a [(u64, u64)],
}

/// A rewritelet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewritelet {
    /// Where it lies, and is entered.
    pub at: u64,
    /// Its code.
    pub code: Vec<u8>,
    /// Addresses in it at which the program's state is that before an original instruction, and which one.
    pub map: Vec<(u64, u64)>,
}

impl Rewritelet {
    /// Makes the rewritelet for `site` that is to lie at `at`.
    ///
    /// # Errors
    /// [`Error::Refused`] when the instruction cannot be redirected, or not from there; [`Error::Page`] when a page makes no
    /// sense.
    pub fn new(site: &AccessSite<'_>, form: &RewriteletForm, at: u64) -> Result<Self> {
        let ip = site.instruction.ip();
        let mut factory = InstructionInfoFactory::new();
        let operand = Operand::of(site.instruction, &mut factory)?;
        let effect = InstructionEffect::of(site.instruction, &mut factory);
        let code = Assembly::default();
        let mut builder = Builder { site, at, operand, effect, code, spots: Vec::new() };
        let entry = builder.code.here();
        builder.spots.push(entry);
        match form {
            RewriteletForm::Displaced(delta) => builder.displaced(*delta)?,
            RewriteletForm::PerRule(rule) => builder.per_rule(rule)?,
            RewriteletForm::Ladder(page) => builder.ladder(page)?,
        }
        let Builder { code, spots, .. } = builder;
        let encoded = code.encode(at, ip)?;
        let mut map: Vec<_> = spots.iter().filter_map(|spot| Some((encoded.address(*spot)?, ip))).collect();
        map.dedup();
        Ok(Self { at, code: encoded.bytes, map })
    }
}

struct Builder<'a> {
    site: &'a AccessSite<'a>,
    at: u64,
    operand: Operand,
    effect: InstructionEffect,
    code: Assembly,
    /// Where all is as before the instruction.
    spots: Vec<Label>,
}

impl Builder<'_> {
    fn refused(&self, reason: RefusalReason) -> Error {
        Error::refused(self.site.instruction.ip(), reason)
    }

    fn displaced(&mut self, delta: i64) -> Result<()> {
        let instruction = self.operand.redirected(self.site.instruction, delta)?;
        let target = self.operand.displacement.wrapping_add(delta).cast_unsigned();
        if instruction.is_ip_rel_memory_operand() && target.abs_diff(self.at) > REACH {
            return self.through_scratch(target);
        }
        self.finish(instruction);
        Ok(())
    }

    /// An operand whose address is known, and out of reach.
    fn through_scratch(&mut self, target: u64) -> Result<()> {
        let scratch =
            Scratch::choose_for_address(self.site.live, self.effect.registers()).map_err(|why| self.refused(why))?;
        if scratch.saves() && self.effect.registers() & (1 << RSP) != 0 {
            return Err(self.refused(RefusalReason::NoScratch));
        }
        scratch.save(&mut self.code);
        self.code.load(scratch.register, target);
        self.code.push(Operand::through(self.site.instruction, scratch.register));
        scratch.restore(&mut self.code);
        self.back();
        Ok(())
    }

    fn per_rule(&mut self, rule: &RemapRule) -> Result<()> {
        let Some(span) = last_start(rule, self.operand.bytes) else {
            return Err(self.refused(RefusalReason::Straddles));
        };
        if self.operand.is_absolute() {
            let address = self.operand.displacement.cast_unsigned();
            let inside = rule.holds(address, self.operand.bytes);
            return if inside { self.displaced(rule.delta) } else { Err(self.refused(RefusalReason::OutsideRule)) };
        }
        let scratch = self.guard()?;
        let outside = self.code.label();
        scratch.distance(&mut self.code, &self.operand, self.operand.displacement, rule.bytes.start);
        self.code.compare(scratch.register, span);
        self.code.jump(Code::Ja_rel32_64, outside.target());
        scratch.restore(&mut self.code);
        self.finish(self.operand.redirected(self.site.instruction, rule.delta)?);
        self.code.place(outside);
        scratch.restore(&mut self.code);
        self.finish(*self.site.instruction);
        Ok(())
    }

    fn ladder(&mut self, page: &RemappedPage) -> Result<()> {
        page.check()?;
        if self.operand.is_absolute() {
            let address = self.operand.displacement.cast_unsigned();
            let piece =
                page.piece(address, self.operand.bytes).ok_or_else(|| self.refused(RefusalReason::Straddles))?;
            return self.displaced(piece.delta);
        }
        let scratch = self.guard()?;
        scratch.distance(&mut self.code, &self.operand, self.operand.displacement, page.start);
        let astride = self.code.label();
        let hits = self.rungs(scratch, page, astride);
        if self.operand.bytes > 1 {
            self.code.place(astride);
        }
        scratch.restore(&mut self.code);
        self.finish(*self.site.instruction);
        for (hit, delta) in hits {
            self.code.place(hit);
            scratch.restore(&mut self.code);
            self.finish(self.operand.redirected(self.site.instruction, delta)?);
        }
        Ok(())
    }

    /// The questions of a ladder, from the page's start to its end; falls through for what touches none of it.
    fn rungs(&mut self, scratch: Scratch, page: &RemappedPage, astride: Label) -> Vec<(Label, i64)> {
        let t = scratch.register;
        let bytes = self.operand.bytes;
        let mut hits = Vec::new();
        for PagePiece { bytes: range, delta } in page.pieces() {
            let offset = in_page(range.start - page.start);
            // Behind the last start that fits into the piece before, and before this one.
            if offset > 0 && bytes > 1 {
                self.code.compare(t, offset);
                self.code.jump(Code::Jb_rel32_64, astride.target());
            }
            if let Some(span) = last_start(&RemapRule { bytes: range, delta }, bytes) {
                let hit = self.code.label();
                self.code.compare(t, offset + span);
                self.code.jump(Code::Jbe_rel32_64, hit.target());
                hits.push((hit, delta));
            }
        }
        if bytes > 1 {
            // From before the page into it, or from its last bytes out of it.
            let reach = in_page(u64::from(bytes) - 1);
            self.code.lea(t, t, Register::None, 1, reach);
            self.code.compare(t, in_page(PAGE_BYTES) + reach - 1);
            self.code.jump(Code::Jbe_rel32_64, astride.target());
        }
        hits
    }

    fn guard(&mut self) -> Result<Scratch> {
        let used = self.effect.reads | bit(self.operand.base) | bit(self.operand.index);
        let scratch = Scratch::choose(self.site.live, used).map_err(|why| self.refused(why))?;
        scratch.save(&mut self.code);
        Ok(scratch)
    }

    /// The instruction, in the program's state, and what follows it.
    fn finish(&mut self, instruction: Instruction) {
        let spot = self.code.here();
        self.spots.push(spot);
        self.code.push(instruction);
        self.back();
    }

    fn back(&mut self) {
        self.code.jump(Code::Jmp_rel32_64, copied_address(self.site.moved, self.site.instruction.next_ip()));
    }
}

/// Targets no further than this from the rewritelet's entry are in reach of a few instructions behind it.
const REACH: u64 = (1 << 31) - 256;

/// How far into the rule's bytes an access of `bytes` may begin. None where it does not fit at all.
fn last_start(rule: &RemapRule, bytes: u32) -> Option<i32> {
    let room = (rule.bytes.end - rule.bytes.start).checked_sub(u64::from(bytes))?;
    i32::try_from(room).ok()
}

fn in_page(offset: u64) -> i32 {
    i32::try_from(offset).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
