//! What it takes to put everything back, kept in the process itself: whoever comes after us, should we be killed, finds it there.
//!
//! ```text
//!   magic, where the bytes are, how many │ one half: as it is │ other half: as it was before
//! ```
//! Before anything is done to the process that would have to be undone, all of it is written to the half that is not in use, and then
//! the header, which is one write within a page: the record is the old one or the new one. Children have none of it.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::ours::Ours;
use crate::process::{Process, word};
use crate::space::Mapping;

const MAGIC: [u8; 16] = *b"fieldstone-remap";
const HEADER_BYTES: usize = 32;
/// Where the first half begins.
const BEGIN: u64 = 4096;
const HALF_BYTES: u64 = 4 << 20;
const BYTES: u64 = BEGIN + 2 * HALF_BYTES;

/// Memory of the process that a record is kept in.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) at: u64,
    /// Where the next one goes.
    next: u64,
}

/// What is kept.
#[derive(Debug, Serialize)]
struct Keep<'a> {
    userfault: i32,
    home: Option<u64>,
    ours: &'a Ours,
}

/// What somebody has left behind.
#[derive(Debug, Deserialize)]
pub(crate) struct Left {
    #[serde(skip)]
    pub(crate) record: Option<Record>,
    /// The descriptor's number in the process.
    pub(crate) userfault: i32,
    /// The page in which calls were made.
    pub(crate) home: Option<u64>,
    pub(crate) ours: Ours,
}

impl Record {
    /// Bytes of it.
    pub(crate) const BYTES: u64 = BYTES;

    const fn new(at: u64) -> Self {
        Self { at, next: at + BEGIN }
    }

    /// The one at `at`, whose bytes were written at `last`.
    const fn after(at: u64, last: u64) -> Self {
        let begin = at + BEGIN;
        Self { at, next: if last == begin { begin + HALF_BYTES } else { begin } }
    }

    /// Keeps these bytes instead of the last ones.
    fn keep(&mut self, memory: &Memory, bytes: &[u8]) -> Result<()> {
        memory.write(self.next, bytes)?;
        memory.write(self.at, &header(self.next, bytes.len() as u64))?;
        *self = Self::after(self.at, self.next);
        Ok(())
    }
}

impl Left {
    /// What is there, if anything is.
    ///
    /// # Errors
    /// Where it was written by a version that kept something else.
    pub(crate) fn find(pid: u32, memory: &Memory, table: &[Mapping]) -> Result<Option<Self>> {
        let can_be = |mapping: &&Mapping| mapping.permissions == "r--p" && !mapping.is_file && mapping.name.is_empty();
        // Two of them side by side are one mapping.
        let places = table.iter().filter(can_be).flat_map(|mapping| {
            let range = mapping.range.clone();
            let whole = if (range.end - range.start).is_multiple_of(BYTES) { range } else { 0..0 };
            whole.step_by(usize::try_from(BYTES).unwrap_or(usize::MAX))
        });
        for at in places {
            let Some((from, bytes)) = read(memory, at) else { continue };
            let unreadable = |error: serde_json::Error| Error::Refused {
                pid,
                why: format!("what was done to it before cannot be read ({error}): use the version that did it"),
            };
            let left: Self = serde_json::from_slice(&bytes).map_err(unreadable)?;
            return Ok(Some(Self { record: Some(Record::after(at, from)), ..left }));
        }
        Ok(None)
    }
}

fn header(from: u64, bytes: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..16].copy_from_slice(&MAGIC);
    header[16..24].copy_from_slice(&from.to_le_bytes());
    header[24..].copy_from_slice(&bytes.to_le_bytes());
    header
}

/// Where the bytes are that the header at this address tells of, and these.
fn read(memory: &Memory, at: u64) -> Option<(u64, Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    memory.read_exact(at, &mut header).ok()?;
    let number = |offset: usize| header[offset..offset + 8].try_into().map(u64::from_le_bytes).ok();
    let (from, bytes) = (number(16)?, number(24)?);
    if header[..16] != MAGIC || bytes > HALF_BYTES {
        return None;
    }
    let mut kept = vec![0; usize::try_from(bytes).ok()?];
    memory.read_exact(from, &mut kept).ok()?;
    Some((from, kept))
}

impl Process {
    /// Makes room for a record.
    ///
    /// # Errors
    /// Where the process gets no memory for it.
    pub(crate) fn begin_record(&mut self) -> Result<()> {
        if self.record.is_some() {
            return Ok(());
        }
        self.threads.stop_all()?;
        let made = self.make_room();
        self.resume_all()?;
        made
    }

    fn make_room(&mut self) -> Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let at =
            self.call(("mmap", libc::SYS_mmap), [0, Record::BYTES, word(libc::PROT_READ), word(flags), u64::MAX, 0])?;
        self.record = Some(Record::new(at));
        // Children are given their pages back when they are born: for them it would be wrong. It keeps neighbours from being taken into one
        // mapping with it, too.
        self.call(("madvise", libc::SYS_madvise), [at, Record::BYTES, word(libc::MADV_DONTFORK), 0, 0, 0]).map(|_| ())
    }

    /// Keeps what there is of ours in the process. To be called before a thread meets what is new.
    ///
    /// # Errors
    /// Where the process is gone, or there is more than has room.
    pub(crate) fn keep_record(&mut self) -> Result<()> {
        let pid = self.pid();
        let why = "so much of it is redirected that it cannot be kept for who comes after us".to_owned();
        let too_much = || Error::Refused { pid, why };
        let Some(record) = &mut self.record else { return Ok(()) };
        let keep = Keep { userfault: self.theirs, home: self.way.home, ours: &self.ours };
        let bytes = serde_json::to_vec(&keep).ok().filter(|bytes| bytes.len() as u64 <= HALF_BYTES);
        record.keep(&self.memory, &bytes.ok_or_else(too_much)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_record_is_what_is_found() {
        let room = vec![0_u8; usize::try_from(BYTES).unwrap()];
        let memory = Memory::open(std::process::id()).unwrap();
        let at = room.as_ptr().addr() as u64;
        let mut record = Record::new(at);
        assert_eq!(read(&memory, at), None, "nothing is there");
        for text in ["one", "another", "a third one"] {
            record.keep(&memory, text.as_bytes()).unwrap();
            assert_eq!(read(&memory, at).unwrap().1, text.as_bytes());
        }
        // Killed after half of the next one.
        memory.write(record.next, b"half of").unwrap();
        assert_eq!(read(&memory, at).unwrap().1, b"a third one");
        memory.write(at, &header(at + BEGIN, HALF_BYTES + 1)).unwrap();
        assert_eq!(read(&memory, at), None, "no record of ours is as long");
        drop(room);
    }

    #[test]
    fn what_is_kept_is_what_is_found() {
        let keep = Keep { userfault: 812, home: Some(0x5000), ours: &Ours::default() };
        let left: Left = serde_json::from_slice(&serde_json::to_vec(&keep).unwrap()).unwrap();
        assert!(
            left.userfault == 812 && left.home == Some(0x5000) && left.ours.moved.is_empty() && left.record.is_none()
        );
    }
}
