//! Loops led into clones: the jump over a loop's head, the copies of what it overwrites, and a clone for each thread's addresses.
//!
//! ```text
//!   head: jmp ──> newest clone: its addresses? ── no ──> older clone: its? ── no ──> copy of the head's instructions ──> head + 5 …
//!                       │ yes                                  │ yes
//!                       └ goes round here                      └ or here
//! ```
//! Threads that run one loop on different objects have a clone each; who enters is let through to the first that knows the object.
//! While a head is written all threads stand still, and none inside of what is overwritten.
//!
//! Nobody knows who else jumps in there: a `for` that is entered at its condition, an exception's landing pad, a switch. So
//! the jump leads to a station of its own, at such a distance that each byte of it at which an instruction began is a trap
//! ([`fieldstone_rewrite::Pun`]): whoever comes there stops, and goes on in the copy.
//!
//! Only code that nobody rewrites is cloned: that of files, mapped without the right to write. Even so it can go, with its library; what
//! lies there afterwards is another program's, and is left alone: a jump counts as long as it is there.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_rewrite::clone::Plan;
use fieldstone_rewrite::patch::{Displaced, JUMP_BYTES};
use fieldstone_rewrite::{Flow, HeadPatch, Liveness, Loop, LoopClone, Redirect, Registers, Rule, Walk};
use fieldstone_sys::ptrace;

use crate::error::{Error, Result};
use crate::leave::Ours;
use crate::memory::Memory;
use crate::page::PAGE_BYTES;
use crate::process::Process;
use crate::tasks::goes_on_at;
use crate::threads::gone_is_fine;

/// Clones of one loop. Who finds none that knows its object goes through as many checks, and then the plain loop.
const MOST_CLONES: usize = 8;
/// Room for a copied instruction with its share of checks, in bytes.
const BYTES_AN_INSTRUCTION: u64 = 16;
const BYTES_AN_ENTRY: u64 = 128;
/// Bytes of a jump.
const JUMP: usize = 5;
/// What stands where an instruction began.
const TRAP: u8 = 0xcc;

/// The loops of a process that lead into clones.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    led: BTreeMap<u64, Head>,
    /// Heads whose code is gone. A thread may still be in a clone of theirs.
    retired: Vec<Head>,
    /// Where traps have been inside of jumps that are gone: who ran into one may learn it only now.
    sprung: BTreeSet<u64>,
}

#[derive(Debug)]
struct Head {
    patch: HeadPatch,
    copy: Displaced,
    /// Where the jump at the head leads: to a jump to the newest clone.
    station: u64,
    clones: Vec<Cloned>,
}

#[derive(Debug)]
struct Cloned {
    clone: LoopClone,
    redirects: Vec<Redirect>,
}

impl Heads {
    /// Puts the program's own bytes over those of a jump, where it is there.
    pub(crate) fn unpatched(&self, memory: &Memory, address: u64, bytes: &mut [u8]) {
        let end = address.saturating_add(bytes.len() as u64);
        for (&head, found) in self.led.range(address.saturating_sub(JUMP_BYTES)..end) {
            if !found.is_led(memory) {
                continue;
            }
            for (at, &byte) in (head..).zip(&found.patch.original) {
                let place = at.checked_sub(address).and_then(|offset| usize::try_from(offset).ok());
                if let Some(place) = place.and_then(|offset| bytes.get_mut(offset)) {
                    *place = byte;
                }
            }
        }
    }

    /// Overwritten instructions, and where their copies are.
    pub(crate) fn copies(&self) -> Vec<(u64, u64)> {
        // The head itself is led into the clones.
        let inner = |(&head, found): (&u64, &Head)| {
            found.copy.moved.iter().copied().filter(move |&(from, _)| from != head).collect::<Vec<_>>()
        };
        self.led.iter().flat_map(inner).collect()
    }

    /// The jumps that are there: where each is, and the bytes under it.
    pub(crate) fn jumps(&self, memory: &Memory) -> Vec<(u64, [u8; JUMP])> {
        let there = self.led.iter().filter(|(_, found)| found.is_led(memory));
        there.map(|(&head, found)| (head, found.patch.original)).collect()
    }

    /// Nobody can stand inside of what is overwritten: the copy does the same.
    fn land(&self, registers: &mut ptrace::Registers) -> bool {
        let copy = self.copies().into_iter().find(|&(original, _)| original == registers.rip);
        if let Some((_, copy)) = copy {
            registers.rip = copy;
        }
        copy.is_some()
    }

    /// Where a thread goes on that has run into a trap inside of a jump, and stands behind it. None where it is no trap of ours.
    pub(crate) fn trapped(&self, memory: &Memory, rip: u64) -> Option<u64> {
        let at = rip.wrapping_sub(1);
        let copy = self.copies().into_iter().find(|&(original, _)| original == at).map(|(_, copy)| copy);
        let is_gone = || {
            let mut now = [0];
            self.sprung.contains(&at) && memory.read_exact(at, &mut now).is_ok() && now != [TRAP]
        };
        copy.or_else(|| is_gone().then_some(at))
    }

    /// Whether a thread that stands there may have run into a trap of ours.
    pub(crate) fn is_behind_trap(&self, rip: u64) -> bool {
        let at = rip.wrapping_sub(1);
        self.sprung.contains(&at) || self.copies().iter().any(|&(original, _)| original == at)
    }

    /// A page that the loop around `ip` is led to.
    pub(crate) fn page_of(&self, ip: u64) -> Option<u64> {
        let has = |head: &&Head| head.copy.moved.iter().any(|&(original, copy)| original == ip || copy == ip);
        let redirects = self.led.values().find(has)?.clones.iter().flat_map(|cloned| &cloned.redirects);
        redirects.map(|redirect| redirect.rule.bytes.start & !(PAGE_BYTES - 1)).next()
    }

    /// The instruction of the program that a thread is about to do which stands at `rip` in a clone or a copy.
    pub(crate) fn original(&self, rip: u64) -> Option<u64> {
        self.led.values().chain(&self.retired).find_map(|head| head.original(rip))
    }

    /// The heads of clones that redirect to somewhere in `page`.
    fn of_page(&self, page: u64) -> Vec<u64> {
        let bytes = page..page + PAGE_BYTES;
        let redirects = |head: &Head| {
            head.clones
                .iter()
                .flat_map(|cloned| &cloned.redirects)
                .any(|redirect| bytes.contains(&redirect.rule.bytes.start))
        };
        self.led.iter().filter(|(_, head)| redirects(head)).map(|(&head, _)| head).collect()
    }

    /// Forgets heads whose code is not what it was: a library that was unloaded, code that was written anew.
    fn retire(&mut self, memory: &Memory) {
        let gone: Vec<Head> =
            self.led.extract_if(.., |_, head| !head.is_current(memory)).map(|(_, head)| head).collect();
        gone.iter().for_each(|head| self.remember_traps(head));
        self.retired.extend(gone);
    }

    fn remember_traps(&mut self, head: &Head) {
        self.sprung.extend(head.copy.moved.iter().map(|&(original, _)| original).filter(|&at| at != head.patch.head));
    }

    /// Whether a jump at `address` would share bytes with another one.
    fn overlap(&self, address: u64) -> bool {
        let near = self.led.range(address.saturating_sub(JUMP_BYTES - 1)..address + JUMP_BYTES);
        near.into_iter().any(|(&head, _)| head != address)
    }

    /// Those of one clone alone.
    #[cfg(test)]
    pub(crate) fn of_clone(flow: &Flow, original: [u8; JUMP], clone: LoopClone) -> Self {
        let head = clone.entries[0].0;
        let patch = HeadPatch::new(flow, head, original).expect("a head");
        let copy = Displaced { at: 0, code: Vec::new(), moved: Vec::new() };
        let clones = vec![Cloned { clone, redirects: Vec::new() }];
        Self { led: BTreeMap::from([(head, Head { patch, copy, station: 0, clones })]), ..Self::default() }
    }
}

impl Head {
    fn original(&self, rip: u64) -> Option<u64> {
        let maps = self.clones.iter().flat_map(|cloned| &cloned.clone.map);
        let copied = self.copy.moved.iter().map(|&(original, copy)| (copy, original));
        maps.copied().chain(copied).find(|&(at, _)| at == rip).map(|(_, original)| original)
    }

    /// Whether the jump is there.
    fn is_led(&self, memory: &Memory) -> bool {
        jump(self.patch.head, self.station).is_some_and(|jump| self.has(memory, jump))
    }

    /// Whether the code is what was found here, with the jump or still without.
    fn is_current(&self, memory: &Memory) -> bool {
        self.is_led(memory) || self.clones.is_empty() && self.has(memory, self.patch.original)
    }

    fn has(&self, memory: &Memory, bytes: [u8; JUMP]) -> bool {
        let mut there = [0; JUMP];
        memory.read_exact(self.patch.head, &mut there).is_ok() && there == bytes
    }
}

/// A jump that lies at `at`. None where it does not reach.
fn jump(at: u64, to: u64) -> Option<[u8; JUMP]> {
    let distance = i32::try_from(to.wrapping_sub(at.wrapping_add(JUMP_BYTES)).cast_signed()).ok()?;
    let mut jump = [0xe9; JUMP];
    jump[1..].copy_from_slice(&distance.to_le_bytes());
    Some(jump)
}

/// The program's code as it was.
struct Unpatched<'a> {
    memory: &'a Memory,
    heads: &'a Heads,
}

impl fieldstone_rewrite::Memory for Unpatched<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let got = self.memory.read(address, into);
        self.heads.unpatched(self.memory, address, &mut into[..got]);
        got
    }
}

/// A loop that can be cloned, with what in it goes where.
struct Found {
    flow: Flow,
    within: Loop,
    redirects: Vec<Redirect>,
}

impl Process {
    /// Where the thread with these registers goes on in a new clone of the loop around it. None where there is no loop, it cannot be cloned, or
    /// there is a clone for these addresses already: then this access is one that it does not know.
    pub(crate) fn enter_clone(&mut self, registers: &Registers) -> Result<Option<u64>> {
        self.heads.retire(&self.memory);
        let Some(found) = self.loop_around(registers) else { return Ok(None) };
        let head = found.within.head;
        if self.heads.led.get(&head).is_some_and(|known| known.is_full(&found.redirects)) {
            return Ok(None);
        }
        if !self.heads.led.contains_key(&head) && !self.prepare_head(&found)? {
            return Ok(None);
        }
        let Some(clone) = self.place_clone(&found, registers.rip)? else { return Ok(None) };
        let Some(way) = self.heads.led.get(&head).and_then(|known| jump(known.station, clone.entry)) else {
            self.code.free(clone.at);
            return Ok(None);
        };
        let inside = clone.entries.iter().find(|(ip, _)| *ip == registers.rip).map(|(_, at)| *at);
        if let Some(known) = self.heads.led.get_mut(&head) {
            known.clones.push(Cloned { clone, redirects: found.redirects });
        }
        self.lead_head(head, way)?;
        Ok(inside)
    }

    /// The innermost loop around an access that has no calls, and those of its accesses that are on moved pages.
    fn loop_around(&self, registers: &Registers) -> Option<Found> {
        let code = Unpatched { memory: &self.memory, heads: &self.heads };
        let flow = Flow::discover(&code, registers.rip).ok()?;
        let within = flow.loops().into_iter().find(|found| !found.has_call && !found.has_indirect)?;
        let walk = Walk::around(&flow, Some(&within), registers, &self.memory);
        let mut redirects: BTreeMap<u64, Redirect> = BTreeMap::new();
        let mut several = BTreeSet::new();
        for access in &walk.accesses {
            let page = self.moved.get(&(access.address & !(PAGE_BYTES - 1)));
            let Some(piece) = page.and_then(|moved| moved.page.piece(access.address, access.bytes)) else { continue };
            let redirect = Redirect { ip: access.ip, rule: Rule::from(piece) };
            if redirects.get(&access.ip).is_some_and(|known| *known != redirect) {
                several.insert(access.ip);
            }
            redirects.insert(access.ip, redirect);
        }
        redirects.retain(|ip, _| !several.contains(ip));
        let redirects: Vec<Redirect> = redirects.into_values().collect();
        redirects.iter().any(|redirect| redirect.ip == registers.rip).then_some(Found { flow, within, redirects })
    }

    /// Copies what the jump at the head will overwrite, and finds it a station; whether that can be.
    fn prepare_head(&mut self, found: &Found) -> Result<bool> {
        let head = found.within.head;
        if self.heads.overlap(head) || !self.is_lasting(found)? {
            return Ok(false);
        }
        let mut original = [0; JUMP];
        self.memory.read_exact(head, &mut original)?;
        let Ok(patch) = HeadPatch::new(&found.flow, head, original) else { return Ok(false) };
        let copied = self.place(head, BYTES_AN_ENTRY, |_, at| patch.displaced(at).ok(), |copy| &copy.code)?;
        let Some(copy) = copied else { return Ok(false) };
        let Some(station) = self.room_for_station(&patch.pun)? else {
            self.code.free(copy.at);
            return Ok(false);
        };
        self.heads.led.insert(head, Head { patch, copy, station, clones: Vec::new() });
        Ok(true)
    }

    /// Whether nobody rewrites the loop's code: it is a file's, and cannot be written where it is mapped.
    fn is_lasting(&self, found: &Found) -> Result<bool> {
        let blocks = found.within.blocks.iter().filter_map(|start| found.flow.blocks.get(start));
        let end = blocks.map(|block| block.end).max().unwrap_or(0).max(found.within.head + JUMP_BYTES);
        let table = self.mappings()?;
        let mapping = table.iter().find(|mapping| mapping.range.contains(&found.within.head));
        Ok(mapping.is_some_and(|mapping| mapping.range.end >= end && mapping.is_lasting_code()))
    }

    fn place_clone(&mut self, found: &Found, ip: u64) -> Result<Option<LoopClone>> {
        let (flow, within) = (&found.flow, &found.within);
        let instructions = flow.instructions_in(within).count() as u64;
        let room = instructions * BYTES_AN_INSTRUCTION + (found.redirects.len() as u64 + 4) * BYTES_AN_ENTRY;
        let make = |this: &Self, at| {
            let moved = this.heads.led.get(&within.head)?.ways_on();
            let liveness = Liveness::of(flow);
            let redirects = &found.redirects;
            clone_with_entries(
                &Plan { flow, within, liveness: &liveness, redirects, moved: &moved, enter: &[], at },
                ip,
            )
        };
        self.place(within.head, room, make, |clone| &clone.code)
    }

    /// Has the head's station lead elsewhere, by this jump, and the head lead to its station.
    fn lead_head(&mut self, head: u64, way: [u8; JUMP]) -> Result<()> {
        let Some(station) = self.heads.led.get(&head).map(|known| known.station) else { return Ok(()) };
        let Some(first) = jump(head, station) else { return Ok(()) };
        self.threads.stop_all()?;
        let write = |this: &Self| this.memory.write(station, &way).and_then(|()| this.memory.write(head, &first));
        let written = self.clear_heads().and_then(|()| write(self));
        self.resume_all()?;
        written
    }

    /// Has every thread that stands inside of what is overwritten go on in its copy. All stand still.
    fn clear_heads(&mut self) -> Result<()> {
        let threads: Vec<u32> = self.threads.numbers().collect();
        for thread in threads {
            let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands()) else { continue };
            let Ok(mut registers) = held.tracee.registers() else { continue };
            if self.heads.land(&mut registers) {
                gone_is_fine(held.tracee.set_registers(&registers))?;
            }
        }
        Ok(())
    }

    /// Has every thread leave clones and rewritelets, and gives up those that lead to `page`. All stand still.
    pub(crate) fn forget_code_of(&mut self, page: u64) -> Result<()> {
        self.leave_code()?;
        for head in self.heads.of_page(page) {
            let Some(found) = self.heads.led.remove(&head) else { continue };
            if found.is_led(&self.memory) {
                self.memory.write(head, &found.patch.original)?;
            }
            self.give_up_head(&found);
        }
        for found in std::mem::take(&mut self.heads.retired) {
            self.give_up_head(&found);
        }
        self.clear_heads()?;
        let Some(moved) = self.moved.get(&page) else { return Ok(()) };
        let room = moved.room.clone();
        for site in self.sites.values_mut() {
            site.rewritelets.retain(|(delta, trampoline)| {
                let is_gone = room.contains(&page.wrapping_add_signed(*delta));
                if is_gone {
                    self.code.free(trampoline.at);
                }
                !is_gone
            });
        }
        self.sites.retain(|_, site| !site.rewritelets.is_empty());
        Ok(())
    }

    fn give_up_head(&mut self, found: &Head) {
        self.heads.remember_traps(found);
        self.code.free(found.copy.at);
        self.code.free(found.station);
        found.clones.iter().for_each(|cloned| self.code.free(cloned.clone.at));
    }

    /// Has every thread that is in code of ours go on in the program's own. All stand still.
    fn leave_code(&mut self) -> Result<()> {
        let threads: Vec<u32> = self.threads.numbers().collect();
        for thread in threads {
            // Memory of the program's own that has to be fetched first: it stops when it has it.
            while goes_on_at(thread).is_some_and(|at| self.code.contains(at)) && self.threads.still_waits(thread)? {
                std::thread::yield_now();
            }
            let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands()) else { continue };
            let ours = Ours { heads: &self.heads, sites: &self.sites, code: &self.code, memory: &self.memory };
            ours.untrap(held)?;
            let Ok(mut registers) = held.tracee.registers() else { continue };
            if !self.code.contains(registers.rip) {
                continue;
            }
            if !ours.lead_out(&mut registers) {
                let why = format!("thread {thread} cannot be led out of the code at {:#x}", registers.rip);
                return Err(Error::Refused { pid: self.pid(), why });
            }
            gone_is_fine(held.tracee.set_registers(&registers))?;
        }
        Ok(())
    }
}

/// A clone that can be entered where one of its checks is, by a clone whose own check has failed there; and at `ip`, if that can be.
fn clone_with_entries(plan: &Plan<'_>, ip: u64) -> Option<LoopClone> {
    let alone = LoopClone::new(plan).ok()?;
    let mut enter: Vec<u64> = alone.colds.iter().map(|&(_, ip)| ip).filter(|&ip| ip != plan.within.head).collect();
    enter.sort_unstable();
    enter.dedup();
    let at_checks = LoopClone::new(&Plan { enter: &enter, ..*plan }).ok()?;
    if enter.contains(&ip) || ip == plan.within.head {
        return Some(at_checks);
    }
    enter.push(ip);
    Some(LoopClone::new(&Plan { enter: &enter, ..*plan }).unwrap_or(at_checks))
}

impl Head {
    /// Where a thread goes on whose object the next clone does not know: in the last one that was made, where that can be entered, else in the
    /// original.
    fn ways_on(&self) -> Vec<(u64, u64)> {
        let entries = self.clones.last().map(|cloned| cloned.clone.entries.as_slice()).unwrap_or_default();
        let known = |ip: u64| entries.iter().any(|&(entered, _)| entered == ip);
        let copied = self.copy.moved.iter().copied().filter(|&(from, _)| !known(from));
        entries.iter().copied().chain(copied).collect()
    }

    /// Whether there is a clone for these addresses, or no room for one more.
    fn is_full(&self, redirects: &[Redirect]) -> bool {
        self.clones.len() >= MOST_CLONES || self.clones.iter().any(|cloned| cloned.redirects == redirects)
    }
}
