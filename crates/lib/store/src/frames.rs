//! The pages in memory: a frame for each version that somebody may read.
//!
//! ```text
//! page ─→ frame of the newest version ─→ older version ─→ …
//! ```
//! A frame never changes once it is published: a snapshot reads the newest one that is not newer than
//! itself. A frame that was replaced is free when no snapshot is older than the version behind it.

#![allow(unsafe_code, reason = "lends pages of a mapping")]

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use fieldstone_pages::Memory;

use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::page::{PAGE, Page};

/// Pages of the largest store: 256 GiB.
pub(crate) const MOST_PAGES: u32 = 1 << 26;
/// Frames at one time.
const MOST_FRAMES: u32 = 1 << 26;

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame(u32);

/// The pages in memory.
#[derive(Debug)]
pub(crate) struct Frames {
    contents: Memory,
    /// The number of the newest frame of each page, plus one; 0 for a page that is in the file only.
    newest: Memory,
    /// Two words a frame: the commit that made it, and the frame of the version before, plus one.
    versions: Memory,
    unused: Mutex<Unused>,
    snapshots: Mutex<Snapshots>,
}

#[derive(Debug, Default)]
struct Unused {
    free: Vec<u32>,
    /// The frames from here on were never used.
    end: u32,
}

/// Who reads, and what is kept for them.
#[derive(Debug, Default)]
struct Snapshots {
    /// The number of snapshots of each version.
    active: BTreeMap<u64, usize>,
    /// Versions that were replaced, oldest first.
    replaced: VecDeque<Replaced>,
}

#[derive(Clone, Copy, Debug)]
struct Replaced {
    /// The commit that has replaced it.
    by: u64,
    old: Frame,
    new: Frame,
}

impl Frames {
    /// Reserves addresses.
    ///
    /// # Errors
    /// Without enough of them.
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let reserve = |bytes: u64| {
            Memory::anonymous(bytes as usize).map_err(|error| {
                Error::new(ErrorKind::Memory, path, format!("cannot reserve addresses: {error}"))
                    .with_remedy("a larger limit of address space (ulimit -v)")
            })
        };
        Ok(Self {
            contents: reserve(u64::from(MOST_FRAMES) * PAGE as u64)?,
            newest: reserve(u64::from(MOST_PAGES) * 8)?,
            versions: reserve(u64::from(MOST_FRAMES) * 16)?,
            unused: Mutex::default(),
            snapshots: Mutex::default(),
        })
    }

    fn newest(&self, page: u32) -> &AtomicU64 {
        &self.newest.words()[page as usize]
    }

    fn made_by(&self, frame: Frame) -> &AtomicU64 {
        &self.versions.words()[frame.0 as usize * 2]
    }

    fn older(&self, frame: Frame) -> &AtomicU64 {
        &self.versions.words()[frame.0 as usize * 2 + 1]
    }

    /// A frame that is not published, with any contents; `None` if there is no memory for more.
    pub(crate) fn take(&self) -> Option<Frame> {
        let mut unused = lock(&self.unused);
        if let Some(free) = unused.free.pop() {
            return Some(Frame(free));
        }
        let end = unused.end;
        (end < MOST_FRAMES).then(|| {
            unused.end += 1;
            Frame(end)
        })
    }

    /// Returns a frame that was not published.
    pub(crate) fn put(&self, frame: Frame) {
        lock(&self.unused).free.push(frame.0);
    }

    fn start(&self, frame: Frame) -> *mut Page {
        // SAFETY: each frame that was taken is inside the mapping.
        unsafe { self.contents.as_ptr().add(frame.0 as usize * PAGE).cast() }
    }

    /// The contents of a published frame.
    ///
    /// # Safety
    /// The caller keeps a snapshot of this version or an older one, or is the only writer, while it uses
    /// the result.
    pub(crate) unsafe fn contents(&self, frame: Frame) -> &Page {
        // SAFETY: a published frame never changes, and it is not free while the caller reads.
        unsafe { &*self.start(frame) }
    }

    /// The contents of a frame that was taken and not published.
    ///
    /// # Safety
    /// The caller has taken it, and lends it once at a time.
    #[expect(clippy::mut_from_ref, reason = "the frame belongs to the caller")]
    pub(crate) unsafe fn contents_mut(&self, frame: Frame) -> &mut Page {
        // SAFETY: the caller alone has the frame, which was taken.
        unsafe { &mut *self.start(frame) }
    }

    /// The newest frame of a page that is not newer than a version.
    pub(crate) fn find(&self, page: u32, version: u64) -> Option<Frame> {
        let mut next = self.newest(page).load(Acquire);
        loop {
            let frame = Frame(u32::try_from(next.checked_sub(1)?).ok()?);
            if self.made_by(frame).load(Relaxed) <= version {
                return Some(frame);
            }
            next = self.older(frame).load(Acquire);
        }
    }

    /// Whether a page is in memory.
    pub(crate) fn has(&self, page: u32) -> bool {
        self.newest(page).load(Acquire) != 0
    }

    /// Makes a frame the newest one of a page, as of a commit. 0 is what the file contains.
    pub(crate) fn publish(&self, page: u32, frame: Frame, commit: u64) {
        let newest = self.newest(page);
        let old = newest.load(Relaxed);
        self.made_by(frame).store(commit, Relaxed);
        self.older(frame).store(old, Relaxed);
        newest.store(u64::from(frame.0) + 1, Release);
        if let Some(old) = old.checked_sub(1) {
            let replaced = Replaced { by: commit, old: Frame(old as u32), new: frame };
            lock(&self.snapshots).replaced.push_back(replaced);
        }
    }

    /// Registers a snapshot. `published` is called while none can be freed; returns its result.
    pub(crate) fn begin(&self, published: impl FnOnce() -> (u64, u32)) -> (u64, u32) {
        let mut snapshots = lock(&self.snapshots);
        let published = published();
        *snapshots.active.entry(published.0).or_default() += 1;
        published
    }

    /// Ends a snapshot.
    pub(crate) fn end(&self, version: u64) {
        let mut snapshots = lock(&self.snapshots);
        if let Some(count) = snapshots.active.get_mut(&version) {
            *count -= 1;
            if *count == 0 {
                snapshots.active.remove(&version);
            }
        }
    }

    /// Frees the frames that no snapshot can need, now that `version` is the newest one.
    pub(crate) fn reclaim(&self, version: u64) {
        let mut snapshots = lock(&self.snapshots);
        let oldest = snapshots.active.first_key_value().map_or(version, |(&oldest, _)| oldest);
        let mut unused = lock(&self.unused);
        while let Some(&replaced) = snapshots.replaced.front().filter(|replaced| replaced.by <= oldest) {
            // Whoever reads this page now stops at the newer frame.
            self.older(replaced.new).store(0, Release);
            unused.free.push(replaced.old.0);
            snapshots.replaced.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_reads_its_version_until_it_ends() {
        let frames = Frames::new(Path::new("test")).unwrap();
        let publish = |commit: u64| {
            let frame = frames.take().unwrap();
            // SAFETY: the frame was just taken.
            unsafe { frames.contents_mut(frame)[0] = commit as u8 };
            frames.publish(7, frame, commit);
            frames.reclaim(commit);
            frame
        };
        let first = publish(1);
        let (snapshot, _) = frames.begin(|| (1, 8));
        let second = publish(2);
        assert_eq!((frames.find(7, 1), frames.find(7, 2), frames.find(8, 2)), (Some(first), Some(second), None));
        // SAFETY: the snapshot keeps the frame, which was published.
        assert_eq!(unsafe { frames.contents(first)[0] }, 1);
        frames.end(snapshot);
        let third = publish(3);
        assert_eq!((frames.find(7, 2), frames.find(7, 3)), (None, Some(third)));
        // Both old frames are used again.
        assert_eq!([frames.take(), frames.take()].map(|frame| frame.unwrap().0 < 2), [true, true]);
    }
}
