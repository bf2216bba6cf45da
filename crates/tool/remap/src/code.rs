//! Room for rewritelets: executable memory in the process, near the code that they stand for, written from outside.
//!
//! ```text
//!   program   ... loop: add [rax], 1 ...        within 2 GiB         cache   | rewritelet | clone |   free   |
//!                 ^---------- jumps ------------------------------------------'
//! ```
//! The process itself may read and execute it, and not write. A rewritelet stays where it is as long as a thread may be in it; what
//! is given up is used again by the next of its size or smaller.

use std::collections::BTreeMap;
use std::ops::Range;

use fieldstone_rewrite::Pun;
use fieldstone_rewrite::patch::JUMP_BYTES;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::process::Process;
use crate::space::{free_at, free_near};

/// Bytes of one cache.
const CACHE_BYTES: u64 = 256 << 10;
/// Rewritelets begin at multiples of it.
const ALIGNMENT: u64 = 16;
/// Room for a jump.
const STATION_BYTES: u64 = JUMP_BYTES;
const PAGE: u64 = 4096;
/// How often code is made that had no room where it was tried.
const TRIES: u32 = 3;
/// How far from a cache code may be: what is in the cache reaches it, and its data beside it.
const NEAR: u64 = 1 << 30;

/// A piece of executable memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Cache {
    range: Range<u64>,
    /// What is taken, by address.
    taken: BTreeMap<u64, u64>,
}

/// All caches of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Code(Vec<Cache>);

impl Code {
    /// Whether an address is in one of them.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.0.iter().any(|cache| cache.range.contains(&address))
    }

    /// A free place of so many bytes within reach of `ip`.
    fn take(&mut self, ip: u64, bytes: u64) -> Option<u64> {
        let near = |cache: &&mut Cache| cache.range.start.abs_diff(ip) < NEAR;
        self.0.iter_mut().filter(near).find_map(|cache| cache.take(bytes))
    }

    /// A free place for so many bytes where a jump may lead that overwrites what this is the pun of.
    fn take_punned(&mut self, pun: &Pun, bytes: u64) -> Option<u64> {
        let near = |cache: &&mut Cache| cache.range.start.abs_diff(pun.after) < NEAR;
        self.0.iter_mut().filter(near).find_map(|cache| cache.take_punned(pun, bytes))
    }

    /// Where they are.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        self.0.iter().map(|cache| cache.range.clone()).collect()
    }

    /// With one cache.
    #[cfg(test)]
    pub(crate) fn of_range(range: Range<u64>) -> Self {
        Self(vec![Cache { range, taken: BTreeMap::new() }])
    }

    /// Gives a place back.
    pub(crate) fn free(&mut self, at: u64) {
        for cache in &mut self.0 {
            cache.taken.remove(&at);
        }
    }
}

impl Cache {
    /// The first gap that is large enough.
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        let (at, _) = self.gaps().find(|(from, to)| to.saturating_sub(*from) >= bytes)?;
        self.taken.insert(at, bytes);
        Some(at)
    }

    fn take_punned(&mut self, pun: &Pun, bytes: u64) -> Option<u64> {
        let fits = |(from, to): (u64, u64)| pun.entry_from(from).filter(|at| at + bytes <= to);
        let at = self.gaps().find_map(fits)?;
        self.taken.insert(at, bytes);
        Some(at)
    }

    /// What is free, each from an aligned address on.
    fn gaps(&self) -> impl Iterator<Item = (u64, u64)> {
        let ends = self.taken.iter().map(|(start, bytes)| (start + bytes).next_multiple_of(ALIGNMENT));
        let starts = self.taken.keys().copied().chain([self.range.end]);
        std::iter::once(self.range.start).chain(ends).zip(starts)
    }
}

impl Process {
    /// A place for code of so many bytes that stands for what is at `ip`, where a jump with this pun may lead if there is one. All threads stand
    /// still where a new cache is mapped.
    ///
    /// # Errors
    /// [`Error::Refused`] where there is no room.
    pub(crate) fn room_for_code(&mut self, ip: u64, bytes: u64, pun: Option<&Pun>) -> Result<u64> {
        let code = &mut self.ours.code;
        if let Some(at) = pun.and_then(|pun| code.take_punned(pun, bytes)).or_else(|| code.take(ip, bytes)) {
            return Ok(at);
        }
        let near = ip..ip + 1;
        let no_room = || Error::Refused { pid: self.pid(), why: format!("no free memory is near the code at {ip:#x}") };
        let start = free_near(&self.mappings()?, &near, CACHE_BYTES).ok_or_else(no_room)?;
        self.add_cache(start..start + CACHE_BYTES)?;
        self.ours.code.take(ip, bytes).ok_or_else(|| Error::Refused {
            pid: self.pid(),
            why: format!("a rewritelet of {bytes} bytes is too large"),
        })
    }

    fn add_cache(&mut self, range: Range<u64>) -> Result<()> {
        self.threads.stop_all()?;
        let mapped = self.map(range.start, range.end - range.start, libc::PROT_READ | libc::PROT_EXEC);
        self.resume_all()?;
        mapped?;
        self.ours.code.0.push(Cache { range, taken: BTreeMap::new() });
        Ok(())
    }

    /// A place for a jump, to which one may lead that overwrites what this is the pun of. None where there is none.
    ///
    /// # Errors
    /// Where the process refuses the memory.
    pub(crate) fn room_for_station(&mut self, pun: &Pun) -> Result<Option<u64>> {
        if let Some(at) = self.ours.code.take_punned(pun, STATION_BYTES) {
            return Ok(Some(at));
        }
        let table = self.mappings()?;
        let within = pun.after.saturating_sub(NEAR)..pun.after.saturating_add(NEAR);
        // With room for clones, to which the jump may lead as well.
        let room = [CACHE_BYTES, STATION_BYTES].into_iter().find_map(|bytes| {
            let at = free_at(&table, &within, bytes, |from| pun.entry_from(from))?;
            Some(at / PAGE * PAGE..(at + bytes).next_multiple_of(PAGE))
        });
        let Some(room) = room else { return Ok(None) };
        self.add_cache(room)?;
        Ok(self.ours.code.take_punned(pun, STATION_BYTES))
    }
}

impl Process {
    /// Makes code that stands for what is at `ip`, and writes it to a place that has room for it, with this pun where there is one; so many
    /// bytes are tried first. None where it cannot be made: nothing is taken then.
    ///
    /// # Errors
    /// As [`Self::room_for_code`], and where the process is gone.
    pub(crate) fn place<T>(
        &mut self,
        ip: u64,
        pun: Option<&Pun>,
        room_bytes: u64,
        mut make: impl FnMut(&Self, u64) -> Option<T>,
        bytes_of: impl Fn(&T) -> &[u8],
    ) -> Result<Option<T>> {
        let (mut pun, mut room_bytes) = (pun, room_bytes);
        for _ in 0..TRIES {
            let at = self.room_for_code(ip, room_bytes, pun)?;
            let made = make(self, at);
            let needed = made.as_ref().map(|made| bytes_of(made).len() as u64);
            if needed.is_some_and(|needed| needed <= room_bytes) {
                self.memory.write(at, made.as_ref().map(&bytes_of).unwrap_or_default())?;
                return Ok(made);
            }
            self.ours.code.free(at);
            match needed {
                // At another place jumps may be longer.
                Some(needed) => room_bytes = needed + needed / 4,
                // What it refers to may be too far from there.
                None if pun.take().is_some() => {}
                None => return Ok(None),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_lies_where_a_jump_with_traps_in_it_may_lead() {
        // An instruction began at the second byte of the distance, which counts from 0x1005.
        let pun = Pun { after: 0x1005, mask: 0xff00, value: 0xcc00 };
        let mut code = Code::of_range(0xd000..0xde00);
        assert_eq!([0; 3].map(|_| code.take_punned(&pun, STATION_BYTES)), [Some(0xdc05), Some(0xdc10), Some(0xdc20)]);
        assert_eq!(code.take(0x1000, 0xc00), Some(0xd000), "what lies before the first is free");
        assert_eq!(code.take(0x1000, 16), Some(0xdc30));
        assert_eq!(Code::of_range(0xd000..0xdc09).take_punned(&pun, STATION_BYTES), None, "half of it");
    }

    #[test]
    fn a_gap_is_used_again() {
        let mut code = Code(vec![Cache { range: 0x1000..0x1040, taken: BTreeMap::new() }]);
        assert_eq!([17, 10, 16].map(|bytes| code.take(0x2000, bytes)), [Some(0x1000), Some(0x1020), Some(0x1030)]);
        assert_eq!(code.take(0x2000, 1), None, "full");
        code.free(0x1000);
        assert_eq!([16, 16].map(|bytes| code.take(0x2000, bytes)), [Some(0x1000), Some(0x1010)]);
        code.free(0x1030);
        assert_eq!(code.take(0x1000 + NEAR, 1), None, "too far");
        assert!(code.contains(0x103f) && !code.contains(0x1040));
    }
}
