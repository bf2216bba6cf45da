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

#[cfg(doc)]
use fieldstone_wire::paging::NO_STORE;
use fieldstone_wire::paging::{FILE, LZ4, PagingCounters, STORES, ZSTD};

use crate::arena::Arena;
use crate::count::{add, subtract, value};
use crate::device::DeviceStore;
use crate::error::{Error, Result};
use crate::eviction::Lane;
use crate::exchange::{Command, Exchange};
use crate::file::TempFile;
use crate::kernel::{self, Descriptor, PAGE, now_ns};
use crate::lock::Lock;
use crate::lz4::Lz4;
use crate::ranges::Ranges;
use crate::read_ahead::Scans;
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

/// Pages that are brought or made at one time, at most.
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
    /// Attempts at pages that the kernel does not move.
    pub(crate) locked_attempts: AtomicU64,
    /// Whether a whole sweep found more such pages than the bound allows.
    pub(crate) has_locked: AtomicBool,
    /// Whether a lane may hold pages that no store took.
    pub(crate) has_held: AtomicBool,
    /// A page of the arena that stays registered.
    pub(crate) registered: usize,
    /// `/proc/self/pagemap`, to find guards.
    pub(crate) pagemap: Option<Descriptor>,
    pub(crate) callbacks: Callbacks,
    pub(crate) stores: StoreList,
    /// The order in which they are tried.
    pub(crate) order: [u8; STORES],
    /// Pages that are resident and stored as well, and the bytes that the first store may take before
    /// no more are kept.
    pub(crate) copies: AtomicU64,
    pub(crate) copy_bytes: u64,
}

/// The stores.
pub(crate) type StoreList = [Option<&'static dyn Store>; STORES];

/// What a pager calls in its owner.
#[derive(Clone, Copy)]
pub struct Callbacks {
    /// At a fork: lists the memory of which a child gets no pages (`MADV_WIPEONFORK`).
    pub wiped: VisitRanges,
    /// Decides about a page that its store does not return.
    pub on_loss: &'static DecideLoss,
    /// Gets the thread that waits for a page, before the page is filled.
    pub on_fault: fn(thread: u32),
}

/// Calls its argument for each range of a list.
pub type VisitRanges = fn(&mut dyn FnMut(Range<usize>));

/// Gets the address of a page, the name of its store and the error. Returns whether the pager tries
/// again; otherwise accesses to the page raise `SIGBUS`.
pub type DecideLoss = dyn Fn(usize, &'static str, StoreError) -> bool + Send + Sync;

/// What a pager is made of.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    pub(crate) arena: &'static Arena,
    pub(crate) counters: &'static PagingCounters,
    pub(crate) stores: StoreList,
    /// The order in which they are tried: their indexes, then [`NO_STORE`].
    pub(crate) order: [u8; STORES],
    pub(crate) callbacks: Callbacks,
    pub(crate) copy_bytes: u64,
}

impl core::fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}

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
    /// Memory whose pages must be counted again at `recount_at`, by [`now_ns`]: `MADV_FREE` is reported
    /// as `MADV_DONTNEED` is, but its pages stay for a while.
    pub(crate) recount: &'static mut Ranges,
    /// Memory that was dropped since the last count, and is counted by the one after the next.
    pub(crate) dropped: &'static mut Ranges,
    pub(crate) recount_at: u64,
    /// Accesses in order.
    pub(crate) scans: Scans,
}

/// The stores of a pager.
#[derive(Clone, Copy, Debug)]
pub struct Stores<'a> {
    /// Bytes for pages compressed by lz4; 0 for none.
    pub lz4_bytes: usize,
    /// Bytes for pages compressed by zstd; 0 for none. Needs the feature `zstd`.
    pub zstd_bytes: usize,
    /// The directory of a file.
    pub file: Option<&'a CStr>,
    /// The command, which keeps pages on a server.
    pub exchange: Option<Exchange>,
    /// The order in which they are tried: indexes of [`STORE_NAMES`](fieldstone_wire::paging::STORE_NAMES),
    /// and [`NO_STORE`] behind them.
    pub order: [u8; STORES],
}

impl Pager {
    /// A pager for the address space of the calling thread, whose descriptor table gets its files.
    /// It pages nothing yet.
    ///
    /// # Errors
    /// Without permission for a userfaultfd, or address space.
    pub fn new(
        bound: usize,
        stores: Stores<'_>,
        counters: &'static PagingCounters,
        callbacks: Callbacks,
    ) -> Result<Self> {
        let fd = Userfaultfd::open().map_err(|errno| Error::Userfaultfd { errno })?;
        let reserved = Arena::reserve(ARENA)?;
        let full = Error::Full { bytes: reserved.range().len() };
        let arena: &'static Arena = reserved.settle().ok_or(full)?;
        let mut list: StoreList = [None; STORES];
        if stores.lz4_bytes > 0 {
            list[LZ4] = Some(put(arena, Lz4::new(arena, stores.lz4_bytes)?).ok_or(full)?);
        }
        #[cfg(feature = "zstd")]
        if stores.zstd_bytes > 0 {
            list[ZSTD] = Some(put(arena, crate::Zstd::new(arena, stores.zstd_bytes)?).ok_or(full)?);
        }
        if let Some(directory) = stores.file {
            list[FILE] = Some(put(arena, TempFile::open(arena, directory)?).ok_or(full)?);
        }
        if let Some(exchange) = stores.exchange {
            list[exchange.store] = Some(put(arena, DeviceStore::in_arena(arena, Command::new(exchange))?).ok_or(full)?);
        }
        let order = stores.order;
        let copy_bytes = match usize::from(order[0]) {
            LZ4 => stores.lz4_bytes as u64 / 4 * 3,
            ZSTD => stores.zstd_bytes as u64 / 4 * 3,
            _ => u64::MAX,
        };
        Self::from_parts(bound, fd, Parts { arena, counters, stores: list, order, callbacks, copy_bytes })
    }

    /// A pager of these parts, which pages nothing yet.
    pub(crate) fn from_parts(bound: usize, fd: Userfaultfd, parts: Parts) -> Result<Self> {
        let Parts { arena, counters, stores, order, callbacks, copy_bytes } = parts;
        let full = Error::Full { bytes: arena.range().len() };
        let table = PageTable::new(arena).ok_or(full)?;
        // SAFETY: the memory is fresh and large enough, and zeros are valid pages.
        let buffer = unsafe { arena.take(AHEAD * PAGE).ok_or(full)?.cast().as_mut() };
        // SAFETY: the memory is fresh and large enough, and zeros are an empty set.
        let ranges = || unsafe { Some(arena.take(size_of::<Ranges>())?.cast().as_mut()) };
        let [adopted, recount, dropped] = [ranges().ok_or(full)?, ranges().ok_or(full)?, ranges().ok_or(full)?];
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
            callbacks,
            pagemap: kernel::open(c"/proc/self/pagemap", READ_ONLY).ok(),
            work: Lock::new(Work { buffer, adopted, recount, dropped, recount_at: 0, scans: Scans::NONE }),
            lanes,
            moving: Lock::new(()),
            cursor: AtomicUsize::new(0),
            idle_evictor: AtomicU32::new(0),
            has_evictor: AtomicBool::new(false),
            fruitless_until: AtomicU64::new(0),
            locked_attempts: AtomicU64::new(0),
            has_locked: AtomicBool::new(false),
            has_held: AtomicBool::new(false),
            registered,
            stores,
            order,
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
        let stored: u64 = [LZ4, ZSTD].into_iter().filter_map(|index| self.stores[index]).map(Store::bytes).sum();
        let stored = stored as usize / PAGE;
        stored + stored / 30 + 64
    }

    /// Pages that are resident above `bound - margin`.
    pub(crate) fn excess(&self, margin: usize) -> usize {
        let bound = value(&self.counters.bound).saturating_sub(margin);
        value(&self.counters.resident).saturating_sub(bound)
    }

    /// Whether the stores refuse pages, and much more is resident than the bound allows.
    #[must_use]
    pub fn is_full(&self) -> bool {
        value(&self.counters.refused) > 0 && self.excess(0) > value(&self.counters.bound) / 8
    }

    /// Whether the bound was exceeded by much, because of memory that the kernel does not move: the
    /// program has locked or protected it.
    #[must_use]
    pub fn has_locked(&self) -> bool {
        self.has_locked.load(Relaxed)
    }

    pub(crate) fn count_resident(&self, added: usize) {
        let resident = self.counters.resident.fetch_add(added as u64, Relaxed);
        self.counters.peak_resident.fetch_max(resident + added as u64, Relaxed);
    }

    pub(crate) fn count_missing(&self, removed: usize) {
        subtract(&self.counters.resident, removed);
    }

    /// Stores pages, each in the first store that takes it. `stored` gets their places; those of pages
    /// that no store took stay [`Stored::NONE`].
    pub(crate) fn store(&self, pages: &[&Page], stored: &mut [Stored]) {
        let mut left: [usize; CHUNK_PAGES] = core::array::from_fn(|index| index);
        let mut count = pages.len();
        for index in self.order.map(usize::from) {
            if let Some(&Some(store)) = self.stores.get(index).filter(|_| count > 0) {
                count = offer(index, store, pages, &mut left[..count], stored);
            }
        }
        add(&self.counters.refused, count);
    }

    /// Reads back the first pages that are in one store, and checks them. Returns how many are right:
    /// the first ones.
    pub(crate) fn load(&self, stored: &[Stored], into: &mut [Page]) -> core::result::Result<usize, StoreError> {
        let (index, _) = parts(stored[0].place);
        let store = self.stores[index].ok_or(StoreError::Failed(crate::kernel::EIO))?;
        let mut keys = [0; AHEAD];
        let places = stored.iter().map(|stored| parts(stored.place)).take_while(|&(other, _)| other == index);
        let count = keys.iter_mut().zip(places).map(|(key, (_, place))| *key = place).count();
        let start = now_ns();
        match store.get(&keys[..count], &mut into[..count]) {
            Ok(()) => {}
            // Perhaps another page is lost, and not the first.
            Err(_) if count > 1 => return self.load(&stored[..1], into),
            Err(error) => return Err(error),
        }
        let is_right = |(stored, page): &(&Stored, &mut Page)| check(stored.place, page) == stored.check;
        let right = stored[..count].iter().zip(into).take_while(is_right).count();
        add(&self.counters.loaded[index], right);
        add(&self.counters.load_ns[index], (now_ns() - start) as usize);
        if right == 0 { Err(StoreError::Damaged) } else { Ok(right) }
    }

    /// Reads back pages, the first of which a thread waits for: again, as long as the handler of losses
    /// asks for that.
    pub(crate) fn load_or_retry(
        &self,
        page: usize,
        stored: &[Stored],
        into: &mut [Page],
    ) -> core::result::Result<usize, StoreError> {
        loop {
            let result = self.load(stored, into);
            let Err(error) = result else { return result };
            let store = self.stores[parts(stored[0].place).0].map_or("none", Store::name);
            if !(self.callbacks.on_loss)(page, store, error) {
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

/// Offers the pages of `left` to a store. `left` keeps those that it does not take; their number.
fn offer(index: usize, store: &dyn Store, pages: &[&Page], left: &mut [usize], stored: &mut [Stored]) -> usize {
    let (mut batch, mut keys) = ([pages[0]; CHUNK_PAGES], [0; CHUNK_PAGES]);
    batch.iter_mut().zip(&*left).for_each(|(page, &at)| *page = pages[at]);
    let (count, mut next, mut kept) = (left.len(), 0, 0);
    while next < count {
        let taken = match store.put(&batch[next..count], &mut keys[..count - next]) {
            // A key that is too large cannot be kept: the pages from it on are not stored.
            Ok(taken) => keys[..taken.min(count - next)].iter().take_while(|&&key| key <= MAX_KEY).count(),
            // This page does not fit; a later one may.
            Err(StoreError::Full) => 0,
            Err(_) => break,
        };
        for at in 0..taken {
            let place = place(index, keys[at]);
            stored[left[next + at]] = Stored { place, check: check(place, batch[next + at]) };
        }
        next += taken;
        if taken == 0 {
            left[kept] = left[next];
            (kept, next) = (kept + 1, next + 1);
        }
    }
    left.copy_within(next.., kept);
    kept + (count - next)
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
