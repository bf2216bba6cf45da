//! The pages of a transaction: copies of those that it changes.

#![allow(unsafe_code, reason = "lends frames that the transaction has taken")]

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::commit::{Writer, file_bytes};
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::frames::{Frame, MOST_PAGES};
use crate::page::{PAGE, Page};
use crate::page_set::PageMap;
use crate::shared::Shared;
use crate::space;
use crate::tree::Pages;

/// The copy of a page that a transaction changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangedPage {
    pub(crate) frame: Frame,
    /// Whether it was not in use before: what the file contains there has nothing to do with it.
    pub(crate) is_new: bool,
}

/// What a transaction has changed.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    pub(crate) pages: PageMap<ChangedPage>,
    /// For each savepoint, what was there before the first change behind it.
    marks: Vec<Mark>,
    /// Pages of the file.
    pub(crate) end: u32,
    /// Bytes of the file before the transaction has made it longer; `None` if it has not.
    pub(crate) bytes_before: Option<u64>,
    /// The group in which the search for an unused page begins.
    pub(crate) group: u32,
    /// The group in which the search for pages of an extent begins.
    pub(crate) run_group: u32,
    /// First pages of the extents that it has written.
    pub(crate) written: Vec<u32>,
    /// Extents that it has removed. Their pages are in use until the commit.
    pub(crate) removed: Vec<Extent>,
    /// Pages of nodes that it has removed: the last commit still needs what the file contains there.
    pub(crate) freed: HashSet<u32>,
}

#[derive(Debug)]
struct Mark {
    /// No other savepoint of this process has it.
    number: u64,
    before: PageMap<Option<ChangedPage>>,
    end: u32,
    /// Numbers of extents that were written and removed.
    written: usize,
    removed: usize,
}

impl Edits {
    pub(crate) fn new(end: u32, group: u32) -> Self {
        Self { end, group, ..Self::default() }
    }

    /// Sets a savepoint. Returns its number, which no other savepoint of this process has.
    pub(crate) fn mark(&mut self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        self.push_mark(number);
        number
    }

    fn push_mark(&mut self, number: u64) {
        let (written, removed) = (self.written.len(), self.removed.len());
        self.marks.push(Mark { number, before: PageMap::default(), end: self.end, written, removed });
    }

    /// The number of the last savepoint.
    pub(crate) fn last_mark(&self) -> Option<u64> {
        self.marks.last().map(|mark| mark.number)
    }

    /// Whether this transaction has a savepoint of this number.
    pub(crate) fn has_mark(&self, number: u64) -> bool {
        self.marks.iter().any(|mark| mark.number == number)
    }

    /// Undoes all changes behind a savepoint of this transaction. The savepoint stays, later ones end.
    pub(crate) fn roll_back_to(&mut self, number: u64, shared: &Shared) {
        // Numbers increase.
        while self.marks.last().is_some_and(|mark| mark.number >= number)
            && let Some(undone) = self.marks.pop()
        {
            self.end = undone.end;
            (self.group, self.run_group) = (0, 0);
            self.removed.truncate(undone.removed);
            self.drop_written(undone.written, shared);
            for (page, before) in undone.before {
                let now = match before {
                    Some(before) => self.pages.insert(page, before),
                    None => self.pages.remove(&page),
                };
                if let Some(now) = now {
                    shared.frames.put(now.frame);
                }
            }
        }
        self.push_mark(number);
    }

    /// Forgets the extents that were written, except the first ones.
    fn drop_written(&mut self, kept: usize, shared: &Shared) {
        self.written.drain(kept..).for_each(|start| shared.remove_extent(start));
    }

    /// Makes the file so long that it has all pages of the transaction. `operation` is what a message of an error calls
    /// it.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Full`] and [`crate::ErrorKind::Io`].
    pub(crate) fn reserve(&mut self, shared: &Shared, operation: &str) -> Result<()> {
        self.reserve_bytes(shared, file_bytes(self.end), operation)
    }

    /// As [`Edits::reserve`], for these bytes.
    pub(crate) fn reserve_bytes(&mut self, shared: &Shared, bytes: u64, operation: &str) -> Result<()> {
        let failed = |error| Error::io(&shared.path, operation, &error);
        let now = shared.storage.bytes().map_err(failed)?;
        if now < bytes {
            shared.storage.reserve(bytes).map_err(failed)?;
            self.bytes_before.get_or_insert(now);
        }
        Ok(())
    }

    /// Cuts what the transaction has made the file longer, if it has and was not committed. After a failed write, the
    /// file stays as it is.
    pub(crate) fn cut_back(&mut self, shared: &Shared) {
        if let Some(bytes) = self.bytes_before.take()
            && shared.check_writable().is_ok()
        {
            // A file that stays longer has no effect but its size.
            let _ = shared.storage.cut(bytes);
        }
    }

    /// Ends all savepoints, and returns the frames that only they need.
    pub(crate) fn drop_marks(&mut self, shared: &Shared) {
        for before in self.marks.drain(..).flat_map(|mark| mark.before.into_values()).flatten() {
            shared.frames.put(before.frame);
        }
    }

    /// A page with the changes so far.
    pub(crate) fn page<'a>(&'a self, shared: &'a Shared, number: u32, version: u64) -> Result<&'a Page> {
        match self.pages.get(&number) {
            // SAFETY: the frame belongs to this transaction, which is borrowed.
            Some(changed) => Ok(unsafe { shared.frames.contents_mut(changed.frame) }),
            None => shared.page(number, version),
        }
    }

    /// A page that was changed before, to change it again.
    pub(crate) fn changed_page<'a>(&'a mut self, shared: &'a Shared, number: u32) -> Option<&'a mut Page> {
        let frame = self.pages.get(&number)?.frame;
        // SAFETY: the frame belongs to this transaction, which is borrowed.
        Some(unsafe { shared.frames.contents_mut(frame) })
    }

    /// Undoes all changes.
    pub(crate) fn drop_all(&mut self, shared: &Shared) {
        self.drop_marks(shared);
        self.drop_written(0, shared);
        for (_, changed) in self.pages.drain() {
            shared.frames.put(changed.frame);
        }
    }
}

/// Changes pages.
#[derive(Debug)]
pub(crate) struct Editor<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) edits: &'a mut Edits,
    pub(crate) writer: &'a Writer,
    /// The version that the transaction began with.
    pub(crate) version: u64,
}

impl Editor<'_> {
    fn take(&self) -> Result<Frame> {
        self.shared.take_frame()
    }

    /// Records what a page was, before its first change behind a savepoint.
    fn remember(&mut self, number: u32) -> Result<()> {
        let now = self.edits.pages.get(&number).copied();
        if self.edits.marks.last().is_none_or(|mark| mark.before.contains_key(&number)) {
            return Ok(());
        }
        let before = match now {
            None => None,
            Some(now) => {
                let copy = self.take()?;
                // SAFETY: both frames belong to this transaction, which has lent neither.
                unsafe { *self.shared.frames.contents_mut(copy) = *self.shared.frames.contents_mut(now.frame) };
                Some(ChangedPage { frame: copy, ..now })
            }
        };
        if let Some(mark) = self.edits.marks.last_mut() {
            mark.before.insert(number, before);
        }
        Ok(())
    }

    /// A page to change.
    pub(crate) fn edit(&mut self, number: u32) -> Result<&mut Page> {
        self.remember(number)?;
        let frame = match self.edits.pages.get(&number) {
            Some(changed) => changed.frame,
            None => {
                self.keep(number);
                let old = self.shared.page(number, self.version)?;
                let frame = self.take()?;
                // SAFETY: the frame was just taken.
                unsafe { *self.shared.frames.contents_mut(frame) = *old };
                self.edits.pages.insert(number, ChangedPage { frame, is_new: false });
                frame
            }
        };
        // SAFETY: the frame belongs to this transaction, which is borrowed.
        Ok(unsafe { self.shared.frames.contents_mut(frame) })
    }

    /// A page that is not in use, filled with zeros, to change. No snapshot reads the old contents from the file:
    /// pages that earlier transactions have freed are held, [`Editor::forget`] keeps those that this one has freed,
    /// and [`space::allocate`] keeps a map behind the end of the file.
    pub(crate) fn create(&mut self, number: u32) -> Result<&mut Page> {
        self.remember(number)?;
        let frame = match self.edits.pages.get(&number) {
            Some(changed) => changed.frame,
            None => self.take()?,
        };
        self.edits.pages.insert(number, ChangedPage { frame, is_new: true });
        // SAFETY: the frame belongs to this transaction, which is borrowed.
        let page = unsafe { self.shared.frames.contents_mut(frame) };
        page.fill(0);
        Ok(page)
    }

    /// Makes the file at least so large that it contains a page.
    pub(crate) fn extend(&mut self, number: u32) -> Result<()> {
        if number >= MOST_PAGES {
            return Err(self.shared.has_largest_size());
        }
        self.edits.end = self.edits.end.max(number + 1);
        Ok(())
    }

    /// Takes an unused page, filled with zeros.
    pub(crate) fn allocate(&mut self) -> Result<u32> {
        let number = space::allocate(self, self.shared.first)?;
        if self.edits.pages.contains_key(&number) {
            return Err(self.wrong(number, "it is in use, and its map says that it is not"));
        }
        self.create(number)?;
        Ok(number)
    }

    /// Keeps a page in memory, so that snapshots read it there when its place has another version. The
    /// commit goes into this epoch or one of the next two.
    pub(crate) fn keep(&self, number: u32) {
        self.shared.frames.keep(number, self.writer.epoch + 2);
    }

    /// Returns a page of a node.
    pub(crate) fn free(&mut self, number: u32) -> Result<()> {
        self.forget(number)?;
        space::free(self, self.shared.first, number)
    }

    /// Drops the changes of a page that is no longer needed. Snapshots may still read what is committed.
    pub(crate) fn forget(&mut self, number: u32) -> Result<()> {
        self.remember(number)?;
        if let Some(changed) = self.edits.pages.remove(&number) {
            self.shared.frames.put(changed.frame);
        } else {
            self.keep(number);
            self.page(number)?;
        }
        self.edits.freed.insert(number);
        Ok(())
    }

    /// Whether an extent may have a page: if no snapshot reads what is there, the last commit does not
    /// need it, and recovery does not write it.
    pub(crate) fn can_contain_extents(&self, page: u32) -> bool {
        !self.writer.held.contains(page) && !self.writer.is_in_log(page) && !self.edits.freed.contains(&page)
    }

    /// Writes a large value to the file; where it is.
    pub(crate) fn write_extent(&mut self, contents: Vec<u8>) -> Result<Extent> {
        let written = self.write_extent_before(MOST_PAGES, contents)?;
        written.ok_or_else(|| self.shared.has_largest_size())
    }

    /// Writes a large value to pages before this one, if there is room; where it is.
    pub(crate) fn write_extent_before(&mut self, page: u32, contents: Vec<u8>) -> Result<Option<Extent>> {
        let pages = contents.len().div_ceil(PAGE) as u32;
        let Some(start) = space::allocate_run(self, self.shared.first, pages, page)? else { return Ok(None) };
        let extent = Extent::new(start, &contents);
        self.edits.reserve(self.shared, "make room for a large value")?;
        self.shared.write_extent(extent, &contents)?;
        self.edits.written.push(extent.start);
        self.shared.keep_extent(extent, contents.into());
        Ok(Some(extent))
    }

    /// Removes large values.
    pub(crate) fn remove_extents(&mut self, extents: impl IntoIterator<Item = Extent>) {
        self.edits.removed.extend(extents);
    }

    /// Returns the pages of the removed extents.
    ///
    /// # Errors
    /// If the file says that they are not in use.
    pub(crate) fn free_extents(&mut self) -> Result<()> {
        for extent in self.edits.removed.clone() {
            if !extent.is_possible() {
                return Err(self.wrong(extent.start, "a large value has an impossible place"));
            }
            extent.pages().try_for_each(|page| space::free(self, self.shared.first, page))?;
        }
        Ok(())
    }
}

impl Pages for Editor<'_> {
    fn page(&self, number: u32) -> Result<&Page> {
        self.edits.page(self.shared, number, self.version)
    }

    fn extent(&self, extent: Extent) -> Result<&[u8]> {
        self.shared.extent(extent)
    }

    fn wrong(&self, number: u32, what: &str) -> Error {
        self.shared.wrong(number, what)
    }
}
