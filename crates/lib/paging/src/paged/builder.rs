//! The options of paged memory.

#![allow(unsafe_code, reason = "places counters in zeroed memory")]

use std::fmt;
use std::sync::Arc;

use fieldstone_wire::paging::{PagingCounters, STORES};
use rustix::mm::Advice;

use crate::error::{Error, Result};
use crate::file::TempFile;
use crate::kernel::PAGE;
use crate::lz4::Lz4;
use crate::paged::Paged;
use crate::paged::core_parts::{Core, Mapping, OwnArena, ProcessMark, Shared, print_error};
use crate::paged::thread::{self, ServiceThread};
use crate::pager::{Callbacks, DecideLoss, Pager, Parts, StoreList};
use crate::store::{Store, StoreError};
use crate::table::{CHUNK_PAGES, PageTable};
use crate::userfaultfd::Userfaultfd;

/// The smallest bound: the pages that one move evicts.
const MIN_RESIDENT: usize = CHUNK_PAGES * PAGE;
/// The largest memory: half of the addresses of a process.
const MAX_BYTES: usize = 1 << 46;
/// Memory of a pager besides the records of pages: lists of ranges, buffers, counters.
const SMALL_PARTS: usize = 16 << 20;

/// What happens at a page that a store does not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// The store is asked again at once.
    Retry,
    /// The thread that needs the page gets `SIGBUS`, as does each later access to the page, until
    /// [`Advice::Soon`](crate::Advice::Soon) brings it back or [`Advice::Drop`](crate::Advice::Drop)
    /// drops its contents. System calls fail with `EFAULT` there.
    Fault,
}

type LossHandler = dyn Fn(usize, Error) -> OnLoss + Send + Sync;

/// The options of a [`Paged`], made by [`Paged::builder`].
#[must_use]
pub struct PagedBuilder {
    bytes: usize,
    resident: Option<usize>,
    stores: Vec<Box<dyn Store>>,
    on_loss: Option<Box<LossHandler>>,
}

impl fmt::Debug for PagedBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagedBuilder")
            .field("bytes", &self.bytes)
            .field("resident", &self.resident)
            .field("stores", &self.stores.iter().map(|store| store.name()).collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl PagedBuilder {
    pub(super) const fn new(bytes: usize) -> Self {
        Self { bytes, resident: None, stores: Vec::new(), on_loss: None }
    }

    /// Bounds the resident bytes, at least 256 KiB. Default: a quarter of the memory.
    pub const fn resident(mut self, bytes: usize) -> Self {
        self.resident = Some(bytes);
        self
    }

    /// Adds a store for pages that are not resident: at most 6, hottest first. Default: [`Lz4`] with a
    /// quarter of the bound, then a [`TempFile`] in the directory for temporary files.
    pub fn store(mut self, store: impl Store + 'static) -> Self {
        self.stores.push(Box::new(store));
        self
    }

    /// Decides about a page that a store does not return: gets its first byte, from the start of the
    /// memory, and the error. It runs in the thread that serves faults, which meanwhile serves no
    /// other one, or in a thread that gives advice. It must not access the memory. Default: a message
    /// on standard error, and [`OnLoss::Fault`].
    pub fn on_loss(mut self, handler: impl Fn(usize, Error) -> OnLoss + Send + Sync + 'static) -> Self {
        self.on_loss = Some(Box::new(handler));
        self
    }

    /// Maps the memory, and starts the thread that serves its faults.
    ///
    /// # Errors
    /// For options that cannot work, without a userfaultfd, memory or a thread.
    pub fn build(self) -> Result<Paged> {
        let (len, bytes) = (self.bytes, mapped_bytes(self.bytes)?);
        let resident = self.resident.unwrap_or((bytes / 4).max(MIN_RESIDENT));
        let bound = bound_pages(resident)? * PAGE;
        let stores = if self.stores.is_empty() { default_stores(bound)? } else { self.stores };
        let stores: Vec<_> = stores.into_iter().map(Shared::new).collect();
        let (fd, has_kernel_faults) = Userfaultfd::open_best().map_err(|errno| Error::NoUserfaultfd { errno })?;
        let mapping = Mapping::new(bytes)?;
        let on_loss = Shared::new(loss_handler(mapping.range().start, self.on_loss));
        let arena = OwnArena::reserve(PageTable::arena_bytes(bytes) + SMALL_PARTS)?;
        let full = Error::Full { bytes: arena.get().range().len() };
        // SAFETY: the counters are atomic numbers, for which zeros are valid.
        let counters: &'static PagingCounters = unsafe { arena.get().place() }.ok_or(full)?;
        let parts = Parts {
            arena: arena.get(),
            counters,
            stores: list(&stores)?,
            order: core::array::from_fn(|index| index as u8),
            callbacks: Callbacks { wiped: |_| (), on_loss: on_loss.get(), on_fault: |_| () },
            copy_bytes: resident as u64 / 4,
        };
        let pager = Pager::from_parts(bound, fd, parts)?;
        let refused = |errno| Error::Map { bytes, errno };
        pager.adopt(mapping.range(), false).map_err(refused)?;
        // A child would read zeros in the place of missing pages. It could get them if forks waited for
        // the service thread; but fork(3) has the locks of the allocator then, and a store may allocate.
        mapping.advise(&mapping.range(), Advice::LinuxDontFork)?;
        let process = ProcessMark::new(arena.get())?;
        let core = Core {
            pager,
            mapping,
            counters,
            has_kernel_faults,
            process,
            stop: thread::stop()?,
            _arena: arena,
            stores,
            _on_loss: on_loss,
        };
        let core = Arc::new(core);
        let thread = ServiceThread::start(Arc::clone(&core))?;
        Ok(Paged::new(thread, core, len))
    }
}

/// Bytes of the mapping for a size.
fn mapped_bytes(bytes: usize) -> Result<usize> {
    let refused = |why| Err(Error::Option { option: "builder", value: bytes, why });
    match bytes {
        0 => refused("memory has at least one byte"),
        1..=MAX_BYTES => Ok(bytes.next_multiple_of(PAGE)),
        _ => refused("a process has no such address space"),
    }
}

/// The pages of a bound.
pub(super) fn bound_pages(bytes: usize) -> Result<usize> {
    let why = "at least 256 KiB must be resident";
    if bytes < MIN_RESIDENT { Err(Error::Option { option: "resident", value: bytes, why }) } else { Ok(bytes / PAGE) }
}

fn default_stores(bound: usize) -> Result<Vec<Box<dyn Store>>> {
    Ok(vec![Box::new(Lz4::limit(bound / 4)), Box::new(TempFile::in_dir(std::env::temp_dir())?)])
}

/// The stores as the pager has them.
fn list(stores: &[Shared<dyn Store>]) -> Result<StoreList> {
    let mut list: StoreList = [None; STORES];
    let value = stores.len();
    let places =
        list.get_mut(..value).ok_or(Error::Option { option: "store", value, why: "at most 6 are possible" })?;
    places.iter_mut().zip(stores).for_each(|(place, store)| *place = Some(store.get()));
    Ok(list)
}

/// The handler of losses as the pager calls it.
fn loss_handler(start: usize, handler: Option<Box<LossHandler>>) -> Box<DecideLoss> {
    let handler = handler.unwrap_or_else(|| {
        Box::new(|_, error| {
            print_error(format_args!("{error}; the thread that needs it gets SIGBUS"));
            OnLoss::Fault
        })
    });
    Box::new(move |page, store, error: StoreError| {
        let page = page - start;
        handler(page, Error::Load { store, page, error }) == OnLoss::Retry
    })
}
