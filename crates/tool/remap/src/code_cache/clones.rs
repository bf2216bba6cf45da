//! Clones of the loop around an access, and the patch of the loop's head.
//!
//! ```text
//!   access ── loop around it ── accesses on moved pages ── clone with redirects and checks ── patch of the head
//! ```
//! A walk around the loop finds the accesses on moved pages. The clone redirects them and checks
//! their addresses. Other addresses leave the clone for the original code, fault there, and get the
//! next clone.
//!
//! An access outside of such loops, or one that still faults, gets a clone of the straight-line
//! code from it to the next jump or call, as a loop of one iteration.
//!
//! Source: Taylor's thesis, section 5.2.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_rewrite::clone::ClonePlan;
use fieldstone_rewrite::patch::JUMP_BYTES;
use fieldstone_rewrite::walk::LoopAccess;
use fieldstone_rewrite::{CachedMemory, Flow, HeadPatch, Liveness, Loop, LoopClone, Redirect, Registers, Walk};
use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::smaps::Mapping;
use iced_x86::Instruction;

use crate::code_cache::CodeCache;
use crate::code_cache::heads::{InstalledClone, JUMP, LoopHead, UnpatchedMemory, jump};
use crate::code_cache::probes::MAX_CODE_PAGES;
use crate::error::{Result, ignore_gone};
use crate::page_table::moved::{PageMap, ProgramView, page_with};
use crate::tracer::Tracer;

/// Maximum number of clones of one loop that are for single addresses.
const MAX_SPECIAL: usize = 4;
/// Bytes reserved for a copied instruction with its share of checks.
const BYTES_PER_INSTRUCTION: u64 = 16;
/// Bytes reserved for an entry of a clone.
const BYTES_PER_ENTRY: u64 = 128;

/// A loop that can be cloned, with its redirects.
pub(super) struct CloneRequest {
    pub(super) flow: Flow,
    pub(super) within: Loop,
    pub(super) redirects: Vec<Redirect>,
}

/// A clone that is in the cache, whose head is not patched yet. The cache is to be recorded before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingClone {
    head: u64,
    /// The jump for the head's station.
    station_jump: [u8; JUMP],
    /// Where the thread of the request continues in the clone, if it can enter there.
    entry: Option<u64>,
}

impl PendingClone {
    pub(super) const fn new(head: u64, station_jump: [u8; JUMP], entry: Option<u64>) -> Self {
        Self { head, station_jump, entry }
    }

    /// Where the thread of the request continues in the clone, if it can enter there.
    pub(crate) const fn entry(&self) -> Option<u64> {
        self.entry
    }
}

impl CodeCache {
    /// Makes a clone of the loop around the access of a thread with these registers. `None` if
    /// there is no loop, it cannot be cloned, or a clone with the same redirects exists.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub(crate) fn clone_loop(
        &mut self,
        tracer: &mut Tracer,
        pages: &PageMap,
        registers: &Registers,
    ) -> Result<Option<PendingClone>> {
        let request = self.loop_around(tracer.memory(), pages, registers);
        request.map_or(Ok(None), |request| self.make_clone(tracer, request, registers))
    }

    /// The same for the code from the access to the next jump or call. It serves accesses in no
    /// loop, in a loop with calls, or in a loop with too many objects.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub(crate) fn clone_stretch(
        &mut self,
        tracer: &mut Tracer,
        pages: &PageMap,
        registers: &Registers,
    ) -> Result<Option<PendingClone>> {
        let request = self.stretch_from(tracer.memory(), pages, registers);
        request.map_or(Ok(None), |request| self.make_clone(tracer, request, registers))
    }

    fn make_clone(
        &mut self,
        tracer: &mut Tracer,
        request: CloneRequest,
        registers: &Registers,
    ) -> Result<Option<PendingClone>> {
        let head = request.within.head;
        let known = self.heads.by_address.get(&head);
        if known.is_some_and(|known| known.is_full(&request.redirects)) {
            return Ok(None);
        }
        if known.is_none() && !self.prepare_head(tracer, &request)? {
            return Ok(None);
        }
        let Some(clone) = self.place_clone(tracer, &request, registers.rip)? else { return Ok(None) };
        let entry = clone.entries.iter().find(|(ip, _)| *ip == registers.rip).map(|(_, at)| *at);
        let jump = self.add_clone(head, InstalledClone { clone, redirects: request.redirects });
        Ok(jump.map(|jump| PendingClone::new(head, jump, entry)))
    }

    /// Adds a clone to a prepared head; returns the jump for the head's station. `None` if no jump
    /// reaches the clone, or too many code pages have clones; the clone is freed then.
    pub(super) fn add_clone(&mut self, head: u64, installed: InstalledClone) -> Option<[u8; JUMP]> {
        let at = installed.clone.at;
        let known = self.heads.by_address.get_mut(&head);
        let prepared = known.and_then(|known| Some((jump(known.station, installed.clone.entry)?, known)));
        let Some((jump, known)) = prepared else {
            self.arena.free(at);
            return None;
        };
        known.clones.push(installed);
        if self.heads.code_pages().len() > MAX_CODE_PAGES {
            let last = self.heads.by_address.get_mut(&head).and_then(|known| known.clones.pop());
            last.into_iter().for_each(|installed| self.arena.free(installed.clone.at));
            return None;
        }
        Some(jump)
    }

    /// Patches the head of a pending clone: its station jumps to the clone, and the head to either
    /// of them. All threads are stopped meanwhile.
    ///
    /// # Errors
    /// As ptrace(2), and if the process is gone.
    pub(crate) fn patch_head(&mut self, tracer: &mut Tracer, pages: &PageMap, pending: &PendingClone) -> Result<()> {
        let PendingClone { head, station_jump, .. } = *pending;
        let Some(known) = self.heads.by_address.get(&head) else { return Ok(()) };
        let Some((head_jump, station)) = known.head_jump().map(|jump| (jump, known.station)) else { return Ok(()) };
        tracer.stop_all()?;
        let prepared = self.update_probes(tracer, pages).and_then(|()| self.clear_heads(tracer));
        let memory = tracer.memory();
        let write = || memory.write(station, &station_jump).and_then(|()| memory.write(head, &head_jump));
        let written = prepared.and_then(|()| Ok(write()?));
        tracer.resume_all(self)?;
        written
    }

    /// Moves each thread at an overwritten instruction of a loop head to its copy. All threads are
    /// stopped.
    ///
    /// # Errors
    /// As ptrace(2).
    pub(super) fn clear_heads(&self, tracer: &mut Tracer) -> Result<()> {
        for thread in tracer.threads() {
            let Some((traced, _)) = tracer.stopped(thread) else { continue };
            let Ok(mut registers) = traced.tracee.registers() else { continue };
            if self.heads.move_to_copy(&mut registers) {
                ignore_gone(traced.tracee.set_registers(&registers))?;
            }
        }
        Ok(())
    }
}

/// What to clone.
impl CodeCache {
    /// The innermost loop without calls around an access, and its redirects.
    fn loop_around(&self, memory: &ProcessMemory, pages: &PageMap, registers: &Registers) -> Option<CloneRequest> {
        let flow = self.flow_from(memory, registers.rip)?;
        let within = innermost(&flow)?;
        let accesses = accesses_in(memory, pages, &flow, &within, registers);
        // Discover the loop from its head, so that the result does not depend on the access.
        let is_elsewhere = within.head != registers.rip;
        let from_head = is_elsewhere.then(|| self.flow_from(memory, within.head)).flatten();
        let same = |flow: Flow| innermost(&flow).filter(|other| other.head == within.head).map(|other| (flow, other));
        let (flow, within) = from_head.and_then(same).unwrap_or((flow, within));
        self.request(pages, flow, within, &accesses, registers.rip)
    }

    fn stretch_from(&self, memory: &ProcessMemory, pages: &PageMap, registers: &Registers) -> Option<CloneRequest> {
        let flow = self.flow_from(memory, registers.rip)?;
        // A jump into the overwritten bytes would run into a trap each time.
        let inside = registers.rip + 1..registers.rip + JUMP_BYTES;
        let is_jumped_into = flow.blocks.range(inside).next().is_some();
        if is_jumped_into {
            return None;
        }
        let within = flow.stretch();
        let accesses = accesses_in(memory, pages, &flow, &within, registers);
        self.request(pages, flow, within, &accesses, registers.rip)
    }

    /// The program's own code from an instruction on.
    pub(super) fn flow_from(&self, memory: &ProcessMemory, ip: u64) -> Option<Flow> {
        let code = UnpatchedMemory { memory, heads: &self.heads };
        Flow::discover(&code, ip).ok()
    }

    /// The redirects for the accesses of one loop iteration. `None` if the access at `ip` is not
    /// among them.
    fn request(
        &self,
        pages: &PageMap,
        flow: Flow,
        within: Loop,
        accesses: &[LoopAccess],
        ip: u64,
    ) -> Option<CloneRequest> {
        // Loops whose pointers differ from run to run get clones for all addresses.
        let clones = self.heads.by_address.get(&within.head).map_or(0, |head| head.clones.len());
        let slot_accesses = if clones < MAX_SPECIAL { flow.slot_accesses(&within) } else { BTreeSet::new() };
        let mut redirects: BTreeMap<u64, Redirect> = BTreeMap::new();
        // Instructions with several targets or watched bytes are redirected one access at a time.
        let mut excluded = BTreeSet::new();
        for access in accesses {
            let Some(moved) = pages.get(page_with(access.address)) else { continue };
            if moved.is_watched(access.address, access.bytes) {
                excluded.insert(access.ip);
            }
            let Some(piece) = moved.page.piece(access.address, access.bytes) else { continue };
            let rule = moved.unwatched(piece, access.address);
            let expected = slot_accesses.contains(&access.ip).then_some(access.address);
            let redirect = Redirect { ip: access.ip, rule, expected };
            if redirects.get(&access.ip).is_some_and(|known| *known != redirect) {
                excluded.insert(access.ip);
            }
            redirects.insert(access.ip, redirect);
        }
        let copied: BTreeSet<u64> = flow.copied_instructions(&within).map(Instruction::ip).collect();
        redirects.retain(|ip, _| copied.contains(ip) && !excluded.contains(ip));
        let redirects: Vec<Redirect> = redirects.into_values().collect();
        redirects.iter().any(|redirect| redirect.ip == ip).then_some(CloneRequest { flow, within, redirects })
    }
}

/// Placement.
impl CodeCache {
    /// Copies the instructions that the jump at the head overwrites, and reserves the station;
    /// returns whether that succeeded.
    ///
    /// # Errors
    /// As [`Self::place`].
    pub(super) fn prepare_head(&mut self, tracer: &mut Tracer, request: &CloneRequest) -> Result<bool> {
        let head = request.within.head;
        if self.heads.overlaps(head) || !is_permanent(tracer, request)? {
            return Ok(false);
        }
        let mut original = [0; JUMP];
        tracer.memory().read_exact(head, &mut original)?;
        let Ok(patch) = HeadPatch::new(&request.flow, head, original) else { return Ok(false) };
        let make = |_: &Self, at| patch.copy_at(at).ok();
        let copied = self.place(tracer, (head, None, BYTES_PER_ENTRY), make, |copy| &copy.code)?;
        let Some(copy) = copied else { return Ok(false) };
        let Some(station) = self.reserve_station(tracer, &patch.pun)? else {
            self.arena.free(copy.at);
            return Ok(false);
        };
        self.heads.by_address.insert(head, LoopHead { patch, copy, station, clones: Vec::new() });
        Ok(true)
    }

    fn place_clone(&mut self, tracer: &mut Tracer, request: &CloneRequest, ip: u64) -> Result<Option<LoopClone>> {
        let (flow, within, redirects) = (&request.flow, &request.within, &request.redirects);
        let instructions = flow.instructions_in(within).count() as u64;
        let room_bytes = instructions * BYTES_PER_INSTRUCTION + (redirects.len() as u64 + 4) * BYTES_PER_ENTRY;
        let make = |this: &Self, at| {
            let moved = this.heads.by_address.get(&within.head)?.continuations();
            let liveness = Liveness::of(flow);
            let plan = ClonePlan {
                flow,
                within,
                liveness: &liveness,
                redirects,
                moved: &moved,
                enter: &[],
                at,
                aligned: true,
            };
            clone_with_entries(&plan, ip)
        };
        let pun = self.heads.by_address.get(&within.head).map(|head| head.patch.pun);
        self.place(tracer, (within.head, pun.as_ref(), room_bytes), make, |clone| &clone.code)
    }
}

fn accesses_in(
    memory: &ProcessMemory,
    pages: &PageMap,
    flow: &Flow,
    within: &Loop,
    registers: &Registers,
) -> Vec<LoopAccess> {
    Walk::around(flow, Some(within), registers, &CachedMemory::of(&ProgramView::new(memory, pages))).accesses
}

/// Whether the loop's code does not change: it belongs to a file, and no mapping writes it.
fn is_permanent(tracer: &Tracer, request: &CloneRequest) -> Result<bool> {
    let (flow, within) = (&request.flow, &request.within);
    let blocks = within.blocks.iter().filter_map(|start| flow.blocks.get(start));
    let end = blocks.map(|block| block.end).max().unwrap_or(0).max(within.head + JUMP_BYTES);
    let table = tracer.mappings()?;
    let mapping = table.iter().find(|mapping| mapping.range().contains(&within.head));
    let is_written = |mapping: &Mapping| table.iter().any(|other| other.writes_file_of(mapping));
    Ok(mapping.is_some_and(|mapping| mapping.end >= end && mapping.is_lasting_code() && !is_written(mapping)))
}

/// The innermost loop around a flow's start that can be cloned as a whole.
fn innermost(flow: &Flow) -> Option<Loop> {
    flow.loops().into_iter().find(|found| !found.has_call && !found.has_indirect)
}

/// A clone with entries at its checks and at `ip`, so that another clone whose check fails can
/// continue in it. An entry that would bypass another check is left out; its threads continue in
/// the original.
fn clone_with_entries(plan: &ClonePlan<'_>, ip: u64) -> Option<LoopClone> {
    let alone = LoopClone::new(plan).ok()?;
    let mut wanted: Vec<u64> = alone.failures.iter().map(|&(_, ip)| ip).collect();
    wanted.sort_unstable();
    wanted.dedup();
    // The faulting access comes first: its thread is to continue there.
    wanted.retain(|&other| other != ip);
    wanted.insert(0, ip);
    wanted.retain(|&ip| ip != plan.within.head);
    let with = |enter: &[u64]| LoopClone::new(&ClonePlan { enter, ..*plan }).ok();
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
