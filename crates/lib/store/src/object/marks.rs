//! Which objects of a version the roots reach.
//!
//! A page with marked objects that were not scanned is *pending*. Pending pages are scanned in the order of
//! their numbers, so objects of one page are scanned together and the file is read forwards.

use std::collections::{BTreeSet, HashMap};

use crate::error::Result;
use crate::object::collection::VersionPages;
use crate::object::object_page::{ObjectPage, UNITS, page_of};
use crate::object::types::{has_page, has_page_of_any};
use crate::page::{OBJECT, PAGE, Page, kind};

const WORDS: usize = UNITS as usize / 64;

/// The objects of a page, by the units with which they begin.
#[derive(Clone, Copy, Debug, Default)]
struct PageMarks {
    marked: [u64; WORDS],
    scanned: [u64; WORDS],
}

/// Copies a page that an object or a root leads to. Returns false if the page has no objects in this version: those
/// that it had were removed, and any bytes can be there now.
///
/// # Errors
/// If a page with objects cannot be read.
fn copy_objects(pages: &VersionPages<'_>, number: u32, page: &mut Page) -> Result<bool> {
    let read = pages.copy(number, page);
    let is_read = read.is_ok() && kind(page) == OBJECT;
    if is_read && has_page(pages, pages.shared, ObjectPage(page).type_number(), number)? {
        return Ok(true);
    }
    if !has_page_of_any(pages, pages.shared, number)? {
        return Ok(false);
    }
    read?;
    Err(pages.shared.wrong(number, "it has no objects of the type with which the tree of the pages names it"))
}

/// The objects that were reached.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    pages: HashMap<u32, PageMarks>,
    pending: BTreeSet<u32>,
}

impl Marks {
    /// Marks the object at an address; 0 is none.
    pub(crate) fn mark(&mut self, address: u64) {
        let (page, unit) = (page_of(address) as u32, (address % UNITS) as usize);
        if address == 0 {
            return;
        }
        let word = &mut self.pages.entry(page).or_default().marked[unit / 64];
        if *word >> (unit % 64) & 1 == 0 {
            *word |= 1 << (unit % 64);
            self.pending.insert(page);
        }
    }

    /// Whether the object that begins at a unit of a page was reached.
    pub(crate) fn is_marked(&self, page: u32, unit: usize) -> bool {
        self.pages.get(&page).is_some_and(|marks| marks.marked[unit / 64] >> (unit % 64) & 1 == 1)
    }

    /// Scans at most `most` pages of a version. Returns whether no page is pending any more.
    ///
    /// # Errors
    /// If a page with objects cannot be read. A pointer to no object keeps nothing.
    pub(crate) fn scan(&mut self, pages: &VersionPages<'_>, most: usize) -> Result<bool> {
        let mut page = [0; PAGE];
        for _ in 0..most {
            let Some(number) = self.pop_pending() else { return Ok(true) };
            if copy_objects(pages, number, &mut page)? {
                self.scan_page(number, ObjectPage(&page));
            }
        }
        Ok(self.pending.is_empty())
    }

    /// A page with marked objects that were not scanned. It is not pending any more.
    pub(crate) fn pop_pending(&mut self) -> Option<u32> {
        self.pending.pop_first()
    }

    /// Marks the objects to which the marked objects of a page point.
    pub(crate) fn scan_page(&mut self, number: u32, page: ObjectPage<'_>) {
        let marks = self.pages.entry(number).or_default();
        let marked = marks.marked;
        let scanned = std::mem::replace(&mut marks.scanned, marked);
        let slots = page.slots();
        for word in 0..WORDS {
            let mut new = marked[word] & !scanned[word];
            while new != 0 {
                let unit = word * 64 + new.trailing_zeros() as usize;
                new &= new - 1;
                if let Some(slot) = slots.slot_of(unit as u64).filter(|&slot| page.is_used(slot)) {
                    page.pointers(slot).for_each(|place| self.mark(place.address(page.0)));
                }
            }
        }
    }
}
