//! Collection: removes the objects that no root reaches.
//!
//! ```text
//! version ─→ marks: objects that its roots reach        a few pages at a time; no transaction is needed
//! pages of that version ─→ objects without a mark are removed, in transactions of a few pages
//! ```
//! An object that a root did not reach in that version is never reached again, unless a program has kept a
//! pointer to it. Objects that came later are not removed. So programs read and write meanwhile
//! (*snapshot at the beginning*: Yuasa, *Real-Time Garbage Collection on General-Purpose Machines*, 1990).
//!
//! Cost: each page of objects is read twice, looked up in the tree of the pages once, and written if it has
//! objects to remove; 150 bytes of memory for each page, and the pages that others replace meanwhile.

use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::catalog;
use crate::editor::Editor;
use crate::error::{Error, Result};
use crate::extent::Extent;
use crate::object::allocation::{add_room, free_page, object_page};
use crate::object::marks::Marks;
use crate::object::object_page::{ObjectPage, set_unused};
use crate::object::types::{self, PAGES, decode_page_key};
use crate::page::{OBJECT, PAGE, Page, kind};
use crate::readers::Reader;
use crate::shared::Shared;
use crate::tree::{Entries, Pages};

/// Pages that are scanned, or looked at for objects to remove, in a step.
const STEP_PAGES: usize = 64;
/// Pages that a step changes at most.
const STEP_CHANGES: usize = 8;

/// What collections have removed, and what they cost.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CollectReport {
    /// Collections that were finished.
    pub collections: u64,
    /// Objects that were removed.
    pub objects: u64,
    /// Bytes of these objects.
    pub bytes: u64,
    /// Pages of 4 KiB that were freed.
    pub pages: u64,
    /// Bytes of the objects that the last collection has kept. Objects that were added while it ran are not
    /// included.
    pub kept_bytes: u64,
    /// Steps of bounded work.
    pub steps: u64,
    /// The longest time for which a step has kept transactions waiting.
    pub longest_pause: Duration,
    /// The time of all steps.
    pub time: Duration,
    /// Why the last collection of those at commits could not be finished. It has removed nothing that a
    /// root reaches; the next one begins again.
    pub failure: Option<Error>,
}

impl CollectReport {
    /// Adds a step that took this long.
    pub(crate) fn add_step(&mut self, time: Duration, has_paused: bool) {
        self.steps += 1;
        self.time += time;
        if has_paused {
            self.longest_pause = self.longest_pause.max(time);
        }
    }
}

/// The pages of a version.
pub(crate) struct VersionPages<'a> {
    pub(crate) shared: &'a Shared,
    reader: Reader,
}

impl<'a> VersionPages<'a> {
    /// `version` must be registered.
    pub(crate) fn new(shared: &'a Shared, version: u64) -> Self {
        Self { shared, reader: shared.frames.begin(version) }
    }

    /// Copies a page, which does not stay in memory.
    pub(crate) fn copy(&self, number: u32, copy: &mut Page) -> Result<()> {
        self.shared.copy_page(number, self.reader.version, copy)
    }
}

impl Drop for VersionPages<'_> {
    fn drop(&mut self) {
        self.shared.frames.end(self.reader);
    }
}

impl Pages for VersionPages<'_> {
    fn page(&self, number: u32) -> Result<&Page> {
        self.shared.page(number, self.reader.version)
    }

    fn extent(&self, extent: Extent) -> Result<&[u8]> {
        self.shared.extent(extent)
    }

    fn wrong(&self, number: u32, what: &str) -> Error {
        self.shared.wrong(number, what)
    }
}

/// A collection that was begun.
#[derive(Debug)]
pub(crate) struct Collection {
    shared: Arc<Shared>,
    /// Keeps its version.
    reader: Reader,
    marks: Marks,
    is_marked: bool,
    /// The key of the next page that is looked at for objects to remove.
    next: Vec<u8>,
    kept_bytes: u64,
}

impl Drop for Collection {
    fn drop(&mut self) {
        self.shared.frames.end(self.reader);
    }
}

impl Collection {
    /// Begins with the roots of the last durable commit, once a version is durable. That version has all that
    /// other collections have removed: a slot that one of them has freed may have a new object by now, which
    /// must not be taken for the old one.
    ///
    /// # Errors
    /// If they cannot be read, or the version cannot be made durable.
    pub(crate) fn begin(shared: &Arc<Shared>, version: u64) -> Result<Self> {
        shared.queue.wait(shared, version)?;
        let (reader, _) = shared.frames.begin_published_pinned();
        let shared = Arc::clone(shared);
        let mut new =
            Self { shared, reader, marks: Marks::default(), is_marked: false, next: Vec::new(), kept_bytes: 0 };
        let roots = types::roots(&VersionPages::new(&new.shared, reader.version), &new.shared)?;
        roots.iter().for_each(|root| new.marks.mark(root.address));
        Ok(new)
    }

    pub(crate) const fn is_marked(&self) -> bool {
        self.is_marked
    }

    /// Marks the objects of a few pages.
    ///
    /// # Errors
    /// As of [`Marks::scan`].
    pub(crate) fn mark(&mut self) -> Result<()> {
        self.is_marked = self.marks.scan(&VersionPages::new(&self.shared, self.reader.version), STEP_PAGES)?;
        Ok(())
    }

    /// Removes objects of a few pages, once all are marked. Returns whether it has seen all pages.
    ///
    /// # Errors
    /// If a page cannot be read; the changes must be undone then.
    pub(crate) fn remove(&mut self, editor: &mut Editor<'_>, report: &mut CollectReport) -> Result<bool> {
        let (mut changes, mut old) = (0, [0; PAGE]);
        let pages = self.next_pages()?;
        let is_last = pages.len() < STEP_PAGES;
        for (number, page) in pages {
            editor.shared.copy_page(page, self.reader.version, &mut old)?;
            if kind(&old) != OBJECT {
                return Err(editor.wrong(page, "it has no objects, and the tree of the pages names it"));
            }
            self.next = types::page_key(number, page + 1).to_vec();
            if self.remove_of_page(editor, number, page, &old, report)? {
                changes += 1;
                if changes == STEP_CHANGES {
                    return Ok(false);
                }
            }
        }
        Ok(is_last)
    }

    /// The pages of the next step, fewer than `STEP_PAGES` at the end.
    fn next_pages(&self) -> Result<Vec<(u32, u32)>> {
        let (mut found, pages) = (Vec::new(), VersionPages::new(&self.shared, self.reader.version));
        if let Some(tree) = catalog::root(&pages, &self.shared, PAGES)? {
            let mut entries = Entries::new(&pages, tree, Bound::Included(self.next.as_slice()), Bound::Unbounded)?;
            while found.len() < STEP_PAGES
                && let Some(key) = entries.next_key()?
            {
                let key = decode_page_key(&key.to_vec());
                found.push(key.ok_or_else(|| pages.wrong(tree, "its tree has a page of no type"))?);
            }
        }
        Ok(found)
    }

    /// Removes the objects of a page that have no mark. `old` is the page of the version. Returns whether there
    /// were any.
    fn remove_of_page(
        &mut self,
        editor: &mut Editor<'_>,
        number: u32,
        page: u32,
        old: &Page,
        report: &mut CollectReport,
    ) -> Result<bool> {
        let (old, slots) = (ObjectPage(old), ObjectPage(old).slots());
        let size = old.size() as u64;
        let (kept, removed): (Vec<usize>, Vec<usize>) =
            old.used().partition(|&slot| self.marks.is_marked(page, slots.unit(slot)));
        self.kept_bytes += kept.len() as u64 * size;
        if removed.is_empty() {
            return Ok(false);
        }
        let now = object_page(editor, page)?;
        if now.type_number() != number || now.slots() != slots {
            return Err(editor.wrong(page, "it has objects of another type than before"));
        }
        let contents = editor.edit(page)?;
        removed.iter().for_each(|&slot| set_unused(contents, slot));
        report.objects += removed.len() as u64;
        report.bytes += removed.len() as u64 * size;
        if ObjectPage(contents).used().next().is_some() {
            add_room(editor, number, page)?;
        } else {
            free_page(editor, number, page)?;
            report.pages += 1;
        }
        Ok(true)
    }
}

/// Collects at commits.
#[derive(Debug)]
pub(crate) struct Collector {
    pub(crate) is_at_commit: bool,
    running: Option<Collection>,
    /// Bytes of objects that were added or changed since the last collection began.
    changed_bytes: u64,
    pub(crate) report: CollectReport,
}

/// Bytes of changed objects after which a collection begins, at least.
const LEAST_CHANGED: u64 = 64 << 10;

impl Collector {
    pub(crate) fn new(is_at_commit: bool) -> Self {
        Self { is_at_commit, running: None, changed_bytes: 0, report: CollectReport::default() }
    }

    /// Drops the collection that runs at commits.
    pub(crate) fn stop(&mut self) {
        self.running = None;
        self.changed_bytes = 0;
    }

    /// Does a step as a part of a transaction, which has changed `changed_bytes` of objects. Returns false if the
    /// changes of the step must be undone.
    pub(crate) fn step(&mut self, shared: &Arc<Shared>, editor: &mut Editor<'_>, changed_bytes: u64) -> bool {
        self.changed_bytes += changed_bytes;
        if self.running.is_none() && self.changed_bytes < LEAST_CHANGED.max(self.report.kept_bytes / 2) {
            return true;
        }
        let (start, before) = (Instant::now(), self.report.clone());
        let done = self.try_step(shared, editor);
        let is_right = done.is_ok();
        if let Err(error) = done {
            self.report = CollectReport { failure: Some(error), ..before };
            self.stop();
        }
        self.report.add_step(start.elapsed(), true);
        is_right
    }

    fn try_step(&mut self, shared: &Arc<Shared>, editor: &mut Editor<'_>) -> Result<()> {
        let collection = match &mut self.running {
            Some(collection) => collection,
            None => {
                self.changed_bytes = 0;
                self.running.insert(Collection::begin(shared, editor.version)?)
            }
        };
        if !collection.is_marked() {
            return collection.mark();
        }
        if collection.remove(editor, &mut self.report)? {
            self.report.kept_bytes = collection.kept_bytes;
            self.report.collections += 1;
            self.report.failure = None;
            self.running = None;
        }
        Ok(())
    }

    /// Adds the report of a collection that was finished.
    pub(crate) fn add(&mut self, finished: &CollectReport) {
        let all = &mut self.report;
        all.collections += finished.collections;
        all.objects += finished.objects;
        all.bytes += finished.bytes;
        all.pages += finished.pages;
        all.kept_bytes = finished.kept_bytes;
        all.steps += finished.steps;
        all.longest_pause = all.longest_pause.max(finished.longest_pause);
        all.time += finished.time;
        all.failure = None;
    }
}

/// Collects at once: `transact` makes a transaction of each step that it gets. `version` is the last that a
/// transaction has appended.
///
/// # Errors
/// Those of the steps and of `transact`. What was removed before stays removed.
pub(crate) fn collect(
    shared: &Arc<Shared>,
    version: u64,
    mut transact: impl FnMut(&mut dyn FnMut(&mut Editor<'_>) -> Result<()>) -> Result<Duration>,
) -> Result<CollectReport> {
    let mut report = CollectReport { collections: 1, ..CollectReport::default() };
    let mut collection = Collection::begin(shared, version)?;
    while !collection.is_marked() {
        let start = Instant::now();
        collection.mark()?;
        report.add_step(start.elapsed(), false);
    }
    let mut is_done = false;
    while !is_done {
        let pause = transact(&mut |editor| {
            is_done = collection.remove(editor, &mut report)?;
            Ok(())
        })?;
        report.add_step(pause, true);
    }
    report.kept_bytes = collection.kept_bytes;
    Ok(report)
}
