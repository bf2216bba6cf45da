//! The start of the agent, and the session that it shares with the supervisor.

#![allow(unsafe_code, reason = "runs as a constructor, and maps the session")]

use core::ffi::{CStr, c_void};
use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize};

use fieldstone_paging::Exchange;
use fieldstone_preload::{loader, process, unpaged};
use fieldstone_wire::page_exchange::PageExchange;
use fieldstone_wire::paging::{PAGING_VARIABLE, PagingProcess, PagingSession, RECORD_BYTES};

use crate::share::Share;
use crate::thread::Thread;
use crate::{raw, thread, threads, watch};

static SESSION: AtomicPtr<PagingSession> = AtomicPtr::new(null_mut());
/// The path of the session. The program may change its environment.
static PATH: [AtomicU8; RECORD_BYTES] = [const { AtomicU8::new(0) }; RECORD_BYTES];
static EXCHANGE: AtomicPtr<PageExchange> = AtomicPtr::new(null_mut());
static PROCESS: AtomicPtr<PagingProcess> = AtomicPtr::new(null_mut());

/// An address in the thread control block of the main thread: the kernel clears a word there when
/// the thread has ended, and serves no fault then.
static MAIN_THREAD: AtomicUsize = AtomicUsize::new(0);

/// The session and this process's entry; `None` in a process that is not paged.
pub(crate) fn session() -> Option<(&'static PagingSession, &'static PagingProcess)> {
    // SAFETY: null, or the session and an entry of it, which stay mapped and consist of atomics.
    unsafe { Some((SESSION.load(Acquire).as_ref()?, PROCESS.load(Acquire).as_ref()?)) }
}

/// The view of this process on the others of the session.
pub(crate) fn share() -> Option<Share> {
    let (session, own) = session()?;
    let path = PATH.each_ref().map(|byte| byte.load(Relaxed));
    Some(Share::open(session, own, CStr::from_bytes_until_nul(&path).ok()?))
}

/// This process's side of the exchange with the command; `None` without a server.
pub(crate) fn exchange() -> Option<Exchange> {
    // SAFETY: null, or the record, which stays mapped and consists of atomics.
    let record = unsafe { EXCHANGE.load(Acquire).as_ref()? };
    let (session, own) = session()?;
    let (config, process) = (&session.config, session.index_of(own)?);
    Some(Exchange {
        record,
        path: config.exchange()?,
        process,
        timeout_ms: config.exchange_timeout_ms,
        store: config.exchanged_store(),
    })
}

/// The addresses of the files that the pager's thread executes: the agent, and libc with `memcpy`.
/// Their variables must stay resident, or the thread would wait for itself.
static FILES: [[AtomicUsize; 2]; 2] = [const { [const { AtomicUsize::new(0) }; 2] }; 2];

/// Memory of the guard agent that must stay resident.
static GUARDED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Whether memory must stay resident: variables of the agent and of libc, guarded objects, and the
/// control block of the main thread.
pub(crate) fn is_excluded(range: &Range<usize>) -> bool {
    let mut excluded = FILES.iter().chain([&GUARDED]);
    excluded.any(|[start, end]| range.start < end.load(Relaxed) && start.load(Relaxed) < range.end)
        || range.contains(&MAIN_THREAD.load(Relaxed))
}

/// The function that returns the memory of the guard agent; null without that agent.
static FIND_GUARDED: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Records the memory of the guard agent. Call it before anything is paged: the function reads
/// variables of that agent.
pub(crate) fn record_guarded() {
    let function = FIND_GUARDED.load(Acquire);
    if !function.is_null() {
        // SAFETY: the only function of this name has this type, and needs no libc.
        let range = unsafe { core::mem::transmute::<*mut c_void, unpaged::Function>(function) }();
        GUARDED[0].store(range.start, Relaxed);
        GUARDED[1].store(range.end, Relaxed);
    }
}

/// Records the addresses of the agent and of libc. Returns false if the loader cannot find them.
fn record_files() -> bool {
    loader::prepare();
    let functions = [construct as *const () as usize, libc::memcpy as *const () as usize];
    FILES.iter().zip(functions).all(|([start, end], function)| {
        loader::find(function).is_some_and(|file| {
            start.store(file.start, Relaxed);
            end.store(file.end, Relaxed);
            true
        })
    })
}

/// Maps a record of the command for the life of the process. The caller checks its build.
fn map_record<T>(path: &CStr) -> Option<&'static T> {
    // SAFETY: mapped for the life of the process and long enough; all fields that change are atomic.
    raw::map_file(path, size_of::<T>()).ok().map(|memory| unsafe { memory.cast::<T>().as_ref() })
}

/// The constructor.
///
/// # Safety
/// Only the loader may call this.
pub(crate) unsafe extern "C" fn construct() {
    let Some(path) = process::variable(PAGING_VARIABLE) else { return };
    let session = map_record::<PagingSession>(path).filter(|session| session.check().is_ok());
    let Some(session) = session else {
        raw::write_error(b"fieldstone: a process runs without a bound: it cannot open the record of the command\n");
        return;
    };
    SESSION.store(core::ptr::from_ref(session).cast_mut(), Release);
    PATH.iter().zip(path.to_bytes()).for_each(|(place, &byte)| place.store(byte, Relaxed));
    if let Some(path) = session.config.exchange() {
        let exchange = map_record::<PageExchange>(path).filter(|exchange| exchange.check().is_ok());
        let Some(exchange) = exchange else {
            raw::write_error(b"fieldstone: a process runs without a bound: it cannot open the exchange of pages\n");
            return;
        };
        EXCHANGE.store(core::ptr::from_ref(exchange).cast_mut(), Release);
    }
    if !record_files() {
        raw::write_error(b"fieldstone: a process runs without a bound: it needs glibc 2.35 or later\n");
        return;
    }
    MAIN_THREAD.store(thread_pointer(), Relaxed);
    // SAFETY: the name is a C string.
    FIND_GUARDED.store(unsafe { libc::dlsym(libc::RTLD_DEFAULT, unpaged::NAME.as_ptr()) }, Release);
    threads::prepare();
    begin();
    // SAFETY: the handler stays valid: the loader never unloads a preloaded library.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(begin_in_child)) };
}

unsafe extern "C" fn before_fork() {
    watch::before_fork();
}

unsafe extern "C" fn begin_in_child() {
    watch::await_pages();
    watch::forget_in_child();
    thread::forget_in_child();
    begin();
}

/// Starts the thread for this process.
fn begin() {
    // SAFETY: null, or the session, which stays mapped for the life of the process.
    let Some(session) = (unsafe { SESSION.load(Acquire).as_ref() }) else { return };
    let process = session.claim_process(raw::getpid());
    PROCESS.store(process.map_or(null_mut(), |process| core::ptr::from_ref(process).cast_mut()), Release);
    if let Some(process) = process {
        process.name.set(process::program_name());
        if !thread::spawn(Thread::Pager, watch::run) {
            raw::write_error(b"fieldstone: a process runs without a bound: it cannot start a thread\n");
        }
    } else {
        raw::write_error(b"fieldstone: a process runs without a bound: the run has had 256 processes\n");
    }
}

/// The address of the current thread's control block.
pub(crate) fn thread_pointer() -> usize {
    let pointer;
    // SAFETY: on x86-64 the first word of the control block is its address, for every thread of a
    // libc.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}
