//! What a check of a file has found.

use crate::page::PAGE;
use crate::raw::RawTable;

/// Something that is wrong in a file, and what is lost by it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Where it is, in bytes from the beginning of the file.
    pub offset: u64,
    /// What is wrong: a clause without a full stop.
    pub what: String,
    /// What cannot be read because of it.
    pub lost: Lost,
}

/// What damage makes unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lost {
    /// No committed entry.
    Nothing,
    /// No committed entry, but this many bytes of the file cannot be used.
    Space(u64),
    /// What was in these pages, the first and the last one, if they were in use: a check of everything has a
    /// finding for each entry, table or object that is lost by that.
    Pages(u32, u32),
    /// Nothing more: this many bytes are in pages that damaged pages may have referred to.
    /// [`StoreFile::salvage`](crate::StoreFile::salvage) can read entries in them.
    Unreachable(u64),
    /// The commits with these sequence numbers, both included.
    Commits(u64, u64),
    /// The entries of a table whose keys are at least `from` and below `to`.
    Entries {
        /// The table.
        table: RawTable,
        /// The bytes of a key; empty for the first key.
        from: Vec<u8>,
        /// The bytes of a key; `None` for all keys from `from` on.
        to: Option<Vec<u8>>,
    },
    /// The tables whose names are at least `from` and below `to`.
    Tables {
        /// The bytes of a name; empty for the first table.
        from: Vec<u8>,
        /// The bytes of a name; `None` for all tables from `from` on.
        to: Option<Vec<u8>>,
    },
    /// Objects of the type of this name.
    Objects(String),
    /// Everything in the file.
    All,
}

impl Finding {
    /// The page of 4 KiB with this place.
    #[must_use]
    pub const fn page(&self) -> u64 {
        self.offset / PAGE as u64
    }

    pub(crate) fn at_page(page: u32, what: impl Into<String>, lost: Lost) -> Self {
        Self { offset: u64::from(page) * PAGE as u64, what: what.into(), lost }
    }

    /// Whether entries, tables or commits are lost, or may be.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        !matches!(self.lost, Lost::Nothing | Lost::Space(_) | Lost::Unreachable(_))
    }
}
