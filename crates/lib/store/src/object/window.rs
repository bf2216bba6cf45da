//! Windows: address space in which the objects of one version appear.
//!
//! ```text
//! pointer ─→ start + 8 · pointer ─→ page is missing: fault ─→ page as of the version, verified,
//!                                                              pointers translated ─→ window
//! ```
//! A snapshot takes a window: that of its version, or an unused one, from which the pages that differ are
//! dropped, or a new one. Beyond a bound, the pages that came first are dropped; a later access fills them
//! with the same bytes, because the window keeps its version from then on.
//!
//! Invariants: while a snapshot has a window, its version and its slots stay, so what it lends does not
//! change. A pointer is 32 bits and a window has 32 GiB and a page, so no pointer leads outside.
//!
//! After damage the page is filled with zeros and the window is *poisoned*: calls of its snapshots return
//! the error.
//!
//! Source: Wilson, *Pointer Swizzling at Page Fault Time*, 1991.

use std::collections::HashSet;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use fieldstone_pages::{Fault, Filling, Memory, Outcome};

use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;
use crate::object::object_page::ObjectPage;
use crate::object::pointers::{MOST_SLOTS, PageSlots};
use crate::object::resident::ResidentSlots;
use crate::page::{OBJECT, PAGE, Page, kind, set_u32};
use crate::readers::Reader;
use crate::shared::Shared;

/// Bytes that pointers can reach, and those of the object that the last one reaches.
const RANGE: usize = MOST_SLOTS as usize * PAGE + PAGE;
/// Pages that are dropped one by one; with more changed ones, a window is emptied.
const FEW: usize = 1024;
/// Windows that are kept without a snapshot.
const KEPT: usize = 2;
/// Pages that a window has in memory at least.
const LEAST_PAGES: usize = 16;

/// Address space in which the objects of one version appear.
#[derive(Debug)]
pub(crate) struct Window {
    filling: Filling,
    view: Arc<View>,
}

/// What a window shows.
#[derive(Debug)]
struct View {
    shared: Arc<Shared>,
    version: AtomicU64,
    /// Pages of the file.
    end: AtomicU32,
    slots: Mutex<PageSlots>,
    /// Slots whose pages are in memory.
    resident: Mutex<ResidentSlots>,
    kept: Mutex<KeptVersion>,
    /// Read while a page is filled, written when another version is shown: of two threads that fill a page
    /// for one access, the second may come when the snapshot has ended.
    shown: RwLock<()>,
    /// Slots that could not be filled: they stay zeros.
    failed: Mutex<HashSet<u32>>,
    /// Why it is poisoned.
    error: Mutex<Option<Error>>,
    is_poisoned: AtomicBool,
}

/// What keeps the version of a window.
#[derive(Debug, Default)]
struct KeptVersion {
    /// Snapshots that use the window.
    users: usize,
    /// Keeps the version once a page was dropped, so that it can be filled again with the same bytes. Ends with the
    /// last user.
    reader: Option<Reader>,
}

/// A window that a snapshot uses.
#[derive(Debug)]
pub(crate) struct WindowUse(Arc<Window>);

impl WindowUse {
    fn new(window: Arc<Window>) -> Self {
        lock(&window.view.kept).users += 1;
        Self(window)
    }
}

impl Deref for WindowUse {
    type Target = Window;

    fn deref(&self) -> &Window {
        &self.0
    }
}

impl Drop for WindowUse {
    fn drop(&mut self) {
        if !self.0.view.shared.is_forked() {
            self.0.view.end_use();
        }
    }
}

/// The bytes of a slot.
const fn bytes_of(slot: u32) -> Range<usize> {
    slot as usize * PAGE..(slot as usize + 1) * PAGE
}

fn no_memory(path: &Path, error: &fieldstone_pages::Error) -> Error {
    Error::new(ErrorKind::Memory, path, format!("cannot reserve addresses for objects: {error}"))
        .with_remedy("a larger limit of address space (ulimit -v)")
}

/// Addresses that read as zeros, for snapshots without objects.
///
/// # Errors
/// Without enough addresses.
pub(crate) fn empty_range(path: &Path) -> Result<Memory> {
    Memory::anonymous(RANGE).map_err(|error| no_memory(path, &error))
}

impl Window {
    fn new(shared: &Arc<Shared>, options: &WindowOptions, version: u64, end: u32) -> Result<Self> {
        let view = Arc::new(View {
            shared: Arc::clone(shared),
            version: AtomicU64::new(version),
            end: AtomicU32::new(end),
            slots: Mutex::new(PageSlots::new(options.slots, end)),
            resident: Mutex::new(ResidentSlots::new((options.memory_bytes / PAGE).max(LEAST_PAGES))),
            kept: Mutex::default(),
            shown: RwLock::default(),
            failed: Mutex::default(),
            error: Mutex::default(),
            is_poisoned: AtomicBool::new(false),
        });
        let fill = |memory: Memory| {
            let view = Arc::clone(&view);
            Filling::new(memory, move |fault| view.fill(fault))
        };
        // Without userfaultfd, only shared memory can be filled.
        let filling = Memory::anonymous(RANGE).and_then(fill).or_else(|_| Memory::shared(RANGE).and_then(fill));
        let filling = filling.map_err(|error| no_memory(&shared.path, &error))?;
        filling.close_in_child();
        Ok(Self { filling, view })
    }

    /// Address of the first byte.
    pub(crate) fn start(&self) -> usize {
        self.filling.memory().start()
    }

    /// # Errors
    /// Why an object could not be read, or [`ErrorKind::Forked`] in a child.
    pub(crate) fn check(&self) -> Result<()> {
        if self.view.is_poisoned.load(Acquire)
            && let Some(error) = lock(&self.view.error).clone()
        {
            return Err(error);
        }
        self.view.shared.check_parent()
    }

    fn version(&self) -> u64 {
        self.view.version.load(Relaxed)
    }

    /// Whether new snapshots can use it.
    fn is_usable(&self) -> bool {
        !self.view.is_poisoned.load(Acquire)
    }

    fn has_room(&self, end: u32) -> bool {
        lock(&self.view.slots).has_room(end)
    }

    /// The pointer to an address.
    ///
    /// # Errors
    /// [`ErrorKind::Window`] without a free slot.
    pub(crate) fn pointer(&self, address: u64) -> Result<u32> {
        lock(&self.view.slots).pointer(address).ok_or_else(|| exhausted(&self.view.shared.path))
    }

    /// The address of a pointer; `None` if it is not from this window.
    pub(crate) fn address(&self, pointer: u32) -> Option<u64> {
        lock(&self.view.slots).address(pointer)
    }

    /// Drops the pages that were filled first, if no snapshot uses it: a few pages that the next one reads then need no
    /// other to be dropped, so it does not keep its version. The caller lets no snapshot begin.
    fn free_few(&self) {
        let view = &self.view;
        if lock(&view.kept).users > 0 {
            return;
        }
        let _no_fills = view.shown.write().unwrap_or_else(PoisonError::into_inner);
        let mut resident = lock(&view.resident);
        let free = (resident.most() / 4).min(FEW);
        while let Some(slot) = resident.pop_to_free(free) {
            // A page that stays is no damage.
            let _ = self.filling.evict(bytes_of(slot));
        }
    }

    /// Shows another version, now that no snapshot has it. Pages keep their slots: a thread may still fill
    /// one for an access of a snapshot that has ended.
    fn show(&mut self, version: u64, end: u32) -> fieldstone_pages::Result<()> {
        let (view, filling) = (&self.view, &self.filling);
        let _no_fills = view.shown.write().unwrap_or_else(PoisonError::into_inner);
        let mut resident = lock(&view.resident);
        match view.shared.object_changes.between(self.version(), version, FEW) {
            Some(pages) => {
                let slots = lock(&view.slots);
                for slot in pages.iter().filter_map(|&page| slots.slot(page)) {
                    filling.evict(bytes_of(slot))?;
                    resident.remove(slot);
                }
            }
            None => {
                filling.evict(0..RANGE)?;
                resident.clear();
            }
        }
        view.version.store(version, Relaxed);
        view.end.store(end, Relaxed);
        Ok(())
    }
}

/// The error of a window without a free slot.
pub(crate) fn exhausted(path: &Path) -> Error {
    let what = "the objects that were reached have more pages than the window of a snapshot or transaction";
    Error::new(ErrorKind::Window, path, what)
        .with_remedy("go on in a new snapshot or transaction, from the last LongPtr")
}

impl View {
    /// Fills the page of a fault.
    fn fill(&self, fault: &Fault<'_>) -> Outcome {
        let _shown = self.shown.read().unwrap_or_else(PoisonError::into_inner);
        let slot = (fault.offset() / PAGE) as u32;
        let mut page = [0; PAGE];
        // Slot 0 is that of the null pointer, which reads as zeros.
        let is_zero = slot == 0 || lock(&self.failed).contains(&slot);
        if !is_zero && let Err(error) = self.load(slot, &mut page) {
            page.fill(0);
            self.poison(slot, error);
        }
        if fault.fill(&page).is_err() {
            return Outcome::Chain;
        }
        let mut resident = lock(&self.resident);
        resident.add(slot);
        if resident.is_over_limit()
            && self.keep_version()
            && let Some(oldest) = resident.pop_oldest()
        {
            // A page that stays is no damage.
            let _ = fault.evict_others(bytes_of(oldest));
        }
        Outcome::Resolved
    }

    /// Keeps the version until the last user ends, whatever the bound of old versions is. Returns false if it is too
    /// old: then pages that are dropped could not be filled again. Returns false without a user: a thread may fill a
    /// page for an access of a snapshot that has ended.
    fn keep_version(&self) -> bool {
        let mut kept = lock(&self.kept);
        if kept.reader.is_none() && kept.users > 0 {
            kept.reader = self.shared.frames.begin_pinned(self.version.load(Relaxed));
        }
        kept.reader.is_some()
    }

    /// Ends a use by a snapshot. The last one releases the version.
    fn end_use(&self) {
        let mut kept = lock(&self.kept);
        kept.users -= 1;
        if kept.users == 0
            && let Some(reader) = kept.reader.take()
        {
            self.shared.frames.end(reader);
        }
    }

    fn poison(&self, slot: u32, error: Error) {
        lock(&self.failed).insert(slot);
        lock(&self.error).get_or_insert(error);
        self.is_poisoned.store(true, Release);
    }

    /// Reads the page of a slot, and translates its pointers.
    fn load(&self, slot: u32, page: &mut Page) -> Result<()> {
        let shared = &self.shared;
        let number = lock(&self.slots).page(slot).filter(|&number| number < self.end.load(Relaxed));
        let number = number.ok_or_else(|| {
            Error::corrupt(&shared.path, None, "a pointer leads to no page of the file, or is of another snapshot")
        })?;
        shared.copy_page(number, self.version.load(Relaxed), page)?;
        if kind(page) != OBJECT {
            return Err(shared.wrong(number, "a pointer leads to it, and it has no objects"));
        }
        let mut slots = lock(&self.slots);
        if slots.is_identity() {
            let is_short = ObjectPage(page).is_short();
            return if is_short {
                Ok(())
            } else {
                Err(shared.wrong(number, "it has pointers behind the end of the file"))
            };
        }
        let contents = *page;
        let contents = ObjectPage(&contents);
        for place in contents.used().flat_map(|slot| contents.pointers(slot)) {
            let pointer = slots.pointer(place.address(contents.0)).ok_or_else(|| exhausted(&shared.path))?;
            set_u32(page, place.low, pointer);
        }
        Ok(())
    }
}

/// The sizes of windows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowOptions {
    /// Slots for pages.
    pub(crate) slots: u32,
    /// Memory of the pages in each window.
    pub(crate) memory_bytes: usize,
}

/// The windows of an open store.
#[derive(Debug)]
pub(crate) struct Windows {
    options: WindowOptions,
    all: Mutex<Vec<Arc<Window>>>,
}

impl Windows {
    pub(crate) fn new(options: WindowOptions) -> Self {
        Self { options, all: Mutex::default() }
    }

    pub(crate) const fn slots(&self) -> u32 {
        self.options.slots
    }

    /// A window that shows a version, for which the caller has registered a reader.
    ///
    /// # Errors
    /// [`ErrorKind::Memory`] without addresses.
    pub(crate) fn take(&self, shared: &Arc<Shared>, version: u64, end: u32) -> Result<WindowUse> {
        let mut all = lock(&self.all);
        all.retain_mut(|window| window.is_usable() || Arc::get_mut(window).is_none());
        let is_shown =
            |window: &&Arc<Window>| window.is_usable() && window.version() == version && window.has_room(end);
        if let Some(window) = all.iter().find(is_shown) {
            window.free_few();
            return Ok(WindowUse::new(Arc::clone(window)));
        }
        all.retain(|window| Arc::strong_count(window) > 1 || window.has_room(end));
        let unused = all.iter().position(|window| Arc::strong_count(window) == 1 && window.is_usable());
        let unused = unused.map(|index| all.swap_remove(index)).and_then(|mut window| {
            let shown = Arc::get_mut(&mut window)?.show(version, end);
            // A fill for a snapshot that has ended, whose pages are gone, may have poisoned it meanwhile.
            (shown.is_ok() && window.is_usable()).then_some(window)
        });
        let window = match unused {
            Some(window) => window,
            None => Arc::new(Window::new(shared, &self.options, version, end)?),
        };
        window.free_few();
        all.push(Arc::clone(&window));
        let window = WindowUse::new(window);
        let mut kept = 0;
        all.retain(|window| {
            kept += usize::from(Arc::strong_count(window) == 1);
            Arc::strong_count(window) > 1 || kept <= KEPT
        });
        Ok(window)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_tests::disk;
    use crate::crash::{empty, open};
    use crate::{LongPtr, Ptr, Snapshot, Store};

    crate::stored! {
        struct Row { id: u64, next: Ptr<Row>, data: [u64; 100] }
    }

    /// A store with a list of rows, which has more pages than a window of it has in memory.
    fn store_with_rows() -> (Store, LongPtr<Row>) {
        let store = open(&disk(&empty(64))).unwrap();
        let made = store.write(|tx| {
            let mut first = Ptr::NULL;
            for id in 1..200 {
                first = tx.alloc(Row { id, next: first, ..Row::ZERO })?;
            }
            tx.set_root("first", first)?;
            tx.long(first)
        });
        let first = made.unwrap();
        (store, first)
    }

    fn increase(store: &Store, place: LongPtr<Row>) {
        let increased = store.write(|tx| {
            let pointer = tx.short(place)?;
            tx.edit(pointer)?.id += 1;
            Ok(())
        });
        increased.unwrap();
    }

    fn read_all(now: &Snapshot) {
        let mut row = now.root::<Row>("first").unwrap();
        while !row.next.is_null() {
            row = now.follow(row.next);
        }
        now.check_objects().unwrap();
    }

    fn has_reader(window: &Window) -> bool {
        lock(&window.view.kept).reader.is_some()
    }

    #[test]
    fn the_last_snapshot_of_a_window_releases_its_version() {
        let (store, first) = store_with_rows();
        let [one, other] = [(); 2].map(|()| store.read().unwrap());
        // As a snapshot has it that another thread is about to drop.
        let window = Arc::clone(&one.window.as_ref().unwrap().0);
        assert!(Arc::ptr_eq(&window, &other.window.as_ref().unwrap().0));
        read_all(&one);
        assert!(has_reader(&window));
        increase(&store, first);
        let oldest = || store.0.shared.frames.oldest(store.0.shared.published().0);
        drop(one);
        assert!(has_reader(&window) && oldest() == window.version());
        drop(other);
        assert!(!has_reader(&window) && oldest() > window.version());
        // A fill that comes too late.
        assert!(!window.view.keep_version() && !has_reader(&window));
    }

    #[test]
    fn a_snapshot_of_few_objects_keeps_no_version_in_a_window_that_others_have_filled() {
        let (store, first) = store_with_rows();
        let mut now = store.read().unwrap();
        read_all(&now);
        for round in 0..8 {
            if round % 2 == 0 {
                increase(&store, first);
            }
            // First, the one before ends.
            drop(now);
            now = store.read().unwrap();
            let row = now.root::<Row>("first").unwrap();
            (0..round * 4).fold(row, |row, _| now.follow(row.next));
            assert!(!has_reader(now.window.as_ref().unwrap()), "round {round}");
        }
        read_all(&now);
        assert!(has_reader(now.window.as_ref().unwrap()));
    }

    #[test]
    fn a_window_that_a_late_fill_poisons_while_it_is_taken_is_not_used() {
        let (store, first) = store_with_rows();
        let now = store.read().unwrap();
        read_all(&now);
        let window = Arc::clone(&now.window.as_ref().unwrap().0);
        drop(now);
        increase(&store, first);
        // A fill is under way: whoever takes the window waits for its end.
        let view = Arc::clone(&window.view);
        drop(window);
        let filling = view.shown.read().unwrap();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| read_all(&store.read().unwrap()));
            while store.0.objects.windows.all.try_lock().is_ok() {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
            view.poison(1, view.shared.wrong(1, "it contains zeros only"));
            drop(filling);
            reading.join().unwrap();
        });
    }

    #[test]
    fn few_windows_are_kept_without_a_snapshot() {
        let (store, first) = store_with_rows();
        let read_next = || {
            increase(&store, first);
            store.read().unwrap()
        };
        let windows = || lock(&store.0.objects.windows.all).len();
        let snapshots: Vec<Snapshot> = (0..6).map(|_| read_next()).collect();
        assert_eq!(windows(), 6);
        drop(snapshots);
        let _now = read_next();
        assert_eq!(windows(), KEPT + 1);
    }
}
