//! The threads that run fault handlers.
//!
//! ```text
//! faults of a userfaultfd -> read           \
//!                                            worker: finds the region, runs its handler, wakes
//! faults by SIGSEGV       -> request queue  /         the thread
//! ```
//! A source has one worker as long as that suffices, because each fault wakes all waiting workers.
//! A handler may itself fault, or wait: a monitor thread checks every 2 ms while faults arrive, and
//! adds a worker when all are busy with few of them. It sleeps when no faults arrive.
//!
//! Without userfaultfd, the faulting thread is in a signal handler and submits its fault to the
//! queue. Workers and monitors live as long as the process, so their waits need not end.

#![allow(unsafe_code, reason = "serves requests of other threads")]

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::Duration;

use fieldstone_sys::userfault::FaultEvent;

use crate::arch::cycles;
use crate::fault::{Access, Fault, Outcome};
use crate::region::Region;
use crate::request_queue::{QueuedRequest, RequestQueue};
use crate::shared_userfaultfd::SharedUserfaultfd;
use crate::threads::{current_thread, end_process, is_running, spawn};
use crate::{fork, registry};

const MAX_WORKERS: usize = 64;
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// Faults per worker and check that count as fast progress.
const FAST_FAULTS: usize = 4;
/// Consecutive checks with all workers busy and slow before a worker is added.
const SLOW_CHECKS: u32 = 2;
/// Checks without a fault before the monitor sleeps.
const IDLE_CHECKS: u32 = 50;

/// The source of faults.
enum FaultSource {
    /// A userfaultfd, and the function that sends a refused fault to its thread as a signal.
    Userfaultfd(&'static SharedUserfaultfd, fn(u32, usize)),
    /// Signal handlers.
    Signals(RequestQueue<FaultRequest>),
}

/// The workers of a source.
struct WorkerPool {
    source: FaultSource,
    process: u32,
    /// The workers' thread ids; the first `workers` of them are set.
    threads: [AtomicU32; MAX_WORKERS],
    workers: AtomicUsize,
    busy: AtomicUsize,
    served: AtomicUsize,
    monitor: Mutex<Option<Thread>>,
    is_monitor_asleep: AtomicBool,
}

/// A fault that a signal handler submits. The sender keeps the region pinned until the reply.
struct FaultRequest {
    region: *const Region,
    address: usize,
    access: Access,
    thread: u32,
}

/// The pool that serves faults by `SIGSEGV`.
static SIGNAL_POOL: AtomicPtr<WorkerPool> = AtomicPtr::new(null_mut());

/// Serves a userfaultfd.
pub(crate) fn serve_userfaultfd(shared: &'static SharedUserfaultfd, refuse: fn(u32, usize)) -> io::Result<()> {
    start_pool(FaultSource::Userfaultfd(shared, refuse)).map(drop)
}

/// Serves the faults that signal handlers submit.
pub(crate) fn serve_signals() -> io::Result<()> {
    fork::with_setup_lock(|| {
        if SIGNAL_POOL.load(Ordering::Acquire).is_null() {
            let pool = start_pool(FaultSource::Signals(RequestQueue::new()))?;
            SIGNAL_POOL.store(ptr::from_ref(pool).cast_mut(), Ordering::Release);
        }
        Ok(())
    })
}

/// A child has no workers.
pub(crate) fn reset_in_child() {
    SIGNAL_POOL.store(null_mut(), Ordering::Release);
}

fn start_pool(source: FaultSource) -> io::Result<&'static WorkerPool> {
    let pool: &'static WorkerPool = Box::leak(Box::new(WorkerPool {
        source,
        process: rustix::process::getpid().as_raw_nonzero().get().cast_unsigned(),
        threads: [const { AtomicU32::new(0) }; MAX_WORKERS],
        workers: AtomicUsize::new(0),
        busy: AtomicUsize::new(0),
        served: AtomicUsize::new(0),
        monitor: Mutex::new(None),
        is_monitor_asleep: AtomicBool::new(true),
    }));
    pool.add_worker()?;
    let monitor = spawn("fs-keeper", || pool.monitor_workers())?;
    *pool.monitor.lock().unwrap_or_else(PoisonError::into_inner) = Some(monitor);
    Ok(pool)
}

impl WorkerPool {
    /// Callers are serialised: the first worker exists before the monitor.
    fn add_worker(&'static self) -> io::Result<()> {
        let number = self.workers.load(Ordering::Relaxed);
        if number == MAX_WORKERS {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        spawn("fs-fault", move || {
            self.threads[number].store(current_thread(), Ordering::Relaxed);
            self.work();
        })?;
        self.workers.store(number + 1, Ordering::Relaxed);
        Ok(())
    }

    fn work(&'static self) {
        let mut resolved = None;
        loop {
            let task = self.source.next(resolved);
            self.busy.fetch_add(1, Ordering::Relaxed);
            self.served.fetch_add(1, Ordering::Relaxed);
            if self.is_monitor_asleep.swap(false, Ordering::Relaxed)
                && let Some(monitor) = &*self.monitor.lock().unwrap_or_else(PoisonError::into_inner)
            {
                monitor.unpark();
            }
            // The fault would stay unresolved, and the program could not continue.
            let Ok(now) = catch_unwind(AssertUnwindSafe(|| self.source.serve(&task))) else {
                eprintln!("fieldstone-pages: a fault handler panicked; the thread that faulted cannot go on");
                std::process::abort();
            };
            resolved = now;
            self.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether all started workers are running.
    fn are_running(&self) -> bool {
        let numbers = self.threads.iter().map(|thread| thread.load(Ordering::Relaxed));
        numbers.take_while(|&thread| thread != 0).all(|thread| is_running(self.process, thread))
    }

    fn monitor_workers(&'static self) {
        let (mut seen, mut idle, mut slow, mut is_lost) = (0, 0, 0, false);
        loop {
            if idle > IDLE_CHECKS {
                self.is_monitor_asleep.store(true, Ordering::SeqCst);
                thread::park();
                idle = 0;
            }
            thread::park_timeout(CHECK_INTERVAL);
            if !is_lost
                && let FaultSource::Userfaultfd(shared, _) = &self.source
                && !shared.check_number()
            {
                // The last worker may be blocked in a read of another file.
                is_lost = true;
                let _ = self.add_worker();
            }
            let served = self.served.load(Ordering::Relaxed);
            let workers = self.workers.load(Ordering::Relaxed);
            let busy = self.busy.load(Ordering::Relaxed);
            idle = if served == seen && busy == 0 { idle + 1 } else { 0 };
            // A worker that is busy at every check may still be fast, or have lost its processor
            // briefly; each fault would wake another worker for nothing.
            let is_slow = busy >= workers && served.wrapping_sub(seen) < FAST_FAULTS * workers;
            slow = if is_slow { slow + 1 } else { 0 };
            seen = served;
            if slow >= SLOW_CHECKS && !self.are_running() {
                end_process(
                    "resolve a fault",
                    &"its handler has ended its thread",
                    "return from the handler, and end no thread that the program did not create",
                );
            }
            if slow >= SLOW_CHECKS && self.add_worker().is_ok() {
                slow = 0;
            }
        }
    }
}

/// A fault to serve.
enum FaultTask {
    Event(FaultEvent),
    Request(*const QueuedRequest<FaultRequest>),
}

impl FaultSource {
    /// Waits for a fault. `resolved` is the time at which the last one's handler was called, if a
    /// call by the descriptor number has resolved it.
    fn next(&self, resolved: Option<u64>) -> FaultTask {
        match self {
            Self::Userfaultfd(shared, _) => FaultTask::Event(shared.event(resolved)),
            Self::Signals(queue) => FaultTask::Request(queue.receive()),
        }
    }

    fn serve(&self, task: &FaultTask) -> Option<u64> {
        match (self, task) {
            (Self::Userfaultfd(shared, refuse), FaultTask::Event(event)) => {
                let Some(region) = registry::find(event.address) else {
                    // The region was dropped meanwhile, which wakes the waiting threads; or the
                    // fault is of another userfaultfd.
                    shared.wake_by_number(event.address);
                    return None;
                };
                let access = if event.write { Access::Write } else { Access::Read };
                let fault = Fault::new(&region, event.address, access, event.thread, null_mut());
                let since = cycles();
                if (region.handler)(&fault) == Outcome::Chain {
                    refuse(event.thread, event.address);
                }
                let page = region.page_of(event.address);
                let wake = || shared.run(|fd| fd.wake(page..page + region.page_bytes)).is_ok();
                (fault.has_woken() || wake()).then_some(since)
            }
            (_, FaultTask::Request(request)) => {
                // SAFETY: the sender keeps the region pinned and the request on its stack until the
                // reply.
                let (request, region) = unsafe { (&**request, &*(**request).body.region) };
                let FaultRequest { address, access, thread, .. } = request.body;
                let outcome = (region.handler)(&Fault::new(region, address, access, thread, null_mut()));
                request.complete(outcome as u32);
                None
            }
            (Self::Signals(_), FaultTask::Event(_)) => None,
        }
    }
}

/// Submits a fault from a signal handler, and waits for the outcome. Async-signal-safe.
pub(crate) fn submit(region: &Region, address: usize, access: Access, thread: u32) -> Outcome {
    // SAFETY: a published pool is never freed.
    let Some(pool) = (unsafe { SIGNAL_POOL.load(Ordering::Acquire).as_ref() }) else { return Outcome::Chain };
    let FaultSource::Signals(queue) = &pool.source else { return Outcome::Chain };
    let request = FaultRequest { region: ptr::from_ref(region), address, access, thread };
    match queue.submit(request, || pool.are_running()) {
        Some(0) => Outcome::Resolved,
        // Refused, or a handler has ended its worker.
        _ => Outcome::Chain,
    }
}
