//! Rewritelets for single accesses: the same instruction with another displacement, then a jump
//! back.

use fieldstone_rewrite::rewritelet::AccessSite;
use fieldstone_rewrite::{LiveSet, Rewritelet, RewriteletForm};
use fieldstone_sys::process::ProcessMemory;
use iced_x86::{Decoder, DecoderOptions, Instruction};
use serde::{Deserialize, Serialize};

use crate::code_cache::CodeCache;
use crate::tracer::Tracer;

/// The longest instruction, in bytes.
const MAX_INSTRUCTION_BYTES: usize = 15;
/// Bytes reserved for a rewritelet.
const REWRITELET_BYTES: u64 = 64;

/// The rewritelets for one instruction, one for each distance to its bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RewriteletSite {
    /// The instruction when they were made.
    #[serde(skip)]
    instruction: Instruction,
    /// The distance from the access's address to its bytes, and the rewritelet.
    pub(super) rewritelets: Vec<(i64, Rewritelet)>,
}

impl RewriteletSite {
    /// Address of the next instruction.
    pub(super) const fn next_ip(&self) -> u64 {
        self.instruction.next_ip()
    }
}

impl CodeCache {
    /// The program's own instruction at an address.
    pub(crate) fn instruction(&self, memory: &ProcessMemory, ip: u64) -> Option<Instruction> {
        let mut bytes = [0; MAX_INSTRUCTION_BYTES];
        let got = memory.read(ip, &mut bytes);
        self.heads.restore_bytes(memory, ip, &mut bytes[..got]);
        let mut decoder = Decoder::with_ip(64, &bytes[..got], ip, DecoderOptions::NONE);
        let instruction = decoder.decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// Address of the rewritelet for an access by `delta`, and whether it is new. A new one is to
    /// be recorded before a thread enters it.
    ///
    /// # Errors
    /// The reason why there is none.
    pub(crate) fn rewritelet(
        &mut self,
        tracer: &mut Tracer,
        instruction: Instruction,
        delta: i64,
    ) -> std::result::Result<(u64, bool), String> {
        let ip = instruction.ip();
        if self.sites.get(&ip).is_some_and(|site| !site.instruction.eq_all_bits(&instruction)) {
            // The program has another instruction here now. Threads inside of the old rewritelets
            // are not disturbed.
            self.sites.remove(&ip);
        }
        let known = self.sites.get(&ip).and_then(|site| site.rewritelets.iter().find(|(known, _)| *known == delta));
        if let Some((_, trampoline)) = known {
            return Ok((trampoline.at, false));
        }
        let mut why = "its rewritelet is too long".to_owned();
        let make = |this: &Self, at| {
            let moved = this.heads.copies();
            let access = AccessSite { instruction: &instruction, live: LiveSet::ALL, moved: &moved };
            let made = Rewritelet::new(&access, &RewriteletForm::Displaced(delta), at);
            made.map_err(|error| why = error.to_string()).ok().filter(is_plain)
        };
        let placed = self.place(tracer, (ip, None, REWRITELET_BYTES), make, |made| &made.code);
        let made = placed.map_err(|error| error.to_string())?.ok_or(why)?;
        let at = made.at;
        let site = || RewriteletSite { instruction, rewritelets: Vec::new() };
        self.sites.entry(ip).or_insert_with(site).rewritelets.push((delta, made));
        Ok((at, true))
    }
}

/// Whether it is the instruction and a jump only, so that a thread can leave it at any point.
fn is_plain(made: &Rewritelet) -> bool {
    let mut kinds = Decoder::with_ip(64, &made.code, made.at, DecoderOptions::NONE).into_iter();
    kinds.nth(1).is_some_and(|second| second.is_jmp_near() || second.is_jmp_short())
}
