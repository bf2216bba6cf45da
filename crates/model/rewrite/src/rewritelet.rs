//! A rewritelet: code for one access, which executes the instruction with a redirected operand and
//! continues behind it.
//!
//! ```text
//!   PerRule      address in the rule? ─┬ yes: redirected ─┐    one rewritelet per rule; where another rule has
//!                                      └ no:  plain ──────┤    the bytes, the plain instruction faults again
//!   Ladder       in piece 0? ── yes: redirected ──────────┤
//!                in piece 1? ── yes: redirected ──────────┤    one rewritelet for all rules
//!                outside, or in two pieces: plain ────────┤
//!   Displaced    redirected ──────────────────────────────┴→ next instruction; the address is known at the entry
//! ```
//! Invariant: at the entry and at each plain or redirected instruction, registers, flags and stack
//! are the program's, except for dead ones. So a fault there is one of the original instruction,
//! and [`Rewritelet::map`] has that instruction.
//!
//! [`RewriteletForm::Displaced`] serves faults: their handler knows the address. It is also the
//! only form for an absolute operand whose view is out of reach: it loads the address into a
//! scratch register.
//!
//! Source: Taylor, *Cachekata*, section 5.3, figure 5.2.

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

/// How a rewritelet finds the bytes of its access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RewriteletForm {
    /// It checks one rule.
    PerRule(RemapRule),
    /// It checks the pieces of a page one after the other.
    Ladder(RemappedPage),
    /// The distance is given.
    Displaced(i64),
}

/// The access to rewrite.
#[derive(Debug, Clone, Copy)]
pub struct AccessSite<'a> {
    /// The instruction, decoded at its own address.
    pub instruction: &'a Instruction,
    /// The live set before it; [`LiveSet::ALL`] if unknown.
    pub live: LiveSet,
    /// Instructions that a patch has overwritten, with their copies.
    pub moved: &'a [(u64, u64)],
}

/// A rewritelet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewritelet {
    /// Its address and entry.
    pub at: u64,
    /// Its code.
    pub code: Vec<u8>,
    /// Addresses in it where the program's state is that before an original instruction, with that
    /// instruction.
    pub map: Vec<(u64, u64)>,
}

impl Rewritelet {
    /// Makes the rewritelet for `site` at address `at`.
    ///
    /// # Errors
    /// [`Error::Refused`] if the instruction cannot be redirected, or not from there;
    /// [`Error::Page`] if a page is invalid.
    pub fn new(site: &AccessSite<'_>, form: &RewriteletForm, at: u64) -> Result<Self> {
        let ip = site.instruction.ip();
        let mut factory = InstructionInfoFactory::new();
        let operand = Operand::of(site.instruction, &mut factory)?;
        let effect = InstructionEffect::of(site.instruction, &mut factory);
        let code = Assembly::default();
        let mut builder = RewriteletBuilder { site, at, operand, effect, code, spots: Vec::new() };
        let entry = builder.code.here();
        builder.spots.push(entry);
        match form {
            RewriteletForm::Displaced(delta) => builder.displaced(*delta)?,
            RewriteletForm::PerRule(rule) => builder.per_rule(rule)?,
            RewriteletForm::Ladder(page) => builder.ladder(page)?,
        }
        let RewriteletBuilder { code, spots, .. } = builder;
        let encoded = code.encode(at, ip)?;
        let mut map: Vec<_> = spots.iter().filter_map(|spot| Some((encoded.address(*spot)?, ip))).collect();
        map.dedup();
        Ok(Self { at, code: encoded.bytes, map })
    }
}

struct RewriteletBuilder<'a> {
    site: &'a AccessSite<'a>,
    at: u64,
    operand: Operand,
    effect: InstructionEffect,
    code: Assembly,
    /// Places where the state is that before the instruction.
    spots: Vec<Label>,
}

impl RewriteletBuilder<'_> {
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

    /// Redirects an operand with a known address that is out of reach.
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

    /// The checks of a ladder, from the page's start to its end. The code falls through if no byte
    /// of the page is accessed.
    fn rungs(&mut self, scratch: Scratch, page: &RemappedPage, astride: Label) -> Vec<(Label, i64)> {
        let t = scratch.register;
        let bytes = self.operand.bytes;
        let mut hits = Vec::new();
        for PagePiece { bytes: range, delta } in page.pieces() {
            let offset = in_page(range.start - page.start);
            // The access starts behind the last one that fits into the piece before, and before
            // this piece.
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
            // The access reaches into the page from before it, or out of its last bytes.
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

    /// Adds the instruction in the program's state, and the jump behind it.
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

/// Targets within this distance of the entry are in reach of a few instructions behind it.
const REACH: u64 = (1 << 31) - 256;

/// Maximum offset in the rule of an access of `bytes` bytes. `None` if it does not fit.
fn last_start(rule: &RemapRule, bytes: u32) -> Option<i32> {
    let room = (rule.bytes.end - rule.bytes.start).checked_sub(u64::from(bytes))?;
    i32::try_from(room).ok()
}

fn in_page(offset: u64) -> i32 {
    i32::try_from(offset).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
