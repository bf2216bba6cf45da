//! Executable memory in the process, near the program's code, and its allocation.
//!
//! ```text
//!   program   ... loop: add [rax], 1 ...       within 1 GiB       region   | rewritelet | clone |   free   |
//!                 ^------------------------- jumps -----------------------------'
//! ```
//! The process may read and execute a region, and not write it; the repairer writes through
//! `/proc`. Algorithm: first fit in address order, with a map of the reserved places.

use std::collections::BTreeMap;
use std::ops::Range;

use fieldstone_rewrite::Pun;
use fieldstone_rewrite::patch::JUMP_BYTES;
use serde::{Deserialize, Serialize};

use crate::code_cache::CodeCache;
use crate::error::{Error, Result};
use crate::space::{free_at, free_near};
use crate::tracer::Tracer;

/// Size of one region.
const REGION_BYTES: u64 = 256 << 10;
/// Alignment of code in a region.
const ALIGNMENT: u64 = 16;
/// Size of a station: a jump to the newest clone.
const STATION_BYTES: u64 = JUMP_BYTES;
const PAGE: u64 = 4096;
/// Attempts to make code that turns out too large for its place.
const MAX_TRIES: u32 = 3;
/// Maximum distance of the program's code from a region, so that jumps and data references reach
/// it.
const NEAR: u64 = 1 << 30;

/// A range of executable memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct CodeRegion {
    range: Range<u64>,
    /// Sizes of the reserved places, by address.
    taken: BTreeMap<u64, u64>,
}

/// The executable memory of a code cache.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CodeArena(Vec<CodeRegion>);

impl CodeArena {
    /// Whether an address is in the arena.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.0.iter().any(|region| region.range.contains(&address))
    }

    /// Reserves `bytes` bytes within reach of `ip`.
    fn take(&mut self, ip: u64, bytes: u64) -> Option<u64> {
        let near = |region: &&mut CodeRegion| region.range.start.abs_diff(ip) < NEAR;
        self.0.iter_mut().filter(near).find_map(|region| region.take(bytes))
    }

    /// Reserves `bytes` bytes at an address that the pun permits as a jump target.
    fn take_punned(&mut self, pun: &Pun, bytes: u64) -> Option<u64> {
        let near = |region: &&mut CodeRegion| region.range.start.abs_diff(pun.after) < NEAR;
        self.0.iter_mut().filter(near).find_map(|region| region.take_punned(pun, bytes))
    }

    /// The ranges of all regions.
    pub(crate) fn ranges(&self) -> Vec<Range<u64>> {
        self.0.iter().map(|region| region.range.clone()).collect()
    }

    /// An arena of one region.
    #[cfg(test)]
    pub(crate) fn of_range(range: Range<u64>) -> Self {
        Self(vec![CodeRegion { range, taken: BTreeMap::new() }])
    }

    /// Frees a place.
    pub(crate) fn free(&mut self, at: u64) {
        for region in &mut self.0 {
            region.taken.remove(&at);
        }
    }
}

impl CodeRegion {
    /// Reserves the first gap that is large enough.
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

    /// Free ranges, each from an aligned address on.
    fn gaps(&self) -> impl Iterator<Item = (u64, u64)> {
        let ends = self.taken.iter().map(|(start, bytes)| (start + bytes).next_multiple_of(ALIGNMENT));
        let starts = self.taken.keys().copied().chain([self.range.end]);
        std::iter::once(self.range.start).chain(ends).zip(starts)
    }
}

impl CodeCache {
    /// Reserves a place for code near `ip`, at an address that `pun` permits if there is one. Maps
    /// a new region if needed; all threads are stopped meanwhile.
    ///
    /// # Errors
    /// [`Error::Refused`] if no memory near `ip` is free.
    pub(super) fn reserve(&mut self, tracer: &mut Tracer, ip: u64, bytes: u64, pun: Option<&Pun>) -> Result<u64> {
        let arena = &mut self.arena;
        if let Some(at) = pun.and_then(|pun| arena.take_punned(pun, bytes)).or_else(|| arena.take(ip, bytes)) {
            return Ok(at);
        }
        let (pid, near) = (tracer.pid(), ip..ip + 1);
        let no_room = || Error::Refused { pid, why: format!("no free memory is near the code at {ip:#x}") };
        let start = free_near(&tracer.mappings()?, &near, REGION_BYTES).ok_or_else(no_room)?;
        self.add_region(tracer, start..start + REGION_BYTES)?;
        self.arena
            .take(ip, bytes)
            .ok_or_else(|| Error::Refused { pid, why: format!("a rewritelet of {bytes} bytes is too large") })
    }

    fn add_region(&mut self, tracer: &mut Tracer, range: Range<u64>) -> Result<()> {
        tracer.stop_all()?;
        let mapped = tracer.map(self, range.start, range.end - range.start, libc::PROT_READ | libc::PROT_EXEC);
        tracer.resume_all(self)?;
        mapped?;
        self.arena.0.push(CodeRegion { range, taken: BTreeMap::new() });
        Ok(())
    }

    /// Reserves a place for a jump at an address that the pun permits. `None` if there is none.
    ///
    /// # Errors
    /// If the process gets no memory.
    pub(super) fn reserve_station(&mut self, tracer: &mut Tracer, pun: &Pun) -> Result<Option<u64>> {
        if let Some(at) = self.arena.take_punned(pun, STATION_BYTES) {
            return Ok(Some(at));
        }
        let table = tracer.mappings()?;
        let within = pun.after.saturating_sub(NEAR)..pun.after.saturating_add(NEAR);
        // Prefer a region with room for clones, which are jump targets too.
        let range = [REGION_BYTES, STATION_BYTES].into_iter().find_map(|bytes| {
            let at = free_at(&table, &within, bytes, |from| pun.entry_from(from))?;
            Some(at / PAGE * PAGE..(at + bytes).next_multiple_of(PAGE))
        });
        let Some(range) = range else { return Ok(None) };
        self.add_region(tracer, range)?;
        Ok(self.arena.take_punned(pun, STATION_BYTES))
    }

    /// Makes code that stands for the instruction at `ip` and writes it to a place of `room_bytes`
    /// bytes, or more if the code is larger. `None` if the code cannot be made; no place stays
    /// reserved then.
    ///
    /// # Errors
    /// As [`Self::reserve`], and if the process is gone.
    pub(super) fn place<T>(
        &mut self,
        tracer: &mut Tracer,
        (ip, pun, room_bytes): (u64, Option<&Pun>, u64),
        mut make: impl FnMut(&Self, u64) -> Option<T>,
        bytes_of: impl Fn(&T) -> &[u8],
    ) -> Result<Option<T>> {
        let (mut pun, mut room_bytes) = (pun, room_bytes);
        for _ in 0..MAX_TRIES {
            let at = self.reserve(tracer, ip, room_bytes, pun)?;
            let made = make(self, at);
            let needed = made.as_ref().map(|made| bytes_of(made).len() as u64);
            if needed.is_some_and(|needed| needed <= room_bytes) {
                tracer.memory().write(at, made.as_ref().map(&bytes_of).unwrap_or_default())?;
                return Ok(made);
            }
            self.arena.free(at);
            match needed {
                // Jumps may be longer at another place.
                Some(needed) => room_bytes = needed + needed / 4,
                // A reference may not reach its target from a place that the pun permits.
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
    fn a_station_is_at_an_address_that_its_pun_permits() {
        // An instruction begins at the second byte of the displacement, which counts from 0x1005.
        let pun = Pun { after: 0x1005, mask: 0xff00, value: 0xcc00 };
        let mut arena = CodeArena::of_range(0xd000..0xde00);
        assert_eq!([0; 3].map(|_| arena.take_punned(&pun, STATION_BYTES)), [Some(0xdc05), Some(0xdc10), Some(0xdc20)]);
        assert_eq!(arena.take(0x1000, 0xc00), Some(0xd000), "the range before the first is free");
        assert_eq!(arena.take(0x1000, 16), Some(0xdc30));
        assert_eq!(
            CodeArena::of_range(0xd000..0xdc09).take_punned(&pun, STATION_BYTES),
            None,
            "the place does not fit"
        );
    }

    #[test]
    fn a_freed_gap_is_reused() {
        let mut arena = CodeArena(vec![CodeRegion { range: 0x1000..0x1040, taken: BTreeMap::new() }]);
        assert_eq!([17, 10, 16].map(|bytes| arena.take(0x2000, bytes)), [Some(0x1000), Some(0x1020), Some(0x1030)]);
        assert_eq!(arena.take(0x2000, 1), None, "full");
        arena.free(0x1000);
        assert_eq!([16, 16].map(|bytes| arena.take(0x2000, bytes)), [Some(0x1000), Some(0x1010)]);
        arena.free(0x1030);
        assert_eq!(arena.take(0x1000 + NEAR, 1), None, "too far");
        assert!(arena.contains(0x103f) && !arena.contains(0x1040));
    }
}
