//! The threads that run handlers for those who fault.
//!
//! ```text
//! faults of a userfaultfd  ->  read(fd)       \
//!                                               worker: finds the region, runs its handler, wakes who waits
//! faults by SIGSEGV        ->  MAIL, eventfd  /
//! ```
//! A source has one worker as long as that is enough, since each one that waits is woken by each fault. A handler may itself fault,
//! or wait: a keeper looks every two milliseconds while faults come, and adds a worker where all are busy with few of them. It
//! sleeps when nothing comes.
//!
//! Where there is no userfaultfd, who faults is in a signal handler: it puts a letter that lies on its own stack into the mail,
//! and sleeps on it until a worker has answered.

#![allow(unsafe_code, reason = "passes letters between threads")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::fault::{Access, Fault, Outcome};
use crate::region::Region;
use crate::service::Service;
use crate::{registry, signal};

const MOST_WORKERS: usize = 64;
const LOOK: Duration = Duration::from_millis(2);
/// Faults that a worker serves between two looks of the keeper, at least, if its handlers are quick.
const QUICK: usize = 4;
/// Looks, one after the other, that find all workers busy and slow before there is one more.
const SLOW_LOOKS: u32 = 2;
/// Looks without a fault before the keeper sleeps.
const IDLE_LOOKS: u32 = 50;

/// Where faults come from.
enum Source {
    Userfault(&'static Service),
    Mail(&'static Post),
}

/// The workers of a source.
struct Pool {
    source: Source,
    workers: AtomicUsize,
    busy: AtomicUsize,
    served: AtomicUsize,
    keeper: Mutex<Option<Thread>>,
    keeper_sleeps: AtomicBool,
}

/// Faults that signal handlers pass on.
struct Post {
    /// The last letter; each one names the one before.
    mail: AtomicPtr<Letter>,
    sorted: Mutex<Vec<Sorted>>,
    bell: OwnedFd,
}

/// A letter that a worker has taken out of the mail.
struct Sorted(*const Letter);

// SAFETY: a letter lies on the stack of who sleeps on it, until it is answered.
unsafe impl Send for Sorted {}

struct Letter {
    before: *mut Self,
    region: *const Region,
    address: usize,
    access: Access,
    thread: u32,
    /// 0, or the answer plus 1.
    answer: AtomicU32,
}

static POST: AtomicPtr<Post> = AtomicPtr::new(null_mut());

/// Serves a userfaultfd.
pub(crate) fn start(service: &'static Service) -> io::Result<()> {
    start_pool(Source::Userfault(service))
}

/// Serves the faults that signal handlers pass on.
pub(crate) fn start_post() -> io::Result<()> {
    crate::fork::setting_up(|| {
        if POST.load(Ordering::Acquire).is_null() {
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)?;
            let post: &'static Post =
                Box::leak(Box::new(Post { mail: AtomicPtr::new(null_mut()), sorted: Mutex::default(), bell }));
            start_pool(Source::Mail(post))?;
            POST.store(ptr::from_ref(post).cast_mut(), Ordering::Release);
        }
        Ok(())
    })
}

/// A child has no workers.
pub(crate) fn forget_in_child() {
    POST.store(null_mut(), Ordering::Release);
}

fn start_pool(source: Source) -> io::Result<()> {
    let pool: &'static Pool = Box::leak(Box::new(Pool {
        source,
        workers: AtomicUsize::new(0),
        busy: AtomicUsize::new(0),
        served: AtomicUsize::new(0),
        keeper: Mutex::new(None),
        keeper_sleeps: AtomicBool::new(true),
    }));
    spawn("fs-fault", || pool.work())?;
    pool.workers.store(1, Ordering::Relaxed);
    let keeper = spawn("fs-keeper", || pool.keep())?;
    *pool.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
    Ok(())
}

/// A thread that gets no signal of the program's.
fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let made = signal::without_signals(|| thread::Builder::new().name(name.to_owned()).spawn(work))?;
    Ok(made.thread().clone())
}

impl Pool {
    fn work(&'static self) {
        while let Some(task) = self.source.next() {
            self.busy.fetch_add(1, Ordering::Relaxed);
            self.served.fetch_add(1, Ordering::Relaxed);
            if self.keeper_sleeps.swap(false, Ordering::Relaxed)
                && let Some(keeper) = &*self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
            {
                keeper.unpark();
            }
            // The fault would never be answered: the program could not go on.
            if catch_unwind(AssertUnwindSafe(|| self.source.answer(&task))).is_err() {
                eprintln!("fieldstone-pages: a fault handler panicked; who faulted cannot go on");
                std::process::abort();
            }
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn keep(&'static self) {
        let (mut seen, mut idle, mut slow) = (0, 0, 0);
        loop {
            if idle > IDLE_LOOKS {
                self.keeper_sleeps.store(true, Ordering::SeqCst);
                thread::park();
                idle = 0;
            }
            thread::park_timeout(LOOK);
            let served = self.served.load(Ordering::Relaxed);
            let workers = self.workers.load(Ordering::Relaxed);
            let busy = self.busy.load(Ordering::Relaxed);
            idle = if served == seen && busy == 0 { idle + 1 } else { 0 };
            // One that is busy whenever one looks may still be quick, or have lost its processor for a moment; another one would
            // only be woken by each fault, too.
            let is_slow = busy >= workers && served.wrapping_sub(seen) < QUICK * workers;
            slow = if is_slow { slow + 1 } else { 0 };
            seen = served;
            if slow >= SLOW_LOOKS && workers < MOST_WORKERS && spawn("fs-fault", || self.work()).is_ok() {
                self.workers.fetch_add(1, Ordering::Relaxed);
                slow = 0;
            }
        }
    }
}

/// A fault to be served.
enum Task {
    Event(fieldstone_sys::userfault::Event),
    Letter(*const Letter),
}

impl Source {
    /// Waits for a fault; `None` when there will be none any more.
    fn next(&self) -> Option<Task> {
        loop {
            match self {
                Self::Userfault(service) => match service.fd.read() {
                    Ok(Some(event)) => return Some(Task::Event(event)),
                    Ok(None) => {}
                    Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {}
                    Err(_) => return None,
                },
                Self::Mail(post) => {
                    let mut count = [0; 8];
                    match rustix::io::read(&post.bell, &mut count) {
                        Ok(_) => {
                            if let Some(letter) = post.take() {
                                return Some(Task::Letter(letter));
                            }
                        }
                        Err(rustix::io::Errno::INTR) => {}
                        Err(_) => return None,
                    }
                }
            }
        }
    }

    fn answer(&self, task: &Task) {
        match (self, task) {
            (Self::Userfault(service), Task::Event(event)) => {
                let Some(region) = registry::find(event.address) else {
                    // It was dropped meanwhile, which wakes who waits.
                    return;
                };
                let access = if event.write { Access::Write } else { Access::Read };
                let fault = Fault::new(&region, event.address, access, event.thread, null_mut());
                if (region.handler)(&fault) == Outcome::Chain {
                    signal::send_fault(event.thread, event.address);
                }
                if !fault.has_woken() {
                    let page = region.page_of(event.address);
                    let _ = service.fd.wake(page..page + region.page_bytes);
                }
            }
            (_, Task::Letter(letter)) => {
                // SAFETY: who sleeps on the letter has the region pinned, and neither goes before the answer.
                let (letter, region) = unsafe { (&**letter, &*(**letter).region) };
                let fault = Fault::new(region, letter.address, letter.access, letter.thread, null_mut());
                let outcome = (region.handler)(&fault);
                letter.give(outcome);
            }
            (Self::Mail(_), Task::Event(_)) => {}
        }
    }
}

impl Post {
    fn take(&self) -> Option<*const Letter> {
        let mut sorted = self.sorted.lock().unwrap_or_else(PoisonError::into_inner);
        if sorted.is_empty() {
            let mut letter = self.mail.swap(null_mut(), Ordering::Acquire);
            // SAFETY: letters in the mail are there until they are answered.
            while let Some(read) = unsafe { letter.as_ref() } {
                sorted.push(Sorted(letter));
                letter = read.before;
            }
        }
        sorted.pop().map(|letter| letter.0)
    }
}

impl Letter {
    fn give(&self, outcome: Outcome) {
        let word = self.answer.as_ptr();
        self.answer.store(outcome as u32 + 1, Ordering::Release);
        // The letter may be gone by now; a wake on an address that is not waited on does nothing.
        // SAFETY: futex(2) looks at the address only as a name.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
    }
}

/// Passes a fault on from a signal handler, and waits for the answer. Async-signal-safe.
pub(crate) fn pass_on(region: &Region, address: usize, access: Access, thread: u32) -> Outcome {
    // SAFETY: a published post is never freed.
    let Some(post) = (unsafe { POST.load(Ordering::Acquire).as_ref() }) else { return Outcome::Chain };
    let mut letter = Letter {
        before: null_mut(),
        region: ptr::from_ref(region),
        address,
        access,
        thread,
        answer: AtomicU32::new(0),
    };
    let place = &raw mut letter;
    let mut before = post.mail.load(Ordering::Relaxed);
    loop {
        // SAFETY: the letter is ours until it is in the mail.
        unsafe { (*place).before = before };
        match post.mail.compare_exchange_weak(before, place, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => before = now,
        }
    }
    // A number in this machine's order, whichever that is.
    let one = 1_u64;
    // SAFETY: eight bytes of a live local; a bell that cannot ring has 2^64 rings to come.
    unsafe { libc::write(post.bell.as_raw_fd(), (&raw const one).cast(), 8) };
    loop {
        // SAFETY: the letter lives on this stack.
        let answer = unsafe { &(*place).answer };
        match answer.load(Ordering::Acquire) {
            0 => {}
            1 => return Outcome::Resolved,
            _ => return Outcome::Chain,
        }
        let word = answer.as_ptr();
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: a wait on a live word, without a timeout.
        unsafe { libc::syscall(libc::SYS_futex, word, wait, 0, ptr::null::<libc::timespec>()) };
    }
}
