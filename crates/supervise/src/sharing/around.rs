//! The accesses that a sample stands for: those of one lap around the loop that it was taken in.
//!
//! A thread is seldom stopped at the very instruction that waits. The code around it is decoded once and kept; each sample walks it with
//! its own registers. Where there is no loop, only the instructions up to the next jump count: what comes behind it may never run.

use std::collections::HashMap;
use std::sync::Arc;

use fieldstone_rewrite::walk::Access;
use fieldstone_rewrite::{Flow, Loop, Memory, Pages, Registers, Walk};
use fieldstone_sys::sampling;

/// Places that are kept decoded. A program has few places where it spends its time.
const MOST_PLACES: usize = 4096;
/// Addresses that user code can have; what lies outside was made of a register that is not known.
const USER: std::ops::Range<u64> = 0x1_0000..0x0000_8000_0000_0000;

/// Code that was sampled, by instruction.
#[derive(Debug, Default)]
pub(super) struct Around(HashMap<u64, Option<Arc<Place>>>);

#[derive(Debug)]
struct Place {
    flow: Flow,
    within: Option<Loop>,
}

impl Around {
    /// The accesses of a lap around the sampled instruction. Costs a system call for each page that is read from the program's memory,
    /// and the first time at an instruction the decoding of its surroundings.
    pub(super) fn accesses(&mut self, memory: &dyn Memory, registers: &sampling::Registers) -> Vec<Access> {
        let Some(place) = self.place(memory, registers.rip) else { return Vec::new() };
        let walk = Walk::around(&place.flow, place.within.as_ref(), &of_sample(registers), &Pages::of(memory));
        let first = place.flow.block_at(registers.rip);
        let counts = |access: &Access| {
            let surely =
                place.within.is_some() || first.is_some_and(|block| (block.start..block.end).contains(&access.ip));
            surely && USER.contains(&access.address)
        };
        walk.accesses.into_iter().filter(counts).collect()
    }

    /// Code changed: a library came or went, a loop was led elsewhere, another program runs.
    pub(super) fn forget(&mut self) {
        self.0.clear();
    }

    fn place(&mut self, memory: &dyn Memory, ip: u64) -> Option<Arc<Place>> {
        if let Some(known) = self.0.get(&ip) {
            return known.clone();
        }
        if self.0.len() >= MOST_PLACES {
            self.0.clear();
        }
        let place = Flow::discover(memory, ip).ok().map(|flow| {
            let within = flow.loops().into_iter().next();
            Arc::new(Place { flow, within })
        });
        self.0.insert(ip, place.clone());
        place
    }
}

/// The registers of a sample, as a walk takes them.
pub(super) const fn of_sample(sampled: &sampling::Registers) -> Registers {
    let sampling::Registers { gpr, rip, rflags, fs_base, gs_base } = *sampled;
    Registers { gpr, rip, rflags, fs_base, gs_base }
}
