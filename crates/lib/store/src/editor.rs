//! The pages of a transaction: copies of those that it changes.

#![allow(unsafe_code, reason = "lends frames that the transaction has taken")]

use std::collections::HashMap;

use crate::error::{Error, ErrorKind, Result};
use crate::frames::{Frame, Frames, MOST_PAGES};
use crate::page::Page;
use crate::shared::Shared;
use crate::space;
use crate::tree::Pages;

/// What a transaction has changed.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    /// The copy of each changed page.
    pub(crate) frames: HashMap<u32, Frame>,
    /// For each savepoint, what was there before the first change behind it.
    marks: Vec<Mark>,
    /// Pages of the file.
    pub(crate) end: u32,
    /// The group in which the search for an unused page begins.
    pub(crate) group: u32,
}

#[derive(Debug)]
struct Mark {
    before: HashMap<u32, Option<Frame>>,
    end: u32,
}

impl Edits {
    pub(crate) fn new(end: u32, group: u32) -> Self {
        Self { end, group, ..Self::default() }
    }

    /// Sets a savepoint; its number.
    pub(crate) fn mark(&mut self) -> usize {
        self.marks.push(Mark { before: HashMap::new(), end: self.end });
        self.marks.len()
    }

    /// Whether there is a savepoint of this number.
    pub(crate) const fn has_mark(&self, mark: usize) -> bool {
        mark > 0 && mark <= self.marks.len()
    }

    /// Undoes all changes behind a savepoint. The savepoint stays, later ones end.
    pub(crate) fn roll_back_to(&mut self, mark: usize, frames: &Frames) {
        while self.marks.len() >= mark
            && let Some(undone) = self.marks.pop()
        {
            self.end = undone.end;
            self.group = 0;
            for (page, before) in undone.before {
                let now = match before {
                    Some(before) => self.frames.insert(page, before),
                    None => self.frames.remove(&page),
                };
                if let Some(frame) = now {
                    frames.put(frame);
                }
            }
        }
        self.mark();
    }

    /// Ends all savepoints, and returns the frames that only they need.
    pub(crate) fn drop_marks(&mut self, frames: &Frames) {
        for frame in self.marks.drain(..).flat_map(|mark| mark.before.into_values()).flatten() {
            frames.put(frame);
        }
    }

    /// A page with the changes so far.
    pub(crate) fn page<'a>(&'a self, shared: &'a Shared, number: u32, version: u64) -> Result<&'a Page> {
        match self.frames.get(&number) {
            // SAFETY: the frame belongs to this transaction, which is borrowed.
            Some(&frame) => Ok(unsafe { shared.frames.contents_mut(frame) }),
            None => shared.page(number, version),
        }
    }

    /// Undoes all changes.
    pub(crate) fn drop_all(&mut self, frames: &Frames) {
        self.drop_marks(frames);
        for (_, frame) in self.frames.drain() {
            frames.put(frame);
        }
    }
}

/// Changes pages.
#[derive(Debug)]
pub(crate) struct Editor<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) edits: &'a mut Edits,
    /// The version that the transaction began with.
    pub(crate) version: u64,
}

impl Editor<'_> {
    fn take(&self) -> Result<Frame> {
        self.shared.take_frame()
    }

    /// Records what a page was, before its first change behind a savepoint.
    fn remember(&mut self, number: u32) -> Result<()> {
        let now = self.edits.frames.get(&number).copied();
        if self.edits.marks.last().is_none_or(|mark| mark.before.contains_key(&number)) {
            return Ok(());
        }
        let before = match now {
            None => None,
            Some(now) => {
                let copy = self.take()?;
                // SAFETY: both frames belong to this transaction, which has lent neither.
                unsafe { *self.shared.frames.contents_mut(copy) = *self.shared.frames.contents_mut(now) };
                Some(copy)
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
        let frame = match self.edits.frames.get(&number) {
            Some(&frame) => frame,
            None => {
                let old = self.shared.page(number, self.version)?;
                let frame = self.take()?;
                // SAFETY: the frame was just taken.
                unsafe { *self.shared.frames.contents_mut(frame) = *old };
                self.edits.frames.insert(number, frame);
                frame
            }
        };
        // SAFETY: the frame belongs to this transaction, which is borrowed.
        Ok(unsafe { self.shared.frames.contents_mut(frame) })
    }

    /// A page that is not in use, filled with zeros, to change.
    pub(crate) fn create(&mut self, number: u32) -> Result<&mut Page> {
        self.remember(number)?;
        let frame = match self.edits.frames.get(&number) {
            Some(&frame) => frame,
            None => self.take()?,
        };
        self.edits.frames.insert(number, frame);
        // SAFETY: the frame belongs to this transaction, which is borrowed.
        let page = unsafe { self.shared.frames.contents_mut(frame) };
        page.fill(0);
        Ok(page)
    }

    /// Makes the file at least so large that it contains a page.
    pub(crate) fn extend(&mut self, number: u32) -> Result<()> {
        if number >= MOST_PAGES {
            return Err(Error::new(ErrorKind::Full, &self.shared.path, "the store has reached its largest size"));
        }
        self.edits.end = self.edits.end.max(number + 1);
        Ok(())
    }

    /// Takes an unused page, filled with zeros.
    pub(crate) fn allocate(&mut self) -> Result<u32> {
        let number = space::allocate(self, self.shared.first)?;
        self.create(number)?;
        Ok(number)
    }

    /// Returns a page.
    pub(crate) fn free(&mut self, number: u32) -> Result<()> {
        space::free(self, self.shared.first, number)
    }
}

impl Pages for Editor<'_> {
    fn page(&self, number: u32) -> Result<&Page> {
        self.edits.page(self.shared, number, self.version)
    }

    fn wrong(&self, number: u32, what: &str) -> Error {
        self.shared.wrong(number, what)
    }
}
