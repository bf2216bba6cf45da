//! What all users of an open store share.

#![allow(unsafe_code, reason = "lends frames of versions that are in use")]

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::child_mark::ChildMark;
use crate::commit::Writer;
use crate::durable::Queue;
use crate::error::{Error, ErrorKind, REOPEN, Result};
use crate::extent::{Extent, Extents};
use crate::frames::{Frame, Frames, MOST_PAGES};
use crate::header::Header;
use crate::lock::lock;
use crate::node::Node;
use crate::object::changes::ObjectChanges;
use crate::object::object_page::ObjectPage;
use crate::page::{MAP, OBJECT, Page, kind};
use crate::space::{GROUP, is_used};
use crate::storage::{Storage, Unreadable, read_extent, read_page};

/// An open store.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) storage: Box<dyn Storage>,
    pub(crate) frames: Frames,
    pub(crate) extents: Extents,
    /// Its number, and the places in the file. What changes in a header is out of date here.
    pub(crate) header: Header,
    /// The map of the first group of pages.
    pub(crate) first: u32,
    pub(crate) object_changes: ObjectChanges,
    /// Commits that are not durable yet.
    pub(crate) queue: Queue,
    /// Held while a page is read from the file.
    loading: Mutex<()>,
    /// The writer, unless a transaction has it.
    writer: Mutex<Option<Writer>>,
    returned: Condvar,
    has_failed: AtomicBool,
    child: ChildMark,
}

impl Shared {
    pub(crate) fn new(
        path: PathBuf,
        storage: Box<dyn Storage>,
        header: Header,
        (frames, extents): (Frames, Extents),
        writer: Writer,
    ) -> Self {
        frames.set_published(writer.sequence, writer.end);
        Self {
            path,
            storage,
            frames,
            extents,
            header,
            first: header.first(),
            object_changes: ObjectChanges::default(),
            queue: Queue::default(),
            loading: Mutex::default(),
            writer: Mutex::new(Some(writer)),
            returned: Condvar::new(),
            has_failed: AtomicBool::new(false),
            child: ChildMark::new(),
        }
    }

    /// The last durable commit, and the pages of the file then.
    pub(crate) fn published(&self) -> (u64, u32) {
        self.frames.published()
    }

    pub(crate) fn set_published(&self, version: u64, end: u32) {
        self.frames.set_published(version, end);
    }

    /// Takes the writer, once no other transaction has it.
    pub(crate) fn take_writer(&self) -> Writer {
        let mut writer = lock(&self.writer);
        loop {
            if let Some(writer) = writer.take() {
                return writer;
            }
            writer = self.returned.wait(writer).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the writer, unless another transaction has it.
    pub(crate) fn try_take_writer(&self) -> Option<Writer> {
        lock(&self.writer).take()
    }

    pub(crate) fn return_writer(&self, writer: Writer) {
        *lock(&self.writer) = Some(writer);
        self.returned.notify_one();
    }

    pub(crate) fn take_frame(&self) -> Result<Frame> {
        self.check_parent()?;
        self.frames.take().ok_or_else(|| {
            Error::new(ErrorKind::Memory, &self.path, "there are no more frames for pages")
                .with_remedy("end snapshots that are no longer read")
        })
    }

    pub(crate) fn has_largest_size(&self) -> Error {
        Error::new(ErrorKind::Full, &self.path, "the store has reached its largest size")
    }

    /// A write has failed: none is made until the store is opened again.
    pub(crate) fn fail(&self, operation: &str, source: &std::io::Error) -> Error {
        self.has_failed.store(true, Relaxed);
        Error::poisoned(&self.path, operation, source)
    }

    /// Whether this is a forked child: its copy has no thread that writes pages.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        self.child.is_child()
    }

    /// # Errors
    /// In a forked child.
    #[inline]
    pub(crate) fn check_parent(&self) -> Result<()> {
        if self.is_forked() { Err(self.forked()) } else { Ok(()) }
    }

    #[cold]
    fn forked(&self) -> Error {
        let what = "the store was opened before a fork, and this is the child";
        Error::new(ErrorKind::Forked, &self.path, what)
            .with_remedy("let one process use it; close the store before the fork, and open it in the child")
    }

    /// # Errors
    /// In a forked child, and if a write has failed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_parent()?;
        if self.has_failed.load(Relaxed) {
            let what = "an earlier write to the file failed, so the store takes no more";
            return Err(Error::new(ErrorKind::Poisoned, &self.path, what).with_remedy(REOPEN));
        }
        Ok(())
    }

    pub(crate) fn wrong(&self, number: u32, what: &str) -> Error {
        Error::corrupt(&self.path, Some(number), what)
    }

    fn unreadable(&self, number: u32, error: Unreadable) -> Error {
        match error {
            Unreadable::Io(error) => Error::io(&self.path, "read", &error),
            Unreadable::Wrong(what) => self.wrong(number, what),
        }
    }

    /// Copies a page as of a version, which the caller has registered. It does not stay in memory.
    pub(crate) fn copy_page(&self, number: u32, version: u64, copy: &mut Page) -> Result<()> {
        let is_copied = |copy: &mut Page| {
            let reader = self.frames.begin(version);
            let frame = self.frames.find(number.min(MOST_PAGES - 1), version);
            if let Some(frame) = frame {
                // SAFETY: this version is registered, and so is a reader since before the frame was found.
                *copy = *unsafe { self.frames.contents(frame) };
            }
            self.frames.end(reader);
            frame.is_some()
        };
        if !is_copied(copy) {
            let read = self.read(number, copy);
            // If the file has a later version by now, the right one was brought into memory before.
            if !is_copied(copy) {
                self.check_age(version)?;
                read?;
            }
        }
        Ok(())
    }

    /// # Errors
    /// If a version is too old to be read.
    fn check_age(&self, version: u64) -> Result<()> {
        if self.frames.is_too_old(version) {
            let what = "the snapshot is too old: the pages that were replaced since then are no longer in memory";
            return Err(Error::new(ErrorKind::TooOld, &self.path, what)
                .with_remedy("a new snapshot, or more memory by StoreBuilder::old_version_bytes"));
        }
        Ok(())
    }

    /// A page as of a version, which the caller has registered for as long as it uses the result.
    #[inline]
    pub(crate) fn page(&self, number: u32, version: u64) -> Result<&Page> {
        match self.page_in_memory(number, version) {
            Some(page) => Ok(page),
            None => {
                let frame = self.load(number, version)?;
                // SAFETY: the caller has registered the version while it uses the page.
                Ok(unsafe { self.frames.contents(frame) })
            }
        }
    }

    /// As [`Shared::page`], without reading the file.
    #[inline]
    pub(crate) fn page_in_memory(&self, number: u32, version: u64) -> Option<&Page> {
        let frame = self.frames.find(number.min(MOST_PAGES - 1), version)?;
        // SAFETY: the caller has registered the version while it uses the page.
        Some(unsafe { self.frames.contents(frame) })
    }

    /// A large value of a version, which the caller has registered for as long as it uses the result.
    pub(crate) fn extent(&self, extent: Extent) -> Result<&[u8]> {
        self.check_parent()?;
        let contents = match self.extents.lend(extent.start) {
            Some(contents) => contents,
            None => self.load_extent(extent)?,
        };
        // SAFETY: the contents never move, and are dropped once nobody is registered who can have them.
        Ok(unsafe { &*contents })
    }

    #[cold]
    fn load_extent(&self, extent: Extent) -> Result<*const [u8]> {
        self.check_parent()?;
        let _loading = lock(&self.loading);
        if let Some(contents) = self.extents.lend(extent.start) {
            return Ok(contents);
        }
        let waiting = self.frames.take_back_contents(extent.start);
        let contents = match waiting.filter(|contents| contents.len() as u64 == extent.bytes) {
            Some(contents) => contents,
            None => self.read_extent(extent)?,
        };
        let (place, evicted) = self.extents.insert_lent(extent.start, contents);
        self.frames.drop_later(evicted);
        Ok(place)
    }

    /// Drops the contents of a large value that no reader can reach any more.
    pub(crate) fn remove_extent(&self, start: u32) {
        self.extents.remove(start);
        self.frames.forget_contents(start);
    }

    /// Keeps the contents of a large value of the file in memory, and drops those that are there the longest if there
    /// are too many.
    pub(crate) fn keep_extent(&self, extent: Extent, contents: Box<[u8]>) {
        self.frames.drop_later(self.extents.insert(extent.start, contents));
    }

    /// Reads a large value from the file, and checks it.
    pub(crate) fn read_extent(&self, extent: Extent) -> Result<Box<[u8]>> {
        if !extent.is_possible() {
            return Err(self.wrong(extent.start, "a large value has an impossible place"));
        }
        let mut contents = Vec::new();
        contents.try_reserve_exact(extent.bytes as usize).map_err(|_| {
            Error::new(
                ErrorKind::Memory,
                &self.path,
                format!("there is no memory for a value of {} bytes", extent.bytes),
            )
        })?;
        contents.resize(extent.bytes as usize, 0);
        let read = read_extent(&*self.storage, extent, &mut contents);
        read.map_err(|error| self.unreadable(extent.start, error))?;
        Ok(contents.into())
    }

    /// Writes a large value to the file, where it has room.
    pub(crate) fn write_extent(&self, extent: Extent, contents: &[u8]) -> Result<()> {
        let written = self.storage.write(contents, extent.offset());
        written.map_err(|error| self.fail("write a large value", &error))
    }

    #[cold]
    fn load(&self, number: u32, version: u64) -> Result<Frame> {
        self.check_parent()?;
        let _loading = lock(&self.loading);
        self.frames.take_back(number.min(MOST_PAGES - 1));
        if let Some(frame) = self.frames.find(number.min(MOST_PAGES - 1), version) {
            return Ok(frame);
        }
        self.check_age(version)?;
        if number >= MOST_PAGES || self.frames.has(number) {
            return Err(self.wrong(number, "a page refers to it that is older"));
        }
        let frame = self.take_frame()?;
        // SAFETY: the frame was just taken.
        let page = unsafe { self.frames.contents_mut(frame) };
        let read = self.read(number, page);
        if let Err(error) = read {
            self.frames.put(frame);
            return Err(error);
        }
        self.frames.publish(number, frame, 0);
        if !self.frames.lend(frame, version) {
            self.check_age(version)?;
        }
        Ok(frame)
    }

    /// Reads a page of the file, and checks it.
    fn read(&self, number: u32, page: &mut Page) -> Result<()> {
        let read = read_page(&*self.storage, number, self.header.store, page);
        read.map_err(|error| self.unreadable(number, error))?;
        check_contents(page, number, self.first).map_err(|what| self.wrong(number, what))
    }
}

/// Checks the contents of a page of any bytes, so that no read and no change of it fails. `first` is the
/// map of the first group.
pub(crate) fn check_contents(page: &Page, number: u32, first: u32) -> std::result::Result<(), &'static str> {
    let Some(place) = number.checked_sub(first) else { return Err("it is a page of the header or the log") };
    if !place.is_multiple_of(GROUP) {
        return if kind(page) == OBJECT { ObjectPage(page).check() } else { Node(page).check() };
    }
    if kind(page) == MAP && is_used(page, 0) { Ok(()) } else { Err("it is not a map of pages in use") }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::ops::Range;
    use std::sync::Arc;

    use super::*;
    use crate::check_tests::{page_mut, places};
    use crate::crash::{Hook, HookedDisk, OnDisk, TABLES, empty, open_on};
    use crate::object::ObjectOptions;
    use crate::page::{PAGE, offset_of};

    /// Whether the disk is full.
    impl Hook for Arc<AtomicBool> {
        fn before_durable_write(&self) -> io::Result<()> {
            if self.load(Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
        }
    }

    #[test]
    fn a_full_disk_at_a_write_to_the_log_is_not_reported_as_a_store_that_is_as_before() {
        let (is_full, disk) = (Arc::<AtomicBool>::default(), crate::check_tests::disk(&empty(16)));
        let storage = HookedDisk(OnDisk(Arc::clone(&disk)), Arc::clone(&is_full));
        let store = open_on(Box::new(storage), 64 * PAGE, ObjectOptions::DEFAULT).unwrap();
        let put = |key: u32| store.write(|tx| tx.table(TABLES[0])?.insert(&key, &[1]));
        put(1).unwrap();
        is_full.store(true, Relaxed);
        let error = put(2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
        let remedy = error.remedy().unwrap();
        assert!(remedy.contains("free space") && remedy.contains("open it again"), "{remedy}");
        is_full.store(false, Relaxed);
        assert_eq!(put(3).unwrap_err().kind(), ErrorKind::Poisoned);
        drop(store);
        let store = crate::crash::open(&disk).unwrap();
        let now = store.read().unwrap();
        let table = now.table(TABLES[0]).unwrap();
        assert!(table.get(&1).unwrap().is_some() && table.get(&3).unwrap().is_none());
    }

    /// What is done once, before a page is read.
    struct Action {
        page: u32,
        run: Box<dyn FnOnce() + Send>,
    }

    #[derive(Default)]
    struct BeforeRead(Mutex<Option<Action>>);

    impl std::fmt::Debug for BeforeRead {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_tuple("BeforeRead").finish_non_exhaustive()
        }
    }

    impl Hook for Arc<BeforeRead> {
        fn before_read(&self, bytes: Range<u64>) -> io::Result<()> {
            let action = lock(&self.0).take_if(|action| bytes.start == offset_of(action.page));
            action.into_iter().for_each(|action| (action.run)());
            Ok(())
        }
    }

    #[test]
    fn a_copy_of_a_page_is_of_its_version_if_the_file_gets_a_later_one_before_the_read() {
        let disk = crate::check_tests::disk(&empty(16));
        let put = |store: &crate::Store, round: u8| store.write(|tx| tx.table(TABLES[0])?.insert(&1, &[round; 120]));
        put(&crate::crash::open(&disk).unwrap(), 0).unwrap();
        let mut image = lock(&disk).cached().into_owned();
        let (_, _, _, root) = places(&image);
        let expected = *page_mut(&mut image, root);
        let hook = Arc::<BeforeRead>::default();
        let storage = HookedDisk(OnDisk(Arc::clone(&disk)), Arc::clone(&hook));
        let store = open_on(Box::new(storage), 64 * PAGE, ObjectOptions::DEFAULT).unwrap();
        let (reader, _) = store.0.shared.frames.begin_published();
        let (writer, in_file) = (store.clone(), Arc::clone(&disk));
        let replace = move || {
            let mut round = 0_u8;
            while *page_mut(&mut lock(&in_file).cached().into_owned(), root) == expected {
                round = round.wrapping_add(1);
                put(&writer, round).unwrap();
            }
        };
        *lock(&hook.0) = Some(Action { page: root, run: Box::new(replace) });
        let mut copy = [0; PAGE];
        store.0.shared.copy_page(root, reader.version, &mut copy).unwrap();
        assert!(lock(&hook.0).is_none(), "the page was in memory");
        assert!(copy == expected, "it is a copy of a later version");
        store.0.shared.frames.end(reader);
    }
}
