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
//! 56 durable    the last commit that was durable before this record was made
//! 64 changes    for each page: 0 number   4 1 if it is new   8 mask of its lines   16 its check   24 lines
//! ```
//! The changes of a large transaction are behind the end of the file until its pages are in their places.
//! Nothing else is committed before that.
//!
//! The lines of a page are those that differ from the version before, or from zeros if the page is new:
//! nothing is known of what the file contains in the place of a new page. The check is the one that the
//! page has after this change.
//!
//! Commits of several threads are one write, and a crash can keep any part of it: a later record can be whole
//! while one before it is torn. So a record shows that an earlier one was damaged after it was durable only if
//! its field `durable` says so ([`crate::log_records::damage`]).
//!
//! *Recovery* applies the changes of a page to what its place contains, whatever its check is. Then it
//! compares the check of the result with that of the last change. It repairs a page that was torn while
//! it was written to its place, for these reasons:
//! 1. Let *b* be the version of the page when the epoch of the header began. Before the header was written,
//!    *b* or a later version was written to the place and synced. Since then, only later versions were
//!    written there. Each of them was durable in the log before.
//! 2. So each byte in the place is that byte of *b* or of a later version that the log contains.
//! 3. A byte that differs between two of them is in a line that the log contains: applying the changes in
//!    their order makes it the one of the last version. A byte that does not differ is right already.
//!
//! This needs no order of writes, and no size of the part of a page that is written as a whole. It needs
//! that a byte whose write was interrupted is the old one or the new one. A page that was damaged otherwise
//! has a wrong check in the end, and keeps it: see [`crate::recovery`].
//!
//! A page that was removed, and is in the log, stays as it is until the log has turned twice: no extent
//! takes it ([`crate::commit::Writer::is_in_log`]). A page that is used again is new. Pages behind the end
//! of the store may be cut off: recovery drops their changes.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::aligned::AlignedBuffer;
use crate::lines;
use crate::page::{PAGE, Page, check_of, set_check, set_u32, set_u64, u32_at, u64_at};

/// The unit of writes.
pub(crate) const BLOCK: usize = 512;
const HEADER: usize = 64;
const ENTRY: usize = 24;

static ZEROS: Page = [0; PAGE];

/// A commit that is written to the log.
#[derive(Debug)]
pub(crate) struct Record {
    bytes: AlignedBuffer,
    entries: u32,
}

impl Record {
    /// A record without changes, in a buffer whose contents are dropped.
    pub(crate) fn new(mut buffer: AlignedBuffer) -> Self {
        buffer.resize(0);
        buffer.resize(HEADER);
        Self { bytes: buffer, entries: 0 }
    }

    /// Adds the change of a page, which has its check. A new page has no old version.
    pub(crate) fn add(&mut self, number: u32, new: &Page, old: Option<&Page>) {
        let entry = self.bytes.len();
        self.bytes.resize(entry + ENTRY);
        let mask = lines::append(new, old.unwrap_or(&ZEROS), &mut self.bytes);
        let entry = &mut self.bytes[entry..][..ENTRY];
        set_u32(entry, 0, number);
        set_u32(entry, 4, old.is_none().into());
        set_u64(entry, 8, mask);
        set_u64(entry, 16, check_of(new));
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

    /// The bytes for the log: with the changes, or without them if they are `apart`. All commits up to `durable`
    /// are durable.
    pub(crate) fn finish(
        mut self,
        store: u64,
        epoch: u64,
        sequence: u64,
        end: u32,
        apart: u64,
        durable: u64,
    ) -> AlignedBuffer {
        let (bytes, check) = (self.changes().len() as u64, xxh3_64_with_seed(self.changes(), store));
        let header = &mut self.bytes[..HEADER];
        set_u64(header, 8, epoch);
        set_u64(header, 16, sequence);
        set_u64(header, 24, bytes);
        set_u32(header, 32, self.entries);
        set_u32(header, 36, end);
        set_u64(header, 40, apart);
        set_u64(header, 48, check);
        set_u64(header, 56, durable);
        let check = xxh3_64_with_seed(&header[8..], store);
        set_u64(header, 0, check);
        let blocks = if apart == 0 {
            self.bytes()
        } else {
            self.bytes.resize(HEADER);
            BLOCK
        };
        self.bytes.resize(blocks);
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
    /// The last commit that was durable before this record was made.
    pub(crate) durable: u64,
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
        durable: u64_at(header, 56),
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
            let (number, is_new, check) = (u32_at(entry, 0), u32_at(entry, 4) != 0, u64_at(entry, 16));
            Some(Change { number, is_new, mask, check, lines })
        })
    }
}

/// What a record says of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) number: u32,
    /// Whether the change makes it what it is, whatever was in its place.
    pub(crate) is_new: bool,
    mask: u64,
    check: u64,
    lines: &'a [u8],
}

impl Change<'_> {
    /// Makes the change. The page has the check that it should have then, whether it is right or not.
    pub(crate) fn apply(&self, page: &mut Page) {
        if self.is_new {
            page.fill(0);
        }
        lines::apply(page, self.mask, self.lines);
        set_check(page, self.check);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_found_as_it_was_written_and_only_then() {
        let (old, mut new): (Page, Page) = ([3; PAGE], [3; PAGE]);
        (new[2], new[100]) = (5, 4);
        let mut record = Record::new(AlignedBuffer::with_capacity(0));
        record.add(5, &new, Some(&old));
        record.add(6, &new, None);
        let bytes = record.finish(77, 2, 9, 40, 0, 8);
        let found = find(&bytes, 77, 2, 9).unwrap();
        assert_eq!((found.end, found.in_log(), found.durable), (40, bytes.len(), 8));
        let changes: Vec<_> = found.changes(found.lines(&bytes).unwrap()).map(Option::unwrap).collect();
        assert_eq!(
            changes.iter().map(|change| (change.number, change.is_new)).collect::<Vec<_>>(),
            [(5, false), (6, true)]
        );
        let (mut first, mut second) = (old, [9; PAGE]);
        changes[0].apply(&mut first);
        changes[1].apply(&mut second);
        assert!(first == new && second == new);
        for (store, epoch, sequence) in [(78, 2, 9), (77, 1, 9), (77, 2, 8)] {
            assert!(find(&bytes, store, epoch, sequence).is_none());
        }
        let mut changed = bytes.to_vec();
        changed[200] ^= 1;
        assert!(find(&changed, 77, 2, 9).is_none() && find(&bytes[..BLOCK], 77, 2, 9).is_none());
    }
}
