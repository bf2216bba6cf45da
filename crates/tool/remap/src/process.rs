//! The process that is remapped: held by its threads, with a userfaultfd of its own that we read.
//!
//! Nothing of ours runs in it but rewritelets. What only it can do for itself (mapping memory, opening a userfaultfd) is done in the name of
//! one of its threads while that stands still. The userfaultfd stays open in it too: should we be killed, its threads wait at a moved page
//! instead of reading zeros, until whoever takes hold of it next has put the page back (see `record`).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use fieldstone_sys::process::has_ended;
use fieldstone_sys::userfault::{FaultOrigin, Message, Modes, Userfaultfd};
use linux_raw_sys::general as uapi;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::births::{Birth, left_births};
use crate::error::{Error, Result};
use crate::events::{Done, Why};
use crate::held::Held;
use crate::home::{self, Way};
use crate::memory::Memory;
use crate::ours::Ours;
use crate::page::Moved;
use crate::record::{Left, Record};
use crate::space::{Mapping, mappings};
use crate::tasks::{is_elsewhere, is_ending, may_have_userfault, room_for_descriptors, tasks};
use crate::threads::Threads;

const FEATURES: u32 = uapi::UFFD_FEATURE_THREAD_ID
    | uapi::UFFD_FEATURE_EVENT_FORK
    | uapi::UFFD_FEATURE_EVENT_REMAP
    | uapi::UFFD_FEATURE_EVENT_REMOVE
    | uapi::UFFD_FEATURE_EVENT_UNMAP;
/// Descriptors of ours in the process are out of its way: the highest that it may have, up to this.
const HIGH_DESCRIPTOR: u64 = 800;
/// Whether it still has it is looked so often.
const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

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
    /// When it was looked last whether it still has the descriptor.
    looked: Instant,
    /// Where calls are made in its name.
    pub(crate) way: Way,
    /// How often the userfaultfd was opened again.
    reopened: u32,
    /// All of ours as it was when a page was put back while a thread may have been forking: the child may have a copy of that.
    pub(crate) before: Option<Ours>,
    /// Children that have not been given their pages yet.
    pub(crate) births: Vec<Birth>,
    /// The page in which messages of children are kept.
    pub(crate) births_at: Option<u64>,
}

impl Process {
    /// Takes hold of process `pid`. It goes on as if nothing had happened. What somebody has left behind in it who was killed is put back
    /// first; [`Self::serve`] tells of it.
    ///
    /// # Errors
    /// [`Error::Refused`] for a program of 32 bits, and where the kernel's own accesses to moved pages could not be seen;
    /// [`Error::Process`] and [`Error::Linux`] where this user may not, or a debugger holds it.
    pub fn open(pid: u32) -> Result<Self> {
        Self::open_with(pid, None)
    }

    /// The same with the userfaultfd of a killed repairer, which was shared with us: the program may have closed its own descriptor since.
    fn open_with(pid: u32, shared: Option<OwnedFd>) -> Result<Self> {
        check_class(pid)?;
        Self::check_userfault(pid)?;
        if is_elsewhere(&pid.to_string()) {
            let why = "it is in a pid namespace of its own, where its threads have other numbers: repair it from inside of its container";
            return Err(Error::Refused { pid, why: why.to_owned() });
        }
        let shown_by = living_thread(pid);
        let memory = Memory::open(shown_by)?;
        let table = mappings(shown_by)?;
        let left = Left::find(pid, &memory, &table)?;
        let mut threads = Threads::seize(pid)?;
        let way = Way { first: home::settle_first(pid, &memory, &table)?, home: None };
        let (way, userfault, theirs) =
            begin(pid, &mut threads, &memory, way, left.as_ref().map(|left| (left, shared)))?;
        let old_home = left.as_ref().and_then(|left| left.home);
        let mut this = Self::holding(pid, memory, threads, (userfault, theirs), way);
        (this.ours, this.record) = left.map(|left| (left.ours, left.record)).unwrap_or_default();
        // What is recorded is the page of who was killed: whoever comes after us reads there, too, what is left of that.
        this.births_at = old_home.or(this.way.home);
        for (watch, kept) in old_home.map(|home| left_births(pid, &this.memory, home)).unwrap_or_default() {
            this.keep_birth(watch, Some(kept));
        }
        if this.record.is_some() {
            this.end_left_calls()?;
        }
        this.resume_all()?;
        this.late = this.take_in_orphans(old_home)?;
        if let Some(home) = old_home {
            this.births_at = this.way.home;
            this.keep_record()?;
            let back = this.put_back_all(&Why::Left)?;
            this.late.extend(back);
            this.leave_home(home)?;
        }
        Ok(this)
    }

    /// One whose threads are held, with nothing of ours in it.
    pub(crate) fn holding(
        pid: u32,
        memory: Memory,
        threads: Threads,
        (userfault, theirs): (Userfaultfd, i32),
        way: Way,
    ) -> Self {
        Self {
            pid,
            memory,
            threads,
            userfault,
            theirs,
            ours: Ours::default(),
            record: None,
            by_ladders: false,
            in_vain: BTreeMap::new(),
            heard: Vec::new(),
            late: Vec::new(),
            alarm: None,
            looked: Instant::now(),
            way,
            reopened: 0,
            before: None,
            births: Vec::new(),
            births_at: None,
        }
    }

    /// Puts back what a killed repairer has left behind in process `pid`, and lets go of it. `shared` is its [userfaultfd](Self::userfault)
    /// where somebody still has it: without it nothing can be put back in a program that has closed all its descriptors. May be killed and
    /// called again at any time.
    ///
    /// # Errors
    /// As for [`Self::open`]; where another process is at it already, too.
    pub fn rescue(pid: u32, shared: Option<OwnedFd>) -> Result<Vec<Done>> {
        Self::open_with(pid, shared)?.release()
    }

    /// Checks by its capabilities that process `pid` may have the userfaultfd that [`Self::open`] needs. Does nothing in the process.
    ///
    /// # Errors
    /// [`Error::Refused`] with the command that allows it.
    pub fn check_userfault(pid: u32) -> Result<()> {
        if may_have_userfault(living_thread(pid)) {
            return Ok(());
        }
        Err(Error::Refused { pid, why: NO_USERFAULTFD.to_owned() })
    }

    /// The userfaultfd that watches moved pages. It is another one after [`Self::reopened`].
    #[must_use]
    pub fn userfault(&self) -> BorrowedFd<'_> {
        self.userfault.as_fd()
    }

    /// How often the userfaultfd was opened again, since the program had closed it. No page is moved when it is.
    #[must_use]
    pub const fn reopened(&self) -> u32 {
        self.reopened
    }

    /// Whether somebody has left pages of process `pid` elsewhere who was killed: [`Self::open`] puts them back.
    ///
    /// # Errors
    /// As there.
    pub fn is_left_behind(pid: u32) -> Result<bool> {
        let shown_by = living_thread(pid);
        let left = Left::find(pid, &Memory::open(shown_by)?, &mappings(shown_by)?)?;
        Ok(left.is_some_and(|left| !left.ours.moved.is_empty()))
    }

    /// Has [`Self::serve`] wake up too when this becomes readable, and read it empty; it must not block. For SIGCHLD, which tells of
    /// a signal for one of its threads: without it that waits until `serve` is called again.
    pub fn wake_by(&mut self, alarm: OwnedFd) {
        self.alarm = Some(alarm);
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

    /// Whether it has closed our descriptor with all of its own, as daemons do. Were we killed then, its threads would read zeros.
    fn has_closed_ours(&self) -> bool {
        // Whoever is ending has none any more.
        let told = |thread| is_userfault(thread, self.theirs).filter(|&is_there| is_there || !is_ending(thread));
        self.threads.numbers().find_map(told) == Some(false)
    }

    /// Looks now and then whether it still has the descriptor. Else all pages go back, and it gets another one.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub(crate) fn look_after_descriptor(&mut self) -> Result<Vec<Done>> {
        if self.looked.elapsed() < BETWEEN_LOOKS {
            return Ok(Vec::new());
        }
        self.looked = Instant::now();
        if !self.has_closed_ours() {
            return Ok(Vec::new());
        }
        let done = self.put_back_all(&Why::Closed)?;
        let opened = open_userfault(self.pid, &mut self.threads, &self.memory, self.way);
        self.resume_all()?;
        (self.userfault, self.theirs) = opened?;
        self.reopened += 1;
        self.keep_record()?;
        Ok(done)
    }

    /// Closes the descriptor in the process, if it is ours yet; a thread of it stands still.
    pub(crate) fn close_theirs(&mut self) -> Result<()> {
        if self.has_closed_ours() {
            return Ok(());
        }
        self.call(("close", libc::SYS_close), [u64::from(self.theirs.cast_unsigned()), 0, 0, 0, 0, 0]).map(|_| ())
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
        call_in_its_name(self.pid, &mut self.threads, &unfit, (&self.memory, self.way), call, arguments)
    }

    /// Unmaps a page in which a killed repairer made calls, unless a thread may return there.
    fn leave_home(&mut self, home: u64) -> Result<()> {
        self.threads.stop_all()?;
        let left = if home::is_busy(&self.memory, home) { Ok(()) } else { self.unmap(home, home::BYTES) };
        self.resume_all()?;
        left
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

    /// Traps accesses to a page once it is missing, and on request all writes to it until then.
    pub(crate) fn trap(&self, page: u64, writes: bool) -> Result<()> {
        let modes = Modes { missing: true, write_protect: writes };
        let failed = |source| Error::Page { page, why: format!("userfaultfd refuses it ({source})") };
        self.userfault.register(range(page), modes).map_err(failed)?;
        if writes { self.userfault.write_protect(range(page), true).map_err(failed) } else { Ok(()) }
    }
}

/// A thread of the process by which `/proc` shows its memory: not the first one where that has ended before the others.
fn living_thread(pid: u32) -> u32 {
    tasks(pid).into_iter().find(|&thread| !has_ended(thread)).unwrap_or(pid)
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
    let file = std::fs::File::open(format!("/proc/{}/exe", living_thread(pid))).map_err(failed)?;
    io::Read::read_exact(&mut &file, &mut start).map_err(failed)?;
    if start == *b"\x7fELF\x02" {
        return Ok(());
    }
    Err(Error::Refused { pid, why: "it is no 64-bit program, and only those are rewritten".to_owned() })
}

fn call_in_its_name(
    pid: u32,
    threads: &mut Threads,
    unfit: &dyn Fn(u64) -> bool,
    way: (&Memory, Way),
    call: (&'static str, libc::c_long),
    arguments: [u64; 6],
) -> Result<u64> {
    let why = "none of its threads can make a system call now: all have ended, sleep where nothing wakes them (try again), or have a filter \
               for system calls (seccomp), which may end them for one that is not theirs, or get their calls back from the kernel \
               (PR_SET_SYSCALL_USER_DISPATCH)";
    let none = || Error::Refused { pid, why: why.to_owned() };
    threads.standing(unfit).ok_or_else(none)?.call(way, call, arguments)
}

/// What it takes to do anything in the process: a page to make calls in, and a userfaultfd, that which was left there if one was. All
/// threads stand still then.
fn begin(
    pid: u32,
    threads: &mut Threads,
    memory: &Memory,
    mut way: Way,
    left: Option<(&Left, Option<OwnedFd>)>,
) -> Result<(Way, Userfaultfd, i32)> {
    let is_left = left.is_some();
    let inherited =
        left.map(|(left, shared)| left_userfault(pid, left.userfault, shared).map(|fd| (fd, left.userfault)));
    let inherited = inherited.transpose()?;
    threads.stop_all()?;
    let (access, flags) = (word(libc::PROT_READ | libc::PROT_EXEC), word(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS));
    let map = ("mmap", libc::SYS_mmap);
    let page = [0, home::BYTES, access, flags, u64::MAX, 0];
    let mapped = call_in_its_name(pid, threads, &|_| false, (memory, way), map, page);
    let made = mapped.and_then(|home| {
        let open = home::written(home);
        let access = word(libc::PROT_READ | libc::PROT_WRITE);
        let arguments = [open.start, open.end - open.start, access, 0, 0, 0];
        call_in_its_name(pid, threads, &|_| false, (memory, way), ("mprotect", libc::SYS_mprotect), arguments)?;
        memory.write(home, &home::code()).map(|()| home)
    });
    way.home = match made {
        Err(error) if !is_left => {
            home::leave_first(memory, way.first)?;
            return Err(error);
        }
        // All may wait for pages that somebody has left elsewhere: these can be put back without.
        made => made.ok(),
    };
    let opened = inherited.map_or_else(|| open_userfault(pid, threads, memory, way), Ok);
    if let (Err(_), Some(home)) = (&opened, way.home) {
        way.home = None;
        let unmap = ("munmap", libc::SYS_munmap);
        let _ = call_in_its_name(pid, threads, &|_| false, (memory, way), unmap, [home, home::BYTES, 0, 0, 0, 0]);
    }
    if way.home.is_some() || opened.is_err() {
        home::leave_first(memory, way.first)?;
    }
    let (userfault, theirs) = opened?;
    Ok((way, userfault, theirs))
}

/// Opens one in the process, since it is bound to who opens it, and gets a copy of the descriptor.
fn open_userfault(pid: u32, threads: &mut Threads, memory: &Memory, way: Way) -> Result<(Userfaultfd, i32)> {
    threads.stop_all()?;
    let mut call = |call, arguments| call_in_its_name(pid, threads, &|_| false, (memory, way), call, arguments);
    let flags = word(libc::O_CLOEXEC | libc::O_NONBLOCK);
    let opened = call(("userfaultfd", libc::SYS_userfaultfd), [flags, 0, 0, 0, 0, 0]);
    let low = opened.map_err(|error| refused_userfault(pid, error))?;
    // A larger table takes the kernel some milliseconds, in which all threads stand still.
    let highest = descriptors(pid).min(room_for_descriptors(pid)).saturating_sub(1).min(HIGH_DESCRIPTOR);
    let high = call(("fcntl", libc::SYS_fcntl), [low, word(libc::F_DUPFD_CLOEXEC), highest, 0, 0, 0]);
    let theirs = match high {
        Ok(high) => {
            call(("close", libc::SYS_close), [low, 0, 0, 0, 0, 0])?;
            high
        }
        // It may have that one, and all above.
        Err(_) => low,
    };
    let number = i32::try_from(theirs).unwrap_or(-1);
    let failed = |source| Error::Process { pid, operation: "watch the memory of", source };
    let adopt = |ours| Userfaultfd::adopt(ours, FEATURES, FaultOrigin::UserAndKernel).map_err(failed);
    let adopted = share(pid, number).and_then(adopt);
    if adopted.is_err() {
        let _ = call(("close", libc::SYS_close), [theirs, 0, 0, 0, 0, 0]);
    }
    Ok((adopted?, number))
}

/// The userfaultfd of a killed repairer: it watches the pages that were left behind.
fn left_userfault(pid: u32, theirs: i32, shared: Option<OwnedFd>) -> Result<Userfaultfd> {
    if let Some(fd) = shared {
        return Ok(Userfaultfd::inherited(fd, FaultOrigin::UserAndKernel));
    }
    if is_userfault(pid, theirs) != Some(true) {
        let why = "pages of it were moved by somebody who was killed, and it has closed the descriptor that watched them: nobody can \
                   put them back";
        return Err(Error::Refused { pid, why: why.to_owned() });
    }
    Ok(Userfaultfd::inherited(share(pid, theirs)?, FaultOrigin::UserAndKernel))
}

/// Whether a descriptor of a thread's is a userfaultfd; none where that cannot be seen.
fn is_userfault(thread: u32, descriptor: i32) -> Option<bool> {
    match std::fs::read_link(format!("/proc/{thread}/fd/{descriptor}")) {
        Ok(link) => Some(link.to_str() == Some("anon_inode:[userfaultfd]")),
        Err(error) => (error.kind() == io::ErrorKind::NotFound).then_some(false),
    }
}

/// How many descriptors a process may have.
fn descriptors(pid: u32) -> u64 {
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    files.and_then(|files| files.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(u64::MAX)
}

fn share(pid: u32, theirs: i32) -> Result<OwnedFd> {
    take(pid, theirs).map_err(|source| Error::Process { pid, operation: "share a descriptor with", source })
}

/// Our own of a descriptor of the process.
pub(crate) fn take(pid: u32, theirs: i32) -> io::Result<OwnedFd> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(number, PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, theirs, PidfdGetfdFlags::empty())?)
}

/// Why a process is refused, before anything is done in it or when the kernel has refused the call.
const NO_USERFAULTFD: &str = "it may not have a userfaultfd that sees the kernel's accesses too, and without that no page can be moved \
                              safely; `sudo sysctl vm.unprivileged_userfaultfd=1` allows it";

fn refused_userfault(pid: u32, error: Error) -> Error {
    match error {
        Error::Linux(fieldstone_sys::Error::Call { source, .. })
            if matches!(source.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) =>
        {
            Error::Refused { pid, why: NO_USERFAULTFD.to_owned() }
        }
        other => other,
    }
}
