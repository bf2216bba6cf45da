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
//! the jump leads to such a distance that each byte of it at which an instruction began is a trap ([`fieldstone_rewrite::Pun`]): whoever comes
//! there stops, and goes on in the copy. Where no clone can lie at such a distance, a station does, with a jump to the newest.
//!
//! Only code that nobody rewrites is cloned: that of files, mapped without the right to write. Even so it can go, with its library; what
//! lies there afterwards is another program's, and is left alone: a jump counts as long as it is there.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_rewrite::patch::{Displaced, JUMP_BYTES};
use fieldstone_rewrite::{HeadPatch, LoopClone, Redirect};
use fieldstone_sys::ptrace;
use serde::{Deserialize, Serialize};

use crate::memory::Memory;
use crate::page::{PAGE_BYTES, page_with};

/// Clones of one loop. Who finds none that knows its object goes through as many checks, and then the plain loop.
const MOST_CLONES: usize = 8;
/// Bytes of a jump.
pub(crate) const JUMP: usize = 5;
/// What stands where an instruction began.
const TRAP: u8 = 0xcc;

/// The loops of a process that lead into clones.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Heads {
    pub(crate) led: BTreeMap<u64, Head>,
    /// Heads whose code is gone. A thread may still be in a clone of theirs.
    pub(crate) retired: Vec<Head>,
    /// Where traps have been inside of jumps that are gone: who ran into one may learn it only now.
    sprung: BTreeSet<u64>,
}

/// A loop's head, and what it is led to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) patch: HeadPatch,
    pub(crate) copy: Displaced,
    /// A jump to the newest clone, where the one at the head may lead.
    pub(crate) station: u64,
    pub(crate) clones: Vec<Cloned>,
}

/// A clone, and what it redirects.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Cloned {
    pub(crate) clone: LoopClone,
    pub(crate) redirects: Vec<Redirect>,
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

    /// Whether a clone leads this access to where its bytes are.
    pub(crate) fn know(&self, ip: u64, address: u64, bytes: u32, delta: i64) -> bool {
        let leads = |redirect: &Redirect| {
            let there = redirect.rule.delta == delta && redirect.rule.holds(address, bytes);
            redirect.ip == ip && there && redirect.seen.is_none_or(|seen| seen == address)
        };
        self.led.values().flat_map(|head| &head.clones).flat_map(|cloned| &cloned.redirects).any(leads)
    }

    /// How many clones there are.
    pub(crate) fn clones(&self) -> usize {
        self.led.values().map(|head| head.clones.len()).sum()
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
    pub(crate) fn land(&self, registers: &mut ptrace::Registers) -> bool {
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
        redirects.map(|redirect| page_with(redirect.rule.bytes.start)).next()
    }

    /// The instruction of the program that a thread is about to do which stands at `rip` in a clone or a copy.
    pub(crate) fn original(&self, rip: u64) -> Option<u64> {
        self.led.values().chain(&self.retired).find_map(|head| head.original(rip))
    }

    /// The heads of clones that redirect to somewhere in `page`.
    pub(crate) fn of_page(&self, page: u64) -> Vec<u64> {
        let bytes = page..page + PAGE_BYTES;
        let redirects = |head: &Head| {
            head.clones
                .iter()
                .flat_map(|cloned| &cloned.redirects)
                .any(|redirect| bytes.contains(&redirect.rule.bytes.start))
        };
        self.led.iter().filter(|(_, head)| redirects(head)).map(|(&head, _)| head).collect()
    }

    /// The pages of code that has clones, and of each a page that these are for.
    pub(crate) fn code_pages(&self) -> BTreeMap<u64, u64> {
        let of_head = |(&head, found): (&u64, &Head)| {
            let moved = found.clones.iter().flat_map(|cloned| &cloned.redirects).next();
            let originals = found.clones.iter().flat_map(|cloned| &cloned.clone.map).map(|&(_, original)| original);
            let pages: BTreeSet<u64> = originals.chain([head, head + JUMP_BYTES - 1]).map(page_with).collect();
            let moved = moved.map(|redirect| page_with(redirect.rule.bytes.start));
            pages.into_iter().filter_map(move |code| Some((code, moved?))).collect::<Vec<_>>()
        };
        self.led.iter().flat_map(of_head).collect()
    }

    /// Forgets heads whose code is not what it was: a library that was unloaded, code that was written anew. Whose rewritelets go on in
    /// the copy of one is told by it.
    pub(crate) fn retire(&mut self, memory: &Memory) -> &[Head] {
        let known = self.retired.len();
        let gone: Vec<Head> =
            self.led.extract_if(.., |_, head| !head.is_current(memory)).map(|(_, head)| head).collect();
        gone.iter().for_each(|head| self.remember_traps(head));
        self.retired.extend(gone);
        &self.retired[known..]
    }

    pub(crate) fn remember_traps(&mut self, head: &Head) {
        self.sprung.extend(head.copy.moved.iter().map(|&(original, _)| original).filter(|&at| at != head.patch.head));
    }

    /// Whether a jump at `address` would share bytes with another one.
    pub(crate) fn overlap(&self, address: u64) -> bool {
        let near = self.led.range(address.saturating_sub(JUMP_BYTES - 1)..address + JUMP_BYTES);
        near.into_iter().any(|(&head, _)| head != address)
    }

    /// Those of one clone alone.
    #[cfg(test)]
    pub(crate) fn of_clone(flow: &fieldstone_rewrite::Flow, original: [u8; JUMP], clone: LoopClone) -> Self {
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

    /// The jump at the head: to the newest clone, where it may lead there, else to the station.
    pub(crate) fn way_in(&self) -> Option<[u8; JUMP]> {
        let newest = self.clones.last().map(|cloned| cloned.clone.entry);
        newest.into_iter().chain([self.station]).find_map(|to| self.jump_to(to))
    }

    fn jump_to(&self, to: u64) -> Option<[u8; JUMP]> {
        jump(self.patch.head, to).filter(|_| self.patch.pun.allows(to))
    }

    /// Whether a jump of ours is there, an earlier one too: who wrote it may have been killed before the next.
    pub(crate) fn is_led(&self, memory: &Memory) -> bool {
        let ways = self.clones.iter().map(|cloned| cloned.clone.entry).chain([self.station]);
        self.bytes(memory).is_some_and(|there| ways.filter_map(|to| self.jump_to(to)).any(|jump| jump == there))
    }

    /// Whether the code is what was found here, with the jump or still without.
    fn is_current(&self, memory: &Memory) -> bool {
        self.is_led(memory) || self.clones.is_empty() && self.bytes(memory) == Some(self.patch.original)
    }

    fn bytes(&self, memory: &Memory) -> Option<[u8; JUMP]> {
        let mut there = [0; JUMP];
        memory.read_exact(self.patch.head, &mut there).is_ok().then_some(there)
    }

    /// Where a thread goes on whose object the next clone does not know: in the last one that was made, where that can be entered, else in the
    /// original.
    pub(crate) fn ways_on(&self) -> Vec<(u64, u64)> {
        let entries = self.clones.last().map(|cloned| cloned.clone.entries.as_slice()).unwrap_or_default();
        let known = |ip: u64| entries.iter().any(|&(entered, _)| entered == ip);
        let copied = self.copy.moved.iter().copied().filter(|&(from, _)| !known(from));
        entries.iter().copied().chain(copied).collect()
    }

    /// Whether there is a clone for these addresses, or no room for one more.
    pub(crate) fn is_full(&self, redirects: &[Redirect]) -> bool {
        self.clones.len() >= MOST_CLONES || self.clones.iter().any(|cloned| cloned.redirects == redirects)
    }
}

/// A jump that lies at `at`. None where it does not reach.
pub(crate) fn jump(at: u64, to: u64) -> Option<[u8; JUMP]> {
    let distance = i32::try_from(to.wrapping_sub(at.wrapping_add(JUMP_BYTES)).cast_signed()).ok()?;
    let mut jump = [0xe9; JUMP];
    jump[1..].copy_from_slice(&distance.to_le_bytes());
    Some(jump)
}

/// The program's code as it was.
#[derive(Debug)]
pub(crate) struct Unpatched<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) heads: &'a Heads,
}

impl fieldstone_rewrite::Memory for Unpatched<'_> {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        let got = self.memory.read(address, into);
        self.heads.unpatched(self.memory, address, &mut into[..got]);
        got
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_rewrite::Flow;

    use super::*;

    /// head: add [rdi], 1; dec ecx; jne head; ret
    const LOOP: [u8; 9] = [0x48, 0x83, 0x07, 0x01, 0xff, 0xc9, 0x75, 0xf8, 0xc3];

    fn entered_at(entry: u64) -> Cloned {
        let clone = LoopClone {
            at: entry,
            code: Vec::new(),
            entry,
            entries: Vec::new(),
            map: Vec::new(),
            colds: Vec::new(),
            guards: 0,
            saving_guards: 0,
        };
        Cloned { clone, redirects: Vec::new() }
    }

    #[test]
    fn a_head_leads_to_its_newest_clone_where_that_may_lie_there() {
        let memory = Memory::open(std::process::id()).unwrap();
        // It is read by system calls.
        let mut code = std::hint::black_box(Box::new(LOOP));
        let at = code.as_ptr().addr() as u64;
        let patch = HeadPatch::new(&Flow::discover(&memory, at).unwrap(), at, *code.first_chunk().unwrap()).unwrap();
        // The second instruction begins at the last byte of the jump, which has to be a trap.
        let low = patch.pun.entry_from(at - (1 << 30)).unwrap();
        let copy = Displaced { at: 0, code: Vec::new(), moved: Vec::new() };
        let mut head = Head { patch, copy, station: low, clones: Vec::new() };
        let way_in = |head: &Head| head.way_in().unwrap();
        assert!(!head.is_led(&memory) && way_in(&head) == jump(at, low).unwrap());
        head.clones.push(entered_at(low + 64));
        assert_eq!(way_in(&head), jump(at, low + 64).unwrap());
        let first = way_in(&head);
        head.clones.push(entered_at(at + 4096));
        assert_eq!(way_in(&head), jump(at, low).unwrap(), "by its station");
        for there in [first, way_in(&head)] {
            assert_eq!(there[4], TRAP);
            code[..JUMP].copy_from_slice(&there);
            std::hint::black_box(&mut code);
            assert!(head.is_led(&memory) && head.is_current(&memory));
        }
        code[1] ^= 1;
        std::hint::black_box(&mut code);
        assert!(!head.is_led(&memory) && !head.is_current(&memory), "somebody else's");
    }
}
