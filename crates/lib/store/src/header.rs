//! The header of a file, and where its parts are.
//!
//! ```text
//! pages 0, 1   two copies of the header; the one with the larger epoch counts
//! pages 2 …    the log, two halves
//! then         pages of trees and maps: the map of the first group, the root of the catalog, …
//! ```
//! ```text
//!  0 "FSSTORE\n"
//!  8 version    1
//! 12 features   0; a reader refuses bits that it does not know
//! 16 store      a random number
//! 24 epoch      of the log, that recovery begins with
//! 32 sequence   of the last commit before that epoch
//! 40 log        pages of the log
//! 44 end        pages of the file
//! 48 check      of the rest, seeded with the store
//! ```

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::frames::MOST_PAGES;
use crate::log::BLOCK;
use crate::page::{PAGE, set_u32, set_u64, u32_at, u64_at};

pub(crate) const MAGIC: &[u8; 8] = b"FSSTORE\n";
/// The version of the file format.
pub(crate) const VERSION: u32 = 1;
const CHECK: usize = 48;
/// Pages of the two copies.
const COPIES: u32 = 2;

/// What a file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) store: u64,
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) log_pages: u32,
    pub(crate) end: u32,
}

/// Why bytes are no header that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    Damaged,
    Later,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8; BLOCK]) -> Result<Self, Unusable> {
        if &bytes[..8] != MAGIC {
            return Err(Unusable::Damaged);
        }
        if u32_at(bytes, 8) != VERSION || u32_at(bytes, 12) != 0 {
            return Err(Unusable::Later);
        }
        let header = Self {
            store: u64_at(bytes, 16),
            epoch: u64_at(bytes, 24),
            sequence: u64_at(bytes, 32),
            log_pages: u32_at(bytes, 40),
            end: u32_at(bytes, 44),
        };
        let is_possible = header.log_pages < MOST_PAGES
            && header.end <= MOST_PAGES
            && header.epoch.max(header.sequence) < u64::MAX / 2;
        if is_possible
            && header.bytes() == *bytes
            && header.log_pages >= 2
            && header.log_pages.is_multiple_of(2)
            && header.end > header.catalog()
        {
            Ok(header)
        } else {
            Err(Unusable::Damaged)
        }
    }

    pub(crate) fn bytes(&self) -> [u8; BLOCK] {
        let mut bytes = [0; BLOCK];
        bytes[..8].copy_from_slice(MAGIC);
        set_u32(&mut bytes, 8, VERSION);
        set_u64(&mut bytes, 16, self.store);
        set_u64(&mut bytes, 24, self.epoch);
        set_u64(&mut bytes, 32, self.sequence);
        set_u32(&mut bytes, 40, self.log_pages);
        set_u32(&mut bytes, 44, self.end);
        let check = xxh3_64_with_seed(&bytes[..CHECK], self.store);
        set_u64(&mut bytes, CHECK, check);
        bytes
    }

    /// Where this copy is in the file.
    pub(crate) const fn offset(&self) -> u64 {
        (self.epoch % COPIES as u64) * PAGE as u64
    }

    /// Where the half of an epoch begins.
    pub(crate) const fn half(&self, epoch: u64) -> u64 {
        COPIES as u64 * PAGE as u64 + (epoch % 2) * self.half_bytes() as u64
    }

    /// The epochs whose records recovery applies.
    pub(crate) const fn epochs(&self) -> [u64; 2] {
        [self.epoch, self.epoch.saturating_add(1)]
    }

    /// The epoch after a recovery. It is new in both halves: recovery may have passed over records of
    /// [`Header::epochs`], which must never follow a new one. Its header replaces the other copy: it is odd if
    /// the present one is even.
    pub(crate) const fn epoch_after_recovery(&self) -> u64 {
        self.epoch + 3
    }

    pub(crate) const fn half_bytes(&self) -> usize {
        self.log_pages as usize / 2 * PAGE
    }

    /// The map of the first group of pages.
    pub(crate) const fn first(&self) -> u32 {
        COPIES + self.log_pages
    }

    /// The root of the tree with the names of the tables.
    pub(crate) const fn catalog(&self) -> u32 {
        self.first() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written_and_no_changed_one() {
        let header = Header { store: 7, epoch: 3, sequence: 9, log_pages: 4, end: 100 };
        let bytes = header.bytes();
        assert_eq!(Header::parse(&bytes), Ok(header));
        for at in 0..BLOCK {
            let mut changed = bytes;
            changed[at] ^= 4;
            assert!(Header::parse(&changed).is_err(), "byte {at}");
        }
        let mut later = bytes;
        later[8] = 2;
        assert_eq!(Header::parse(&later), Err(Unusable::Later));
    }
}
