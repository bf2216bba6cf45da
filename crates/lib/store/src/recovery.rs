//! Opening: a new file, or one whose log is applied first.
//!
//! ```text
//! log ─→ changes of a page, applied to what the file contains ─→ check as in the log ─→ memory, file
//!                                                             └→ another check: damaged, file
//! ```
//! [`crate::log`] says why this repairs torn pages. A page that has another check in the end was damaged
//! otherwise: bits have changed, or an earlier write was lost. It is written with the check that it should
//! have, so each later read reports it. All other pages can be read.

#![allow(unsafe_code, reason = "fills frames that were just taken")]

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::commit::Writer;
use crate::error::{Error, ErrorKind, Result, quoted};
use crate::extent::Extents;
use crate::finding::{Finding, Lost};
use crate::flush::{write_header, write_pages};
use crate::frames::{Frames, MOST_PAGES};
use crate::header::{Header, MAGIC, Unusable};
use crate::log::{self, BLOCK, Change};
use crate::log_records;
use crate::new_file::NewFile;
use crate::page::{PAGE, Page, is_sealed, offset_of, seal};
use crate::progress::{OnRecovery, RecoveryOptions, RecoveryProgress};
use crate::shared::{Shared, check_contents};
use crate::space;
use crate::storage::{DiskFile, Storage};
use crate::tree;

/// Opens a file. If it is absent, makes it with a log of this size, if there is one. Returns it with the header that
/// is in the file now.
///
/// # Errors
/// As of [`crate::Store::open`].
pub(crate) fn open(
    path: &Path,
    log_pages: Option<u32>,
    memory: usize,
    options: &RecoveryOptions,
) -> Result<(Arc<Shared>, Header)> {
    let path = absolute(path)?;
    let file = match File::options().read(true).write(true).open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match log_pages {
            Some(_) if path.is_symlink() => return Err(Error::opening(&path, &error)),
            Some(log_pages) => create(&path, log_pages)?,
            None => {
                let error = Error::new(ErrorKind::Absent, &path, "there is no such file");
                return Err(error.with_remedy("the right path, or mount its file system"));
            }
        },
        opened => opened.map_err(|error| cannot_open(&path, &error))?,
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            return Err(busy(&file, &path));
        }
        Err(TryLockError::Error(error)) => return Err(Error::io(&path, "lock the store", &error)),
    }
    let storage = Box::new(DiskFile::new(file));
    recover(path, storage, memory, options)
}

/// The error of a file that cannot be opened to write.
fn cannot_open(path: &Path, error: &io::Error) -> Error {
    use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    let failed = Error::opening(path, error);
    match error.kind() {
        PermissionDenied | ReadOnlyFilesystem => failed
            .with_remedy("the permission to write to it; `fieldstone store check`, `stat` and `dump` only read it"),
        _ => failed,
    }
}

/// The error of a file that is open already.
fn busy(file: &File, path: &Path) -> Error {
    let (what, remedy) = if is_open_here(file) {
        ("this process has it open", "use one open store, shared by the threads of the process")
    } else {
        ("another process has it open", "close it there, or copy it with Store::backup")
    };
    Error::new(ErrorKind::Busy, path, what).with_remedy(remedy)
}

/// Whether this process has the same file open by another descriptor.
fn is_open_here(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(same) = file.metadata() else { return false };
    let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") else { return false };
    let found = descriptors.filter_map(|entry| std::fs::metadata(entry.ok()?.path()).ok());
    found.filter(|other| (other.dev(), other.ino()) == (same.dev(), same.ino())).count() > 1
}

/// The path, with which messages name the file wherever the process goes.
pub(crate) fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).map_err(|error| Error::io(path, "find", &error))
}

/// Makes an empty store, or opens the one that another thread or process makes meanwhile.
fn create(path: &Path, log_pages: u32) -> Result<File> {
    let failed = |error: io::Error| Error::making(path, "make the store", &error);
    let new = NewFile { path, mode: 0o666, is_locked: true };
    match new.make(|file| write_new(file, log_pages).map_err(failed)) {
        Err(error) if error.kind() == ErrorKind::Exists => {
            File::options().read(true).write(true).open(path).map_err(failed)
        }
        made => made,
    }
}

/// Writes an empty store.
pub(crate) fn write_new(file: &File, log_pages: u32) -> io::Result<()> {
    let header = write_start(file, log_pages)?;
    let mut pages: [Page; 2] = [[0; PAGE]; 2];
    space::clear(&mut pages[0]);
    space::take(&mut pages[0], |_| false);
    tree::plant(&mut pages[1]);
    for (number, page) in (header.first()..).zip(&mut pages) {
        seal(page, number, header.store);
    }
    file.write_all_at(pages.as_flattened(), u64::from(header.first()) * PAGE as u64)
}

/// Writes the header and the log of a new file, without its pages. The zeros of the log are written: a
/// later write there changes nothing else in the file system.
pub(crate) fn write_start(file: &File, log_pages: u32) -> io::Result<Header> {
    let store = RandomState::new().hash_one(std::process::id());
    let first = Header { store, epoch: 1, sequence: 0, log_pages, end: 0 };
    let header = Header { end: first.catalog() + 1, ..first };
    let zeros = vec![0; 1 << 20];
    let before = u64::from(header.first()) * PAGE as u64;
    for offset in (0..before).step_by(zeros.len()) {
        let bytes = zeros.len().min((before - offset) as usize);
        file.write_all_at(&zeros[..bytes], offset)?;
    }
    file.write_all_at(&header.bytes(), header.offset())?;
    Ok(header)
}

/// The newest header of a file.
pub(crate) fn read_header(path: &Path, storage: &dyn Storage) -> Result<Header> {
    let bytes = storage.bytes().map_err(|error| Error::io(path, "read", &error))?;
    if !has_magic(storage) {
        return Err(Error::no_store(path));
    }
    if bytes < 2 * PAGE as u64 {
        return Err(Error::corrupt(path, None, "the file is too short to be a store").with_remedy(NO_HEADER));
    }
    let copies = header_copies(storage);
    if let Some(header) = copies.iter().flatten().max_by_key(|header| header.epoch) {
        return Ok(*header);
    }
    if copies.contains(&Err(Unusable::Later)) {
        let what = "the store was written by a later version, or needs features that this one does not have";
        return Err(Error::new(ErrorKind::Version, path, what).with_remedy("a newer fieldstone-store"));
    }
    Err(Error::corrupt(path, Some(0), "neither copy of the header is whole").with_remedy(NO_HEADER))
}

/// What to do about a file without a header.
const NO_HEADER: &str = "a backup: without the header nothing in the file can be read";

/// Whether a copy of the header begins as that of a store.
fn has_magic(storage: &dyn Storage) -> bool {
    [0, PAGE as u64].into_iter().any(|offset| {
        let mut bytes = [0; MAGIC.len()];
        storage.read(&mut bytes, offset).is_ok() && bytes == *MAGIC
    })
}

/// Both copies of the header, as they are in the file.
pub(crate) fn header_copies(storage: &dyn Storage) -> [std::result::Result<Header, Unusable>; 2] {
    [0, 1].map(|page| {
        let mut bytes = [0; BLOCK];
        storage.read(&mut bytes, page * PAGE as u64).map_err(|_| Unusable::Damaged)?;
        Header::parse(&bytes)
            .and_then(|header| if header.offset() == page * PAGE as u64 { Ok(header) } else { Err(Unusable::Damaged) })
    })
}

/// What the log says.
#[derive(Debug)]
pub(crate) struct Replayed {
    /// The pages that it changes, with all changes. Each has the check that it should have: with another
    /// one than that of its contents, it was damaged in the file.
    pub(crate) pages: BTreeMap<u32, Box<Page>>,
    /// Those of them that are not new and cannot be read.
    pub(crate) unreadable: BTreeMap<u32, io::Error>,
    /// The last commit.
    pub(crate) sequence: u64,
    pub(crate) end: u32,
    /// The smallest number of pages that the file had since the header: the file is not shorter.
    least_end: u32,
}

impl Replayed {
    /// The state before any record.
    pub(crate) fn new(header: &Header) -> Self {
        let (pages, unreadable) = (BTreeMap::new(), BTreeMap::new());
        Self { pages, unreadable, sequence: header.sequence, end: header.end, least_end: header.end }
    }

    /// Makes a change of a page: of what the file contains, if it is the first one and the page is not new.
    fn apply(&mut self, storage: &dyn Storage, change: &Change<'_>) {
        let page = self.pages.entry(change.number).or_insert_with(|| {
            let mut page = Box::new([0; PAGE]);
            let read = if change.is_new { Ok(()) } else { storage.read(&mut *page, offset_of(change.number)) };
            if let Err(error) = read {
                page.fill(0);
                // A page behind the end of the file has a wrong check in the end, unless it becomes new.
                if error.kind() != io::ErrorKind::UnexpectedEof {
                    self.unreadable.insert(change.number, error);
                }
            }
            page
        });
        change.apply(page);
        if change.is_new {
            self.unreadable.remove(&change.number);
        }
    }

    /// What is wrong with the size of a file: it is shorter than a crash can leave it. What the log has made
    /// larger may be in the log only.
    pub(crate) fn wrong_size(&self, bytes: u64) -> Option<String> {
        let needed = offset_of(self.least_end);
        (bytes < needed).then(|| format!("the file has {bytes} bytes, and its header says that it has {needed}"))
    }

    /// Drops what was changed behind the end of the store: the file may have been cut there.
    fn cut(&mut self) {
        self.pages.split_off(&self.end);
        self.unreadable.split_off(&self.end);
    }
}

/// Reads all records from the epoch of the header on. After an error, `replayed` has those before it.
fn replay(replayed: &mut Replayed, path: &Path, storage: &dyn Storage, header: &Header) -> Result<()> {
    let bytes = storage.bytes().map_err(|error| Error::io(path, "read", &error))?;
    if bytes / (PAGE as u64) < header.first().into() {
        return Err(Error::corrupt(path, None, "the file ends inside of the log"));
    }
    for epoch in header.epochs() {
        let mut half = vec![0; header.half_bytes()];
        let read = storage.read(&mut half, header.half(epoch));
        read.map_err(|error| Error::io(path, "read the log", &error))?;
        let mut rest = &half[..];
        while let Some(record) = log::find(rest, header.store, epoch, replayed.sequence + 1) {
            let damaged = |what| Error::corrupt(path, None, what);
            if !(header.catalog() + 1..=MOST_PAGES).contains(&record.end) {
                return Err(damaged("a record of the log has an impossible number of pages"));
            }
            let mut apart = Vec::new();
            let lines = if record.apart == 0 {
                record.lines(rest).unwrap_or_default()
            } else {
                if record.apart.checked_add(record.bytes as u64).is_none_or(|end| end > bytes) {
                    return Err(damaged("the file ends before the changes of its last transaction"));
                }
                apart.resize(record.bytes, 0);
                let read = storage.read(&mut apart, record.apart);
                read.map_err(|error| Error::io(path, "read the changes of the last transaction", &error))?;
                if !record.has(&apart, header.store) {
                    return Err(damaged("the check of the last transaction is wrong"));
                }
                &apart
            };
            let changes: Option<Vec<Change<'_>>> = record.changes(lines).collect();
            let changes = changes.ok_or_else(|| damaged("a record of the log contradicts itself"))?;
            if !changes.iter().all(|change| (header.first()..record.end).contains(&change.number)) {
                return Err(damaged("a record of the log changes a page outside of the file"));
            }
            // The disk reads the pages of a record at the same time.
            let is_read = |change: &&Change<'_>| !change.is_new && !replayed.pages.contains_key(&change.number);
            changes.iter().filter(is_read).for_each(|change| storage.will_read(PAGE as u64, offset_of(change.number)));
            changes.iter().for_each(|change| replayed.apply(storage, change));
            replayed.sequence += 1;
            replayed.end = record.end;
            replayed.least_end = replayed.least_end.min(record.end);
            rest = rest.get(record.in_log()..).unwrap_or_default();
        }
    }
    replayed.cut();
    Ok(())
}

/// Reads the log, and finds the damage that ends it.
///
/// # Errors
/// If the log cannot be read.
pub(crate) fn read_log(path: &Path, storage: &dyn Storage, header: &Header) -> Result<(Replayed, Option<Finding>)> {
    let mut log = Replayed::new(header);
    let damage = match replay(&mut log, path, storage, header) {
        Ok(()) => None,
        Err(error) if error.kind() == ErrorKind::Corrupt => Some(error.what().to_owned()),
        Err(error) => return Err(error),
    };
    let bytes = storage.bytes().map_err(|error| Error::io(path, "read", &error))?;
    if bytes < offset_of(header.first()) {
        let finding = Finding { offset: bytes, what: damage.unwrap_or_default(), lost: Lost::All };
        return Ok((log, Some(finding)));
    }
    let found = log_records::damage(storage, header, log.sequence, damage);
    let found = found.map_err(|error| Error::io(path, "read the log", &error))?;
    if found.is_some() {
        log.cut();
    }
    Ok((log, found))
}

/// The number of commits that are lost by damage of the log, if that is accepted.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if it is not accepted.
fn lost_commits(path: &Path, damage: Option<Finding>, is_accepted: bool) -> Result<u64> {
    let Some(damage) = damage else { return Ok(0) };
    let Lost::Commits(first, last) = damage.lost else { return Err(Error::corrupt(path, None, &damage.what)) };
    if is_accepted {
        return Ok(last - first + 1);
    }
    let commits = if first == last { format!("commit {first} is") } else { format!("commits {first} to {last} are") };
    Err(Error::corrupt(path, None, &format!("{}, {commits} lost", damage.what)).with_remedy(format!(
        "a backup; or `fieldstone store dump --salvage {}`, which prints what can be read; or \
         StoreBuilder::accept_lost_commits, which opens the store with the commits before them",
        quoted(path)
    )))
}

/// Brings the pages of the log that have the right check into memory. The error is that of a page that can
/// have no such contents.
fn load_pages(replayed: &Replayed, frames: &Frames, path: &Path, header: &Header) -> Result<Vec<u32>> {
    if let Some((number, error)) = replayed.unreadable.first_key_value() {
        return Err(Error::io(path, &format!("read page {number}"), error));
    }
    let mut loaded = Vec::new();
    for (&number, page) in replayed.pages.iter().filter(|&(&number, page)| is_sealed(page, number, header.store)) {
        check_contents(page, number, header.first()).map_err(|what| Error::corrupt(path, Some(number), what))?;
        let frame = frames.take().ok_or_else(|| Error::new(ErrorKind::Memory, path, "there are no frames"))?;
        // SAFETY: the frame was just taken, so no other reference to it exists.
        unsafe { *frames.contents_mut(frame) = **page };
        frames.publish(number, frame, 0);
        loaded.push(number);
    }
    Ok(loaded)
}

/// Writes the pages of the log to their places: those that were loaded, and the damaged ones.
fn write_replayed(
    shared: &Shared,
    replayed: &Replayed,
    loaded: &[u32],
    begin: RecoveryProgress,
    report: &OnRecovery,
) -> Result<()> {
    if replayed.pages.is_empty() && begin.lost_commits == 0 {
        return Ok(());
    }
    for (&number, page) in &replayed.pages {
        if loaded.binary_search(&number).is_err() {
            let written = shared.storage.write(&**page, offset_of(number));
            written.map_err(|error| shared.fail("write a damaged page", &error))?;
        }
    }
    let (pages, mut progress) = (begin.pages, begin);
    report.report(progress);
    write_pages(shared, loaded, |written| {
        progress.written_pages += written as u64;
        if progress.written_pages < pages {
            report.report(progress);
        }
    })?;
    report.report(RecoveryProgress { written_pages: pages, ..progress });
    Ok(())
}

/// Applies the log, so that the file has all commits and the log is empty.
/// A quarter of the memory is for large values, and an eighth for objects.
///
/// # Errors
/// As of [`crate::Store::open`]. After [`ErrorKind::Corrupt`], the file is as before.
pub(crate) fn recover(
    path: PathBuf,
    storage: Box<dyn Storage>,
    memory: usize,
    options: &RecoveryOptions,
) -> Result<(Arc<Shared>, Header)> {
    let mut header = read_header(&path, &*storage)?;
    let (replayed, damage) = read_log(&path, &*storage, &header)?;
    let lost_commits = lost_commits(&path, damage, options.accepts_lost_commits)?;
    let bytes = storage.bytes().map_err(|error| Error::io(&path, "read", &error))?;
    if let Some(what) = replayed.wrong_size(bytes) {
        return Err(Error::corrupt(&path, None, &what));
    }
    // The next header says that the file has these pages; the last ones may be unused, and never written.
    if bytes < offset_of(replayed.end) {
        let reserved = storage.reserve(offset_of(replayed.end));
        reserved.map_err(|error| Error::io(&path, "make the file larger", &error))?;
    }
    let (frames, extents) = (Frames::new(&path, memory / 8 * 5)?, Extents::new(memory / 4));
    let loaded = load_pages(&replayed, &frames, &path, &header)?;
    let epoch = header.epoch_after_recovery();
    let writer = Writer::new(replayed.sequence, epoch, replayed.end);
    let shared = Shared::new(path, storage, header, (frames, extents), writer);
    let (commits, pages) = (replayed.sequence - header.sequence, loaded.len() as u64);
    let begin = RecoveryProgress { commits, pages, written_pages: 0, lost_commits };
    write_replayed(&shared, &replayed, &loaded, begin, &options.on_recovery)?;
    header = Header { epoch, sequence: replayed.sequence, end: replayed.end, ..header };
    write_header(&shared, &header)?;
    Ok((Arc::new(shared), header))
}
