//! The tracer's process: seizes all threads, stops those that run a hundred times a second, and looks at their registers.
//!
//! From the clone on nothing may allocate or lock: another thread of the parent may have held the allocator's lock at that
//! moment, and nobody here will ever release it.
//!
//! What a stop can mean, and what is done (ptrace(2), "PTRACE_SEIZE"):
//!
//! | stop | is | answer |
//! |---|---|---|
//! | `PTRACE_EVENT_STOP`, SIGTRAP | ours (`PTRACE_INTERRUPT`), a new thread's first, or the end of a group-stop | look, if it was asked; go on |
//! | `PTRACE_EVENT_STOP`, SIGSTOP and the like | a group-stop: the program was stopped by its user | `PTRACE_LISTEN`: it stays stopped, as it should |
//! | `PTRACE_EVENT_CLONE` | a thread is being made; its first stop comes by itself | go on |
//! | any signal, no event | the signal is about to be delivered | go on with that signal |
//! | an end | of a thread; the process's parent is told by the kernel when we have seen it | forget it |
//!
//! A thread is asked to stop only when `/proc` says that it runs: a sleeping one has nothing to tell, and its system call
//! would be interrupted (some return EINTR even without a handler). One that falls asleep between the look and the stop is
//! the rest of that risk. A thread that is found in the kernel tells nothing either: perf leaves those out too.
#![allow(unsafe_code, reason = "ptrace, waitpid and sigtimedwait have no safe form")]

use std::mem::MaybeUninit;
use std::ptr;

use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use rustix::time::{ClockId, clock_gettime};

use super::Sample;
use super::lane::{Lane, Phase, Told};
use super::registers::Registers;
use super::standing::{path, standing};

/// Threads that are sampled; later ones run on as if there were no tracer.
const THREADS: usize = 1024;
/// Looks at the list of threads, as [`super::tasks`] has them.
const LOOKS: usize = 32;

/// A thread of ours.
#[derive(Clone, Copy)]
struct Thread {
    tid: libc::pid_t,
    /// The CPU that it ran on when it was asked to stop.
    cpu: u32,
    /// Whether it was asked to stop, and has not yet.
    asked: bool,
}

struct Tracer<'a> {
    pid: libc::pid_t,
    lane: &'a Lane,
    threads: [Thread; THREADS],
    count: usize,
}

/// Ends the process without running anything of the parent's, even where a panic unwinds.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        // SAFETY: _exit is async-signal-safe and takes no memory.
        unsafe { libc::_exit(0) }
    }
}

/// The whole life of the tracer of process `pid`, from its clone by `parent` on. All signals are blocked.
pub(super) fn live(pid: libc::pid_t, parent: libc::pid_t, hertz: u32, lane: &Lane) -> ! {
    let leave = Leave;
    detach();
    let nobody = Thread { tid: 0, cpu: 0, asked: false };
    let mut tracer = Tracer { pid, lane, threads: [nobody; THREADS], count: 0 };
    if let Err(errno) = tracer.attach() {
        lane.enter(Phase::Refused, errno);
    } else {
        lane.enter(Phase::Running, 0);
        tracer.sample(parent, hertz);
    }
    // What is still traced is detached by the kernel, and runs.
    drop(leave);
    unreachable!("the process has ended")
}

/// Lets go of all that was inherited: a pipe kept open here would keep its reader waiting. (A kernel before 5.9 has no
/// close_range(2); there they stay open until the end.) SIGCHLD is to arrive, even where the parent ignores it.
fn detach() {
    let _ = rustix::process::chdir(c"/");
    let _ = rustix::thread::set_name(c"fs-tracer");
    // SAFETY: only descriptors and this process's own disposition are changed; nothing here uses any of them.
    unsafe {
        libc::syscall(libc::SYS_close_range, 0, i32::MAX, 0);
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

impl Tracer<'_> {
    /// Seizes all threads that there are; those made from then on come along by themselves. The errno of the last refusal
    /// where there was no thread to be had.
    fn attach(&mut self) -> Result<(), i32> {
        let mut refused = libc::ESRCH;
        for _ in 0..LOOKS {
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
                // A refusal may mean that the thread came along by itself, or has ended.
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

    fn find(&mut self, tid: libc::pid_t) -> Option<&mut Thread> {
        self.threads.get_mut(..self.count)?.iter_mut().find(|thread| thread.tid == tid)
    }

    /// Whether there was room for it.
    fn add(&mut self, tid: libc::pid_t) -> bool {
        let Some(free) = self.threads.get_mut(self.count) else { return false };
        *free = Thread { tid, cpu: 0, asked: false };
        self.count += 1;
        true
    }

    fn forget(&mut self, tid: libc::pid_t) {
        let known = self.threads.get(..self.count).unwrap_or_default();
        let Some(place) = known.iter().position(|thread| thread.tid == tid) else { return };
        self.count -= 1;
        self.threads.swap(place, self.count);
        self.lane.push(Told::Exit(tid.unsigned_abs()));
    }

    /// Samples until the process has ended, the parent is gone or SIGTERM comes.
    fn sample(&mut self, parent: libc::pid_t, hertz: u32) {
        let period_ns = 1_000_000_000 / u64::from(hertz.max(1));
        let mut next_ns = now_ns();
        loop {
            if !self.answer_stops() {
                self.lane.enter(Phase::Ended, 0);
                return;
            }
            let now_ns = now_ns();
            if now_ns >= next_ns {
                self.ask();
                // Ticks that were missed are left out.
                next_ns = now_ns + period_ns;
            }
            let gone = rustix::process::getppid().is_none_or(|found| found.as_raw_nonzero().get() != parent);
            if gone || told_to_end_within(next_ns.saturating_sub(now_ns)) {
                return;
            }
        }
    }

    /// Asks the threads that run to stop.
    fn ask(&mut self) {
        let mut place = 0;
        while let Some(&thread) = self.threads.get(..self.count).and_then(|known| known.get(place)) {
            let Some((runs, cpu)) = standing(self.pid, thread.tid) else {
                // It has ended without a word: another thread's exec took its place.
                self.forget(thread.tid);
                continue;
            };
            // SAFETY: a tracee of ours by its number; no memory is named.
            let asked = runs && unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, thread.tid, NOTHING, NOTHING) } == 0;
            if let Some(thread) = self.threads.get_mut(place) {
                (thread.asked, thread.cpu) = (thread.asked || asked, if asked { cpu } else { thread.cpu });
            }
            place += 1;
        }
    }

    /// Answers all stops that wait to be; `false` when there is no tracee left.
    fn answer_stops(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: the out-pointer is to a live local.
            let tid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WNOHANG) };
            if tid == 0 {
                return true;
            }
            if tid < 0 {
                return false;
            }
            if libc::WIFSTOPPED(status) {
                self.answer(tid, libc::WSTOPSIG(status), status >> 16);
            } else {
                self.forget(tid);
            }
        }
    }

    fn answer(&mut self, tid: libc::pid_t, signal: libc::c_int, event: libc::c_int) {
        if self.find(tid).is_none() && standing(self.pid, tid).is_none() {
            // A process that was made with an unusual signal for its end comes along like a thread: it is not ours.
            // SAFETY: a tracee of ours that is stopped; no memory is named.
            unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, NOTHING, NOTHING) };
            return;
        }
        if self.find(tid).is_none() {
            self.add(tid);
        }
        match event {
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => {
                // SAFETY: as above.
                unsafe { libc::ptrace(libc::PTRACE_LISTEN, tid, NOTHING, NOTHING) };
            }
            libc::PTRACE_EVENT_STOP => {
                let asked = self.find(tid).and_then(|thread| std::mem::take(&mut thread.asked).then_some(thread.cpu));
                if let Some(sample) = asked.and_then(|cpu| look(tid, cpu)) {
                    self.lane.push(Told::Sample(sample));
                }
                resume(tid, 0);
            }
            0 => resume(tid, signal),
            _ => resume(tid, 0),
        }
    }
}

const NOTHING: *mut libc::c_void = ptr::null_mut();

/// Begins to trace a thread without stopping it; its own threads come along.
fn seize(tid: libc::pid_t) -> Result<(), i32> {
    let options = ptr::without_provenance_mut::<libc::c_void>(libc::PTRACE_O_TRACECLONE.unsigned_abs() as usize);
    // SAFETY: options are a number; no memory is named.
    let done = unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, NOTHING, options) };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EPERM)) }
}

/// Lets a stopped thread run, with this signal or none.
fn resume(tid: libc::pid_t, signal: libc::c_int) {
    let signal = ptr::without_provenance_mut::<libc::c_void>(signal.unsigned_abs() as usize);
    // SAFETY: a tracee of ours that is stopped; the signal is a number. One that was killed meanwhile is ESRCH.
    unsafe { libc::ptrace(libc::PTRACE_CONT, tid, NOTHING, signal) };
}

/// The registers of a stopped thread; `None` where it was in the kernel, or is no 64-bit code.
fn look(tid: libc::pid_t, cpu: u32) -> Option<Sample> {
    let mut user = MaybeUninit::<libc::user_regs_struct>::zeroed();
    let bytes = size_of::<libc::user_regs_struct>();
    let mut into = libc::iovec { iov_base: user.as_mut_ptr().cast(), iov_len: bytes };
    let set = ptr::without_provenance_mut::<libc::c_void>(libc::NT_PRSTATUS.unsigned_abs() as usize);
    // SAFETY: the kernel writes at most `iov_len` bytes to the live local, and how many into the live `into`.
    let done = unsafe { libc::ptrace(libc::PTRACE_GETREGSET, tid, set, &raw mut into) };
    // 32-bit code has a smaller set.
    if done != 0 || into.iov_len != bytes {
        return None;
    }
    // SAFETY: integers, zeroed above and filled by the successful call.
    let user = unsafe { user.assume_init() };
    // The number of the system call, or all ones outside of one.
    (user.orig_rax == u64::MAX).then(|| Sample {
        tid: tid.unsigned_abs(),
        time_ns: now_ns(),
        cpu,
        registers: Registers::from_ptrace(&user),
    })
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// Waits for a tracee's news, for at most so long; whether SIGTERM came in place of it.
fn told_to_end_within(wait_ns: u64) -> bool {
    let mut news = MaybeUninit::<libc::sigset_t>::zeroed();
    let (seconds, rest) = (wait_ns / 1_000_000_000, wait_ns % 1_000_000_000);
    let wait = libc::timespec { tv_sec: seconds.cast_signed(), tv_nsec: rest.cast_signed() };
    // SAFETY: the set is a live local, emptied before it is filled; nobody asks for the siginfo. Both are blocked.
    unsafe {
        libc::sigemptyset(news.as_mut_ptr());
        libc::sigaddset(news.as_mut_ptr(), libc::SIGCHLD);
        libc::sigaddset(news.as_mut_ptr(), libc::SIGTERM);
        libc::sigtimedwait(news.as_ptr(), ptr::null_mut(), &raw const wait) == libc::SIGTERM
    }
}
