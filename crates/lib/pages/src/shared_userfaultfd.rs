//! The process's userfaultfds: one for each kind of delivery, opened at its first use and shared by
//! all regions.
//!
//! A descriptor, not the memory, has the mode: asynchronous write protection and delivery by signal
//! are selected at its creation. So there are at most three, for any number of regions.
//!
//! The program may close a descriptor, or replace its file. A keeper thread has a copy
//! (`descriptor_keeper`), so faults are still recorded and served:
//!
//! ```text
//! a call of any thread:  by the number; if that fails and the file has changed, by the keeper
//!                        from then on
//! a worker's read:       the number is checked first, because a read from the program's file
//!                        would take its data; if the file has changed, a thread that shares the
//!                        keeper's table reads
//! ```
//! The check costs a tenth of a fault. A worker skips it if a call by the number has resolved a
//! fault within the last 12 µs: a program can hardly wake and replace the file in that time.
//! Another userfaultfd of the program at that number accepts such a call; the monitor detects that
//! within 2 ms and wakes the waiting threads.

#![allow(unsafe_code, reason = "publishes descriptors that live as long as the process")]

use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use fieldstone_sys::userfault::{FaultEvent, FaultOrigin, PageScan, Userfaultfd};
use linux_raw_sys::general as uapi;

use crate::arch::cycles;
use crate::descriptor_keeper::DescriptorKeeper;
use crate::fork;
use crate::threads::{end_process, spawn};

/// How faults of a descriptor's memory are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// To a thread of this crate that reads the descriptor; the faulting thread waits.
    Thread,
    /// To the faulting thread, as `SIGBUS`.
    Signal,
    /// Writes are only recorded, and `PAGEMAP_SCAN` reads the records. Missing pages are delivered
    /// to a thread.
    Scan,
}

#[derive(Debug)]
pub(crate) struct SharedUserfaultfd {
    fd: Userfaultfd,
    /// For [`Delivery::Scan`].
    scan: Option<PageScan>,
    /// Whether write protection holds on untouched pages.
    pub(crate) unpopulated: bool,
    keeper: &'static DescriptorKeeper,
    /// Whether the process's table no longer has `fd`.
    is_lost: AtomicBool,
    /// Faults read with the keeper's table, once `fd` is lost.
    relayed: OnceLock<Mutex<Receiver<FaultEvent>>>,
}

/// The operation and the remedy in the message that ends the process: usually a system-call filter
/// is the cause.
const READ: &str = "read faults from the userfaultfd";
const REMEDY: &str =
    "allow read, ioctl, fcntl, futex and clone3 in the system-call filter, or create the memory after it";

/// All user addresses from the default `vm.mmap_min_addr` on.
const EVERYWHERE: std::ops::Range<usize> = 0x1_0000..0x7fff_ffff_f000;

impl SharedUserfaultfd {
    /// Which faults it reports.
    pub(crate) fn reach(&self) -> FaultOrigin {
        self.fd.reach()
    }

    /// Makes a call on the userfaultfd, with the keeper's descriptor table if this thread's has
    /// lost it or may not use it. Async-signal-safe if the call is.
    ///
    /// # Errors
    /// As the call.
    #[inline]
    pub(crate) fn run<R>(&self, call: impl Fn(&Userfaultfd) -> io::Result<R>) -> io::Result<R> {
        if !self.is_lost.load(Ordering::Relaxed) {
            match call(&self.fd) {
                Err(error) if self.needs_keeper(&error) => {}
                done => return done,
            }
        }
        self.keeper.run(|| call(&self.fd))
    }

    /// Makes a call on the page map.
    ///
    /// # Errors
    /// As the call; `ENOTTY` if none is open.
    pub(crate) fn scan<R>(&self, mut call: impl FnMut(&PageScan) -> io::Result<R>) -> io::Result<R> {
        let scan = self.scan.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTTY))?;
        if !self.is_lost.load(Ordering::Relaxed) {
            match call(scan) {
                Err(error) if is_filtered(&error) || !self.keeper.has_file(scan.number()) => {}
                done => return done,
            }
        }
        let call = std::cell::RefCell::new(call);
        self.keeper.run(|| (call.borrow_mut())(scan))
    }

    #[cold]
    fn needs_keeper(&self, error: &io::Error) -> bool {
        !self.has_number() || is_filtered(error)
    }

    /// Whether the calling thread's table has this userfaultfd. Once it has not, the number is
    /// never used again.
    fn has_number(&self) -> bool {
        if self.is_lost.load(Ordering::Relaxed) {
            return false;
        }
        let has = self.keeper.has_file(self.fd.number());
        if !has {
            self.is_lost.store(true, Ordering::SeqCst);
        }
        has
    }

    /// Checks the number, for the monitor; once it is lost, all waiting threads are woken to retry.
    pub(crate) fn check_number(&self) -> bool {
        let has_number = self.has_number();
        if !has_number {
            self.wake_all();
        }
        has_number
    }

    /// Wakes the threads that wait for a page of the file that now has the number: a worker may
    /// have read another userfaultfd's event, which then occurs again.
    pub(crate) fn wake_by_number(&self, address: usize) {
        let page = address & !(rustix::param::page_size() - 1);
        let _ = self.fd.wake(page..page + rustix::param::page_size());
    }

    /// Workers may have resolved faults by another userfaultfd at this number, which wakes no
    /// thread here.
    fn wake_all(&self) {
        if let Err(error) = self.keeper.run(|| self.fd.wake(EVERYWHERE)) {
            end_process(READ, &error, REMEDY);
        }
    }

    /// Waits for a fault, in a worker: as long as the process lives, if none occurs. `resolved` is
    /// the time at which a worker began to resolve the last one by the number, in [`cycles`].
    pub(crate) fn event(&self, resolved: Option<u64>) -> FaultEvent {
        let mut is_proven = resolved.is_some_and(|since| cycles().wrapping_sub(since) < RECENT);
        while (is_proven && !self.is_lost.load(Ordering::Relaxed)) || self.has_number() {
            is_proven = false;
            match self.fd.read() {
                Ok(Some(event)) => return event,
                Ok(None) => {}
                Err(error) if is_transient(&error) => {}
                Err(_) => self.is_lost.store(true, Ordering::SeqCst),
            }
        }
        let relayed = self.relayed.get_or_init(|| self.relay()).lock().unwrap_or_else(PoisonError::into_inner);
        relayed.recv().unwrap_or_else(|error| end_process(READ, &error, REMEDY))
    }

    /// Starts a thread that shares the keeper's table and reads the faults.
    fn relay(&self) -> Mutex<Receiver<FaultEvent>> {
        let (sender, receiver) = sync_channel(0);
        // SAFETY: a shared userfaultfd is leaked, so it lives as long as the process.
        let this: &'static Self = unsafe { &*std::ptr::from_ref(self) };
        let started = self.keeper.run(|| {
            let sender = sender.clone();
            spawn("fs-reader", move || this.read_for_workers(&sender)).map(drop)
        });
        if let Err(error) = started {
            end_process(READ, &error, REMEDY);
        }
        self.wake_all();
        Mutex::new(receiver)
    }

    fn read_for_workers(&self, sender: &SyncSender<FaultEvent>) {
        loop {
            match self.fd.read() {
                // Workers live as long as the process, so one receives it.
                Ok(Some(event)) => _ = sender.send(event),
                Ok(None) => {}
                Err(error) if is_transient(&error) => {}
                Err(error) => end_process(READ, &error, REMEDY),
            }
        }
    }
}

/// Cycles within which a resolved fault proves that the number is valid: about 12 µs, the time of a
/// fast handler, its call and a switch to the thread that it wakes.
const RECENT: u64 = 1 << 15;

fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

/// Whether a system-call filter may have refused the call to this thread. The keeper may have
/// another one, or none.
fn is_filtered(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
}

static SHARED: [AtomicPtr<SharedUserfaultfd>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];

/// The userfaultfd for a kind of delivery; opens it and starts its workers at the first use.
///
/// # Errors
/// Why it cannot be opened.
pub(crate) fn shared_userfaultfd(
    delivery: Delivery,
    start_workers: fn(&'static SharedUserfaultfd) -> io::Result<()>,
) -> io::Result<&'static SharedUserfaultfd> {
    let place = &SHARED[delivery as usize];
    fork::with_setup_lock(|| {
        // SAFETY: a published userfaultfd is never freed.
        if let Some(shared) = unsafe { place.load(Ordering::Acquire).as_ref() } {
            return Ok(shared);
        }
        let shared: &'static SharedUserfaultfd = Box::leak(Box::new(open(delivery)?));
        if delivery != Delivery::Signal {
            start_workers(shared)?;
        }
        place.store(std::ptr::from_ref(shared).cast_mut(), Ordering::Release);
        Ok(shared)
    })
}

fn open(delivery: Delivery) -> io::Result<SharedUserfaultfd> {
    let more = uapi::UFFD_FEATURE_WP_UNPOPULATED
        | uapi::UFFD_FEATURE_WP_HUGETLBFS_SHMEM
        | uapi::UFFD_FEATURE_POISON
        | uapi::UFFD_FEATURE_MOVE
        | uapi::UFFD_FEATURE_MISSING_HUGETLBFS
        | uapi::UFFD_FEATURE_MISSING_SHMEM;
    let own = match delivery {
        Delivery::Thread => uapi::UFFD_FEATURE_THREAD_ID | uapi::UFFD_FEATURE_EXACT_ADDRESS,
        Delivery::Signal => uapi::UFFD_FEATURE_SIGBUS,
        Delivery::Scan => uapi::UFFD_FEATURE_WP_ASYNC | uapi::UFFD_FEATURE_THREAD_ID | uapi::UFFD_FEATURE_EXACT_ADDRESS,
    };
    let needed = match delivery {
        Delivery::Thread => uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP,
        Delivery::Signal => uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP | uapi::UFFD_FEATURE_SIGBUS,
        Delivery::Scan => uapi::UFFD_FEATURE_WP_ASYNC | uapi::UFFD_FEATURE_WP_UNPOPULATED,
    };
    // The kernel cannot deliver a signal for its own accesses.
    let reach = if delivery == Delivery::Signal { FaultOrigin::User } else { FaultOrigin::UserAndKernel };
    let (fd, has) = Userfaultfd::open(needed, own | more, reach)?;
    let scan = if delivery == Delivery::Scan { Some(PageScan::open()?) } else { None };
    let keeper =
        DescriptorKeeper::start([fd.number()].into_iter().chain(scan.as_ref().map(PageScan::number)).collect())?;
    let unpopulated = has & u64::from(uapi::UFFD_FEATURE_WP_UNPOPULATED) != 0;
    Ok(SharedUserfaultfd { fd, scan, unpopulated, keeper, is_lost: AtomicBool::new(false), relayed: OnceLock::new() })
}

/// Closes the descriptors, which refer to the parent's memory.
pub(crate) fn reset_in_child() {
    for place in &SHARED {
        // SAFETY: a published userfaultfd is never freed, and the child's only thread runs this.
        // Regions of the parent's generation do not use it any more.
        if let Some(shared) = unsafe { place.swap(null_mut(), Ordering::AcqRel).as_ref() } {
            let numbers = [Some(shared.fd.number()), shared.scan.as_ref().map(PageScan::number)];
            for number in numbers.into_iter().flatten().filter(|&number| shared.keeper.has_file(number)) {
                // SAFETY: the descriptor is this process's own copy, and no code here uses it
                // again.
                unsafe { libc::close(number) };
            }
        }
    }
}
