//! Copies: a page that came back stays stored as well, so that it can leave memory again without
//! being compressed.
//!
//! ```text
//! fault ─→ resident, and stored ─→ evicted: same contents?  yes: only dropped from memory
//!                                                           no:  forgotten, and stored as any page
//! ```
//! The contents are compared when the page is in staging, where no thread writes to it. So no page
//! is write-protected, and no write costs a fault. The check of the stored contents finds most
//! changes; otherwise all bytes are compared.
//!
//! Invariants: `copies` is the number of pages that are both resident and stored. At most a quarter
//! of the bound is kept so, while the first store has a quarter of its memory free.

use core::sync::atomic::Ordering::Relaxed;

use crate::count::{add, subtract, value};
use crate::kernel::PAGE;
use crate::pager::{Pager, check, parts};
use crate::store::Page;
use crate::table::{CHUNK_PAGES, LockedChunk, Stored, bits};

impl Pager {
    /// Keeps the copies of stored pages that become resident, or forgets them. Called before they
    /// are recorded as resident.
    pub(crate) fn keep_copies(&self, chunk: &mut LockedChunk<'_>, pages: u64) {
        let pages = pages & !chunk.chunk.resident;
        let has_memory = self.counters.store_bytes[usize::from(self.order[0])].load(Relaxed) <= self.copy_bytes;
        if has_memory && value(&self.copies) < value(&self.counters.bound) / 4 {
            add(&self.copies, pages.count_ones() as usize);
        } else {
            self.drop_stored(chunk, pages);
        }
    }

    /// Forgets the places of pages in the stores. Called before they are recorded as missing.
    pub(crate) fn drop_stored(&self, chunk: &mut LockedChunk<'_>, pages: u64) {
        for index in (0..CHUNK_PAGES).filter(|&index| pages & bits(index, 1) != 0) {
            let stored = core::mem::replace(&mut chunk.chunk.stored[index], Stored::NONE);
            if stored.is_some() {
                subtract(&self.copies, usize::from(chunk.chunk.resident & bits(index, 1) != 0));
                self.forget(stored);
            }
        }
    }

    /// Whether a page has the contents that are stored.
    pub(crate) fn is_unchanged(&self, stored: Stored, page: &Page) -> bool {
        if check(stored.place, page) != stored.check {
            return false;
        }
        let (index, key) = parts(stored.place);
        let mut copy = [[0; PAGE]];
        self.stores[index].is_some_and(|store| store.get(&[key], &mut copy).is_ok()) && copy[0] == *page
    }

    /// Forgets all copies; whether there were any.
    pub(crate) fn drop_copies(&self) -> bool {
        if value(&self.copies) == 0 {
            return false;
        }
        self.table.for_each_in(0..usize::MAX >> 17, |mut chunk, pages| {
            let pages = pages & chunk.chunk.resident;
            self.drop_stored(&mut chunk, pages);
        });
        true
    }
}
