//! One open userfaultfd: registering memory, reading its faults, answering them.
//!
//! Nothing here allocates or locks, so that a signal handler may call it. Ranges are of whole pages of the memory's own size.
//! An answer that meets a change of the address space (`EAGAIN`) is given again until it is taken.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as uapi;
use linux_raw_sys::ioctl as request;
use rustix::mm::UserfaultfdFlags;

use super::{by_call, by_device, features};
use crate::descriptors::raised;

/// `_IOWR(0xAA, 5, struct uffdio_move)`, Linux 6.8; not in linux-raw-sys.
pub(crate) const UFFDIO_MOVE: u32 = 0xC028_AA05;
/// `_IOWR(0xAA, 8, struct uffdio_poison)`, Linux 6.6; not in linux-raw-sys.
const UFFDIO_POISON: u32 = 0xC020_AA08;
/// `UFFDIO_WRITEPROTECT_MODE_WP`: the generated headers leave shifted constants of this kind out.
const WRITE_PROTECT: u64 = 1;

/// Faults of user code alone, or those of the kernel on user memory too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// `read(2)` into a trapped page fails with `EFAULT`.
    User,
    /// `read(2)` into a trapped page waits for the handler.
    UserAndKernel,
}

/// What memory is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// Accesses to pages that are not there.
    pub missing: bool,
    /// Writes to pages that are write-protected.
    pub write_protect: bool,
}

/// A fault, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The page's address, or the byte's with `EXACT_ADDRESS`.
    pub address: usize,
    /// Whether it was a write; a write-protection fault always is.
    pub write: bool,
    /// The thread, where `THREAD_ID` was asked for; 0 else.
    pub thread: u32,
}

/// `UFFD_EVENT_FORK`.
const FORK: u8 = 0x13;

/// What a userfaultfd tells.
#[derive(Debug)]
pub enum Message {
    /// A page is missing or protected, and somebody waits for it.
    Fault(Event),
    /// The process has forked (`EVENT_FORK`): the child's memory is registered with this one. The parent waits until this is read.
    Fork(OwnedFd),
    /// Memory was moved (`EVENT_REMAP`).
    Moved {
        /// From where.
        from: Range<usize>,
        /// To where.
        to: usize,
    },
    /// Its pages were dropped (`EVENT_REMOVE`), or it was unmapped (`EVENT_UNMAP`).
    Gone(Range<usize>),
    /// Something that a later kernel tells.
    Unknown(u8),
}

impl Message {
    /// Bytes of a message, as read(2) gives it.
    pub const BYTES: usize = size_of::<uapi::uffd_msg>();

    /// A message that another process has read of its userfaultfd: where it brings a descriptor, `take` gives ours for the number that it
    /// has there.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn read_by_another(
        bytes: &[u8; Self::BYTES],
        take: impl FnOnce(i32) -> io::Result<OwnedFd>,
    ) -> io::Result<Self> {
        // SAFETY: a structure of integers, of as many bytes; any values are good.
        let message: uapi::uffd_msg = unsafe { std::mem::transmute_copy(bytes) };
        if message.event == FORK {
            // SAFETY: its union is what the event says; an integer, at any rate.
            return take(unsafe { message.arg.fork.ufd }.cast_signed()).map(Self::Fork);
        }
        // SAFETY: the union has integers only; the event that owns a descriptor was taken out.
        Ok(unsafe { Self::of(&message) })
    }

    /// # Safety
    /// The kernel wrote `message`, so that its union is what its event says, and it was read by this process.
    unsafe fn of(message: &uapi::uffd_msg) -> Self {
        let address = |number: u64| usize::try_from(number).unwrap_or(0);
        // The events are macros of a shape that the generated headers leave out.
        match message.event {
            0x12 => {
                // SAFETY: the caller's word; all are integers.
                let (fault, thread) = unsafe { (message.arg.pagefault, message.arg.pagefault.feat.ptid) };
                let write = u64::from(uapi::UFFD_PAGEFAULT_FLAG_WRITE | uapi::UFFD_PAGEFAULT_FLAG_WP);
                Self::Fault(Event { address: address(fault.address), write: fault.flags & write != 0, thread })
            }
            FORK => {
                // SAFETY: the caller's word: a new descriptor of ours, which nobody else owns.
                Self::Fork(unsafe { OwnedFd::from_raw_fd(message.arg.fork.ufd.cast_signed()) })
            }
            0x14 => {
                // SAFETY: the caller's word.
                let moved = unsafe { message.arg.remap };
                Self::Moved { from: address(moved.from)..address(moved.from + moved.len), to: address(moved.to) }
            }
            0x15 | 0x16 => {
                // SAFETY: the caller's word.
                let gone = unsafe { message.arg.remove };
                Self::Gone(address(gone.start)..address(gone.end))
            }
            other => Self::Unknown(other),
        }
    }
}

/// An open userfaultfd. Closing it wakes whoever waits, and frees the memory from its traps.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
    reach: Reach,
}

impl Userfaultfd {
    /// Opens one by the door with the longest reach, or by the one for user faults alone, with the features (`UFFD_FEATURE_*`)
    /// that are needed and those of the wanted that the kernel has; with it, all that the kernel has. Its number is a high one,
    /// out of the program's way.
    ///
    /// # Errors
    /// `EPERM` and `EACCES` where no door opens, `EOPNOTSUPP` where the kernel lacks a needed feature.
    pub fn open(needed: u32, wanted: u32, reach: Reach) -> io::Result<(Self, u64)> {
        let user = UserfaultfdFlags::from_bits_retain(uapi::UFFD_USER_MODE_ONLY);
        // What is asked for once is fixed, so that another one has to ask what there is.
        let has = features(&by_call(user).or_else(|_| by_device())?)?;
        if has & u64::from(needed) != u64::from(needed) {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let (fd, reach) = match reach {
            Reach::User => (by_call(user).or_else(|_| by_device())?, Reach::User),
            Reach::UserAndKernel => match by_device().or_else(|_| by_call(UserfaultfdFlags::empty())) {
                Ok(fd) => (fd, reach),
                Err(_) => (by_call(user)?, Reach::User),
            },
        };
        let features = has & u64::from(needed | wanted);
        let this = Self { fd: raised(fd), reach };
        this.ask(request::UFFDIO_API, &mut uapi::uffdio_api { api: uapi::UFFD_API.into(), features, ioctls: 0 })?;
        Ok((this, has))
    }

    /// Takes over one that another process has opened for its memory, not used yet, with the features that are needed.
    ///
    /// # Errors
    /// As ioctl(2): `EINVAL` where it was used, or the kernel lacks a feature; `EPERM` where a feature is not for this user.
    pub fn adopt(fd: OwnedFd, features: u32, reach: Reach) -> io::Result<Self> {
        let this = Self { fd, reach };
        let features = features.into();
        this.ask(request::UFFDIO_API, &mut uapi::uffdio_api { api: uapi::UFFD_API.into(), features, ioctls: 0 })?;
        Ok(this)
    }

    /// One that [`Message::Fork`] brought, which watches what the parent's did.
    #[must_use]
    pub const fn inherited(fd: OwnedFd, reach: Reach) -> Self {
        Self { fd, reach }
    }

    /// Whose faults it gets.
    #[must_use]
    pub const fn reach(&self) -> Reach {
        self.reach
    }

    /// The number of the descriptor.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Registers memory.
    ///
    /// # Errors
    /// `EBUSY` for memory of another userfaultfd, `EINVAL` for memory that it cannot serve (most files), `EPERM` for a sealed one.
    pub fn register(&self, range: Range<usize>, modes: Modes) -> io::Result<()> {
        let missing = if modes.missing { uapi::UFFDIO_REGISTER_MODE_MISSING } else { 0 };
        let write_protect = if modes.write_protect { uapi::UFFDIO_REGISTER_MODE_WP } else { 0 };
        let mode = u64::from(missing | write_protect);
        self.ask(request::UFFDIO_REGISTER, &mut uapi::uffdio_register { range: of(&range), mode, ioctls: 0 })
    }

    /// Takes memory out again. Who waits is woken.
    ///
    /// # Errors
    /// As ioctl(2).
    pub fn unregister(&self, range: Range<usize>) -> io::Result<()> {
        self.ask(request::UFFDIO_UNREGISTER, &mut of(&range))
    }

    /// Protects pages against writes, or opens them and wakes who waits.
    ///
    /// # Errors
    /// As ioctl(2).
    #[inline]
    pub fn write_protect(&self, range: Range<usize>, on: bool) -> io::Result<()> {
        let mode = if on { WRITE_PROTECT } else { 0 };
        self.ask(request::UFFDIO_WRITEPROTECT, &mut uapi::uffdio_writeprotect { range: of(&range), mode })
    }

    /// Fills missing pages with a copy, write-protected on request, and wakes who waits.
    ///
    /// # Errors
    /// `EEXIST` for a page that is there, and as ioctl(2).
    pub fn copy(&self, to: usize, contents: &[u8], write_protected: bool) -> io::Result<()> {
        let mode = u64::from(if write_protected { uapi::UFFDIO_COPY_MODE_WP } else { 0 });
        let (src, len) = (contents.as_ptr().expose_provenance() as u64, contents.len() as u64);
        self.ask(request::UFFDIO_COPY, &mut uapi::uffdio_copy { dst: to as u64, src, len, mode, copy: 0 })
    }

    /// Fills missing pages with zeros.
    ///
    /// # Errors
    /// `EEXIST` for a page that is there, `EINVAL` for hugetlb memory, and as ioctl(2).
    pub fn zero(&self, range: Range<usize>) -> io::Result<()> {
        self.ask(request::UFFDIO_ZEROPAGE, &mut uapi::uffdio_zeropage { range: of(&range), mode: 0, zeropage: 0 })
    }

    /// Moves pages of private anonymous memory to where they are missing; nothing is copied, and `from` is missing then.
    ///
    /// # Errors
    /// `EEXIST` for a page that is there, `EBUSY` for one that is pinned or shared with a forked child, and as ioctl(2).
    ///
    /// # Safety
    /// Nobody uses the contents at `from` any more.
    pub unsafe fn move_pages(&self, to: usize, from: Range<usize>) -> io::Result<()> {
        let (dst, src, len) = (to as u64, from.start as u64, from.len() as u64);
        self.ask(UFFDIO_MOVE, &mut uapi::uffdio_move { dst, src, len, mode: 0, move_: 0 })
    }

    /// Has every access to missing pages end in `SIGBUS`, as after a hardware memory error.
    ///
    /// # Errors
    /// `EEXIST` for a page that is there, and as ioctl(2).
    pub fn poison(&self, range: Range<usize>) -> io::Result<()> {
        self.ask(UFFDIO_POISON, &mut uapi::uffdio_poison { range: of(&range), mode: 0, updated: 0 })
    }

    /// Wakes who waits for a page, which tries again.
    ///
    /// # Errors
    /// As ioctl(2).
    pub fn wake(&self, range: Range<usize>) -> io::Result<()> {
        self.ask(request::UFFDIO_WAKE, &mut of(&range))
    }

    /// Waits for a fault. `None` for an event that is none.
    ///
    /// # Errors
    /// As read(2).
    pub fn read(&self) -> io::Result<Option<Event>> {
        Ok(match self.message()? {
            Message::Fault(event) => Some(event),
            _ => None,
        })
    }

    /// Waits for whatever comes: faults, and the events that were asked for as features.
    ///
    /// # Errors
    /// As read(2).
    pub fn message(&self) -> io::Result<Message> {
        // SAFETY: a structure of integers, for which zeros are good.
        let mut message: uapi::uffd_msg = unsafe { std::mem::zeroed() };
        let bytes = size_of::<uapi::uffd_msg>();
        // SAFETY: the buffer is a live local of that size.
        let got = unsafe { libc::read(self.number(), (&raw mut message).cast(), bytes) };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel filled it.
        Ok(unsafe { Message::of(&message) })
    }

    fn ask<T>(&self, request: u32, argument: &mut T) -> io::Result<()> {
        // It ends: the kernel returns EAGAIN only while another thread changes the address space, which does not wait for this one.
        loop {
            // SAFETY: each caller passes the request's own structure, a live local.
            let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request.into(), std::ptr::from_mut(argument)) };
            if result == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EAGAIN) {
                return Err(error);
            }
        }
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

/// `/proc/self/pagemap`, open for `PAGEMAP_SCAN` (Linux 6.7): which pages of asynchronously protected memory were written.
#[derive(Debug)]
pub struct PageScan(OwnedFd);

/// `_IOWR('f', 16, struct pm_scan_arg)`; not in linux-raw-sys.
pub(crate) const PAGEMAP_SCAN: u32 = 0xC060_6610;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PM_SCAN_WP_MATCHING: u64 = 1;
const PM_SCAN_CHECK_WPASYNC: u64 = 1 << 1;

/// Written pages next to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct WrittenRange {
    start: u64,
    end: u64,
    categories: u64,
}

impl WrittenRange {
    /// Of these addresses.
    #[must_use]
    pub const fn of(range: Range<usize>) -> Self {
        Self { start: range.start as u64, end: range.end as u64, categories: 0 }
    }

    /// Its addresses.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        let address = |number| usize::try_from(number).unwrap_or(usize::MAX);
        address(self.start)..address(self.end)
    }
}

impl PageScan {
    /// Opens this process's, at a high number, out of the program's way.
    ///
    /// # Errors
    /// As open(2).
    pub fn open() -> io::Result<Self> {
        Ok(Self(raised(File::open("/proc/self/pagemap")?.into())))
    }

    /// The number of the descriptor.
    #[must_use]
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Finds written pages until the list's capacity is used up or the range is done; with `protect`, each one that is found is
    /// protected again in the same step. What was in the list is gone. Where the walk ended.
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
        // SAFETY: the request's own structure; it writes no more entries than the list has room for, each of the layout of
        // `page_region`.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN.into(), &raw mut scan) };
        let count = usize::try_from(result).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the kernel wrote so many, and has not more room than the capacity.
        unsafe { found.set_len(count) };
        Ok(usize::try_from(scan.walk_end).unwrap_or(range.end))
    }
}
