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

use fieldstone_wire::paging::{PagingCounters, STORES};

use crate::arena::Arena;
use crate::count::{add, subtract, value};
use crate::error::{Error, Result};
use crate::file::TempFile;
use crate::kernel::{self, Descriptor, PAGE, now_ns};
use crate::lock::Lock;
use crate::lz4::Lz4;
use crate::ranges::Ranges;
use crate::store::{MAX_KEY, Page, Store, StoreError};
use crate::table::{CHUNK, CHUNK_PAGES, PageTable, Stored};
use crate::userfaultfd::Userfaultfd;

/// Addresses that the pager reserves for itself.
const ARENA: usize = 1 << 40;

const READ_ONLY: u32 = linux_raw_sys::general::O_RDONLY | linux_raw_sys::general::O_CLOEXEC;

/// Pages that one fault brings or makes at most.
pub(crate) const AHEAD: usize = 16;

/// A pager.
pub struct Pager {
    pub(crate) fd: Userfaultfd,
    pub(crate) table: PageTable,
    pub(crate) counters: &'static PagingCounters,
    pub(crate) arena: &'static Arena,
    pub(crate) work: Lock<Work>,
    /// `/proc/self/pagemap`, to find guards.
    pub(crate) pagemap: Option<Descriptor>,
    pub(crate) wiped: VisitRanges,
    stores: StoreList,
    /// Decides about pages that cannot be read; without it, their accesses raise `SIGBUS`.
    on_loss: Option<&'static OnLoss>,
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
    /// 64 page addresses, registered, to which pages are moved before they are stored.
    pub(crate) staging: usize,
    /// Contents of pages on their way back.
    pub(crate) buffer: &'static mut [Page; AHEAD],
    /// Where the sweep goes on.
    pub(crate) cursor: usize,
    /// Staged pages that no store took, and the chunk that they belong to. They go back to the
    /// program before anything else is staged.
    pub(crate) held: u64,
    pub(crate) held_chunk: usize,
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
        Self::from_parts(bound, fd, Parts { arena, counters, stores: list, wiped, on_loss: None })
    }

    /// A pager of these parts, which pages nothing yet.
    pub(crate) fn from_parts(bound: usize, fd: Userfaultfd, parts: Parts) -> Result<Self> {
        let Parts { arena, counters, stores, wiped, on_loss } = parts;
        let full = Error::Full { bytes: arena.range().len() };
        let table = PageTable::new(arena).ok_or(full)?;
        // SAFETY: the memory is fresh and large enough, and zeros are valid pages.
        let buffer = unsafe { arena.take(AHEAD * PAGE).ok_or(full)?.cast().as_mut() };
        // SAFETY: the memory is fresh and large enough, and zeros are an empty set.
        let ranges = || unsafe { Some(arena.take(size_of::<Ranges>())?.cast().as_mut()) };
        let (adopted, recount) = (ranges().ok_or(full)?, ranges().ok_or(full)?);
        let staging = staging(arena, &fd).ok_or(full)?;
        counters.bound.store((bound / PAGE) as u64, Relaxed);
        Ok(Self {
            fd,
            table,
            counters,
            arena,
            wiped,
            pagemap: kernel::open(c"/proc/self/pagemap", READ_ONLY).ok(),
            work: Lock::new(Work {
                staging,
                buffer,
                cursor: 0,
                held: 0,
                held_chunk: 0,
                adopted,
                recount,
                next: 0,
                run: 1,
            }),
            stores,
            on_loss,
        })
    }

    /// The addresses of the pager's own memory, which it does not page.
    #[must_use]
    pub fn own_range(&self) -> Range<usize> {
        self.arena.range()
    }

    /// The start of memory that stays registered as long as the pager exists.
    #[must_use]
    pub fn registered_page(&self) -> usize {
        self.work.acquire().staging
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

const fn parts(place: u32) -> (usize, u32) {
    ((place >> 29) as usize - 1, place & MAX_KEY)
}

/// A check of a page's contents at its place.
fn check(place: u32, page: &Page) -> u32 {
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

/// Registers addresses of the arena for pages that leave memory, between two pages without access,
/// so that the kernel keeps them apart from the rest.
fn staging(arena: &'static Arena, fd: &Userfaultfd) -> Option<usize> {
    let before = arena.take(CHUNK + 2 * PAGE)?.addr().get();
    let staging = before + PAGE;
    for guard in [before, staging + CHUNK] {
        // SAFETY: the page was just taken, and nothing uses it.
        unsafe { crate::kernel::forbid(guard..guard + PAGE) }.ok()?;
    }
    fd.register(staging..staging + CHUNK).ok()?;
    Some(staging)
}
