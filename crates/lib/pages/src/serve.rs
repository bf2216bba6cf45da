//! The threads that run the handlers of faults.
//!
//! ```text
//! faults of a userfaultfd  ->  service: read   \
//!                                                worker: finds the region, runs its handler, wakes the faulting thread
//! faults by SIGSEGV        ->  mail            /
//! ```
//! A source has one worker as long as that is enough, since each one that waits is woken by each fault. A handler may itself fault,
//! or wait: a keeper looks every two milliseconds while faults come, and adds a worker where all are busy with few of them. It
//! sleeps when nothing comes.
//!
//! Where there is no userfaultfd, the thread that faults is in a signal handler, and passes its fault on by mail. Workers and keepers
//! live as long as the process, so that their waits need not end.

#![allow(unsafe_code, reason = "serves letters of other threads")]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use fieldstone_sys::userfault::Fault;

use crate::fault::{Access, Fault, Outcome};
use crate::mail::{Letter, Mail};
use crate::region::Region;
use crate::service::{Service, cycles};
use crate::threads::{end_process, is_running, own_number, spawn};
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
    Mail(Mail<FaultRequest>),
}

/// The workers of a source.
struct Pool {
    source: Source,
    process: u32,
    /// The workers' numbers, the first ones of which are set.
    threads: [AtomicU32; MOST_WORKERS],
    workers: AtomicUsize,
    busy: AtomicUsize,
    served: AtomicUsize,
    keeper: Mutex<Option<Thread>>,
    keeper_sleeps: AtomicBool,
}

/// A fault that a signal handler passes on. The sender has the region pinned until the answer.
struct FaultRequest {
    region: *const Region,
    address: usize,
    access: Access,
    thread: u32,
}

/// The pool that serves faults by `SIGSEGV`.
static BY_MAIL: AtomicPtr<Pool> = AtomicPtr::new(null_mut());

/// Serves a userfaultfd.
pub(crate) fn start(service: &'static Service) -> io::Result<()> {
    start_pool(Source::Userfault(service)).map(drop)
}

/// Serves the faults that signal handlers pass on.
pub(crate) fn start_mail() -> io::Result<()> {
    crate::fork::setting_up(|| {
        if BY_MAIL.load(Ordering::Acquire).is_null() {
            let pool = start_pool(Source::Mail(Mail::new()))?;
            BY_MAIL.store(ptr::from_ref(pool).cast_mut(), Ordering::Release);
        }
        Ok(())
    })
}

/// A child has no workers.
pub(crate) fn forget_in_child() {
    BY_MAIL.store(null_mut(), Ordering::Release);
}

fn start_pool(source: Source) -> io::Result<&'static Pool> {
    let pool: &'static Pool = Box::leak(Box::new(Pool {
        source,
        process: rustix::process::getpid().as_raw_nonzero().get().cast_unsigned(),
        threads: [const { AtomicU32::new(0) }; MOST_WORKERS],
        workers: AtomicUsize::new(0),
        busy: AtomicUsize::new(0),
        served: AtomicUsize::new(0),
        keeper: Mutex::new(None),
        keeper_sleeps: AtomicBool::new(true),
    }));
    pool.add_worker()?;
    let keeper = spawn("fs-keeper", || pool.keep())?;
    *pool.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
    Ok(pool)
}

impl Pool {
    /// Callers do not do this at the same time: the first worker is there before the keeper.
    fn add_worker(&'static self) -> io::Result<()> {
        let number = self.workers.load(Ordering::Relaxed);
        if number == MOST_WORKERS {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        spawn("fs-fault", move || {
            self.threads[number].store(own_number(), Ordering::Relaxed);
            self.work();
        })?;
        self.workers.store(number + 1, Ordering::Relaxed);
        Ok(())
    }

    fn work(&'static self) {
        let mut answered = None;
        loop {
            let task = self.source.next(answered);
            self.busy.fetch_add(1, Ordering::Relaxed);
            self.served.fetch_add(1, Ordering::Relaxed);
            if self.keeper_sleeps.swap(false, Ordering::Relaxed)
                && let Some(keeper) = &*self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
            {
                keeper.unpark();
            }
            // The fault would never be answered: the program could not go on.
            let Ok(now) = catch_unwind(AssertUnwindSafe(|| self.source.answer(&task))) else {
                eprintln!("fieldstone-pages: a fault handler panicked; the thread that faulted cannot go on");
                std::process::abort();
            };
            answered = now;
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether all workers that have started are running.
    fn are_running(&self) -> bool {
        let numbers = self.threads.iter().map(|thread| thread.load(Ordering::Relaxed));
        numbers.take_while(|&thread| thread != 0).all(|thread| is_running(self.process, thread))
    }

    fn keep(&'static self) {
        let (mut seen, mut idle, mut slow, mut is_lost) = (0, 0, 0, false);
        loop {
            if idle > IDLE_LOOKS {
                self.keeper_sleeps.store(true, Ordering::SeqCst);
                thread::park();
                idle = 0;
            }
            thread::park_timeout(LOOK);
            if !is_lost
                && let Source::Userfault(service) = &self.source
                && !service.look_after_number()
            {
                // The last worker may sit in a read of another file.
                is_lost = true;
                let _ = self.add_worker();
            }
            let served = self.served.load(Ordering::Relaxed);
            let workers = self.workers.load(Ordering::Relaxed);
            let busy = self.busy.load(Ordering::Relaxed);
            idle = if served == seen && busy == 0 { idle + 1 } else { 0 };
            // A worker that is busy at every look may still be quick, or have lost its processor for a moment; another worker
            // would only be woken by each fault, too.
            let is_slow = busy >= workers && served.wrapping_sub(seen) < QUICK * workers;
            slow = if is_slow { slow + 1 } else { 0 };
            seen = served;
            if slow >= SLOW_LOOKS && !self.are_running() {
                end_process(
                    "answer a fault",
                    &"its handler has ended the thread that it ran in",
                    "return from the handler, and end no thread that the program did not start",
                );
            }
            if slow >= SLOW_LOOKS && self.add_worker().is_ok() {
                slow = 0;
            }
        }
    }
}

/// A fault to be served.
enum Task {
    Fault(Fault),
    Letter(*const Letter<FaultRequest>),
}

impl Source {
    /// Waits for a fault. `answered` is when the last one's handler was called, if a call by the number has answered it.
    fn next(&self, answered: Option<u64>) -> Task {
        match self {
            Self::Userfault(service) => Task::Fault(service.event(answered)),
            Self::Mail(mail) => Task::Letter(mail.next()),
        }
    }

    fn answer(&self, task: &Task) -> Option<u64> {
        match (self, task) {
            (Self::Userfault(service), Task::Fault(event)) => {
                let Some(region) = registry::find(event.address) else {
                    // It was dropped in the meantime, which wakes the threads that wait; or it is another userfaultfd's.
                    service.wake_by_number(event.address);
                    return None;
                };
                let access = if event.write { Access::Write } else { Access::Read };
                let fault = Fault::new(&region, event.address, access, event.thread, null_mut());
                let since = cycles();
                if (region.handler)(&fault) == Outcome::Chain {
                    signal::send_fault(event.thread, event.address);
                }
                let page = region.page_of(event.address);
                let wake = || service.run(|fd| fd.wake(page..page + region.page_bytes)).is_ok();
                (fault.has_woken() || wake()).then_some(since)
            }
            (_, Task::Letter(letter)) => {
                // SAFETY: the sender has the region pinned, and sleeps on the letter until the answer.
                let (letter, region) = unsafe { (&**letter, &*(**letter).request.region) };
                let FaultRequest { address, access, thread, .. } = letter.request;
                let outcome = (region.handler)(&Fault::new(region, address, access, thread, null_mut()));
                letter.give(outcome as u32);
                None
            }
            (Self::Mail(_), Task::Fault(_)) => None,
        }
    }
}

/// Passes a fault on from a signal handler, and waits for the answer. Async-signal-safe.
pub(crate) fn pass_on(region: &Region, address: usize, access: Access, thread: u32) -> Outcome {
    // SAFETY: a published pool is never freed.
    let Some(pool) = (unsafe { BY_MAIL.load(Ordering::Acquire).as_ref() }) else { return Outcome::Chain };
    let Source::Mail(mail) = &pool.source else { return Outcome::Chain };
    let request = FaultRequest { region: ptr::from_ref(region), address, access, thread };
    match mail.ask(request, || pool.are_running()) {
        Some(0) => Outcome::Resolved,
        // Refused, or a handler has ended its worker.
        _ => Outcome::Chain,
    }
}
