//! An open userfaultfd: registers memory, reads its faults, resolves them.
//!
//! No function here allocates or locks, so a signal handler may call them. Ranges consist of whole
//! pages of the memory's own page size. A request that collides with a change of the address space
//! (`EAGAIN`) is retried.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as uapi;
use linux_raw_sys::ioctl as request;
use rustix::mm::UserfaultfdFlags;

use super::{by_call, by_device, features};
use crate::descriptors::move_high;

/// `_IOWR(0xAA, 5, struct uffdio_move)`, Linux 6.8; missing in linux-raw-sys.
pub(crate) const UFFDIO_MOVE: u32 = 0xC028_AA05;
/// `_IOWR(0xAA, 8, struct uffdio_poison)`, Linux 6.6; missing in linux-raw-sys.
const UFFDIO_POISON: u32 = 0xC020_AA08;
/// `UFFDIO_WRITEPROTECT_MODE_WP`; the generated headers lack shifted constants.
const WRITE_PROTECT: u64 = 1;

/// Which faults on the memory are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOrigin {
    /// Those of user code. `read(2)` into a trapped page fails with `EFAULT`.
    User,
    /// Those of user code and of the kernel. `read(2)` into a trapped page waits for the handler.
    UserAndKernel,
}

/// The accesses that are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// Accesses to missing pages.
    pub missing: bool,
    /// Writes to write-protected pages.
    pub write_protect: bool,
}

/// A page fault, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultEvent {
    /// The page's address, or the byte's with `EXACT_ADDRESS`.
    pub address: usize,
    /// Whether it was a write; true for every write-protection fault.
    pub write: bool,
    /// The thread id with `THREAD_ID`, otherwise 0.
    pub thread: u32,
}

/// `UFFD_EVENT_FORK`.
const FORK: u8 = 0x13;

/// A message of a userfaultfd.
#[derive(Debug)]
pub enum Message {
    /// A page is missing or protected, and a thread waits for it.
    Fault(FaultEvent),
    /// The process has forked (`EVENT_FORK`): this userfaultfd has the child's memory. The parent
    /// waits until the message is read.
    Fork(OwnedFd),
    /// Memory was moved by mremap (`EVENT_REMAP`).
    Moved {
        /// The old range.
        from: Range<usize>,
        /// The new address.
        to: usize,
    },
    /// Its pages were dropped (`EVENT_REMOVE`), or it was unmapped (`EVENT_UNMAP`).
    Gone(Range<usize>),
    /// A message type that this crate does not know.
    Unknown(u8),
}

impl Message {
    /// Size of a message in bytes, as read(2) returns it.
    pub const BYTES: usize = size_of::<uapi::uffd_msg>();

    /// Parses a message that another process has read from its userfaultfd. For a descriptor in it,
    /// `take` returns this process's copy of that number.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn from_tracee_bytes(
        bytes: &[u8; Self::BYTES],
        take: impl FnOnce(i32) -> io::Result<OwnedFd>,
    ) -> io::Result<Self> {
        // SAFETY: uffd_msg consists of integers and has BYTES bytes; any values are valid.
        let message: uapi::uffd_msg = unsafe { std::mem::transmute_copy(bytes) };
        if message.event == FORK {
            // SAFETY: for this event the union holds `fork`; every field is an integer in any case.
            return take(unsafe { message.arg.fork.ufd }.cast_signed()).map(Self::Fork);
        }
        // SAFETY: every field is an integer; the FORK event, which owns a descriptor, returned
        // above.
        Ok(unsafe { Self::of(&message) })
    }

    /// # Safety
    /// The kernel must have written `message` for this process, so that its event selects the
    /// union's field.
    unsafe fn of(message: &uapi::uffd_msg) -> Self {
        let address = |number: u64| usize::try_from(number).unwrap_or(0);
        // The generated headers lack these macros.
        match message.event {
            0x12 => {
                // SAFETY: the event selects `pagefault`, as the caller guarantees; all fields are
                // integers.
                let (fault, thread) = unsafe { (message.arg.pagefault, message.arg.pagefault.feat.ptid) };
                let write = u64::from(uapi::UFFD_PAGEFAULT_FLAG_WRITE | uapi::UFFD_PAGEFAULT_FLAG_WP);
                Self::Fault(FaultEvent { address: address(fault.address), write: fault.flags & write != 0, thread })
            }
            FORK => {
                // SAFETY: the event selects `fork`, as the caller guarantees: a new descriptor of
                // this process, which has no other owner.
                Self::Fork(unsafe { OwnedFd::from_raw_fd(message.arg.fork.ufd.cast_signed()) })
            }
            0x14 => {
                // SAFETY: the event selects `remap`, as the caller guarantees; all fields are
                // integers.
                let moved = unsafe { message.arg.remap };
                Self::Moved { from: address(moved.from)..address(moved.from + moved.len), to: address(moved.to) }
            }
            0x15 | 0x16 => {
                // SAFETY: the event selects `remove`, as the caller guarantees; all fields are
                // integers.
                let gone = unsafe { message.arg.remove };
                Self::Gone(address(gone.start)..address(gone.end))
            }
            other => Self::Unknown(other),
        }
    }
}

/// An open userfaultfd. Closing it wakes waiting threads and unregisters the memory.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
    reach: FaultOrigin,
}

impl Userfaultfd {
    /// Opens one that reports the faults in `reach`, or of user code only if that is refused.
    /// `needed` and `wanted` are features (`UFFD_FEATURE_*`); missing wanted ones are ignored. Also
    /// returns all features of the kernel. The descriptor has a high number, which programs rarely
    /// use.
    ///
    /// # Errors
    /// `EPERM` and `EACCES` without permission, `EOPNOTSUPP` if the kernel lacks a needed feature.
    pub fn open(needed: u32, wanted: u32, reach: FaultOrigin) -> io::Result<(Self, u64)> {
        let user = UserfaultfdFlags::from_bits_retain(uapi::UFFD_USER_MODE_ONLY);
        // The first UFFDIO_API fixes the features of a descriptor, so a second one queries them.
        let has = features(&by_call(user).or_else(|_| by_device())?)?;
        if has & u64::from(needed) != u64::from(needed) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let (fd, reach) = match reach {
            FaultOrigin::User => (by_call(user).or_else(|_| by_device())?, FaultOrigin::User),
            FaultOrigin::UserAndKernel => match by_device().or_else(|_| by_call(UserfaultfdFlags::empty())) {
                Ok(fd) => (fd, reach),
                Err(_) => (by_call(user)?, FaultOrigin::User),
            },
        };
        let features = has & u64::from(needed | wanted);
        let this = Self { fd: move_high(fd), reach };
        this.ask(request::UFFDIO_API, &mut uapi::uffdio_api { api: uapi::UFFD_API.into(), features, ioctls: 0 })?;
        Ok((this, has))
    }

    /// Adopts an unused one that another process has opened for its memory, with the needed
    /// features.
    ///
    /// # Errors
    /// As ioctl(2): `EINVAL` if it was used or the kernel lacks a feature; `EPERM` for a privileged
    /// feature.
    pub fn adopt(fd: OwnedFd, features: u32, reach: FaultOrigin) -> io::Result<Self> {
        let this = Self { fd, reach };
        let features = features.into();
        this.ask(request::UFFDIO_API, &mut uapi::uffdio_api { api: uapi::UFFD_API.into(), features, ioctls: 0 })?;
        Ok(this)
    }

    /// One from [`Message::Fork`]; it has the child's copies of the parent's registrations.
    #[must_use]
    pub const fn inherited(fd: OwnedFd, reach: FaultOrigin) -> Self {
        Self { fd, reach }
    }

    /// Which faults it reports.
    #[must_use]
    pub const fn reach(&self) -> FaultOrigin {
        self.reach
    }

    /// The descriptor number.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Registers memory.
    ///
    /// # Errors
    /// `EBUSY` for memory of another userfaultfd, `EINVAL` for unsupported memory (most files),
    /// `EPERM` for a sealed file.
    pub fn register(&self, range: Range<usize>, modes: Modes) -> io::Result<()> {
        let missing = if modes.missing { uapi::UFFDIO_REGISTER_MODE_MISSING } else { 0 };
        let write_protect = if modes.write_protect { uapi::UFFDIO_REGISTER_MODE_WP } else { 0 };
        let mode = u64::from(missing | write_protect);
        self.ask(request::UFFDIO_REGISTER, &mut uapi::uffdio_register { range: of(&range), mode, ioctls: 0 })
    }

    /// Unregisters memory and wakes waiting threads.
    ///
    /// # Errors
    /// As ioctl(2).
    pub fn unregister(&self, range: Range<usize>) -> io::Result<()> {
        self.ask(request::UFFDIO_UNREGISTER, &mut of(&range))
    }

    /// Write-protects pages, or unprotects them and wakes waiting threads.
    ///
    /// # Errors
    /// As ioctl(2).
    #[inline]
    pub fn write_protect(&self, range: Range<usize>, on: bool) -> io::Result<()> {
        let mode = if on { WRITE_PROTECT } else { 0 };
        self.ask(request::UFFDIO_WRITEPROTECT, &mut uapi::uffdio_writeprotect { range: of(&range), mode })
    }

    /// Fills missing pages with a copy, optionally write-protected, and wakes waiting threads.
    ///
    /// # Errors
    /// `EEXIST` for a present page, and as ioctl(2).
    pub fn copy(&self, to: usize, contents: &[u8], write_protected: bool) -> io::Result<()> {
        let mode = u64::from(if write_protected { uapi::UFFDIO_COPY_MODE_WP } else { 0 });
        self.ask(request::UFFDIO_COPY, &mut copy_request(to, contents, mode))
    }

    /// As [`Self::copy`], but it does not retry: a thread that changes the address space may wait
    /// until the caller reads its message.
    ///
    /// # Errors
    /// `EAGAIN` while the address space changes, `EEXIST` for a present page, and as ioctl(2).
    pub fn try_copy(&self, to: usize, contents: &[u8]) -> io::Result<()> {
        self.ask_once(request::UFFDIO_COPY, &mut copy_request(to, contents, 0))
    }

    /// Fills missing pages with zeros.
    ///
    /// # Errors
    /// `EEXIST` for a present page, `EINVAL` for hugetlb memory, and as ioctl(2).
    pub fn zero(&self, range: Range<usize>) -> io::Result<()> {
        self.ask(request::UFFDIO_ZEROPAGE, &mut uapi::uffdio_zeropage { range: of(&range), mode: 0, zeropage: 0 })
    }

    /// Moves pages of private anonymous memory to missing pages without a copy; `from` is missing
    /// then.
    ///
    /// # Errors
    /// `EEXIST` for a present page, `EBUSY` for one that is pinned or shared with a forked child,
    /// and as ioctl(2).
    ///
    /// # Safety
    /// No code may use the contents at `from` afterwards.
    pub unsafe fn move_pages(&self, to: usize, from: Range<usize>) -> io::Result<()> {
        let (dst, src, len) = (to as u64, from.start as u64, from.len() as u64);
        self.ask(UFFDIO_MOVE, &mut uapi::uffdio_move { dst, src, len, mode: 0, move_: 0 })
    }

    /// Makes each access to missing pages raise `SIGBUS`, as after a hardware memory error.
    ///
    /// # Errors
    /// `EEXIST` for a present page, and as ioctl(2).
    pub fn poison(&self, range: Range<usize>) -> io::Result<()> {
        self.ask(UFFDIO_POISON, &mut uapi::uffdio_poison { range: of(&range), mode: 0, updated: 0 })
    }

    /// Wakes threads that wait for a page; they retry the access.
    ///
    /// # Errors
    /// As ioctl(2).
    pub fn wake(&self, range: Range<usize>) -> io::Result<()> {
        self.ask(request::UFFDIO_WAKE, &mut of(&range))
    }

    /// Waits for a message. `None` if it is not a fault.
    ///
    /// # Errors
    /// As read(2).
    pub fn read(&self) -> io::Result<Option<FaultEvent>> {
        Ok(match self.message()? {
            Message::Fault(event) => Some(event),
            _ => None,
        })
    }

    /// Waits for any message: faults, and the events requested as features.
    ///
    /// # Errors
    /// As read(2).
    pub fn message(&self) -> io::Result<Message> {
        // SAFETY: uffd_msg consists of integers, for which zero is valid.
        let mut message: uapi::uffd_msg = unsafe { std::mem::zeroed() };
        let bytes = size_of::<uapi::uffd_msg>();
        // SAFETY: the buffer is a live local of `bytes` bytes.
        let read = unsafe { libc::read(self.number(), (&raw mut message).cast(), bytes) };
        if read < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just written the message for this process.
        Ok(unsafe { Message::of(&message) })
    }

    fn ask<T>(&self, request: u32, argument: &mut T) -> io::Result<()> {
        // This terminates: EAGAIN means that another thread is changing the address space, and that
        // thread does not wait for this one.
        loop {
            match self.ask_once(request, argument) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                other => return other,
            }
        }
    }

    fn ask_once<T>(&self, request: u32, argument: &mut T) -> io::Result<()> {
        // SAFETY: each caller passes the request's own structure, a live local.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request.into(), std::ptr::from_mut(argument)) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn of(range: &Range<usize>) -> uapi::uffdio_range {
    uapi::uffdio_range { start: range.start as u64, len: range.len() as u64 }
}

/// `UFFDIO_COPY` of `contents`, in this mode.
fn copy_request(to: usize, contents: &[u8], mode: u64) -> uapi::uffdio_copy {
    let (src, len) = (contents.as_ptr().expose_provenance() as u64, contents.len() as u64);
    uapi::uffdio_copy { dst: to as u64, src, len, mode, copy: 0 }
}

/// `/proc/self/pagemap`, open for `PAGEMAP_SCAN` (Linux 6.7): finds written pages of asynchronously
/// protected memory.
#[derive(Debug)]
pub struct PageScan(OwnedFd);

/// `_IOWR('f', 16, struct pm_scan_arg)`; missing in linux-raw-sys.
pub(crate) const PAGEMAP_SCAN: u32 = 0xC060_6610;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PM_SCAN_WP_MATCHING: u64 = 1;
const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;

/// Adjacent written pages. Has the layout of `struct page_region`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct WrittenRange {
    start: u64,
    end: u64,
    categories: u64,
}

impl WrittenRange {
    /// The entry for this address range.
    #[must_use]
    pub const fn of(range: Range<usize>) -> Self {
        Self { start: range.start as u64, end: range.end as u64, categories: 0 }
    }

    /// The address range.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        let address = |number| usize::try_from(number).unwrap_or(usize::MAX);
        address(self.start)..address(self.end)
    }
}

impl PageScan {
    /// Opens the one of this process, with a high descriptor number.
    ///
    /// # Errors
    /// As open(2).
    pub fn open() -> io::Result<Self> {
        Ok(Self(move_high(File::open("/proc/self/pagemap")?.into())))
    }

    /// The descriptor number.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Replaces the list by the written pages of `range`, up to the list's capacity. With
    /// `protect`, the same step protects each found page again. Returns the address at which the
    /// walk ended.
    ///
    /// # Errors
    /// `ENOTTY` before Linux 6.7, `EPERM` for memory that is not asynchronously protected.
    pub fn written(&self, range: Range<usize>, protect: bool, found: &mut Vec<WrittenRange>) -> io::Result<usize> {
        found.clear();
        let mut scan = uapi::pm_scan_arg {
            size: size_of::<uapi::pm_scan_arg>() as u64,
            flags: PM_SCAN_CHECK_WPASYNC | if protect { PM_SCAN_WP_MATCHING } else { 0 },
            start: range.start as u64,
            end: range.end as u64,
            walk_end: 0,
            vec: found.as_mut_ptr().expose_provenance() as u64,
            vec_len: found.capacity() as u64,
            max_pages: 0,
            category_inverted: 0,
            category_mask: PAGE_IS_WRITTEN,
            category_anyof_mask: 0,
            return_mask: PAGE_IS_WRITTEN,
        };
        // SAFETY: `scan` is the request's own structure; the kernel writes at most `vec_len`
        // entries, the list's capacity, and WrittenRange has the layout of `page_region`.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN.into(), &raw mut scan) };
        let count = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the kernel has initialised `count` entries, at most the capacity.
        unsafe { found.set_len(count) };
        Ok(usize::try_from(scan.walk_end).unwrap_or(range.end))
    }
}
