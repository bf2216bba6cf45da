//! Ladders: an access with a check for each piece of its page, without the loop around it.
//!
//! ```text
//!   the access: jmp ladder        in piece 0? ── yes: redirected ─┐
//!                                 in piece 1? ── yes: redirected ─┼─> next instruction
//!                                 no: unchanged ──────────────────┘
//! ```
//! All threads share one ladder, and each access pays for its checks. Ladders exist for comparison
//! with clones.
//!
//! Source: Taylor's thesis, section 5.2 and figure 6.2 ("single ladder").

use fieldstone_rewrite::rewritelet::AccessSite;
use fieldstone_rewrite::{
    Flow, Liveness, LoopClone, Operand, Redirect, Registers, RemappedPage, Rewritelet, RewriteletForm,
};
use iced_x86::InstructionInfoFactory;

use crate::code_cache::CodeCache;
use crate::code_cache::clones::{CloneRequest, PendingClone};
use crate::code_cache::heads::InstalledClone;
use crate::error::Result;
use crate::page_table::moved::{PageMap, page_with};
use crate::tracer::Tracer;

/// Bytes reserved for a ladder; few owners share one page.
const LADDER_BYTES: u64 = 2048;

impl CodeCache {
    /// Makes a ladder for the next access of a thread with these registers. `None` if there is one
    /// already, or it cannot be made.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub(crate) fn make_ladder(
        &mut self,
        tracer: &mut Tracer,
        pages: &PageMap,
        registers: &Registers,
    ) -> Result<Option<PendingClone>> {
        let ip = registers.rip;
        if self.heads.by_address.contains_key(&ip) {
            return Ok(None);
        }
        let Some(flow) = self.flow_from(tracer.memory(), ip) else { return Ok(None) };
        let Some(page) = page_of_access(pages, &flow, registers) else { return Ok(None) };
        let request = CloneRequest { within: flow.stretch(), flow, redirects: Vec::new() };
        if !self.prepare_head(tracer, &request)? {
            return Ok(None);
        }
        let Some(made) = self.place_ladder(tracer, &request, &page)? else { return Ok(None) };
        let entry = made.at;
        let redirects = page.rules.iter().map(|rule| Redirect { ip, rule: rule.clone(), expected: None }).collect();
        let jump = self.add_clone(ip, InstalledClone { clone: as_clone(made, ip), redirects });
        Ok(jump.map(|jump| PendingClone::new(ip, jump, Some(entry))))
    }

    fn place_ladder(
        &mut self,
        tracer: &mut Tracer,
        request: &CloneRequest,
        page: &RemappedPage,
    ) -> Result<Option<Rewritelet>> {
        let ip = request.within.head;
        let make = |this: &Self, at| {
            let copied = &this.heads.by_address.get(&ip)?.copy.moved;
            let moved: Vec<(u64, u64)> = copied.iter().copied().filter(|&(from, _)| from != ip).collect();
            let instruction = request.flow.instructions.get(&ip)?;
            let access = AccessSite { instruction, live: Liveness::of(&request.flow).before(ip), moved: &moved };
            Rewritelet::new(&access, &RewriteletForm::Ladder(page.clone()), at).ok()
        };
        self.place(tracer, (ip, None, LADDER_BYTES), make, |made| &made.code)
    }
}

fn page_of_access(pages: &PageMap, flow: &Flow, registers: &Registers) -> Option<RemappedPage> {
    let instruction = flow.instructions.get(&registers.rip)?;
    let operand = Operand::of(instruction, &mut InstructionInfoFactory::new()).ok()?;
    pages.get(page_with(operand.address(registers))).map(|moved| moved.page.clone())
}

/// A ladder as the clone of a loop of one instruction.
fn as_clone(made: Rewritelet, ip: u64) -> LoopClone {
    let Rewritelet { at, code, map } = made;
    LoopClone { at, code, entry: at, entries: vec![(ip, at)], map, failures: Vec::new(), guards: 1, saving_guards: 0 }
}
