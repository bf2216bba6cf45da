//! An access led to a ladder, which asks of each piece of the page whether the address lies in it: the thesis' plain form, without the loop.
//!
//! ```text
//!   the access itself: jmp ladder        in piece 0? ── yes: redirected ─┐
//!                                        in piece 1? ── yes: redirected ─┼→ what follows it
//!                                        no: as it was ──────────────────┘
//! ```
//! All threads have the same one, and each access pays for it. It is here to be held against clones.
//!
//! Source: the thesis, section 5.2 and figure 6.2 ("single ladder").

use fieldstone_rewrite::trampoline::Site as Access;
use fieldstone_rewrite::{Flow, Form, Liveness, LoopClone, Operand, Page, Redirect, Registers, Trampoline};
use iced_x86::InstructionInfoFactory;

use crate::clones::Found;
use crate::error::Result;
use crate::heads::Cloned;
use crate::page::page_with;
use crate::process::Process;

/// Room for a ladder: a page has few owners that meet at one access.
const LADDER_BYTES: u64 = 2048;

impl Process {
    /// Leads accesses to ladders from now on, and no loop to a clone.
    pub const fn lead_to_ladders(&mut self) {
        self.by_ladders = true;
    }

    /// Where the thread with these registers goes on in a ladder for the access that it is about to do. None where there is one already, or
    /// none can be.
    pub(crate) fn enter_ladder(&mut self, registers: &Registers) -> Result<Option<u64>> {
        let ip = registers.rip;
        if self.ours.heads.led.contains_key(&ip) {
            return Ok(None);
        }
        let Some(flow) = self.flow_from(ip) else { return Ok(None) };
        let Some(page) = self.page_of_access(&flow, registers) else { return Ok(None) };
        let found = Found { within: flow.stretch(), flow, redirects: Vec::new() };
        if !self.prepare_head(&found)? {
            return Ok(None);
        }
        let Some(made) = self.place_ladder(&found, &page)? else { return Ok(None) };
        let entry = made.at;
        let redirects = page.rules.iter().map(|rule| Redirect { ip, rule: rule.clone(), seen: None }).collect();
        Ok(self.lead_to(ip, Cloned { clone: as_clone(made, ip), redirects })?.then_some(entry))
    }

    fn page_of_access(&self, flow: &Flow, registers: &Registers) -> Option<Page> {
        let instruction = flow.instructions.get(&registers.rip)?;
        let operand = Operand::of(instruction, &mut InstructionInfoFactory::new()).ok()?;
        let page = page_with(operand.address(registers));
        self.ours.moved.get(&page).map(|moved| moved.page.clone())
    }

    fn place_ladder(&mut self, found: &Found, page: &Page) -> Result<Option<Trampoline>> {
        let ip = found.within.head;
        let make = |this: &Self, at| {
            let copied = &this.ours.heads.led.get(&ip)?.copy.moved;
            let moved: Vec<(u64, u64)> = copied.iter().copied().filter(|&(from, _)| from != ip).collect();
            let instruction = found.flow.instructions.get(&ip)?;
            let access = Access { instruction, live: Liveness::of(&found.flow).before(ip), moved: &moved };
            Trampoline::new(&access, &Form::Ladder(page.clone()), at).ok()
        };
        self.place(ip, None, LADDER_BYTES, make, |made| &made.code)
    }
}

/// A ladder as the clone of its one instruction.
fn as_clone(made: Trampoline, ip: u64) -> LoopClone {
    let Trampoline { at, code, map } = made;
    LoopClone { at, code, entry: at, entries: vec![(ip, at)], map, colds: Vec::new(), guards: 1, saving_guards: 0 }
}
