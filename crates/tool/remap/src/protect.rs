//! Where the program has memory protected, moved or advised on, it looks at moved pages first, and at code that has clones.
//!
//! Nothing tells of mprotect(2), and a clone would go on to write to its view of a page that may not be written any more, or go on as
//! code was that is about to be written anew. So the places where the program makes that call lead by a lookout
//! ([`fieldstone_rewrite::protect`]), which reads each moved page that the call is about, and for code the page that its clone is
//! for: it faults there, and the page is put back first, its clones with it. Without us it waits there, as any access does.
//!
//! mremap(2) is refused where a page in the middle is watched, and madvise(2) may say what becomes of a page in a child.
//!
//! The places are found by their bytes, `mov $10, %eax; syscall`, as C libraries and language run times have them. A call that is made
//! by syscall(2) is not seen.

use std::collections::BTreeSet;
use std::ops::Range;

use fieldstone_rewrite::protect::{BYTES_A_PAGE, LOAD_BYTES, Look, lookout};
use memchr::memmem::find_iter;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::heads::{JUMP, jump};
use crate::memory::Memory;
use crate::process::Process;
use crate::threads::gone_is_fine;

/// Moved pages, and pages of code with clones, that a lookout has room for, and what it takes.
pub(crate) const MOST_PAGES: usize = 64;
pub(crate) const MOST_CODE: usize = 64;
const LOOKOUT_BYTES: u64 = BYTES_A_PAGE * ((MOST_PAGES + MOST_CODE) as u64 + 1);
/// mprotect, pkey_mprotect, mremap, madvise: of each the first two arguments are an address and how many bytes.
const NUMBERS: [u32; 4] = [10, 329, 25, 28];
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Code is searched in pieces of so many bytes.
const PIECE: usize = 1 << 20;

/// Where the program has memory protected.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Protections {
    places: Vec<Place>,
    /// Code that was searched.
    #[serde(skip)]
    searched: BTreeSet<(u64, u64, String)>,
}

/// A place where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    /// Where the number of the call is loaded.
    at: u64,
    number: u32,
    /// Where there is room for a lookout.
    lookout: u64,
}

impl Place {
    fn room(&self) -> Range<u64> {
        self.lookout..self.lookout + LOOKOUT_BYTES
    }

    fn original(&self) -> [u8; JUMP] {
        load(self.number)
    }

    /// The jump, where it can be made.
    fn jump(&self) -> Option<[u8; JUMP]> {
        jump(self.at, self.lookout)
    }

    /// What is there now: whether it is the jump. None where it is some other code.
    fn is_led(&self, memory: &Memory) -> Option<bool> {
        let mut there = [0; JUMP];
        memory.read_exact(self.at, &mut there).ok()?;
        if there == self.original() { Some(false) } else { (self.jump() == Some(there)).then_some(true) }
    }
}

impl Protections {
    /// Whether an address is in a lookout.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.original(address).is_some()
    }

    /// Where a thread begins anew that stands in a lookout.
    pub(crate) fn original(&self, address: u64) -> Option<u64> {
        self.places.iter().find(|place| place.room().contains(&address)).map(|place| place.at)
    }

    /// Where a thread begins anew that is in a lookout, or through and about to make the call.
    fn again(&self, address: u64) -> Option<u64> {
        let called = |place: &&Place| place.at + LOAD_BYTES == address;
        self.original(address).or_else(|| self.places.iter().find(called).map(|place| place.at))
    }

    /// The jumps that are there: where each is, and the bytes under it.
    pub(crate) fn jumps(&self, memory: &Memory) -> Vec<(u64, [u8; JUMP])> {
        let led = self.places.iter().filter(|place| place.is_led(memory) == Some(true));
        led.map(|place| (place.at, place.original())).collect()
    }
}

impl Process {
    /// Finds where the program has memory protected, in code that was not searched before.
    ///
    /// # Errors
    /// Where there is no room for the lookouts.
    pub(crate) fn find_protections(&mut self) -> Result<()> {
        for mapping in self.mappings()?.iter().filter(|mapping| mapping.is_lasting_code()) {
            let key = (mapping.range.start, mapping.range.end, mapping.name.clone());
            if !self.ours.protections.searched.insert(key) {
                continue;
            }
            for (at, number) in calls(&self.memory, &mapping.range) {
                if self.ours.protections.places.iter().any(|place| place.at == at) {
                    continue;
                }
                let lookout = self.room_for_code(at, LOOKOUT_BYTES, None)?;
                self.ours.protections.places.push(Place { at, number, lookout });
            }
        }
        Ok(())
    }

    /// Has the lookouts look at the pages that are moved now, and at the code with clones for them. All threads stand still, and those
    /// that were about to have memory protected look again.
    ///
    /// # Errors
    /// Where a lookout cannot be written.
    pub(crate) fn look_after_protections(&mut self) -> Result<()> {
        let moved = self.ours.moved.keys().map(|&page| Look { page, moved: page });
        let code = self.ours.heads.code_pages().into_iter().filter(|(_, moved)| self.ours.moved.contains_key(moved));
        let looks: Vec<Look> = moved.chain(code.map(|(page, moved)| Look { page, moved })).collect();
        if self.ours.protections.places.is_empty() {
            return Ok(());
        }
        self.look_again()?;
        for place in &self.ours.protections.places {
            let Some((is_led, jump)) = place.is_led(&self.memory).zip(place.jump()) else { continue };
            if looks.is_empty() {
                if is_led {
                    self.memory.write(place.at, &place.original())?;
                }
                continue;
            }
            let refused = |error: fieldstone_rewrite::Error| Error::Refused { pid: self.pid(), why: error.to_string() };
            let code = lookout(&looks, place.number, place.lookout, place.at).map_err(refused)?;
            self.memory.write(place.lookout, &code)?;
            self.memory.write(place.at, &jump)?;
        }
        Ok(())
    }

    fn look_again(&mut self) -> Result<()> {
        let threads: Vec<u32> = self.threads.numbers().collect();
        for thread in threads {
            let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands()) else { continue };
            let Ok(mut registers) = held.tracee.registers() else { continue };
            if let Some(again) = self.ours.protections.again(registers.rip) {
                registers.rip = again;
                gone_is_fine(held.tracee.set_registers(&registers))?;
            }
        }
        Ok(())
    }
}

/// `mov $number, %eax`.
fn load(number: u32) -> [u8; JUMP] {
    let mut load = [0xb8; JUMP];
    load[1..].copy_from_slice(&number.to_le_bytes());
    load
}

/// Where code in this range loads the number of a call that protects memory, and makes it; which number.
fn calls(memory: &Memory, range: &Range<u64>) -> Vec<(u64, u32)> {
    let patterns = NUMBERS.map(|number| (number, [&load(number)[..], &SYSCALL].concat()));
    let overlap = JUMP + SYSCALL.len() - 1;
    let mut found = Vec::new();
    for start in range.clone().step_by(PIECE) {
        let bytes = usize::try_from(range.end - start).unwrap_or(usize::MAX).min(PIECE + overlap);
        let mut piece = vec![0; bytes];
        let got = fieldstone_rewrite::Memory::read(memory, start, &mut piece);
        for (number, pattern) in &patterns {
            // Behind a prefix it is the load of another register.
            let is_alone =
                |offset: &usize| offset.checked_sub(1).is_none_or(|before| !matches!(piece[before], 0x40..=0x4f));
            let places = find_iter(&piece[..got], pattern).filter(is_alone);
            found.extend(places.map(|offset| (start + offset as u64, *number)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_librarys_own_is_found() {
        let memory = Memory::open(std::process::id()).unwrap();
        let own = libc::mprotect as *const () as u64;
        let table = crate::space::mappings(std::process::id()).unwrap();
        let code = table.iter().find(|mapping| mapping.range.contains(&own)).unwrap();
        let found = calls(&memory, &code.range);
        let is_own = |&(at, number): &(u64, u32)| number == NUMBERS[0] && (own..own + 16).contains(&at);
        assert!(found.iter().any(is_own), "{own:#x}: {found:x?}");
    }

    #[test]
    fn a_call_at_the_border_of_two_pieces_is_found_once() {
        let mut code = vec![0x90_u8; 2 * PIECE];
        let at = PIECE - 3;
        code[at..at + JUMP].copy_from_slice(&load(NUMBERS[1]));
        code[at + JUMP..at + JUMP + 2].copy_from_slice(&SYSCALL);
        let start = code.as_ptr().addr() as u64;
        let found = calls(&Memory::open(std::process::id()).unwrap(), &(start..start + code.len() as u64));
        assert_eq!(found, [(start + at as u64, NUMBERS[1])]);
    }

    #[test]
    fn who_is_in_a_lookout_or_through_begins_anew() {
        let place = Place { at: 0x1000, number: 10, lookout: 0x9000 };
        let protections = Protections { places: vec![place], searched: BTreeSet::new() };
        let last = 0x9000 + LOOKOUT_BYTES - 1;
        for (address, inside, again) in [
            (0x1000, None, None),
            (0x1005, None, Some(0x1000)),
            (0x9000, Some(0x1000), Some(0x1000)),
            (last + 1, None, None),
        ] {
            assert_eq!((protections.original(address), protections.again(address)), (inside, again), "{address:#x}");
        }
        assert!(protections.contains(last) && !protections.contains(0x1000));
    }
}
