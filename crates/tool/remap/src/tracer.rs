//! Control of another process: its memory, its threads stopped and resumed, and system calls made
//! on their behalf.
//!
//! ```text
//!   Tracer ── ProcessMemory  /proc/PID/mem
//!          ├─ Threads        ptrace: stop, resume, signals, exit
//!          └─ CallStub       code in the process from which injected calls are made
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `threads` | all threads: which are stopped, resumed, new, ended |
//! | `traced_thread` | one thread: its state, signals and injected calls |
//! | `call_stub` | the code from which calls are injected |
//! | `status` | the state that `/proc` shows |
//!
//! The tracer knows nothing of moved pages or of rewritten code. What it must ask about inserted
//! code is the trait [`InsertedCode`].

pub(crate) mod call_stub;
pub(crate) mod status;
pub(crate) mod threads;
pub(crate) mod traced_thread;

use std::io;
use std::os::fd::OwnedFd;

use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::ptrace::Tracee;
use fieldstone_sys::smaps::Mapping;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::error::{Error, Result};
use crate::space::mappings;
use call_stub::CallStub;
use threads::{ProcessEnd, Threads};
use traced_thread::TracedThread;

/// A system call by name and number.
pub(crate) type SystemCall = (&'static str, libc::c_long);

/// A thread that ran into an inserted trap, with the address at which it continues.
pub(crate) type TrappedThread = (u32, u64);

/// What a tracer asks about code that was inserted into the program.
pub(crate) trait InsertedCode {
    /// Whether a thread at `ip` may just have run into an inserted trap. No call is injected there.
    fn is_behind_trap(&self, ip: u64) -> bool;

    /// Moves a stopped thread that is about to receive a signal back to the program's own code. If
    /// the signal came from an inserted trap, returns the address at which the thread continues.
    fn prepare_for_signal(&self, memory: &ProcessMemory, traced: &mut TracedThread) -> Result<Option<u64>>;
}

/// A program without inserted code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoCode;

impl InsertedCode for NoCode {
    fn is_behind_trap(&self, _ip: u64) -> bool {
        false
    }

    fn prepare_for_signal(&self, _memory: &ProcessMemory, _traced: &mut TracedThread) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// A traced process.
#[derive(Debug)]
pub(crate) struct Tracer {
    pid: u32,
    memory: ProcessMemory,
    threads: Threads,
    stub: CallStub,
}

impl Tracer {
    /// Traces process `pid` and writes the bootstrap call stub. All threads are stopped on return.
    ///
    /// # Errors
    /// As [`Threads::seize`] and [`call_stub::write_bootstrap_stub`].
    pub(crate) fn seize(pid: u32, memory: ProcessMemory, table: &[Mapping]) -> Result<Self> {
        let threads = Threads::seize(pid)?;
        let stub = CallStub { bootstrap: call_stub::write_bootstrap_stub(pid, &memory, table)?, page: None };
        Ok(Self { pid, memory, threads, stub })
    }

    /// Traces a forked child, whose memory has a copy of its parent's call stub at `stub_page`.
    ///
    /// # Errors
    /// As [`ProcessMemory::open`] and [`Threads::seize`].
    pub(crate) fn seize_child(&self, child: u32, stub_page: Option<u64>) -> Result<Self> {
        let (memory, threads) = (ProcessMemory::open(child)?, Threads::seize(child)?);
        Ok(Self { pid: child, memory, threads, stub: CallStub { page: stub_page, ..self.stub } })
    }

    /// Process number.
    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Memory of the process.
    pub(crate) const fn memory(&self) -> &ProcessMemory {
        &self.memory
    }

    /// Mappings of the process. They are read by another thread if the first one has exited.
    ///
    /// # Errors
    /// As [`mappings`].
    pub(crate) fn mappings(&self) -> Result<Vec<Mapping>> {
        let mut found = mappings(self.pid)?;
        for thread in self.threads.numbers() {
            if found.is_empty() {
                found = mappings(thread).unwrap_or_default();
            }
        }
        Ok(found)
    }
}

/// Threads.
impl Tracer {
    /// Numbers of the traced threads.
    pub(crate) fn threads(&self) -> Vec<u32> {
        self.threads.numbers().collect()
    }

    /// A traced thread, or `None` if it is gone.
    pub(crate) fn thread(&mut self, thread: u32) -> Option<&mut TracedThread> {
        self.threads.get_mut(thread)
    }

    /// A stopped thread, with the memory; `None` if it is gone or runs.
    pub(crate) fn stopped(&mut self, thread: u32) -> Option<(&mut TracedThread, &ProcessMemory)> {
        let traced = self.threads.get_mut(thread).filter(|traced| traced.is_stopped())?;
        Some((traced, &self.memory))
    }

    /// As [`Threads::stop_all`].
    pub(crate) fn stop_all(&mut self) -> Result<()> {
        self.threads.stop_all()
    }

    /// As [`Threads::stop`].
    pub(crate) fn stop(&mut self, thread: u32) -> Result<bool> {
        self.threads.stop(thread)
    }

    /// As [`Threads::request_stop`].
    pub(crate) fn request_stop(&mut self, thread: u32) -> Result<()> {
        self.threads.request_stop(thread)
    }

    /// As [`Threads::poll_stop`].
    pub(crate) fn poll_stop(&mut self, thread: u32) -> Result<bool> {
        self.threads.poll_stop(thread)
    }

    /// As [`Threads::pending_stops`].
    pub(crate) fn pending_stops(&self) -> Vec<u32> {
        self.threads.pending_stops()
    }

    /// Resumes all threads. Those that receive a signal return to the program's own code first.
    ///
    /// # Errors
    /// As ptrace(2), and if the process is gone.
    pub(crate) fn resume_all(&mut self, code: &dyn InsertedCode) -> Result<()> {
        for thread in self.threads() {
            let receives =
                |traced: &&mut TracedThread| traced.is_stopped() && traced.has_signals() && !traced.is_reserved;
            if let Some(traced) = self.threads.get_mut(thread).filter(receives) {
                code.prepare_for_signal(&self.memory, traced)?;
            }
        }
        self.threads.resume_all()
    }

    /// Resumes one thread that [`Self::stop`] stopped.
    ///
    /// # Errors
    /// As [`Self::resume_all`].
    pub(crate) fn resume(&mut self, code: &dyn InsertedCode, thread: u32) -> Result<()> {
        let receives = |traced: &&mut TracedThread| traced.is_stopped() && traced.has_signals();
        if let Some(traced) = self.threads.get_mut(thread).filter(receives) {
            code.prepare_for_signal(&self.memory, traced)?;
        }
        self.threads.resume(thread)
    }

    /// Handles threads that have stopped by themselves, as [`Threads::handle_stops`] does. Returns
    /// the threads that ran into inserted traps with the addresses at which they continue.
    ///
    /// # Errors
    /// As [`Threads::handle_stops`].
    pub(crate) fn handle_stops(&mut self, code: &dyn InsertedCode) -> Result<(Option<ProcessEnd>, Vec<TrappedThread>)> {
        let memory = &self.memory;
        let mut trapped = Vec::new();
        let end = self.threads.handle_stops(&mut |traced| {
            let trap = code.prepare_for_signal(memory, traced)?;
            trapped.extend(trap.map(|at| (traced.tracee.thread(), at)));
            Ok(())
        })?;
        Ok((end, trapped))
    }

    /// As [`Threads::exiting`].
    pub(crate) fn exiting(&self) -> Vec<u32> {
        self.threads.exiting()
    }

    /// As [`Threads::finish_exit`].
    pub(crate) fn finish_exit(&mut self, thread: u32) -> Result<()> {
        self.threads.finish_exit(thread)
    }

    /// As [`Threads::new_children`].
    pub(crate) const fn new_children(&self) -> usize {
        self.threads.new_children()
    }

    /// As [`Threads::take_children`].
    pub(crate) fn take_children(&mut self) -> Vec<Tracee> {
        self.threads.take_children()
    }

    /// As [`Threads::is_over`].
    pub(crate) const fn is_over(&self) -> bool {
        self.threads.is_over()
    }

    /// As [`Threads::detach_all`].
    pub(crate) fn detach_all(&mut self) {
        self.threads.detach_all();
    }
}

/// Injected system calls. All threads are stopped.
impl Tracer {
    /// Makes a system call on behalf of a stopped thread; returns its result.
    ///
    /// # Errors
    /// [`Error::Refused`] if no thread can make one, else the error of the call.
    pub(crate) fn call(&mut self, code: &dyn InsertedCode, call: SystemCall, arguments: [u64; 6]) -> Result<u64> {
        let why = "none of its threads can make a system call now: all have ended, sleep where nothing wakes them (try again), or have a filter \
                   for system calls (seccomp), which may end them for one that is not theirs, or get their calls back from the kernel \
                   (PR_SET_SYSCALL_USER_DISPATCH)";
        let pid = self.pid;
        let none = || Error::Refused { pid, why: why.to_owned() };
        let caller = self.threads.callable(&|ip| code.is_behind_trap(ip)).ok_or_else(none)?;
        caller.call((&self.memory, self.stub), call, arguments)
    }

    /// Makes a system call on behalf of one stopped thread. `None` if that thread is not stopped.
    pub(crate) fn call_by(&mut self, thread: u32, call: SystemCall, arguments: [u64; 6]) -> Option<Result<u64>> {
        let traced = self.threads.get_mut(thread).filter(|traced| traced.is_stopped())?;
        Some(traced.call((&self.memory, self.stub), call, arguments))
    }

    /// Whether some thread can make an injected call.
    pub(crate) fn can_call(&mut self) -> bool {
        self.threads.callable(&|_| false).is_some()
    }

    /// Maps private anonymous memory with this protection at a free address.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) fn map(&mut self, code: &dyn InsertedCode, at: u64, bytes: u64, protection: i32) -> Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let arguments = [at, bytes, argument(protection), argument(flags), u64::MAX, 0];
        self.call(code, ("mmap", libc::SYS_mmap), arguments).map(|_| ())
    }

    /// Unmaps inserted memory. If no thread can make the call, the memory stays mapped and unused.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) fn unmap(&mut self, code: &dyn InsertedCode, at: u64, bytes: u64) -> Result<()> {
        if !self.can_call() {
            return Ok(());
        }
        self.call(code, ("munmap", libc::SYS_munmap), [at, bytes, 0, 0, 0, 0]).map(|_| ())
    }

    /// Closes a descriptor of the process.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) fn close(&mut self, code: &dyn InsertedCode, number: i32) -> Result<()> {
        let arguments = [u64::from(number.cast_unsigned()), 0, 0, 0, 0, 0];
        self.call(code, ("close", libc::SYS_close), arguments).map(|_| ())
    }
}

/// The call stub.
impl Tracer {
    /// Address of the stub page, if there is one.
    pub(crate) const fn stub_page(&self) -> Option<u64> {
        self.stub.page
    }

    /// Maps the stub page and writes the stub there, by calls from the bootstrap stub.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) fn map_stub_page(&mut self) -> Result<()> {
        let protection = argument(libc::PROT_READ | libc::PROT_EXEC);
        let flags = argument(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let arguments = [0, call_stub::BYTES, protection, flags, u64::MAX, 0];
        let page = self.call(&NoCode, ("mmap", libc::SYS_mmap), arguments)?;
        let data = call_stub::data_page(page);
        let protection = argument(libc::PROT_READ | libc::PROT_WRITE);
        let arguments = [data.start, data.end - data.start, protection, 0, 0, 0];
        self.call(&NoCode, ("mprotect", libc::SYS_mprotect), arguments)?;
        self.memory.write(page, &call_stub::stub_code())?;
        self.stub.page = Some(page);
        Ok(())
    }

    /// Unmaps the stub page, by a call from the bootstrap stub, which is still there.
    pub(crate) fn unmap_new_stub_page(&mut self) {
        if let Some(page) = self.stub.page.take() {
            let arguments = [page, call_stub::BYTES, 0, 0, 0, 0];
            let _ = self.call(&NoCode, ("munmap", libc::SYS_munmap), arguments);
        }
    }

    /// Clears the bootstrap stub.
    ///
    /// # Errors
    /// If the memory cannot be written.
    pub(crate) fn clear_bootstrap_stub(&self) -> Result<()> {
        call_stub::clear_bootstrap_stub(&self.memory, self.stub.bootstrap)
    }

    /// Removes the stub page. A bootstrap stub makes the call that unmaps it.
    ///
    /// # Errors
    /// As [`Self::call`] and [`call_stub::write_bootstrap_stub`].
    pub(crate) fn remove_stub_page(&mut self, code: &dyn InsertedCode) -> Result<()> {
        let Some(page) = self.stub.page.take() else { return Ok(()) };
        self.stub.bootstrap = call_stub::write_bootstrap_stub(self.pid, &self.memory, &self.mappings()?)?;
        self.unmap(code, page, call_stub::BYTES)?;
        self.clear_bootstrap_stub()
    }

    /// Unmaps the stub page of a killed tracer, unless a thread may still return to it.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) fn unmap_old_stub_page(&mut self, code: &dyn InsertedCode, page: u64) -> Result<()> {
        self.stop_all()?;
        let is_busy = call_stub::is_busy(&self.memory, page);
        let unmapped = if is_busy { Ok(()) } else { self.unmap(code, page, call_stub::BYTES) };
        self.resume_all(code)?;
        unmapped
    }
}

/// A system call argument from a C `int`.
pub(crate) const fn argument(number: i32) -> u64 {
    number.cast_unsigned() as u64
}

/// Duplicates a descriptor of process `pid` into this process.
///
/// # Errors
/// As pidfd_getfd(2).
pub(crate) fn duplicate_descriptor(pid: u32, number: i32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, number, PidfdGetfdFlags::empty())?)
}
