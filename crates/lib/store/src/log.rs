//! The log: what each commit has changed, until the pages themselves are written.
//!
//! ```text
//! half 0 │ record │ record │ …          one epoch; the next one is in the other half
//! half 1 │ …
//! ```
//! A record is a header of 64 bytes and the changed lines of each page, filled up to whole blocks:
//! ```text
//!  0 check      of the header, seeded with the store
//!  8 epoch
//! 16 sequence   of the commit
//! 24 bytes      of the changes
//! 32 entries
//! 36 end        pages of the file
//! 40 apart      where in the file the changes are, 0 for behind the header
//! 48 check      of the changes, seeded with the store
//! 56 reserved
//! 64 changes    for each page: its number, 1 if the lines are a whole page, the mask of its lines, the lines
//! ```
//! The changes of a large transaction are behind the end of the file until its pages are in their places.
//! Nothing else is committed before that.
//!
//! The first record of an epoch with a page contains it whole (lines of zeros left out). So recovery needs
//! no page of the file, and a page that was torn when the file was written becomes whole.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::lines;
use crate::page::{PAGE, Page, set_u32, set_u64, u32_at, u64_at};

/// The unit of writes.
pub(crate) const BLOCK: usize = 512;
const HEADER: usize = 64;
const ENTRY: usize = 16;

static ZEROS: Page = [0; PAGE];

/// A commit that is written to the log.
#[derive(Debug)]
pub(crate) struct Record {
    bytes: Vec<u8>,
    entries: u32,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; HEADER], entries: 0 }
    }

    /// Adds the change of a page. Without an old version, the whole page.
    pub(crate) fn add(&mut self, number: u32, new: &Page, old: Option<&Page>) {
        let entry = self.bytes.len();
        self.bytes.resize(entry + ENTRY, 0);
        let mask = lines::append(new, old.unwrap_or(&ZEROS), &mut self.bytes);
        set_u32(&mut self.bytes, entry, number);
        set_u32(&mut self.bytes, entry + 4, old.is_none().into());
        set_u64(&mut self.bytes, entry + 8, mask);
        self.entries += 1;
    }

    /// Bytes in the log.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len().next_multiple_of(BLOCK)
    }

    /// The changes, behind room for the header.
    pub(crate) fn changes(&self) -> &[u8] {
        &self.bytes[HEADER..]
    }

    /// The bytes for the log: with the changes, or without them if they are `apart`.
    pub(crate) fn finish(mut self, store: u64, epoch: u64, sequence: u64, end: u32, apart: u64) -> Vec<u8> {
        let (bytes, check) = (self.changes().len() as u64, xxh3_64_with_seed(self.changes(), store));
        let header = &mut self.bytes[..HEADER];
        set_u64(header, 8, epoch);
        set_u64(header, 16, sequence);
        set_u64(header, 24, bytes);
        set_u32(header, 32, self.entries);
        set_u32(header, 36, end);
        set_u64(header, 40, apart);
        set_u64(header, 48, check);
        let check = xxh3_64_with_seed(&header[8..], store);
        set_u64(header, 0, check);
        let blocks = if apart == 0 {
            self.bytes()
        } else {
            self.bytes.truncate(HEADER);
            BLOCK
        };
        self.bytes.resize(blocks, 0);
        self.bytes
    }
}

/// A record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Pages of the file.
    pub(crate) end: u32,
    /// Where the changes are in the file; 0 for behind the header.
    pub(crate) apart: u64,
    /// Bytes of the changes.
    pub(crate) bytes: usize,
    /// Pages that it changes.
    pub(crate) entries: u32,
    check: u64,
}

/// The record at the beginning of these bytes, if it is the one of this commit.
pub(crate) fn find(bytes: &[u8], store: u64, epoch: u64, sequence: u64) -> Option<Found> {
    let header = bytes.get(..HEADER)?;
    let is_whole = u64_at(header, 0) == xxh3_64_with_seed(&header[8..], store);
    if !is_whole || u64_at(header, 8) != epoch || u64_at(header, 16) != sequence {
        return None;
    }
    let found = Found {
        end: u32_at(header, 36),
        apart: u64_at(header, 40),
        bytes: usize::try_from(u64_at(header, 24)).ok()?,
        entries: u32_at(header, 32),
        check: u64_at(header, 48),
    };
    (found.apart != 0 || found.lines(bytes).is_some_and(|lines| found.has(lines, store))).then_some(found)
}

impl Found {
    /// The changes behind the header.
    pub(crate) fn lines<'a>(&self, record: &'a [u8]) -> Option<&'a [u8]> {
        record.get(HEADER..)?.get(..self.bytes)
    }

    /// Whether these are its changes.
    pub(crate) fn has(&self, changes: &[u8], store: u64) -> bool {
        changes.len() == self.bytes && xxh3_64_with_seed(changes, store) == self.check
    }

    /// Bytes in the log.
    pub(crate) const fn in_log(&self) -> usize {
        if self.apart == 0 { (HEADER + self.bytes).next_multiple_of(BLOCK) } else { BLOCK }
    }

    /// The changes; `None` at the end if they contradict themselves.
    pub(crate) fn changes<'a>(&self, lines: &'a [u8]) -> impl Iterator<Item = Option<Change<'a>>> + use<'a> {
        let mut rest = lines;
        (0..self.entries).map(move |_| {
            let (entry, behind) = rest.split_at_checked(ENTRY)?;
            let mask = u64_at(entry, 8);
            let (lines, behind) = behind.split_at_checked(mask.count_ones() as usize * 64)?;
            rest = behind;
            Some(Change { number: u32_at(entry, 0), is_whole: u32_at(entry, 4) != 0, mask, lines })
        })
    }
}

/// What a record says of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) number: u32,
    pub(crate) is_whole: bool,
    mask: u64,
    lines: &'a [u8],
}

impl Change<'_> {
    /// Makes the change.
    pub(crate) fn apply(&self, page: &mut Page) {
        if self.is_whole {
            page.fill(0);
        }
        lines::apply(page, self.mask, self.lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_as_it_was_written_and_only_then() {
        let (old, mut new): (Page, Page) = ([3; PAGE], [3; PAGE]);
        new[100] = 4;
        let mut record = Record::new();
        record.add(5, &new, Some(&old));
        record.add(6, &new, None);
        let bytes = record.finish(77, 2, 9, 40, 0);
        let found = find(&bytes, 77, 2, 9).unwrap();
        assert_eq!((found.end, found.in_log()), (40, bytes.len()));
        let changes: Vec<_> = found.changes(found.lines(&bytes).unwrap()).map(Option::unwrap).collect();
        assert_eq!(
            changes.iter().map(|change| (change.number, change.is_whole)).collect::<Vec<_>>(),
            [(5, false), (6, true)]
        );
        let (mut first, mut second) = (old, [9; PAGE]);
        changes[0].apply(&mut first);
        changes[1].apply(&mut second);
        assert!(first == new && second == new);
        for (store, epoch, sequence) in [(78, 2, 9), (77, 1, 9), (77, 2, 8)] {
            assert!(find(&bytes, store, epoch, sequence).is_none());
        }
        let mut changed = bytes.clone();
        changed[200] ^= 1;
        assert!(find(&changed, 77, 2, 9).is_none() && find(&bytes[..BLOCK], 77, 2, 9).is_none());
    }
}
