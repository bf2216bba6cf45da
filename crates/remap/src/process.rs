//! The process that is remapped: held by its threads, with a userfaultfd of its own that we read.
//!
//! Nothing of ours runs in it but rewritelets. What only it can do for itself (mapping memory, opening a userfaultfd) is done in the name of
//! one of its threads while that stands still. The userfaultfd stays open in it too: should we be killed, its threads wait at a moved page
//! instead of reading zeros, until whoever takes hold of it next has put the page back (see `record`).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use fieldstone_sys::userfault::{Message, Modes, Reach, Userfaultfd};
use linux_raw_sys::general as uapi;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::error::{Error, Result};
use crate::events::{Done, Why};
use crate::held::Held;
use crate::memory::Memory;
use crate::ours::Ours;
use crate::page::Moved;
use crate::record::{Left, Record};
use crate::space::{Mapping, mappings};
use crate::tasks::is_elsewhere;
use crate::threads::Threads;

const FEATURES: u32 = uapi::UFFD_FEATURE_THREAD_ID
    | uapi::UFFD_FEATURE_EVENT_FORK
    | uapi::UFFD_FEATURE_EVENT_REMAP
    | uapi::UFFD_FEATURE_EVENT_REMOVE
    | uapi::UFFD_FEATURE_EVENT_UNMAP;
/// Descriptors of ours in the process are out of its way.
const HIGH_DESCRIPTOR: u64 = 800;
/// Two bytes that make a system call.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// A process with everything that remapping it takes.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    pub(crate) memory: Memory,
    pub(crate) threads: Threads,
    pub(crate) userfault: Userfaultfd,
    /// The number of the descriptor in the process itself.
    pub(crate) theirs: i32,
    pub(crate) ours: Ours,
    /// What is kept for who comes after us, once there is something.
    pub(crate) record: Option<Record>,
    /// Whether accesses are led to ladders, and no loop to a clone.
    pub(crate) by_ladders: bool,
    /// Instructions whose loops could not be cloned, and how often that was tried since a page moved last.
    pub(crate) in_vain: BTreeMap<u64, u32>,
    /// Messages that were taken while a page was put back.
    pub(crate) heard: Vec<Message>,
    /// What was done for them.
    pub(crate) late: Vec<Done>,
    /// What becomes readable when a thread of it has stopped by itself.
    pub(crate) alarm: Option<OwnedFd>,
    /// Where it has a `syscall` instruction.
    syscall: u64,
}

impl Process {
    /// Takes hold of process `pid`. It goes on as if nothing had happened. What somebody has left behind in it who was killed is put back
    /// first; [`Self::serve`] tells of it.
    ///
    /// # Errors
    /// [`Error::Refused`] for a program of 32 bits, and where the kernel's own accesses to moved pages could not be seen;
    /// [`Error::Process`] and [`Error::Linux`] where this user may not, or a debugger holds it.
    pub fn open(pid: u32) -> Result<Self> {
        check_class(pid)?;
        if is_elsewhere(&pid.to_string()) {
            let why = "it is in a pid namespace of its own, where its threads have other numbers: repair it from inside of its container";
            return Err(Error::Refused { pid, why: why.to_owned() });
        }
        let memory = Memory::open(pid)?;
        let table = mappings(pid)?;
        let syscall = find_syscall(pid, &memory, &table)?;
        let left = Left::find(pid, &memory, &table)?;
        let mut threads = Threads::seize(pid)?;
        let (userfault, theirs) = match &left {
            Some(left) => (left_userfault(pid, left.userfault)?, left.userfault),
            None => {
                let opened = open_userfault(pid, &mut threads, syscall);
                threads.resume_all()?;
                opened?
            }
        };
        let (ours, record) = left.map(|left| (left.ours, left.record)).unwrap_or_default();
        let mut this = Self {
            pid,
            memory,
            threads,
            userfault,
            theirs,
            ours,
            record,
            by_ladders: false,
            in_vain: BTreeMap::new(),
            heard: Vec::new(),
            late: Vec::new(),
            alarm: None,
            syscall,
        };
        this.late = this.put_back_all(&Why::Left)?;
        Ok(this)
    }

    /// Whether somebody has left pages of process `pid` elsewhere who was killed: [`Self::open`] puts them back.
    ///
    /// # Errors
    /// As there.
    pub fn is_left_behind(pid: u32) -> Result<bool> {
        let left = Left::find(pid, &Memory::open(pid)?, &mappings(pid)?)?;
        Ok(left.is_some_and(|left| !left.ours.moved.is_empty()))
    }

    /// Has [`Self::serve`] wake up too when this becomes readable, and read it empty; it must not block. For SIGCHLD, which tells of
    /// a signal for one of its threads: without it that waits until `serve` is called again.
    pub fn wake_by(&mut self, alarm: OwnedFd) {
        self.alarm = Some(alarm);
    }

    pub(crate) const fn syscall(&self) -> u64 {
        self.syscall
    }

    /// Its number.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Where the program thinks that what lies at `address` is: the bytes of moved pages are elsewhere.
    #[must_use]
    pub fn seen_at(&self, address: u64) -> u64 {
        let with = |moved: &&Moved| moved.room.contains(&address);
        self.ours.moved.values().find(with).map_or(address, |moved| moved.seen_at(address))
    }

    /// The instruction of the program that the one at `ip` stands for, which may be in code of ours.
    #[must_use]
    pub fn original(&self, ip: u64) -> u64 {
        self.ours.original(ip).unwrap_or(ip)
    }

    /// Its mappings. Those of the first thread are gone where that has ended before the others.
    pub(crate) fn mappings(&self) -> Result<Vec<Mapping>> {
        let mut found = mappings(self.pid)?;
        for thread in self.threads.numbers() {
            if found.is_empty() {
                found = mappings(thread).unwrap_or_default();
            }
        }
        Ok(found)
    }

    /// Makes a system call in its name; all its threads stand still.
    pub(crate) fn call(&mut self, call: (&'static str, libc::c_long), arguments: [u64; 6]) -> Result<u64> {
        let heads = &self.ours.heads;
        let unfit = |rip| heads.is_behind_trap(rip);
        call_in_its_name(self.pid, &mut self.threads, &unfit, self.syscall, call, arguments)
    }

    /// Lets all threads go on. Who gets a signal is set into the program's own code first.
    pub(crate) fn resume_all(&mut self) -> Result<()> {
        let threads: Vec<u32> = self.threads.numbers().collect();
        for thread in threads {
            let able = |held: &&mut Held| held.stands() && held.has_signals() && !held.pinned;
            if let Some(held) = self.threads.get_mut(thread).filter(able) {
                self.ours.settle(&self.memory, held)?;
            }
        }
        self.threads.resume_all()
    }

    /// Lets one go on that was stopped alone.
    pub(crate) fn resume(&mut self, thread: u32) -> Result<()> {
        if let Some(held) = self.threads.get_mut(thread).filter(|held| held.stands() && held.has_signals()) {
            self.ours.settle(&self.memory, held)?;
        }
        self.threads.resume(thread)
    }

    /// Maps fresh memory in it, at an address where it has none.
    pub(crate) fn map(&mut self, at: u64, bytes: u64, access: i32) -> Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        self.call(("mmap", libc::SYS_mmap), [at, bytes, word(access), word(flags), u64::MAX, 0]).map(|_| ())
    }

    /// Unmaps memory of ours. Where no thread can do it, because all sleep in the kernel, it stays: a few pages that nobody looks for.
    pub(crate) fn unmap(&mut self, at: u64, bytes: u64) -> Result<()> {
        if self.threads.standing(&|_| false).is_none() {
            return Ok(());
        }
        self.call(("munmap", libc::SYS_munmap), [at, bytes, 0, 0, 0, 0]).map(|_| ())
    }

    /// Traps accesses to missing pages.
    pub(crate) fn trap(&self, page: u64) -> Result<()> {
        let modes = Modes { missing: true, write_protect: false };
        let failed = |source| Error::Page { page, why: format!("userfaultfd refuses it ({source})") };
        self.userfault.register(range(page), modes).map_err(failed)
    }
}

/// A page of it, as userfaultfd takes it.
pub(crate) fn range(page: u64) -> std::ops::Range<usize> {
    let start = usize::try_from(page).unwrap_or(0);
    start..start + 4096
}

pub(crate) const fn word(number: i32) -> u64 {
    number.cast_unsigned() as u64
}

fn check_class(pid: u32) -> Result<()> {
    let mut start = [0; 5];
    let failed = |source| Error::Process { pid, operation: "read the program of", source };
    let file = std::fs::File::open(format!("/proc/{pid}/exe")).map_err(failed)?;
    io::Read::read_exact(&mut &file, &mut start).map_err(failed)?;
    if start == *b"\x7fELF\x02" {
        return Ok(());
    }
    Err(Error::Refused { pid, why: "it is no 64-bit program, and only those are rewritten".to_owned() })
}

/// In the vdso, which every process has, or in any code of it.
fn find_syscall(pid: u32, memory: &Memory, mappings: &[Mapping]) -> Result<u64> {
    let is_code = |mapping: &&Mapping| mapping.permissions.starts_with("r-x");
    let vdso = mappings.iter().filter(|mapping| mapping.name == "[vdso]");
    for mapping in vdso.chain(mappings).filter(is_code) {
        let bytes = (mapping.range.end - mapping.range.start).min(4 << 20);
        let mut code = vec![0; usize::try_from(bytes).unwrap_or(0)];
        if memory.read_exact(mapping.range.start, &mut code).is_err() {
            continue;
        }
        if let Some(offset) = code.windows(2).position(|pair| pair == SYSCALL) {
            return Ok(mapping.range.start + offset as u64);
        }
    }
    Err(Error::Refused { pid, why: "it has no code that makes a system call".to_owned() })
}

fn call_in_its_name(
    pid: u32,
    threads: &mut Threads,
    unfit: &dyn Fn(u64) -> bool,
    syscall: u64,
    call: (&'static str, libc::c_long),
    arguments: [u64; 6],
) -> Result<u64> {
    let why = "none of its threads can make a system call now: all have ended, sleep where nothing wakes them (try again), or have a filter \
               for system calls (seccomp), which may end them for one that is not theirs";
    let none = || Error::Refused { pid, why: why.to_owned() };
    threads.standing(unfit).ok_or_else(none)?.call(syscall, call, arguments)
}

/// Opens one in the process, since it is bound to who opens it, and gets a copy of the descriptor.
fn open_userfault(pid: u32, threads: &mut Threads, syscall: u64) -> Result<(Userfaultfd, i32)> {
    threads.stop_all()?;
    let mut call = |call, arguments| call_in_its_name(pid, threads, &|_| false, syscall, call, arguments);
    let flags = word(libc::O_CLOEXEC | libc::O_NONBLOCK);
    let opened = call(("userfaultfd", libc::SYS_userfaultfd), [flags, 0, 0, 0, 0, 0]);
    let low = opened.map_err(|error| refused_userfault(pid, error))?;
    let high = call(("fcntl", libc::SYS_fcntl), [low, word(libc::F_DUPFD_CLOEXEC), HIGH_DESCRIPTOR, 0, 0, 0]);
    let theirs = match high {
        Ok(high) => {
            call(("close", libc::SYS_close), [low, 0, 0, 0, 0, 0])?;
            high
        }
        // It may have no room for so high a number.
        Err(_) => low,
    };
    let theirs = i32::try_from(theirs).unwrap_or(-1);
    let ours = share(pid, theirs)?;
    let failed = |source| Error::Process { pid, operation: "watch the memory of", source };
    Ok((Userfaultfd::adopt(ours, FEATURES, Reach::UserAndKernel).map_err(failed)?, theirs))
}

/// That of somebody who was killed: it watches the pages that were left behind.
fn left_userfault(pid: u32, theirs: i32) -> Result<Userfaultfd> {
    let link = std::fs::read_link(format!("/proc/{pid}/fd/{theirs}")).unwrap_or_default();
    if link.to_str() != Some("anon_inode:[userfaultfd]") {
        let why = "pages of it were moved by somebody who was killed, and it has closed the descriptor that watched them: nobody can \
                   put them back";
        return Err(Error::Refused { pid, why: why.to_owned() });
    }
    Ok(Userfaultfd::inherited(share(pid, theirs)?, Reach::UserAndKernel))
}

fn share(pid: u32, theirs: i32) -> Result<OwnedFd> {
    take(pid, theirs).map_err(|source| Error::Process { pid, operation: "share a descriptor with", source })
}

fn take(pid: u32, theirs: i32) -> io::Result<OwnedFd> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(number, PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, theirs, PidfdGetfdFlags::empty())?)
}

fn refused_userfault(pid: u32, error: Error) -> Error {
    match error {
        Error::Linux(fieldstone_sys::Error::Call { source, .. })
            if matches!(source.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) =>
        {
            let why = "it may not have a userfaultfd that sees the kernel's accesses too, and without that no page can be moved safely; \
                       `sudo sysctl vm.unprivileged_userfaultfd=1` allows it";
            Error::Refused { pid, why: why.to_owned() }
        }
        other => other,
    }
}
