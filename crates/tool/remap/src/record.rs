//! The record: all that is needed to restore a process, kept in the process itself. The next
//! repairer finds it if this one is killed.
//!
//! ```text
//!   header: magic, address of the contents, length │ half 0 │ half 1
//! ```
//! The contents are JSON. They go to the half that is not in use; then the header is written. The
//! header is one write within a page, so the record is always either the old or the new one.
//!
//! Invariants: a change of the process is recorded before it is made, unless undoing it needs
//! nothing. A state stays recorded while a child with a copy of it may appear. Children have no
//! record (`MADV_DONTFORK`).

use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::smaps::Mapping;
use serde::{Deserialize, Serialize};

use crate::children::ProcessSnapshot;
use crate::code_cache::CodeCache;
use crate::error::{Error, Result};
use crate::page_table::PageTable;
use crate::page_table::moved::PageMap;
use crate::tracer::{InsertedCode, Tracer, argument};

const MAGIC: [u8; 16] = *b"fieldstone-remap";
const HEADER_BYTES: usize = 32;
/// Offset of the first half.
const BEGIN: u64 = 4096;
const HALF_BYTES: u64 = 4 << 20;
const BYTES: u64 = BEGIN + 2 * HALF_BYTES;

/// The memory of a record.
#[derive(Debug)]
pub(crate) struct RepairRecord {
    at: u64,
    /// Address of the next contents.
    next: u64,
}

/// The contents of a record. The serialized names are part of its format.
#[derive(Debug, Serialize)]
struct Contents<'a> {
    userfault: i32,
    #[serde(rename = "home")]
    stub_page: Option<u64>,
    ours: RecordContents<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<RecordContents<'a>>,
}

impl Contents<'_> {
    /// The serialized form, or `None` if it is larger than a half.
    fn to_bytes(&self) -> Option<Vec<u8>> {
        serde_json::to_vec(self).ok().filter(|bytes| bytes.len() as u64 <= HALF_BYTES)
    }
}

#[derive(Debug, Serialize)]
struct RecordContents<'a> {
    moved: &'a PageMap,
    #[serde(flatten)]
    code: &'a CodeCache,
}

/// The part of [`Contents`] beside the code.
#[derive(Debug, Deserialize)]
struct ContentsWithPages {
    userfault: i32,
    #[serde(rename = "home")]
    stub_page: Option<u64>,
    ours: StateWithPages,
    before: Option<StateWithPages>,
}

#[derive(Debug, Deserialize)]
struct StateWithPages {
    moved: PageMap,
}

/// The code of [`Contents`].
#[derive(Debug, Deserialize)]
struct ContentsWithCode {
    ours: CodeCache,
    before: Option<CodeCache>,
}

/// What a killed repairer has left in a process.
#[derive(Debug)]
pub(crate) struct AbandonedRepair {
    pub(crate) record: RepairRecord,
    /// Number of the userfaultfd in the process.
    pub(crate) userfault: i32,
    pub(crate) stub_page: Option<u64>,
    pub(crate) pages: PageMap,
    pub(crate) code: CodeCache,
    /// An earlier state, of which a child may have a copy.
    pub(crate) before: Option<ProcessSnapshot>,
}

impl RepairRecord {
    const fn new(at: u64) -> Self {
        Self { at, next: at + BEGIN }
    }

    /// The record at `at`, whose present contents are at `last`.
    const fn after(at: u64, last: u64) -> Self {
        let begin = at + BEGIN;
        Self { at, next: if last == begin { begin + HALF_BYTES } else { begin } }
    }

    /// Maps memory for a record. All threads are stopped.
    ///
    /// # Errors
    /// If the process gets no memory.
    pub(crate) fn map(tracer: &mut Tracer, code: &dyn InsertedCode) -> Result<Self> {
        let flags = argument(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
        let arguments = [0, BYTES, argument(libc::PROT_READ), flags, u64::MAX, 0];
        Ok(Self::new(tracer.call(code, ("mmap", libc::SYS_mmap), arguments)?))
    }

    /// Excludes the record from children, whose pages are restored at their start. It also keeps
    /// the kernel from merging the mapping with a neighbour. All threads are stopped.
    ///
    /// # Errors
    /// As madvise(2).
    pub(crate) fn exclude_from_children(&self, tracer: &mut Tracer, code: &dyn InsertedCode) -> Result<()> {
        let arguments = [self.at, BYTES, argument(libc::MADV_DONTFORK), 0, 0, 0];
        tracer.call(code, ("madvise", libc::SYS_madvise), arguments).map(|_| ())
    }

    /// Unmaps the record. All threads are stopped.
    ///
    /// # Errors
    /// As [`Tracer::unmap`].
    pub(crate) fn unmap(self, tracer: &mut Tracer, code: &dyn InsertedCode) -> Result<()> {
        tracer.unmap(code, self.at, BYTES)
    }

    /// Records the present state. A thread may meet new code or new pages only after that.
    ///
    /// # Errors
    /// [`Error::Refused`] if the state is larger than a half of the record, or the process is gone.
    pub(crate) fn update(
        &mut self,
        tracer: &Tracer,
        (pages, code): (&PageTable, &CodeCache),
        before: Option<&ProcessSnapshot>,
    ) -> Result<()> {
        let why = "so much of it is redirected that it cannot be recorded for a later repairer".to_owned();
        let too_much = || Error::Refused { pid: tracer.pid(), why };
        let ours = RecordContents { moved: pages.pages(), code };
        let before = before.map(|ProcessSnapshot { pages, code }| RecordContents { moved: pages, code });
        let mut contents =
            Contents { userfault: pages.userfault().number(), stub_page: tracer.stub_page(), ours, before };
        let mut bytes = contents.to_bytes();
        if bytes.is_none() {
            // A restore must not fail for an earlier state, which few kills need.
            contents.before = None;
            bytes = contents.to_bytes();
        }
        self.write(tracer.memory(), &bytes.ok_or_else(too_much)?)
    }

    /// Replaces the contents by these bytes.
    fn write(&mut self, memory: &ProcessMemory, bytes: &[u8]) -> Result<()> {
        memory.write(self.next, bytes)?;
        memory.write(self.at, &header(self.next, bytes.len() as u64))?;
        *self = Self::after(self.at, self.next);
        Ok(())
    }
}

impl AbandonedRepair {
    /// The record of a killed repairer, if there is one.
    ///
    /// # Errors
    /// [`Error::Refused`] if another version with another format wrote it.
    pub(crate) fn find(pid: u32, memory: &ProcessMemory, table: &[Mapping]) -> Result<Option<Self>> {
        let can_be =
            |mapping: &&Mapping| mapping.has_permissions("r--p") && !mapping.is_file() && mapping.name.is_empty();
        // Two adjacent records are one mapping.
        let places = table.iter().filter(can_be).flat_map(|mapping| {
            let range = mapping.range();
            let whole = if (range.end - range.start).is_multiple_of(BYTES) { range } else { 0..0 };
            whole.step_by(usize::try_from(BYTES).unwrap_or(usize::MAX))
        });
        for at in places {
            let Some((from, bytes)) = read(memory, at) else { continue };
            let unreadable = |error: serde_json::Error| Error::Refused {
                pid,
                why: format!("the record of an earlier repair cannot be read ({error}): use the version that wrote it"),
            };
            return Self::parse(RepairRecord::after(at, from), &bytes).map(Some).map_err(unreadable);
        }
        Ok(None)
    }

    fn parse(record: RepairRecord, bytes: &[u8]) -> serde_json::Result<Self> {
        let ContentsWithPages { userfault, stub_page, ours, before: pages_before } = serde_json::from_slice(bytes)?;
        let ContentsWithCode { ours: code, before: code_before } = serde_json::from_slice(bytes)?;
        let before = pages_before.zip(code_before);
        let before = before.map(|(pages, code)| ProcessSnapshot { pages: pages.moved, code });
        Ok(Self { record, userfault, stub_page, pages: ours.moved, code, before })
    }
}

fn header(from: u64, bytes: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..16].copy_from_slice(&MAGIC);
    header[16..24].copy_from_slice(&from.to_le_bytes());
    header[24..].copy_from_slice(&bytes.to_le_bytes());
    header
}

/// Address and bytes of the contents, by the header at `at`. `None` if there is no header.
fn read(memory: &ProcessMemory, at: u64) -> Option<(u64, Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    memory.read_exact(at, &mut header).ok()?;
    let number = |offset: usize| header[offset..offset + 8].try_into().map(u64::from_le_bytes).ok();
    let (from, bytes) = (number(16)?, number(24)?);
    if header[..16] != MAGIC || bytes > HALF_BYTES {
        return None;
    }
    let mut contents = vec![0; usize::try_from(bytes).ok()?];
    memory.read_exact(from, &mut contents).ok()?;
    Some((from, contents))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_complete_record_is_found() {
        let room = vec![0_u8; usize::try_from(BYTES).unwrap()];
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let at = room.as_ptr().addr() as u64;
        let mut record = RepairRecord::new(at);
        assert_eq!(read(&memory, at), None, "there is no record");
        for text in ["one", "another", "a third one"] {
            record.write(&memory, text.as_bytes()).unwrap();
            assert_eq!(read(&memory, at).unwrap().1, text.as_bytes());
        }
        // The repairer is killed in the middle of the next write.
        memory.write(record.next, b"half of").unwrap();
        assert_eq!(read(&memory, at).unwrap().1, b"a third one");
        memory.write(at, &header(at + BEGIN, HALF_BYTES + 1)).unwrap();
        assert_eq!(read(&memory, at), None, "no record is that long");
        drop(room);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let (pages, code) = (PageMap::default(), CodeCache::default());
        let ours = || RecordContents { moved: &pages, code: &code };
        let mut contents = Contents { userfault: 812, stub_page: Some(0x5000), ours: ours(), before: None };
        let bytes = serde_json::to_vec(&contents).unwrap();
        let found = AbandonedRepair::parse(RepairRecord::new(0), &bytes).unwrap();
        assert!(found.userfault == 812 && found.stub_page == Some(0x5000) && found.pages.is_empty());
        assert!(found.before.is_none());
        let format = r#"{"userfault":812,"home":20480,"ours":{"moved":{},"code":[],"heads":{"led":{},"retired":[],"sprung":[]},"sites":{},"protections":{"places":[]}}}"#;
        assert_eq!(String::from_utf8(bytes).unwrap(), format, "the format of earlier versions");
        contents.before = Some(ours());
        let bytes = serde_json::to_vec(&contents).unwrap();
        assert!(AbandonedRepair::parse(RepairRecord::new(0), &bytes).unwrap().before.is_some());
    }
}
