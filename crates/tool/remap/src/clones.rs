//! The loop around an access, cloned, and its head led there.
//!
//! The walk around the loop says which of its accesses are on moved pages; those are redirected in the clone, and checked there. What the
//! clone does not know it leaves to the original, where it faults again, and the next clone is for that. An access that is in no such loop, or
//! goes on to fault in spite of it, has the code from it to the next jump or call cloned, as a loop of one lap.
//!
//! Source: the thesis, section 5.2.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_rewrite::clone::Plan;
use fieldstone_rewrite::patch::JUMP_BYTES;
use fieldstone_rewrite::walk::Access;
use fieldstone_rewrite::{Flow, HeadPatch, Liveness, Loop, LoopClone, Pages, Redirect, Registers, Walk};
use iced_x86::Instruction;

use crate::error::Result;
use crate::heads::{Cloned, Head, JUMP, Unpatched, jump};
use crate::page::page_with;
use crate::process::Process;
use crate::protect::MOST_CODE;
use crate::space::Mapping;
use crate::threads::gone_is_fine;

/// Clones of one loop that are for single addresses.
const MOST_SPECIAL: usize = 4;
/// Room for a copied instruction with its share of checks, in bytes.
const BYTES_AN_INSTRUCTION: u64 = 16;
const BYTES_AN_ENTRY: u64 = 128;

/// A loop that can be cloned, with what in it goes where.
pub(crate) struct Found {
    pub(crate) flow: Flow,
    pub(crate) within: Loop,
    pub(crate) redirects: Vec<Redirect>,
}

impl Process {
    /// Where the thread with these registers goes on in a new clone of the loop around it. None where there is no loop, it cannot be cloned, or
    /// there is a clone for these addresses already: then this access is one that it does not know.
    pub(crate) fn enter_clone(&mut self, registers: &Registers) -> Result<Option<u64>> {
        self.loop_around(registers).map_or(Ok(None), |found| self.enter(found, registers))
    }

    /// The same for the code from the access to the next jump or call: where it is in no loop, or that calls, or comes by too many objects.
    pub(crate) fn enter_stretch(&mut self, registers: &Registers) -> Result<Option<u64>> {
        self.stretch_from(registers).map_or(Ok(None), |found| self.enter(found, registers))
    }

    fn enter(&mut self, found: Found, registers: &Registers) -> Result<Option<u64>> {
        let head = found.within.head;
        if self.ours.heads.led.get(&head).is_some_and(|known| known.is_full(&found.redirects)) {
            return Ok(None);
        }
        if !self.ours.heads.led.contains_key(&head) && !self.prepare_head(&found)? {
            return Ok(None);
        }
        let Some(clone) = self.place_clone(&found, registers.rip)? else { return Ok(None) };
        let inside = clone.entries.iter().find(|(ip, _)| *ip == registers.rip).map(|(_, at)| *at);
        let is_led = self.lead_to(head, Cloned { clone, redirects: found.redirects })?;
        Ok(inside.filter(|_| is_led))
    }

    /// Leads a prepared head to code that was made for it; false where no jump reaches it, and the code is given back.
    pub(crate) fn lead_to(&mut self, head: u64, cloned: Cloned) -> Result<bool> {
        let known = self.ours.heads.led.get_mut(&head);
        let way = known.and_then(|known| Some((jump(known.station, cloned.clone.entry)?, known)));
        let Some((way, known)) = way else {
            self.ours.code.free(cloned.clone.at);
            return Ok(false);
        };
        known.clones.push(cloned);
        if self.ours.heads.code_pages().len() > MOST_CODE {
            let last = self.ours.heads.led.get_mut(&head).and_then(|known| known.clones.pop());
            last.into_iter().for_each(|cloned| self.ours.code.free(cloned.clone.at));
            return Ok(false);
        }
        self.keep_record()?;
        self.lead_head(head, way)?;
        Ok(true)
    }

    /// The innermost loop around an access that has no calls, and those of its accesses that are on moved pages.
    fn loop_around(&self, registers: &Registers) -> Option<Found> {
        let flow = self.flow_from(registers.rip)?;
        let within = innermost(&flow)?;
        let accesses = self.accesses_in(&flow, &within, registers);
        // Read from its head on, so that it is the same whichever access is the first.
        let is_elsewhere = within.head != registers.rip;
        let from_head = is_elsewhere.then(|| self.flow_from(within.head)).flatten();
        let same = |flow: Flow| innermost(&flow).filter(|other| other.head == within.head).map(|other| (flow, other));
        let (flow, within) = from_head.and_then(same).unwrap_or((flow, within));
        self.found(flow, within, &accesses, registers.rip)
    }

    fn stretch_from(&self, registers: &Registers) -> Option<Found> {
        let flow = self.flow_from(registers.rip)?;
        // Who jumps to where the head's jump will be runs into a trap each time.
        let inside = registers.rip + 1..registers.rip + JUMP_BYTES;
        let is_jumped_into = flow.blocks.range(inside).next().is_some();
        if is_jumped_into {
            return None;
        }
        let within = flow.stretch();
        let accesses = self.accesses_in(&flow, &within, registers);
        self.found(flow, within, &accesses, registers.rip)
    }

    fn accesses_in(&self, flow: &Flow, within: &Loop, registers: &Registers) -> Vec<Access> {
        Walk::around(flow, Some(within), registers, &Pages::of(&self.as_seen())).accesses
    }

    /// The program's own code from there on.
    pub(crate) fn flow_from(&self, ip: u64) -> Option<Flow> {
        let code = Unpatched { memory: &self.memory, heads: &self.ours.heads };
        Flow::discover(&code, ip).ok()
    }

    /// What of these accesses, which a lap comes by, is redirected; none where that at `ip` is not.
    fn found(&self, flow: Flow, within: Loop, accesses: &[Access], ip: u64) -> Option<Found> {
        // Whose pointers change from one run of the loop to the next has clones for all of them.
        let clones = self.ours.heads.led.get(&within.head).map_or(0, |head| head.clones.len());
        let by_slots = if clones < MOST_SPECIAL { flow.by_slots(&within) } else { BTreeSet::new() };
        let mut redirects: BTreeMap<u64, Redirect> = BTreeMap::new();
        // At several places, or watched: these are left to be redirected one by one.
        let mut several = BTreeSet::new();
        for access in accesses {
            let page = self.ours.moved.get(&page_with(access.address));
            let Some(moved) = page else { continue };
            if moved.is_watched(access.address, access.bytes) {
                several.insert(access.ip);
            }
            let Some(piece) = moved.page.piece(access.address, access.bytes) else { continue };
            let rule = moved.unwatched(piece, access.address);
            let seen = by_slots.contains(&access.ip).then_some(access.address);
            let redirect = Redirect { ip: access.ip, rule, seen };
            if redirects.get(&access.ip).is_some_and(|known| *known != redirect) {
                several.insert(access.ip);
            }
            redirects.insert(access.ip, redirect);
        }
        let copied: BTreeSet<u64> = flow.copied_in(&within).map(Instruction::ip).collect();
        redirects.retain(|ip, _| copied.contains(ip) && !several.contains(ip));
        let redirects: Vec<Redirect> = redirects.into_values().collect();
        redirects.iter().any(|redirect| redirect.ip == ip).then_some(Found { flow, within, redirects })
    }

    /// Copies what the jump at the head will overwrite, and finds it a station; whether that can be.
    pub(crate) fn prepare_head(&mut self, found: &Found) -> Result<bool> {
        let head = found.within.head;
        if self.ours.heads.overlap(head) || !self.is_lasting(found)? {
            return Ok(false);
        }
        let mut original = [0; JUMP];
        self.memory.read_exact(head, &mut original)?;
        let Ok(patch) = HeadPatch::new(&found.flow, head, original) else { return Ok(false) };
        let copied = self.place(head, None, BYTES_AN_ENTRY, |_, at| patch.displaced(at).ok(), |copy| &copy.code)?;
        let Some(copy) = copied else { return Ok(false) };
        let Some(station) = self.room_for_station(&patch.pun)? else {
            self.ours.code.free(copy.at);
            return Ok(false);
        };
        self.ours.heads.led.insert(head, Head { patch, copy, station, clones: Vec::new() });
        Ok(true)
    }

    /// Whether nobody rewrites the loop's code: it is a file's, and cannot be written where it is mapped.
    fn is_lasting(&self, found: &Found) -> Result<bool> {
        let blocks = found.within.blocks.iter().filter_map(|start| found.flow.blocks.get(start));
        let end = blocks.map(|block| block.end).max().unwrap_or(0).max(found.within.head + JUMP_BYTES);
        let table = self.mappings()?;
        let mapping = table.iter().find(|mapping| mapping.range.contains(&found.within.head));
        let is_written = |mapping: &Mapping| table.iter().any(|other| other.writes_file_of(mapping));
        Ok(mapping.is_some_and(|mapping| mapping.range.end >= end && mapping.is_lasting_code() && !is_written(mapping)))
    }

    fn place_clone(&mut self, found: &Found, ip: u64) -> Result<Option<LoopClone>> {
        let (flow, within) = (&found.flow, &found.within);
        let instructions = flow.instructions_in(within).count() as u64;
        let room = instructions * BYTES_AN_INSTRUCTION + (found.redirects.len() as u64 + 4) * BYTES_AN_ENTRY;
        let make = |this: &Self, at| {
            let moved = this.ours.heads.led.get(&within.head)?.ways_on();
            let liveness = Liveness::of(flow);
            let redirects = &found.redirects;
            clone_with_entries(
                &Plan { flow, within, liveness: &liveness, redirects, moved: &moved, enter: &[], at, aligned: true },
                ip,
            )
        };
        let pun = self.ours.heads.led.get(&within.head).map(|head| head.patch.pun);
        self.place(within.head, pun.as_ref(), room, make, |clone| &clone.code)
    }

    /// Has the head's station lead to the newest clone, by this jump, and the head to either of them.
    fn lead_head(&mut self, head: u64, way: [u8; JUMP]) -> Result<()> {
        let Some(known) = self.ours.heads.led.get(&head) else { return Ok(()) };
        let Some((first, station)) = known.way_in().map(|first| (first, known.station)) else { return Ok(()) };
        self.threads.stop_all()?;
        let write = |this: &Self| this.memory.write(station, &way).and_then(|()| this.memory.write(head, &first));
        let cleared = self.look_after_protections().and_then(|()| self.clear_heads());
        let written = cleared.and_then(|()| write(self));
        self.resume_all()?;
        written
    }

    /// Has every thread that stands inside of what is overwritten go on in its copy. All stand still.
    pub(crate) fn clear_heads(&mut self) -> Result<()> {
        let threads: Vec<u32> = self.threads.numbers().collect();
        for thread in threads {
            let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands()) else { continue };
            let Ok(mut registers) = held.tracee.registers() else { continue };
            if self.ours.heads.land(&mut registers) {
                gone_is_fine(held.tracee.set_registers(&registers))?;
            }
        }
        Ok(())
    }
}

/// The innermost loop around where a flow begins that can be cloned whole.
fn innermost(flow: &Flow) -> Option<Loop> {
    flow.loops().into_iter().find(|found| !found.has_call && !found.has_indirect)
}

/// A clone that can be entered where its checks are, by a clone whose own check has failed there; and at `ip`. Where one of these would pass
/// by another check, it is left out: who comes there goes on in the original.
fn clone_with_entries(plan: &Plan<'_>, ip: u64) -> Option<LoopClone> {
    let alone = LoopClone::new(plan).ok()?;
    let mut wanted: Vec<u64> = alone.colds.iter().map(|&(_, ip)| ip).collect();
    wanted.sort_unstable();
    wanted.dedup();
    // What has faulted first: the thread is to go on there.
    wanted.retain(|&other| other != ip);
    wanted.insert(0, ip);
    wanted.retain(|&ip| ip != plan.within.head);
    let with = |enter: &[u64]| LoopClone::new(&Plan { enter, ..*plan }).ok();
    if let Some(all) = with(&wanted) {
        return Some(all);
    }
    let mut made = alone;
    let mut enter = Vec::new();
    for ip in wanted {
        enter.push(ip);
        match with(&enter) {
            Some(more) => made = more,
            None => drop(enter.pop()),
        }
    }
    Some(made)
}
