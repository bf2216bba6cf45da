//! The memory that is saved, and what changed in it since the last save.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fieldstone_pages::{Loss, Memory, Tracking};
use fieldstone_sys::pagemap::{populated_ranges, present_ranges};

use crate::error::{Error, Result};
use crate::format::{Identity, PAGE};
use crate::page_hashes::PageHashes;
use crate::page_set::PageSet;
use crate::save::Save;
use crate::sink::Sink;

/// The smallest limit of the buffers.
const LEAST_MEMORY: usize = 4 << 20;

/// How the pages of a save are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// Compressed by lz4, where that makes them smaller.
    Lz4,
    /// Compressed by zstd at its level 1, where that makes them smaller.
    #[cfg(feature = "zstd")]
    Zstd,
}

/// Settings of all saves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) stop_limit: Duration,
    pub(crate) memory_limit: usize,
    pub(crate) compression: Compression,
    compares_pages: bool,
    pinned_elsewhere: bool,
}

/// A memory, and its pages that no save has.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) tracking: Tracking,
    /// Pages that may have contents: all others are zeros, and are not even read.
    pub(crate) used: PageSet,
    /// Pages that were written since the last whole save, and are clean for the kernel.
    pub(crate) unsaved: PageSet,
    /// The pages of one round.
    pub(crate) round: PageSet,
}

/// Settings and state, used by one save at a time.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) memories: Vec<Memory>,
    /// Empty after a save by copy before write: nothing is tracked then, and the next save is complete.
    pub(crate) regions: Vec<Region>,
    pub(crate) options: Options,
    /// Of the pages of the last save, if all are compared.
    pub(crate) hashes: Option<PageHashes>,
    /// Set when the save that runs ends early.
    pub(crate) is_cancelled: Arc<AtomicBool>,
    /// The last whole save.
    pub(crate) base: Identity,
    pub(crate) backoff: Backoff,
}

/// How many saves do without rounds, since the program was too fast for them or did not wait, and copy before
/// write worked.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    left: u32,
    /// The last value at its begin.
    next: u32,
}

impl Backoff {
    const MOST: u32 = 8;

    /// Whether this save tries rounds.
    pub(crate) const fn tries(&mut self) -> bool {
        let tries = self.left == 0;
        self.left = self.left.saturating_sub(1);
        tries
    }

    /// Twice as many saves as before do without rounds.
    pub(crate) fn grow(&mut self) {
        self.next = (self.next * 2).clamp(1, Self::MOST);
        self.left = self.next;
    }
}

impl State {
    /// Tracks the memories, if they are not tracked.
    pub(crate) fn track(&mut self) -> Result<()> {
        if self.regions.is_empty() {
            self.base = Identity::default();
            self.regions = self.memories.iter().map(|memory| Region::new(memory.share())).collect::<Result<_>>()?;
        }
        Ok(())
    }

    /// # Errors
    /// [`Error::Pinned`] if devices may write to memory of this process, and no option says how to go on.
    pub(crate) fn refuse_pinned(&self) -> Result<()> {
        let is_handled = self.options.compares_pages || self.options.pinned_elsewhere;
        let has_pinned = || self.regions.iter().any(|region| region.tracking.losses().contains(&Loss::PinnedPages));
        if !is_handled && has_pinned() { Err(Error::Pinned) } else { Ok(()) }
    }
}

/// Saves one or more memories as of one instant, while the program writes to them.
///
/// A forked child cannot save: its memory is not tracked.
#[derive(Debug)]
pub struct Checkpointer {
    state: Arc<Mutex<State>>,
    is_saving: Arc<AtomicBool>,
}

/// A save begins, or has ended.
struct Saving(Arc<AtomicBool>);

impl Saving {
    /// `None` while another save runs.
    fn begin(is_saving: &Arc<AtomicBool>) -> Option<Self> {
        (!is_saving.swap(true, Acquire)).then(|| Self(Arc::clone(is_saving)))
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// Options of a [`Checkpointer`].
#[derive(Debug)]
pub struct CheckpointerBuilder {
    memories: Vec<Memory>,
    options: Options,
}

impl CheckpointerBuilder {
    /// How long writers may wait at the instant of a save, about. Default: 5 ms.
    #[must_use]
    pub const fn stop_limit(mut self, limit: Duration) -> Self {
        self.options.stop_limit = limit;
        self
    }

    /// Bytes that the buffers of a save may take; fewer than 4 MiB count as 4 MiB. Default: 256 MiB.
    #[must_use]
    pub fn memory_limit(mut self, bytes: usize) -> Self {
        self.options.memory_limit = bytes.max(LEAST_MEMORY);
        self
    }

    /// How pages are stored. Default: as they are.
    #[must_use]
    pub const fn compression(mut self, compression: Compression) -> Self {
        self.options.compression = compression;
        self
    }

    /// Compares all pages with the last save at the instant of each save, to find those that changed without
    /// being recorded as written: by a device into pinned memory, say. They are saved, and counted in the
    /// report. Writers wait meanwhile, about 0.1 s for each GiB, and 8 bytes a page are needed.
    ///
    /// What a device writes while a save falls back to copy before write may be part of it.
    #[must_use]
    pub const fn compare_pages(mut self, compares: bool) -> Self {
        self.options.compares_pages = compares;
        self
    }

    /// Saves also while this process has pinned memory, because none of it is saved. Without this option and
    /// [`CheckpointerBuilder::compare_pages`], [`Error::Pinned`] refuses such saves.
    #[must_use]
    pub const fn pinned_elsewhere(mut self, elsewhere: bool) -> Self {
        self.options.pinned_elsewhere = elsewhere;
        self
    }

    /// Begins to track the memories: the first write to each page costs a fault from now on, about half a
    /// microsecond.
    ///
    /// # Errors
    /// [`Error::NoMemory`] without one; [`Error::Memory`] if a memory is controlled by a region already, cannot be tracked, or can be
    /// written by other ways than its addresses.
    pub fn build(self) -> Result<Checkpointer> {
        if self.memories.is_empty() {
            return Err(Error::NoMemory);
        }
        let sizes = self.memories.iter().map(|memory| memory.bytes() / PAGE);
        let hashes = self.options.compares_pages.then(|| PageHashes::new(sizes));
        let mut state = State {
            memories: self.memories,
            regions: Vec::new(),
            options: self.options,
            hashes,
            is_cancelled: Arc::default(),
            base: Identity::default(),
            backoff: Backoff::default(),
        };
        state.track()?;
        Ok(Checkpointer { state: Arc::new(Mutex::new(state)), is_saving: Arc::default() })
    }
}

impl Region {
    fn new(memory: Memory) -> Result<Self> {
        let mut used = PageSet::new(memory.bytes() / PAGE);
        // Before the tracking, since it marks missing pages as if they were in swap space; and behind it,
        // since a thread may have written meanwhile.
        add_pages(&mut used, &memory, populated_ranges)?;
        let tracking = Tracking::new(memory)?;
        add_present(&mut used, tracking.memory())?;
        if tracking.losses().contains(&Loss::SharedMemory) {
            return Err(Error::Memory(fieldstone_pages::Error::Unsupported {
                what: "saving shared memory",
                why: "writes through another mapping or to its file are not detected: use `Memory::anonymous`",
            }));
        }
        let pages = tracking.memory().bytes() / PAGE;
        Ok(Self { tracking, used, unsaved: PageSet::new(pages), round: PageSet::new(pages) })
    }

    /// Counts all pages with contents as not saved.
    pub(crate) fn forget_saves(&mut self) {
        self.unsaved.add(&self.used);
    }
}

/// Adds the pages that are in memory.
pub(crate) fn add_present(set: &mut PageSet, memory: &Memory) -> Result<()> {
    let present = |range| Ok(present_ranges(std::process::id(), range)?.into_iter().map(|found| found.range).collect());
    add_pages(set, memory, present)
}

fn add_pages(
    set: &mut PageSet,
    memory: &Memory,
    find: impl FnOnce(Range<u64>) -> fieldstone_sys::Result<Vec<Range<u64>>>,
) -> Result<()> {
    let start = memory.start();
    let found = find(start as u64..(start + memory.bytes()) as u64).map_err(|error| Error::File {
        operation: "scan",
        path: "/proc/self/pagemap".into(),
        source: std::io::Error::other(error),
    })?;
    for Range { start: first, end } in found {
        set.insert((first as usize - start) / PAGE..(end as usize - start) / PAGE);
    }
    Ok(())
}

impl Checkpointer {
    /// A checkpointer of these memories, which must stay mapped where they are.
    pub fn builder<'a>(memories: impl IntoIterator<Item = &'a Memory>) -> CheckpointerBuilder {
        CheckpointerBuilder {
            memories: memories.into_iter().map(Memory::share).collect(),
            options: Options {
                stop_limit: Duration::from_millis(5),
                memory_limit: 256 << 20,
                compression: Compression::None,
                compares_pages: false,
                pinned_elsewhere: false,
            },
        }
    }

    /// Begins a save, in a thread of its own, and returns at once.
    ///
    /// The safe point runs in that thread, after most pages are copied. It makes the program's data
    /// consistent, takes the lock that all writers hold while they write, and returns it with a number
    /// that is kept in the save, such as a position in a log. What it returns is dropped when the instant
    /// is taken. If a thread writes meanwhile nevertheless, or writes faster than pages are copied, the save
    /// begins again by copy before write: all pages are protected, and the first write to each 256 KiB
    /// waits until they are copied. It calls the safe point a second time then.
    ///
    /// What the safe point returns must not write to the memory when it is dropped, and not wait for a thread
    /// that writes: such a write may wait for this save.
    ///
    /// A save to a [`crate::Directory`] contains what changed since the last one, if this checkpointer
    /// made that without copy before write; else all pages that are not empty. An error leaves the last save as
    /// it is.
    ///
    /// # Errors
    /// [`Error::Busy`] while another save runs, and [`Error::Thread`].
    pub fn begin<S, F, G>(&mut self, sink: &S, safe_point: F) -> Result<Save>
    where
        S: Sink + Clone + 'static,
        F: Fn() -> (G, u64) + Send + 'static,
    {
        let saving = self.begin_saving()?;
        let (state, sink, is_cancelled) = (Arc::clone(&self.state), sink.clone(), Arc::<AtomicBool>::default());
        Save::spawn(Arc::clone(&is_cancelled), move || {
            let _saving = saving;
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            state.is_cancelled = is_cancelled;
            state.save(&sink, &safe_point)
        })
    }

    /// As [`Checkpointer::begin`], in the calling thread: returns when the save is durable. The safe point may
    /// borrow.
    ///
    /// # Errors
    /// [`Error::Busy`] while another save runs, and why the save is not whole.
    pub fn save<G>(&mut self, sink: &dyn Sink, safe_point: impl Fn() -> (G, u64)) -> Result<crate::Report> {
        let _saving = self.begin_saving()?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_cancelled = Arc::default();
        state.save(sink, &safe_point)
    }

    fn begin_saving(&self) -> Result<Saving> {
        Saving::begin(&self.is_saving).ok_or(Error::Busy)
    }
}
