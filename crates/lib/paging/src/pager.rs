//! The pager of one address space: the parts that its work shares.
//!
//! ```text
//!   first access  ─→ zeros        ┐
//!   fault         ─→ a store      ├─→ resident ──(over the bound)──→ staging ─→ zeros: nowhere
//!   adopted       ─→ was resident ┘                                        └─→ first store with room
//! ```

#![allow(unsafe_code, reason = "makes references to the arena, which the pager owns")]

use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use fieldstone_wire::paging::{PagingCounters, STORES};

use crate::arena::Arena;
use crate::count::{add, subtract, value};
use crate::error::{Error, Result};
use crate::eviction::Lane;
use crate::file::TempFile;
use crate::kernel::{self, Descriptor, PAGE, now_ns};
use crate::lock::Lock;
use crate::lz4::Lz4;
use crate::ranges::Ranges;
use crate::store::{MAX_KEY, Page, Store, StoreError};
#[cfg(feature = "std")]
use crate::table::CHUNK;
use crate::table::{CHUNK_PAGES, PageTable, Stored};
use crate::userfaultfd::Userfaultfd;

/// Addresses that the pager reserves for itself.
const ARENA: usize = 1 << 40;

const READ_ONLY: u32 = linux_raw_sys::general::O_RDONLY | linux_raw_sys::general::O_CLOEXEC;

/// Threads that evict at the same time: one that runs ahead, and the one that serves faults.
const LANES: usize = 2;

/// Pages that one fault brings or makes at most.
pub(crate) const AHEAD: usize = 16;

/// A pager.
pub struct Pager {
    pub(crate) fd: Userfaultfd,
    pub(crate) table: PageTable,
    pub(crate) counters: &'static PagingCounters,
    pub(crate) arena: &'static Arena,
    /// Held while messages are read and followed.
    pub(crate) work: Lock<Work>,
    /// One for each thread that evicts at the same time.
    pub(crate) lanes: [Lock<Lane>; LANES],
    /// Held while pages are moved away. Without it, two threads that took pages of one huge page at
    /// the same time ended a fifth of the runs of a program in a region by SIGSEGV (Linux 6.18).
    pub(crate) moving: Lock<()>,
    /// Where the sweep goes on.
    pub(crate) cursor: AtomicUsize,
    /// 1 while a thread sleeps in [`Self::evict_ahead`]; its futex.
    pub(crate) idle_evictor: AtomicU32,
    /// Whether a thread calls [`Self::evict_ahead`].
    pub(crate) has_evictor: AtomicBool,
    /// When the next eviction may be tried after one that made no room, by [`now_ns`].
    pub(crate) fruitless_until: AtomicU64,
    /// Whether a lane may hold pages that no store took.
    pub(crate) has_held: AtomicBool,
    /// The thread that has waited for a page last.
    pub(crate) last_thread: AtomicU32,
    /// A page of the arena that stays registered.
    pub(crate) registered: usize,
    /// `/proc/self/pagemap`, to find guards.
    pub(crate) pagemap: Option<Descriptor>,
    pub(crate) wiped: VisitRanges,
    pub(crate) stores: StoreList,
    /// Decides about pages that cannot be read; without it, their accesses raise `SIGBUS`.
    on_loss: Option<&'static OnLoss>,
    /// Pages that are resident and stored as well, and the bytes that the first store may take before
    /// no more are kept.
    pub(crate) copies: AtomicU64,
    pub(crate) copy_bytes: u64,
}

/// The stores, hottest first.
pub(crate) type StoreList = [Option<&'static dyn Store>; STORES];

/// Gets the address of a page, the name of its store and the error; whether the pager tries again.
pub(crate) type OnLoss = dyn Fn(usize, &'static str, StoreError) -> bool + Send + Sync;

/// What a pager is made of.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    pub(crate) arena: &'static Arena,
    pub(crate) counters: &'static PagingCounters,
    pub(crate) stores: StoreList,
    pub(crate) wiped: VisitRanges,
    pub(crate) on_loss: Option<&'static OnLoss>,
    pub(crate) copy_bytes: u64,
}

/// Calls its argument for each range of a list.
pub type VisitRanges = fn(&mut dyn FnMut(Range<usize>));

impl core::fmt::Debug for Pager {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pager").field("arena", &self.arena).field("counters", &self.counters).finish_non_exhaustive()
    }
}

/// What the thread that serves faults works with.
#[derive(Debug)]
pub(crate) struct Work {
    /// Contents of pages on their way back.
    pub(crate) buffer: &'static mut [Page; AHEAD],
    /// The memory that is paged.
    pub(crate) adopted: &'static mut Ranges,
    /// Memory whose pages must be counted again: `MADV_FREE` is reported as `MADV_DONTNEED` is, but
    /// its pages stay for a while.
    pub(crate) recount: &'static mut Ranges,
    /// The page after the last fault's pages, and the number of pages of the next run.
    pub(crate) next: usize,
    pub(crate) run: usize,
}

/// The stores of a pager, hottest first.
#[derive(Clone, Copy, Debug)]
pub struct Stores<'a> {
    /// Bytes for pages compressed by lz4; 0 for none.
    pub lz4_bytes: usize,
    /// The directory of a file for pages that lz4 does not take.
    pub file: Option<&'a CStr>,
}

impl Pager {
    /// A pager for the address space of the calling thread, whose descriptor table gets its files.
    /// It pages nothing yet. At a fork, `wiped` lists the memory of which a child gets no pages
    /// (`MADV_WIPEONFORK`).
    ///
    /// # Errors
    /// Without permission for a userfaultfd, or address space.
    pub fn new(
        bound: usize,
        stores: Stores<'_>,
        counters: &'static PagingCounters,
        wiped: VisitRanges,
    ) -> Result<Self> {
        let fd = Userfaultfd::open().map_err(|errno| Error::Userfaultfd { errno })?;
        let reserved = Arena::reserve(ARENA)?;
        let full = Error::Full { bytes: reserved.range().len() };
        let arena: &'static Arena = reserved.settle().ok_or(full)?;
        let mut list: StoreList = [None; STORES];
        if stores.lz4_bytes > 0 {
            list[0] = Some(put(arena, Lz4::new(arena, stores.lz4_bytes)?).ok_or(full)?);
        }
        if let Some(directory) = stores.file {
            list[1] = Some(put(arena, TempFile::open(arena, directory)?).ok_or(full)?);
        }
        let copy_bytes = stores.lz4_bytes as u64 / 4 * 3;
        Self::from_parts(bound, fd, Parts { arena, counters, stores: list, wiped, on_loss: None, copy_bytes })
    }

    /// A pager of these parts, which pages nothing yet.
    pub(crate) fn from_parts(bound: usize, fd: Userfaultfd, parts: Parts) -> Result<Self> {
        let Parts { arena, counters, stores, wiped, on_loss, copy_bytes } = parts;
        let full = Error::Full { bytes: arena.range().len() };
        let table = PageTable::new(arena).ok_or(full)?;
        // SAFETY: the memory is fresh and large enough, and zeros are valid pages.
        let buffer = unsafe { arena.take(AHEAD * PAGE).ok_or(full)?.cast().as_mut() };
        // SAFETY: the memory is fresh and large enough, and zeros are an empty set.
        let ranges = || unsafe { Some(arena.take(size_of::<Ranges>())?.cast().as_mut()) };
        let (adopted, recount) = (ranges().ok_or(full)?, ranges().ok_or(full)?);
        let registered = registered_pages(arena, &fd, 1).ok_or(full)?;
        let mut lanes = [const { Lock::new(Lane::new(0)) }; LANES];
        for lane in &mut lanes {
            *lane = Lock::new(Lane::new(registered_pages(arena, &fd, CHUNK_PAGES).ok_or(full)?));
        }
        counters.bound.store((bound / PAGE) as u64, Relaxed);
        Ok(Self {
            fd,
            table,
            counters,
            arena,
            wiped,
            pagemap: kernel::open(c"/proc/self/pagemap", READ_ONLY).ok(),
            work: Lock::new(Work { buffer, adopted, recount, next: 0, run: 1 }),
            lanes,
            moving: Lock::new(()),
            cursor: AtomicUsize::new(0),
            idle_evictor: AtomicU32::new(0),
            has_evictor: AtomicBool::new(false),
            fruitless_until: AtomicU64::new(0),
            has_held: AtomicBool::new(false),
            last_thread: AtomicU32::new(0),
            registered,
            stores,
            on_loss,
            copies: AtomicU64::new(0),
            copy_bytes,
        })
    }

    /// The addresses of the pager's own memory, which it does not page.
    #[must_use]
    pub fn own_range(&self) -> Range<usize> {
        self.arena.range()
    }

    /// The start of memory that stays registered as long as the pager exists.
    #[must_use]
    pub const fn registered_page(&self) -> usize {
        self.registered
    }

    /// Ends the registration of the pager's own memory: its unmap would otherwise wait until a thread
    /// reads the message.
    #[cfg(feature = "std")]
    pub(crate) fn unregister_own(&self) {
        let _ = self.fd.unregister(self.registered..self.registered + PAGE);
        for lane in &self.lanes {
            let staging = lane.acquire().staging;
            let _ = self.fd.unregister(staging..staging + CHUNK);
        }
    }

    /// Pages that the pager's own memory takes, about: compressed pages, and a thirtieth of it for
    /// records.
    #[must_use]
    pub fn own_pages(&self) -> usize {
        let stored = self.stores[0].map_or(0, Store::bytes) as usize / PAGE;
        stored + stored / 30 + 64
    }

    /// Pages that are resident above `bound - margin`.
    pub(crate) fn excess(&self, margin: usize) -> usize {
        let bound = value(&self.counters.bound).saturating_sub(margin);
        value(&self.counters.resident).saturating_sub(bound)
    }

    pub(crate) fn count_resident(&self, added: usize) {
        let resident = self.counters.resident.fetch_add(added as u64, Relaxed);
        self.counters.peak_resident.fetch_max(resident + added as u64, Relaxed);
    }

    pub(crate) fn count_missing(&self, removed: usize) {
        subtract(&self.counters.resident, removed);
    }

    /// Stores pages in the first stores that take them; the number of stored ones, which are the
    /// first. `stored` gets their places.
    pub(crate) fn store(&self, pages: &[&Page], stored: &mut [Stored]) -> usize {
        let mut done = 0;
        while done < pages.len() {
            // Each page begins with the hottest store, because it may be the one that fits there.
            let Some((index, keys, count)) = self.put(&pages[done..]) else { break };
            for at in 0..count {
                let place = place(index, keys[at]);
                stored[done + at] = Stored { place, check: check(place, pages[done + at]) };
            }
            done += count;
        }
        add(&self.counters.refused, pages.len() - done);
        done
    }

    /// Stores the first pages in one store; its index, the keys, and the number of pages.
    fn put(&self, pages: &[&Page]) -> Option<(usize, [u32; CHUNK_PAGES], usize)> {
        let mut keys = [0; CHUNK_PAGES];
        self.stores.iter().enumerate().find_map(|(index, store)| {
            let store = (*store)?;
            // A colder store gets one page at a time, so that the next one starts with the hottest.
            let count = if index == 0 { pages.len() } else { 1 };
            let stored = store.put(&pages[..count], &mut keys[..count]).ok()?.min(count);
            // A key that is too large cannot be kept: the pages from it on are not stored.
            let stored = keys[..stored].iter().take_while(|&&key| key <= MAX_KEY).count();
            (stored > 0).then_some((index, keys, stored))
        })
    }

    /// Reads back a page and checks it.
    pub(crate) fn load(&self, stored: Stored, into: &mut Page) -> core::result::Result<(), StoreError> {
        let (index, key) = parts(stored.place);
        let store = self.stores[index].ok_or(StoreError::Failed(crate::kernel::EIO))?;
        let start = now_ns();
        store.get(&[key], core::slice::from_mut(into))?;
        if check(stored.place, into) != stored.check {
            return Err(StoreError::Damaged);
        }
        add(&self.counters.loaded[index], 1);
        add(&self.counters.load_ns[index], (now_ns() - start) as usize);
        Ok(())
    }

    /// Reads back a page that a thread waits for: again, as long as the handler of losses asks for
    /// that.
    pub(crate) fn load_or_retry(
        &self,
        page: usize,
        stored: Stored,
        into: &mut Page,
    ) -> core::result::Result<(), StoreError> {
        loop {
            let Err(error) = self.load(stored, into) else { return Ok(()) };
            let store = self.stores[parts(stored.place).0].map_or("none", Store::name);
            if !self.on_loss.is_some_and(|on_loss| on_loss(page, store, error)) {
                return Err(error);
            }
        }
    }

    /// Frees the place of a page.
    pub(crate) fn forget(&self, stored: Stored) {
        let (index, key) = parts(stored.place);
        if let Some(store) = self.stores[index] {
            store.forget(&[key]);
        }
    }

    /// Records the sizes of the stores.
    pub(crate) fn count_bytes(&self) {
        for (store, bytes) in self.stores.iter().zip(&self.counters.store_bytes) {
            if let Some(store) = store {
                bytes.store(store.bytes(), Relaxed);
            }
        }
    }
}

/// The place of a page: never 0.
const fn place(store: usize, key: u32) -> u32 {
    (store as u32 + 1) << 29 | key
}

pub(crate) const fn parts(place: u32) -> (usize, u32) {
    ((place >> 29) as usize - 1, place & MAX_KEY)
}

/// A check of a page's contents at its place.
pub(crate) fn check(place: u32, page: &Page) -> u32 {
    xxhash_rust::xxh3::xxh3_64_with_seed(page, place.into()) as u32
}

/// Puts a store into the arena.
fn put<S: Store + 'static>(arena: &'static Arena, store: S) -> Option<&'static dyn Store> {
    let at = arena.take(size_of::<S>())?.cast::<S>();
    // SAFETY: the memory is fresh, aligned to pages and large enough.
    unsafe {
        at.write(store);
        Some(at.as_ref())
    }
}

/// Registers pages of the arena, between two pages without access, so that the kernel keeps them
/// apart from the rest. Returns their address.
fn registered_pages(arena: &'static Arena, fd: &Userfaultfd, count: usize) -> Option<usize> {
    let before = arena.take((count + 2) * PAGE)?.addr().get();
    let (start, end) = (before + PAGE, before + (count + 1) * PAGE);
    for guard in [before, end] {
        // SAFETY: the page was just taken, and nothing uses it.
        unsafe { crate::kernel::forbid(guard..guard + PAGE) }.ok()?;
    }
    fd.register(start..end).ok()?;
    Some(start)
}
