//! The tracer process: seizes all threads, stops the running ones at the sampling rate, and reads
//! their registers.
//!
//! Invariant: after the clone no code allocates or locks. Another thread of the parent may have
//! held the allocator's lock at that moment, and no thread here releases it.
//!
//! Stops and the reactions to them (ptrace(2), "PTRACE_SEIZE"):
//!
//! | stop | meaning | reaction |
//! |---|---|---|
//! | `PTRACE_EVENT_STOP`, SIGTRAP | own `PTRACE_INTERRUPT`, a new thread's first stop, or the end of a group stop | sample if interrupted; continue |
//! | `PTRACE_EVENT_STOP`, SIGSTOP and the like | a group stop: the user stopped the program | `PTRACE_LISTEN`: it stays stopped |
//! | `PTRACE_EVENT_CLONE` | a thread is being created; its first stop follows | continue |
//! | any signal, no event | the signal is about to be delivered | continue with that signal |
//! | an exit | a thread has ended; the kernel notifies the process's parent after this report | remove it |
//!
//! A thread is interrupted only if `/proc` says that it runs. A sleeping one has no sample, and its
//! system call would be interrupted; some calls return EINTR even without a handler. A thread that
//! falls asleep between the check and the interrupt still has that risk. A thread found in the
//! kernel has no sample, as with perf.
#![allow(unsafe_code, reason = "ptrace, waitpid and sigtimedwait have no safe form")]

use std::mem::MaybeUninit;
use std::ptr;

use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use rustix::time::{ClockId, clock_gettime};

use super::sample_ring::{RingEntry, SampleRing, TracerPhase};
use super::thread_state::{path, thread_state};
use crate::helper_process::ExitOnDrop;
use crate::sampling::{Sample, SampledRegisters};

/// Capacity in threads; further ones are not sampled.
const THREADS: usize = 1024;
/// Upper bound of reads of the thread list, as in [`super::tasks`].
const MAX_READS: usize = 32;

/// A traced thread.
#[derive(Clone, Copy)]
struct PolledThread {
    tid: libc::pid_t,
    /// The CPU that it ran on when it was interrupted.
    cpu: u32,
    /// Whether it was interrupted and has not stopped yet.
    is_interrupted: bool,
}

struct SamplingTracer<'a> {
    pid: libc::pid_t,
    ring: &'a SampleRing,
    threads: [PolledThread; THREADS],
    count: usize,
}

/// The main function of the tracer of process `pid`, cloned by `parent`. All signals are blocked.
pub(super) fn run(pid: libc::pid_t, parent: libc::pid_t, hertz: u32, ring: &SampleRing) -> ! {
    let exit = ExitOnDrop;
    detach_from_parent();
    let unused = PolledThread { tid: 0, cpu: 0, is_interrupted: false };
    let mut tracer = SamplingTracer { pid, ring, threads: [unused; THREADS], count: 0 };
    if let Err(errno) = tracer.attach() {
        ring.enter(TracerPhase::Refused, errno);
    } else {
        ring.enter(TracerPhase::Running, 0);
        tracer.sample(parent, hertz);
    }
    // The kernel detaches remaining tracees, which then run.
    drop(exit);
    unreachable!("the process has ended")
}

/// Closes all inherited descriptors: an open pipe would block its reader. A kernel before 5.9 has
/// no close_range(2); descriptors then stay open until the exit. Enables SIGCHLD, which the parent
/// may ignore.
fn detach_from_parent() {
    let _ = rustix::process::chdir(c"/");
    let _ = rustix::thread::set_name(c"fs-tracer");
    // SAFETY: the calls change descriptors and this process's signal dispositions only, and no code
    // here uses a descriptor.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0, i32::MAX, 0);
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

impl SamplingTracer<'_> {
    /// Seizes all existing threads; the kernel attaches to later ones. The errno of the last
    /// refusal if no thread could be seized.
    fn attach(&mut self) -> Result<(), i32> {
        let mut refused = libc::ESRCH;
        for _ in 0..MAX_READS {
            let mut new = false;
            let path = path(self.pid, None).ok_or(libc::ENAMETOOLONG)?;
            let tasks = openat(CWD, &*path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
            let tasks = tasks.map_err(|errno| errno.raw_os_error())?;
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut entries = RawDir::new(tasks, &mut buffer);
            while let Some(Ok(entry)) = entries.next() {
                let name = entry.file_name().to_str().ok();
                let Some(tid) = name.and_then(|name| name.parse().ok()).filter(|&tid| self.find(tid).is_none()) else {
                    continue;
                };
                // A refusal may mean that the kernel has attached to the thread already, or that it
                // has ended.
                match seize(tid) {
                    Ok(()) => new |= self.add(tid),
                    Err(errno) => refused = errno,
                }
            }
            if !new {
                break;
            }
        }
        if self.count == 0 { Err(refused) } else { Ok(()) }
    }

    fn find(&mut self, tid: libc::pid_t) -> Option<&mut PolledThread> {
        self.threads.get_mut(..self.count)?.iter_mut().find(|thread| thread.tid == tid)
    }

    /// Returns whether there was space for it.
    fn add(&mut self, tid: libc::pid_t) -> bool {
        let Some(free) = self.threads.get_mut(self.count) else { return false };
        *free = PolledThread { tid, cpu: 0, is_interrupted: false };
        self.count += 1;
        true
    }

    fn remove(&mut self, tid: libc::pid_t) {
        let known = self.threads.get(..self.count).unwrap_or_default();
        let Some(place) = known.iter().position(|thread| thread.tid == tid) else { return };
        self.count -= 1;
        self.threads.swap(place, self.count);
        self.ring.push(RingEntry::Exit(tid.unsigned_abs()));
    }

    /// Samples until the process has ended, the parent has ended, or SIGTERM arrives.
    fn sample(&mut self, parent: libc::pid_t, hertz: u32) {
        let period_ns = 1_000_000_000 / u64::from(hertz.max(1));
        let mut next_ns = now_ns();
        loop {
            if !self.handle_stops() {
                self.ring.enter(TracerPhase::Ended, 0);
                return;
            }
            let now_ns = now_ns();
            if now_ns >= next_ns {
                self.interrupt_running();
                // Missed ticks are skipped.
                next_ns = now_ns + period_ns;
            }
            let gone = rustix::process::getppid().is_none_or(|found| found.as_raw_nonzero().get() != parent);
            if gone || sigterm_within(next_ns.saturating_sub(now_ns)) {
                return;
            }
        }
    }

    /// Interrupts the running threads.
    fn interrupt_running(&mut self) {
        let mut place = 0;
        while let Some(&thread) = self.threads.get(..self.count).and_then(|known| known.get(place)) {
            let Some((runs, cpu)) = thread_state(self.pid, thread.tid) else {
                // It has ended without a report: another thread's exec replaced it.
                self.remove(thread.tid);
                continue;
            };
            // SAFETY: `tid` is a tracee of this process; the request takes no pointer.
            let interrupted = runs && unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, thread.tid, NULL, NULL) } == 0;
            if let Some(thread) = self.threads.get_mut(place) {
                (thread.is_interrupted, thread.cpu) =
                    (thread.is_interrupted || interrupted, if interrupted { cpu } else { thread.cpu });
            }
            place += 1;
        }
    }

    /// Handles all pending stops; `false` when no tracee is left.
    fn handle_stops(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: the kernel writes one integer to a live local.
            let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WNOHANG) };
            if tid == 0 {
                return true;
            }
            if tid < 0 {
                return false;
            }
            if libc::WIFSTOPPED(status) {
                self.handle_stop(tid, libc::WSTOPSIG(status), status >> 16);
            } else {
                self.remove(tid);
            }
        }
    }

    fn handle_stop(&mut self, tid: libc::pid_t, signal: libc::c_int, event: libc::c_int) {
        if self.find(tid).is_none() && thread_state(self.pid, tid).is_none() {
            // A child process with an unusual exit signal is attached like a thread; it is not
            // sampled.
            // SAFETY: `tid` is a stopped tracee of this process; the request takes no pointer.
            unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, NULL, NULL) };
            return;
        }
        if self.find(tid).is_none() {
            self.add(tid);
        }
        match event {
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => {
                // SAFETY: `tid` is a stopped tracee of this process; the request takes no pointer.
                unsafe { libc::ptrace(libc::PTRACE_LISTEN, tid, NULL, NULL) };
            }
            libc::PTRACE_EVENT_STOP => {
                let cpu =
                    self.find(tid).and_then(|thread| std::mem::take(&mut thread.is_interrupted).then_some(thread.cpu));
                if let Some(sample) = cpu.and_then(|cpu| read_sample(tid, cpu)) {
                    self.ring.push(RingEntry::Sample(sample));
                }
                resume(tid, 0);
            }
            0 => resume(tid, signal),
            _ => resume(tid, 0),
        }
    }
}

const NULL: *mut libc::c_void = ptr::null_mut();

/// Seizes a thread without stopping it; the kernel attaches to threads that it creates.
fn seize(tid: libc::pid_t) -> Result<(), i32> {
    let options = ptr::without_provenance_mut::<libc::c_void>(libc::PTRACE_O_TRACECLONE.unsigned_abs() as usize);
    // SAFETY: the request takes option bits and no pointer.
    let done = unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, NULL, options) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EPERM)) }
}

/// Continues a stopped thread, with this signal or none.
fn resume(tid: libc::pid_t, signal: libc::c_int) {
    let signal = ptr::without_provenance_mut::<libc::c_void>(signal.unsigned_abs() as usize);
    // SAFETY: `tid` is a stopped tracee of this process; the signal is a number. A killed one gives
    // ESRCH.
    unsafe { libc::ptrace(libc::PTRACE_CONT, tid, NULL, signal) };
}

/// The registers of a stopped thread; `None` if it was in the kernel or runs 32-bit code.
fn read_sample(tid: libc::pid_t, cpu: u32) -> Option<Sample> {
    let mut user = MaybeUninit::<libc::user_regs_struct>::zeroed();
    let bytes = size_of::<libc::user_regs_struct>();
    let mut into = libc::iovec { iov_base: user.as_mut_ptr().cast(), iov_len: bytes };
    let set = ptr::without_provenance_mut::<libc::c_void>(libc::NT_PRSTATUS.unsigned_abs() as usize);
    // SAFETY: the kernel writes at most `iov_len` bytes to the live local `user`, and the length to
    // the live local `into`.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, set, &raw mut into) };
    // 32-bit code has a smaller register set.
    if done != 0 || into.iov_len != bytes {
        return None;
    }
    // SAFETY: user_regs_struct consists of integers, zeroed above and filled by the successful
    // call.
    let user = unsafe { user.assume_init() };
    // `orig_rax` is the number of the system call, or all ones outside one.
    (user.orig_rax == u64::MAX).then(|| Sample {
        tid: tid.unsigned_abs(),
        time_ns: now_ns(),
        cpu,
        registers: SampledRegisters::from_ptrace(&user),
    })
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Waits at most `wait_ns` for a tracee's stop; returns whether SIGTERM arrived instead.
fn sigterm_within(wait_ns: u64) -> bool {
    let mut signals = MaybeUninit::<libc::sigset_t>::zeroed();
    let (seconds, rest) = (wait_ns / 1_000_000_000, wait_ns % 1_000_000_000);
    let wait = libc::timespec { tv_sec: seconds.cast_signed(), tv_nsec: rest.cast_signed() };
    // SAFETY: the set is a live local, initialised by sigemptyset; no siginfo is requested. Both
    // signals are blocked, as sigtimedwait needs.
    unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGCHLD);
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGTERM);
        libc::sigtimedwait(signals.as_ptr(), ptr::null_mut(), &raw const wait) == libc::SIGTERM
    }
}
