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

use crate::error::{Error, Result};
use crate::process::Process;
use crate::space::{free_near, mappings};

/// Bytes of one cache.
const CACHE_BYTES: u64 = 256 << 10;
/// Rewritelets begin at multiples of it.
const ALIGNMENT: u64 = 16;
/// How far from a cache code may be: what is in the cache reaches it, and its data beside it.
const NEAR: u64 = 1 << 30;

/// A piece of executable memory.
#[derive(Debug)]
struct Cache {
    range: Range<u64>,
    /// What is taken, by address.
    taken: BTreeMap<u64, u64>,
}

/// All caches of a process.
#[derive(Debug, Default)]
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
        let ends = self.taken.iter().map(|(start, bytes)| start + bytes);
        let starts = self.taken.keys().copied().chain([self.range.end]);
        let mut gaps = std::iter::once(self.range.start).chain(ends).zip(starts);
        let (at, _) = gaps.find(|(from, to)| to - from >= bytes)?;
        self.taken.insert(at, bytes);
        Some(at)
    }
}

impl Process {
    /// A place for code of so many bytes that stands for what is at `ip`. All threads stand still where a new cache is mapped.
    ///
    /// # Errors
    /// [`Error::Refused`] where there is no room.
    fn room_for_code(&mut self, ip: u64, bytes: u64) -> Result<u64> {
        if let Some(at) = self.code.take(ip, bytes) {
            return Ok(at);
        }
        let near = ip..ip + 1;
        let no_room = || Error::Refused { pid: self.pid(), why: format!("no free memory is near the code at {ip:#x}") };
        let start = free_near(&mappings(self.pid())?, &near, CACHE_BYTES).ok_or_else(no_room)?;
        self.threads.stop_all()?;
        let mapped = self.map(start, CACHE_BYTES, libc::PROT_READ | libc::PROT_EXEC);
        self.threads.resume_all()?;
        mapped?;
        self.code.0.push(Cache { range: start..start + CACHE_BYTES, taken: BTreeMap::new() });
        self.code.take(ip, bytes).ok_or_else(|| Error::Refused {
            pid: self.pid(),
            why: format!("a rewritelet of {bytes} bytes is too large"),
        })
    }
}

impl Process {
    /// Makes code that stands for what is at `ip`, and writes it to a place with room for so many bytes. None where it cannot be made, or has
    /// no room: nothing is taken then.
    ///
    /// # Errors
    /// As [`Self::room_for_code`], and where the process is gone.
    pub(crate) fn place<T>(
        &mut self,
        ip: u64,
        room_bytes: u64,
        make: impl FnOnce(&Self, u64) -> Option<T>,
        bytes_of: impl FnOnce(&T) -> &[u8],
    ) -> Result<Option<T>> {
        let at = self.room_for_code(ip, room_bytes)?;
        let made = make(self, at);
        let code = made.as_ref().map(bytes_of).filter(|code| code.len() as u64 <= room_bytes);
        let Some(code) = code else {
            self.code.free(at);
            return Ok(None);
        };
        self.memory.write(at, code)?;
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
