//! Patched loop heads: a jump at the head, copies of the overwritten instructions, and the clones.
//!
//! ```text
//!   head: jmp ──> newest clone: its addresses? ─ no ─> older clone: its? ─ no ─> head copy ──> head + 5 …
//!                       │ yes                               │ yes
//!                       └ loop runs here                    └ or here
//! ```
//! Threads that run one loop on different objects each have a clone. A thread enters the first
//! clone whose check passes.
//!
//! Other code may jump to the overwritten instructions: a `for` entered at its condition, an
//! exception's landing pad, a switch. So the jump's displacement is chosen such that each of its
//! bytes at which an instruction begins is a trap ([`fieldstone_rewrite::Pun`]). A thread that
//! jumps there stops and continues in the copy. If no clone fits at such a displacement, the jump
//! leads to a station, which is a jump to the newest clone.
//!
//! Invariants: while a head is written, all threads are stopped, and none is inside the overwritten
//! bytes. Only code that is not rewritten is cloned: code of files, not writable where it is
//! mapped. A library may still be unloaded. So a jump is valid only while its bytes are present.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_rewrite::patch::{HeadCopy, JUMP_BYTES};
use fieldstone_rewrite::{HeadPatch, LoopClone, Redirect};
use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::ptrace;
use serde::{Deserialize, Serialize};

use crate::page_table::moved::{PAGE_BYTES, page_with};

/// Maximum number of clones of one loop. A thread that no clone fits runs through as many checks,
/// then the original loop.
const MAX_CLONES: usize = 8;
/// Size of a jump.
pub(super) const JUMP: usize = 5;
/// The trap instruction.
const TRAP: u8 = 0xcc;

/// The patched loop heads of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct HeadTable {
    #[serde(rename = "led")]
    pub(super) by_address: BTreeMap<u64, LoopHead>,
    /// Heads whose code is gone. A thread may still be in one of their clones.
    pub(super) retired: Vec<LoopHead>,
    /// Addresses of former traps inside of removed jumps. A thread that ran into one may report it
    /// only now.
    #[serde(rename = "sprung")]
    former_traps: BTreeSet<u64>,
}

/// A loop head, and its clones.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct LoopHead {
    pub(super) patch: HeadPatch,
    pub(super) copy: HeadCopy,
    /// Address of a jump to the newest clone, at a target that the head's jump permits.
    pub(super) station: u64,
    pub(super) clones: Vec<InstalledClone>,
}

/// A clone, and its redirects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct InstalledClone {
    pub(super) clone: LoopClone,
    pub(super) redirects: Vec<Redirect>,
}

impl HeadTable {
    /// Replaces the bytes of present jumps by the program's own.
    pub(super) fn restore_bytes(&self, memory: &ProcessMemory, address: u64, bytes: &mut [u8]) {
        let end = address.saturating_add(bytes.len() as u64);
        for (&head, found) in self.by_address.range(address.saturating_sub(JUMP_BYTES)..end) {
            if !found.is_patched(memory) {
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

    /// Whether a clone redirects this access by `delta`.
    pub(super) fn redirects(&self, ip: u64, address: u64, bytes: u32, delta: i64) -> bool {
        let leads = |redirect: &Redirect| {
            let there = redirect.rule.delta == delta && redirect.rule.holds(address, bytes);
            redirect.ip == ip && there && redirect.expected.is_none_or(|expected| expected == address)
        };
        self.by_address.values().flat_map(|head| &head.clones).flat_map(|installed| &installed.redirects).any(leads)
    }

    /// Number of clones.
    pub(super) fn clones(&self) -> usize {
        self.by_address.values().map(|head| head.clones.len()).sum()
    }

    /// Pairs of an overwritten instruction and its copy.
    pub(super) fn copies(&self) -> Vec<(u64, u64)> {
        // The head itself is excluded: threads enter the clones there.
        let inner = |(&head, found): (&u64, &LoopHead)| {
            found.copy.moved.iter().copied().filter(move |&(from, _)| from != head).collect::<Vec<_>>()
        };
        self.by_address.iter().flat_map(inner).collect()
    }

    /// The jumps that are present in `memory`: their addresses, and the original bytes.
    pub(super) fn jumps(&self, memory: &ProcessMemory) -> Vec<(u64, [u8; JUMP])> {
        let there = self.by_address.iter().filter(|(_, found)| found.is_patched(memory));
        there.map(|(&head, found)| (head, found.patch.original)).collect()
    }

    /// Moves a thread from an overwritten instruction to its copy; returns whether it was at one.
    pub(super) fn move_to_copy(&self, registers: &mut ptrace::TraceeRegisters) -> bool {
        let copy = self.copies().into_iter().find(|&(original, _)| original == registers.rip);
        if let Some((_, copy)) = copy {
            registers.rip = copy;
        }
        copy.is_some()
    }

    /// The address at which a thread with this instruction pointer continues after a trap inside of
    /// a jump. `None` if the trap is not ours.
    pub(super) fn resume_address(&self, memory: &ProcessMemory, rip: u64) -> Option<u64> {
        let at = rip.wrapping_sub(1);
        let copy = self.copies().into_iter().find(|&(original, _)| original == at).map(|(_, copy)| copy);
        let is_gone = || {
            let mut now = [0];
            self.former_traps.contains(&at) && memory.read_exact(at, &mut now).is_ok() && now != [TRAP]
        };
        copy.or_else(|| is_gone().then_some(at))
    }

    /// Whether a thread with this instruction pointer may have run into a trap of ours.
    pub(super) fn is_behind_trap(&self, rip: u64) -> bool {
        let at = rip.wrapping_sub(1);
        self.former_traps.contains(&at) || self.copies().iter().any(|&(original, _)| original == at)
    }

    /// A moved page that the clones of the loop around `ip` redirect to.
    pub(super) fn page_of(&self, ip: u64) -> Option<u64> {
        let has = |head: &&LoopHead| head.copy.moved.iter().any(|&(original, copy)| original == ip || copy == ip);
        let redirects = self.by_address.values().find(has)?.clones.iter().flat_map(|installed| &installed.redirects);
        redirects.map(|redirect| page_with(redirect.rule.bytes.start)).next()
    }

    /// The program's instruction for one in a clone or a head copy.
    pub(super) fn original(&self, rip: u64) -> Option<u64> {
        self.by_address.values().chain(&self.retired).find_map(|head| head.original(rip))
    }

    /// Heads with clones that redirect accesses to `page`.
    pub(super) fn of_page(&self, page: u64) -> Vec<u64> {
        let bytes = page..page + PAGE_BYTES;
        let redirects = |head: &LoopHead| {
            head.clones
                .iter()
                .flat_map(|installed| &installed.redirects)
                .any(|redirect| bytes.contains(&redirect.rule.bytes.start))
        };
        self.by_address.iter().filter(|(_, head)| redirects(head)).map(|(&head, _)| head).collect()
    }

    /// Code pages with clones, each with one moved page that these clones redirect to.
    pub(super) fn code_pages(&self) -> BTreeMap<u64, u64> {
        let of_head = |(&head, found): (&u64, &LoopHead)| {
            let moved = found.clones.iter().flat_map(|installed| &installed.redirects).next();
            let originals =
                found.clones.iter().flat_map(|installed| &installed.clone.map).map(|&(_, original)| original);
            let pages: BTreeSet<u64> = originals.chain([head, head + JUMP_BYTES - 1]).map(page_with).collect();
            let moved = moved.map(|redirect| page_with(redirect.rule.bytes.start));
            pages.into_iter().filter_map(move |code| Some((code, moved?))).collect::<Vec<_>>()
        };
        self.by_address.iter().flat_map(of_head).collect()
    }

    /// Retires heads whose code has changed, for example by dlclose(3), and returns them.
    /// Rewritelets that continue in their copies are invalid.
    pub(super) fn retire(&mut self, memory: &ProcessMemory) -> &[LoopHead] {
        let known = self.retired.len();
        let gone: Vec<LoopHead> =
            self.by_address.extract_if(.., |_, head| !head.is_current(memory)).map(|(_, head)| head).collect();
        gone.iter().for_each(|head| self.add_former_traps(head));
        self.retired.extend(gone);
        &self.retired[known..]
    }

    pub(super) fn add_former_traps(&mut self, head: &LoopHead) {
        self.former_traps
            .extend(head.copy.moved.iter().map(|&(original, _)| original).filter(|&at| at != head.patch.head));
    }

    /// Whether a jump at `address` would overlap another one.
    pub(super) fn overlaps(&self, address: u64) -> bool {
        let near = self.by_address.range(address.saturating_sub(JUMP_BYTES - 1)..address + JUMP_BYTES);
        near.into_iter().any(|(&head, _)| head != address)
    }

    /// The heads of one clone.
    #[cfg(test)]
    pub(super) fn of_clone(flow: &fieldstone_rewrite::Flow, original: [u8; JUMP], clone: LoopClone) -> Self {
        let head = clone.entries[0].0;
        let patch = HeadPatch::new(flow, head, original).expect("a head");
        let copy = HeadCopy { at: 0, code: Vec::new(), moved: Vec::new() };
        let clones = vec![InstalledClone { clone, redirects: Vec::new() }];
        Self { by_address: BTreeMap::from([(head, LoopHead { patch, copy, station: 0, clones })]), ..Self::default() }
    }
}

impl LoopHead {
    fn original(&self, rip: u64) -> Option<u64> {
        let maps = self.clones.iter().flat_map(|installed| &installed.clone.map);
        let copied = self.copy.moved.iter().map(|&(original, copy)| (copy, original));
        maps.copied().chain(copied).find(|&(at, _)| at == rip).map(|(_, original)| original)
    }

    /// The jump for the head: to the newest clone if the pun permits it, else to the station.
    pub(super) fn head_jump(&self) -> Option<[u8; JUMP]> {
        let newest = self.clones.last().map(|installed| installed.clone.entry);
        newest.into_iter().chain([self.station]).find_map(|to| self.jump_to(to))
    }

    fn jump_to(&self, to: u64) -> Option<[u8; JUMP]> {
        jump(self.patch.head, to).filter(|_| self.patch.pun.allows(to))
    }

    /// Whether one of our jumps is present. It may be an earlier one, if a repairer was killed
    /// before it wrote the next.
    pub(super) fn is_patched(&self, memory: &ProcessMemory) -> bool {
        let targets = self.clones.iter().map(|installed| installed.clone.entry).chain([self.station]);
        self.bytes(memory).is_some_and(|there| targets.filter_map(|to| self.jump_to(to)).any(|jump| jump == there))
    }

    /// Whether the code is unchanged, with or without the jump.
    fn is_current(&self, memory: &ProcessMemory) -> bool {
        self.is_patched(memory) || self.clones.is_empty() && self.bytes(memory) == Some(self.patch.original)
    }

    fn bytes(&self, memory: &ProcessMemory) -> Option<[u8; JUMP]> {
        let mut there = [0; JUMP];
        memory.read_exact(self.patch.head, &mut there).is_ok().then_some(there)
    }

    /// Where a thread continues if the next clone's check fails: in the newest existing clone, or
    /// in the copy of the original.
    pub(super) fn continuations(&self) -> Vec<(u64, u64)> {
        let entries = self.clones.last().map(|installed| installed.clone.entries.as_slice()).unwrap_or_default();
        let known = |ip: u64| entries.iter().any(|&(entered, _)| entered == ip);
        let copied = self.copy.moved.iter().copied().filter(|&(from, _)| !known(from));
        entries.iter().copied().chain(copied).collect()
    }

    /// Whether there is a clone with these redirects, or the maximum number of clones.
    pub(super) fn is_full(&self, redirects: &[Redirect]) -> bool {
        self.clones.len() >= MAX_CLONES || self.clones.iter().any(|installed| installed.redirects == redirects)
    }
}

/// A jump instruction at `at` to `to`. `None` if the target is out of reach.
pub(super) fn jump(at: u64, to: u64) -> Option<[u8; JUMP]> {
    let distance = i32::try_from(to.wrapping_sub(at.wrapping_add(JUMP_BYTES)).cast_signed()).ok()?;
    let mut jump = [0xe9; JUMP];
    jump[1..].copy_from_slice(&distance.to_le_bytes());
    Some(jump)
}

/// The program's memory without our jumps.
#[derive(Debug)]
pub(super) struct UnpatchedMemory<'a> {
    pub(super) memory: &'a ProcessMemory,
    pub(super) heads: &'a HeadTable,
}

impl fieldstone_rewrite::ReadableMemory for UnpatchedMemory<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let got = self.memory.read(address, into);
        self.heads.restore_bytes(self.memory, address, &mut into[..got]);
        got
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_rewrite::Flow;

    use super::*;

    /// head: add [rdi], 1; dec ecx; jne head; ret
    const LOOP: [u8; 9] = [0x48, 0x83, 0x07, 0x01, 0xff, 0xc9, 0x75, 0xf8, 0xc3];

    fn clone_at(entry: u64) -> InstalledClone {
        let clone = LoopClone {
            at: entry,
            code: Vec::new(),
            entry,
            entries: Vec::new(),
            map: Vec::new(),
            failures: Vec::new(),
            guards: 0,
            saving_guards: 0,
        };
        InstalledClone { clone, redirects: Vec::new() }
    }

    #[test]
    fn a_head_jumps_to_its_newest_clone_if_its_pun_permits() {
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        // The code is read by system calls.
        let mut code = std::hint::black_box(Box::new(LOOP));
        let at = code.as_ptr().addr() as u64;
        let flow = Flow::discover(&|address: u64, into: &mut [u8]| memory.read(address, into), at).unwrap();
        let patch = HeadPatch::new(&flow, at, *code.first_chunk().unwrap()).unwrap();
        // The second instruction begins at the last byte of the jump, so that byte must be a trap.
        let low = patch.pun.entry_from(at - (1 << 30)).unwrap();
        let copy = HeadCopy { at: 0, code: Vec::new(), moved: Vec::new() };
        let mut head = LoopHead { patch, copy, station: low, clones: Vec::new() };
        let jump_of = |head: &LoopHead| head.head_jump().unwrap();
        assert!(!head.is_patched(&memory) && jump_of(&head) == jump(at, low).unwrap());
        head.clones.push(clone_at(low + 64));
        assert_eq!(jump_of(&head), jump(at, low + 64).unwrap());
        let first = jump_of(&head);
        head.clones.push(clone_at(at + 4096));
        assert_eq!(jump_of(&head), jump(at, low).unwrap(), "through its station");
        for there in [first, jump_of(&head)] {
            assert_eq!(there[4], TRAP);
            code[..JUMP].copy_from_slice(&there);
            std::hint::black_box(&mut code);
            assert!(head.is_patched(&memory) && head.is_current(&memory));
        }
        code[1] ^= 1;
        std::hint::black_box(&mut code);
        assert!(!head.is_patched(&memory) && !head.is_current(&memory), "other code is there");
    }
}
