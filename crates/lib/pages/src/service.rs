//! The process's userfaultfds: one for each way to be told, opened when it is first needed, and shared by all regions.
//!
//! A mode belongs to the descriptor, not to the memory: asynchronous write protection and faults by signal are asked for when it
//! is opened. So there are three, however many regions.
//!
//! The program may close a descriptor, or put another file at its number. A custodian holds a copy (`custodian`), so that faults go on
//! being noted and served:
//!
//! ```text
//! a call of any thread:  by the number; if that fails and the number is no longer ours, by the custodian from then on
//! a worker's read:       the number is checked first, since a read from the program's file would take its data;
//!                        if it is no longer ours, a thread that shares the custodian's table reads
//! ```
//! A worker saves the check, which is a tenth of a fault's cost, where a call by the number has answered a fault within the last
//! 12 µs: a program hardly wakes and puts a file there in that time. Another userfaultfd of the program takes such a
//! call, too; the keeper finds that within two milliseconds, and wakes the threads that wait.

#![allow(unsafe_code, reason = "publishes descriptors that live as long as the process")]

use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use fieldstone_sys::userfault::{Fault, FaultOrigin, PageScan, Userfaultfd};
use linux_raw_sys::general as uapi;

use crate::custodian::Custodian;
use crate::threads::{end_process, spawn};
use crate::{fork, serve};

/// How the faults of a descriptor's memory are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// To a thread of ours that reads the descriptor; who faults waits.
    Thread,
    /// To who faults, as a `SIGBUS`.
    Signal,
    /// Writes to nobody: the kernel notes them, and `PAGEMAP_SCAN` reads the notes. Missing pages, to a thread.
    Scan,
}

#[derive(Debug)]
pub(crate) struct Service {
    fd: Userfaultfd,
    /// For [`Told::Scan`].
    scan: Option<PageScan>,
    /// Whether write protection holds on pages that were never touched.
    pub(crate) unpopulated: bool,
    custodian: &'static Custodian,
    /// Whether the process's table no longer has `fd`.
    is_lost: AtomicBool,
    /// Faults read in the custodian's table, once `fd` is lost.
    relayed: OnceLock<Mutex<Receiver<Fault>>>,
}

/// What a worker cannot do when it ends the process, and what helps: a filter for system calls is the usual cause.
const READ: &str = "read faults from the userfaultfd";
const REMEDY: &str =
    "allow read, ioctl, fcntl, futex and clone3 in the filter for system calls, or make the memory after it";

/// All addresses that a program can have, but those below `vm.mmap_min_addr`.
const EVERYWHERE: std::ops::Range<usize> = 0x1_0000..0x7fff_ffff_f000;

impl Service {
    /// Whose faults it gets.
    pub(crate) fn reach(&self) -> FaultOrigin {
        self.fd.reach()
    }

    /// Makes a call on the userfaultfd, in the custodian's table of descriptors if this thread's has lost it or may not use it.
    /// Async-signal-safe if the call is.
    ///
    /// # Errors
    /// As the call.
    #[inline]
    pub(crate) fn run<R>(&self, call: impl Fn(&Userfaultfd) -> io::Result<R>) -> io::Result<R> {
        if !self.is_lost.load(Ordering::Relaxed) {
            match call(&self.fd) {
                Err(error) if self.needs_custodian(&error) => {}
                done => return done,
            }
        }
        self.custodian.run(|| call(&self.fd))
    }

    /// Makes a call on the page map.
    ///
    /// # Errors
    /// As the call; `ENOTTY` where none is open.
    pub(crate) fn scan<R>(&self, mut call: impl FnMut(&PageScan) -> io::Result<R>) -> io::Result<R> {
        let scan = self.scan.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOTTY))?;
        if !self.is_lost.load(Ordering::Relaxed) {
            match call(scan) {
                Err(error) if is_filtered(&error) || !self.custodian.is_ours(scan.number()) => {}
                done => return done,
            }
        }
        let call = std::cell::RefCell::new(call);
        self.custodian.run(|| (call.borrow_mut())(scan))
    }

    #[cold]
    fn needs_custodian(&self, error: &io::Error) -> bool {
        !self.has_number() || is_filtered(error)
    }

    /// Whether the calling thread's table has our userfaultfd. Once it has not, the number is never used again.
    fn has_number(&self) -> bool {
        if self.is_lost.load(Ordering::Relaxed) {
            return false;
        }
        let has = self.custodian.is_ours(self.fd.number());
        if !has {
            self.is_lost.store(true, Ordering::SeqCst);
        }
        has
    }

    /// Whether the number is ours, for the keeper; once it is not, all threads that wait try again.
    pub(crate) fn look_after_number(&self) -> bool {
        let has_number = self.has_number();
        if !has_number {
            self.wake_all();
        }
        has_number
    }

    /// Wakes the threads that wait for a page of the file that is at the number now: a worker may have read another
    /// userfaultfd's event, which comes again.
    pub(crate) fn wake_by_number(&self, address: usize) {
        let page = address & !(rustix::param::page_size() - 1);
        let _ = self.fd.wake(page..page + rustix::param::page_size());
    }

    /// Workers may have answered faults by another userfaultfd that stands at our number, which wakes nobody here.
    fn wake_all(&self) {
        if let Err(error) = self.custodian.run(|| self.fd.wake(EVERYWHERE)) {
            end_process(READ, &error, REMEDY);
        }
    }

    /// Waits for a fault, in a worker: for as long as the process lives, if none comes. `answered` is when a worker began to
    /// answer the last one by the number, in [`cycles`].
    pub(crate) fn event(&self, answered: Option<u64>) -> Fault {
        let mut is_proven = answered.is_some_and(|since| cycles().wrapping_sub(since) < RECENT);
        while (is_proven && !self.is_lost.load(Ordering::Relaxed)) || self.has_number() {
            is_proven = false;
            match self.fd.read() {
                Ok(Some(event)) => return event,
                Ok(None) => {}
                Err(error) if is_passing(&error) => {}
                Err(_) => self.is_lost.store(true, Ordering::SeqCst),
            }
        }
        let relayed = self.relayed.get_or_init(|| self.relay()).lock().unwrap_or_else(PoisonError::into_inner);
        relayed.recv().unwrap_or_else(|error| end_process(READ, &error, REMEDY))
    }

    /// Has a thread that shares the custodian's table read the faults.
    fn relay(&self) -> Mutex<Receiver<Fault>> {
        let (tell, told) = sync_channel(0);
        // SAFETY: a service is published, or about to be, and never freed.
        let this: &'static Self = unsafe { &*std::ptr::from_ref(self) };
        let started = self.custodian.run(|| {
            let tell = tell.clone();
            spawn("fs-reader", move || this.read_for_workers(&tell)).map(drop)
        });
        if let Err(error) = started {
            end_process(READ, &error, REMEDY);
        }
        self.wake_all();
        Mutex::new(told)
    }

    fn read_for_workers(&self, tell: &SyncSender<Fault>) {
        loop {
            match self.fd.read() {
                // Workers live as long as the process, so that one takes it.
                Ok(Some(event)) => _ = tell.send(event),
                Ok(None) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => end_process(READ, &error, REMEDY),
            }
        }
    }
}

/// Cycles within which an answer proves that the number is ours: some 12 µs, the time of a quick handler, its call and a switch to
/// the thread that it wakes.
const RECENT: u64 = 1 << 15;

/// The processor's counter of cycles.
#[cfg(target_arch = "x86_64")]
pub(crate) fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, which reads a counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Without a counter, answers are never recent.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn cycles() -> u64 {
    static CALLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    CALLS.fetch_add(RECENT, Ordering::Relaxed)
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

/// Whether a filter for system calls may have refused the call to this thread. The custodian may have another one, or none.
fn is_filtered(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
}

static SERVICES: [AtomicPtr<Service>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];

/// The service for a way to be told.
///
/// # Errors
/// Why there is none.
pub(crate) fn service(told: Told) -> io::Result<&'static Service> {
    let place = &SERVICES[told as usize];
    fork::setting_up(|| {
        // SAFETY: a published service is never freed.
        if let Some(service) = unsafe { place.load(Ordering::Acquire).as_ref() } {
            return Ok(service);
        }
        let service: &'static Service = Box::leak(Box::new(open(told)?));
        if told != Told::Signal {
            serve::start(service)?;
        }
        place.store(std::ptr::from_ref(service).cast_mut(), Ordering::Release);
        Ok(service)
    })
}

fn open(told: Told) -> io::Result<Service> {
    let more = uapi::UFFD_FEATURE_WP_UNPOPULATED
        | uapi::UFFD_FEATURE_WP_HUGETLBFS_SHMEM
        | uapi::UFFD_FEATURE_POISON
        | uapi::UFFD_FEATURE_MOVE
        | uapi::UFFD_FEATURE_MISSING_HUGETLBFS
        | uapi::UFFD_FEATURE_MISSING_SHMEM;
    let own = match told {
        Told::Thread => uapi::UFFD_FEATURE_THREAD_ID | uapi::UFFD_FEATURE_EXACT_ADDRESS,
        Told::Signal => uapi::UFFD_FEATURE_SIGBUS,
        Told::Scan => uapi::UFFD_FEATURE_WP_ASYNC | uapi::UFFD_FEATURE_THREAD_ID | uapi::UFFD_FEATURE_EXACT_ADDRESS,
    };
    let needed = match told {
        Told::Thread => uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP,
        Told::Signal => uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP | uapi::UFFD_FEATURE_SIGBUS,
        Told::Scan => uapi::UFFD_FEATURE_WP_ASYNC | uapi::UFFD_FEATURE_WP_UNPOPULATED,
    };
    // A signal cannot be sent for what the kernel itself does.
    let reach = if told == Told::Signal { FaultOrigin::User } else { FaultOrigin::UserAndKernel };
    let (fd, has) = Userfaultfd::open(needed, own | more, reach)?;
    let scan = if told == Told::Scan { Some(PageScan::open()?) } else { None };
    let custodian = Custodian::start([fd.number()].into_iter().chain(scan.as_ref().map(PageScan::number)).collect())?;
    let unpopulated = has & u64::from(uapi::UFFD_FEATURE_WP_UNPOPULATED) != 0;
    Ok(Service { fd, scan, unpopulated, custodian, is_lost: AtomicBool::new(false), relayed: OnceLock::new() })
}

/// Closes what names the parent's memory.
pub(crate) fn forget_in_child() {
    for place in &SERVICES {
        // SAFETY: a published service is never freed, and the child's only thread runs this. The regions of the parent's
        // generation do not use it any more.
        if let Some(service) = unsafe { place.swap(null_mut(), Ordering::AcqRel).as_ref() } {
            let numbers = [Some(service.fd.number()), service.scan.as_ref().map(PageScan::number)];
            for number in numbers.into_iter().flatten().filter(|&number| service.custodian.is_ours(number)) {
                // SAFETY: the descriptor is this process's own copy; nothing of ours uses it again.
                unsafe { libc::close(number) };
            }
        }
    }
}
