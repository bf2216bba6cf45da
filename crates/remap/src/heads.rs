//! Loops led into clones: the jump over a loop's head, the copies of what it overwrites, and a clone for each thread's addresses.
//!
//! ```text
//!   head: jmp ──> newest clone: its addresses? ── no ──> older clone: its? ── no ──> copy of the head's instructions ──> head + 5 …
//!                       │ yes                                  │ yes
//!                       └ goes round here                      └ or here
//! ```
//! Threads that run one loop on different objects have a clone each; who enters is let through to the first that knows the object.
//! While a head is written all threads stand still, and none inside of what is overwritten.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_rewrite::clone::Plan;
use fieldstone_rewrite::patch::{Displaced, JUMP_BYTES};
use fieldstone_rewrite::{Flow, HeadPatch, Liveness, Loop, LoopClone, Redirect, Registers, Rule, Walk};
use fieldstone_sys::ptrace;

use crate::error::Result;
use crate::memory::Memory;
use crate::page::PAGE_BYTES;
use crate::process::Process;

/// Clones of one loop. Who finds none that knows its object goes through as many checks, and then the plain loop.
const MOST_CLONES: usize = 8;
/// Room for a copied instruction with its share of checks, in bytes.
const BYTES_AN_INSTRUCTION: u64 = 16;
const BYTES_AN_ENTRY: u64 = 128;
/// Steps after which a thread has left what is overwritten, or never does.
const MOST_STEPS: u32 = 64;

/// The loops of a process that lead into clones.
#[derive(Debug, Default)]
pub(crate) struct Heads(BTreeMap<u64, Head>);

#[derive(Debug)]
struct Head {
    patch: HeadPatch,
    copy: Displaced,
    clones: Vec<Cloned>,
}

#[derive(Debug)]
struct Cloned {
    clone: LoopClone,
    redirects: Vec<Redirect>,
}

impl Heads {
    /// Puts the program's own bytes over those of a jump.
    pub(crate) fn unpatched(&self, address: u64, bytes: &mut [u8]) {
        let end = address.saturating_add(bytes.len() as u64);
        for (&head, found) in self.0.range(address.saturating_sub(JUMP_BYTES)..end) {
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
        self.0.iter().flat_map(inner).collect()
    }

    /// The bytes under each jump.
    pub(crate) fn originals(&self) -> impl Iterator<Item = (u64, [u8; 5])> {
        self.0.iter().map(|(&head, found)| (head, found.patch.original))
    }

    /// Sets a thread that stands in a clone back into the program's own code, or where that is overwritten, into its copy; whether it did.
    pub(crate) fn lead_back(&self, registers: &mut ptrace::Registers) -> bool {
        let was = registers.rip;
        self.lead_out(registers);
        self.land(registers);
        registers.rip != was
    }

    /// Nobody can stand inside of what is overwritten: the copy does the same.
    fn land(&self, registers: &mut ptrace::Registers) -> bool {
        let copy = self.copies().into_iter().find(|&(original, _)| original == registers.rip);
        if let Some((_, copy)) = copy {
            registers.rip = copy;
        }
        copy.is_some()
    }

    /// Sets a thread that stands in a clone, or in a copy, to where it would be if no head were overwritten; whether it did.
    pub(crate) fn lead_out(&self, registers: &mut ptrace::Registers) -> bool {
        let original = self.0.values().find_map(|head| head.original(registers.rip));
        if let Some(original) = original {
            registers.rip = original;
        }
        original.is_some()
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
        self.0.iter().filter(|(_, head)| redirects(head)).map(|(&head, _)| head).collect()
    }
}

impl Head {
    fn original(&self, rip: u64) -> Option<u64> {
        let maps = self.clones.iter().flat_map(|cloned| &cloned.clone.map);
        let copied = self.copy.moved.iter().map(|&(original, copy)| (copy, original));
        maps.copied().chain(copied).find(|&(at, _)| at == rip).map(|(_, original)| original)
    }
}

/// The program's code as it was.
struct Unpatched<'a> {
    memory: &'a Memory,
    heads: &'a Heads,
}

impl fieldstone_rewrite::Memory for Unpatched<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let got = self.memory.read(address, into);
        self.heads.unpatched(address, &mut into[..got]);
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
        let Some(found) = self.loop_around(registers) else { return Ok(None) };
        let head = found.within.head;
        if self.heads.0.get(&head).is_some_and(|known| known.is_full(&found.redirects)) {
            return Ok(None);
        }
        if !self.heads.0.contains_key(&head) && !self.prepare_head(&found)? {
            return Ok(None);
        }
        let Some(clone) = self.place_clone(&found, registers.rip)? else { return Ok(None) };
        let (entry, inside) =
            (clone.entry, clone.entries.iter().find(|(ip, _)| *ip == registers.rip).map(|(_, at)| *at));
        if let Some(known) = self.heads.0.get_mut(&head) {
            known.clones.push(Cloned { clone, redirects: found.redirects });
        }
        self.lead_head(head, entry)?;
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

    /// Copies what the jump at the head will overwrite; whether that can be.
    fn prepare_head(&mut self, found: &Found) -> Result<bool> {
        let head = found.within.head;
        let mut original = [0; 5];
        self.memory.read_exact(head, &mut original)?;
        let Ok(patch) = HeadPatch::new(&found.flow, head, original) else { return Ok(false) };
        let copied = self.place(head, BYTES_AN_ENTRY, |_, at| patch.displaced(at).ok(), |copy| &copy.code)?;
        let Some(copy) = copied else { return Ok(false) };
        self.heads.0.insert(head, Head { patch, copy, clones: Vec::new() });
        Ok(true)
    }

    fn place_clone(&mut self, found: &Found, ip: u64) -> Result<Option<LoopClone>> {
        let (flow, within) = (&found.flow, &found.within);
        let instructions = flow.instructions_in(within).count() as u64;
        let room = instructions * BYTES_AN_INSTRUCTION + (found.redirects.len() as u64 + 4) * BYTES_AN_ENTRY;
        let make = |this: &Self, at| {
            let moved = this.heads.0.get(&within.head)?.ways_on();
            let liveness = Liveness::of(flow);
            let redirects = &found.redirects;
            clone_with_entries(
                &Plan { flow, within, liveness: &liveness, redirects, moved: &moved, enter: &[], at },
                ip,
            )
        };
        self.place(within.head, room, make, |clone| &clone.code)
    }

    /// Writes the jump.
    fn lead_head(&mut self, head: u64, entry: u64) -> Result<()> {
        let distance = i32::try_from(entry.wrapping_sub(head + JUMP_BYTES).cast_signed()).unwrap_or(0);
        let mut jump = [0xe9; 5];
        jump[1..].copy_from_slice(&distance.to_le_bytes());
        self.threads.stop_all()?;
        let written = self.clear_heads().and_then(|()| self.memory.write(head, &jump));
        self.threads.resume_all()?;
        written
    }

    /// Has every thread that stands inside of what is overwritten go on in its copy. All stand still.
    fn clear_heads(&mut self) -> Result<()> {
        let threads: Vec<u32> = self.threads.numbers().collect();
        for thread in threads {
            let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands()) else { continue };
            let mut registers = held.tracee.registers()?;
            if self.heads.land(&mut registers) {
                held.tracee.set_registers(&registers)?;
            }
        }
        Ok(())
    }

    /// Has every thread leave clones and rewritelets, and gives up those that lead to `page`. All stand still.
    pub(crate) fn forget_code_of(&mut self, page: u64) -> Result<()> {
        self.leave_code()?;
        for head in self.heads.of_page(page) {
            let Some(found) = self.heads.0.remove(&head) else { continue };
            self.memory.write(head, &found.patch.original)?;
            self.code.free(found.copy.at);
            found.clones.iter().for_each(|cloned| self.code.free(cloned.clone.at));
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

    fn leave_code(&mut self) -> Result<()> {
        let threads: Vec<u32> = self.threads.numbers().collect();
        for thread in threads {
            let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands()) else { continue };
            for _ in 0..MOST_STEPS {
                let mut registers = held.tracee.registers()?;
                if !self.code.contains(registers.rip) {
                    break;
                }
                if self.heads.lead_out(&mut registers) {
                    held.tracee.set_registers(&registers)?;
                    break;
                }
                held.step()?;
            }
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
