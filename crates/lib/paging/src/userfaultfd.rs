//! The userfaultfd of a pager: the kernel's side of missing pages.
//!
//! It reports accesses to missing pages of registered memory, by user code and by the kernel, and
//! changes of the address space: forks, moves, and pages that were unmapped or dropped. The thread
//! that makes such a change waits until its message is read. Until then, [`EAGAIN`] refuses each
//! request that fills or moves pages, so no page of the old state is mistaken for one of the new.

#![allow(unsafe_code, reason = "ioctl and the unions of messages have no safe form")]

use core::ops::Range;

use linux_raw_sys::{general as uapi, ioctl as request};

use crate::kernel::{self, Descriptor, EAGAIN, EOPNOTSUPP, Errno, PAGE};

/// `_IOWR(0xAA, 5, struct uffdio_move)`, Linux 6.8; missing in linux-raw-sys.
const UFFDIO_MOVE: u32 = 0xC028_AA05;
/// `_IOWR(0xAA, 8, struct uffdio_poison)`, Linux 6.6; missing in linux-raw-sys.
const UFFDIO_POISON: u32 = 0xC020_AA08;

/// What a pager cannot do without.
const FEATURES: u32 = uapi::UFFD_FEATURE_EVENT_FORK
    | uapi::UFFD_FEATURE_EVENT_REMAP
    | uapi::UFFD_FEATURE_EVENT_REMOVE
    | uapi::UFFD_FEATURE_EVENT_UNMAP
    | uapi::UFFD_FEATURE_POISON
    | uapi::UFFD_FEATURE_MOVE
    | uapi::UFFD_FEATURE_THREAD_ID;

/// A message of the kernel.
#[derive(Debug)]
pub(crate) enum Message {
    /// A thread waits for a missing page.
    Fault { page: usize, thread: u32 },
    /// The process has forked. The descriptor has the registered memory of the child.
    Fork(Descriptor),
    /// mremap(2) moved pages.
    Moved { from: Range<usize>, to: usize },
    /// The contents of the pages were dropped.
    Dropped(Range<usize>),
    /// The pages were unmapped.
    Unmapped(Range<usize>),
}

/// Opens a userfaultfd of a kind.
#[cfg(feature = "std")]
type Open = fn() -> Result<Descriptor, Errno>;

/// An open userfaultfd.
#[derive(Debug)]
pub(crate) struct Userfaultfd(Descriptor);

impl Userfaultfd {
    /// Opens one for the address space of the calling thread.
    ///
    /// # Errors
    /// `EPERM` or `EACCES` without permission; `EOPNOTSUPP` before Linux 6.8.
    pub(crate) fn open() -> Result<Self, Errno> {
        Self::with_features(kernel::open_userfaultfd()?, FEATURES)
            .map_err(|errno| if errno == kernel::EINVAL { EOPNOTSUPP } else { errno })
    }

    /// Opens the best one that this process may have, without reports of forks. Returns whether it
    /// reports faults of the kernel, too.
    ///
    /// # Errors
    /// `EOPNOTSUPP` before Linux 6.8, `ENOSYS` without userfaultfd, `EPERM` under a filter.
    #[cfg(feature = "std")]
    pub(crate) fn open_best() -> Result<(Self, bool), Errno> {
        let features = FEATURES & !uapi::UFFD_FEATURE_EVENT_FORK;
        let attempts: [(Open, bool); 2] = [(kernel::open_userfaultfd, true), (kernel::open_user_userfaultfd, false)];
        let mut last = kernel::EPERM;
        for (open, has_kernel_faults) in attempts {
            match open().and_then(|descriptor| Self::with_features(descriptor, features)) {
                Ok(fd) => return Ok((fd, has_kernel_faults)),
                Err(errno @ (kernel::EPERM | kernel::EACCES)) => last = errno,
                Err(kernel::EINVAL) => return Err(EOPNOTSUPP),
                Err(errno) => return Err(errno),
            }
        }
        Err(last)
    }

    /// Opens one for faults of user code, without events.
    pub(crate) fn open_for_user_code() -> Result<Self, Errno> {
        Self::with_features(kernel::open_user_userfaultfd()?, 0)
    }

    fn with_features(descriptor: Descriptor, features: u32) -> Result<Self, Errno> {
        let mut api = uapi::uffdio_api { api: uapi::UFFD_API.into(), features: features.into(), ioctls: 0 };
        // SAFETY: UFFDIO_API reads and writes this structure only, a live local.
        unsafe { kernel::ioctl(&descriptor, request::UFFDIO_API, &mut api) }?;
        Ok(Self(descriptor))
    }

    /// The one of a forked child, from [`Message::Fork`].
    pub(crate) const fn of_child(descriptor: Descriptor) -> Self {
        Self(descriptor)
    }

    /// The descriptor, to wait for it together with others.
    #[cfg(feature = "std")]
    pub(crate) const fn descriptor(&self) -> &Descriptor {
        &self.0
    }

    /// Waits for messages; false after `milliseconds` without one.
    pub(crate) fn wait(&self, milliseconds: u32) -> Result<bool, Errno> {
        kernel::poll(&self.0, milliseconds)
    }

    /// Reads waiting messages; the number of those that were read.
    pub(crate) fn read(&self, into: &mut [uapi::uffd_msg]) -> Result<usize, Errno> {
        // SAFETY: a message consists of integers.
        match unsafe { kernel::read(&self.0, into) } {
            Ok(bytes) => Ok(bytes / size_of::<uapi::uffd_msg>()),
            Err(EAGAIN | kernel::EINTR) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Reports accesses to missing pages of private anonymous memory from now on.
    ///
    /// # Errors
    /// `EBUSY` for memory of another userfaultfd, `EINVAL` for other kinds of memory or holes.
    pub(crate) fn register(&self, range: Range<usize>) -> Result<(), Errno> {
        let mode = uapi::UFFDIO_REGISTER_MODE_MISSING.into();
        let mut argument = uapi::uffdio_register { range: of(&range), mode, ioctls: 0 };
        // SAFETY: UFFDIO_REGISTER reads and writes this structure only, a live local.
        unsafe { kernel::ioctl(&self.0, request::UFFDIO_REGISTER, &mut argument) }.map(drop)
    }

    /// Ends the reports for a range, and wakes the threads that wait there.
    pub(crate) fn unregister(&self, range: Range<usize>) -> Result<(), Errno> {
        // SAFETY: UFFDIO_UNREGISTER reads this structure only, a live local.
        unsafe { kernel::ioctl(&self.0, request::UFFDIO_UNREGISTER, &mut of(&range)) }.map(drop)
    }

    /// Wakes the threads that wait for pages of a range.
    pub(crate) fn wake(&self, range: Range<usize>) -> Result<(), Errno> {
        // SAFETY: UFFDIO_WAKE reads this structure only, a live local.
        unsafe { kernel::ioctl(&self.0, request::UFFDIO_WAKE, &mut of(&range)) }.map(drop)
    }

    /// Fills missing pages from `contents` and wakes the threads that wait for them. Returns the
    /// bytes that were filled, and why not all were.
    pub(crate) fn copy(&self, to: usize, contents: &[u8]) -> (usize, Result<(), Errno>) {
        let (src, len) = (contents.as_ptr().expose_provenance() as u64, contents.len() as u64);
        let mut argument = uapi::uffdio_copy { dst: to as u64, src, len, mode: 0, copy: 0 };
        // SAFETY: UFFDIO_COPY takes this structure, reads from a live slice and fills missing
        // pages only.
        let result = unsafe { kernel::ioctl(&self.0, request::UFFDIO_COPY, &mut argument) };
        progress(result, argument.copy)
    }

    /// Moves pages to missing pages. Returns the bytes that were moved, and why not all were:
    /// `ENOENT` at a missing page, `EBUSY` at one that is pinned or shared with a child, `EINVAL`
    /// for memory that is locked or not writable.
    ///
    /// # Safety
    /// The pages at `from` are those of this pager's program, which gets them back at its next
    /// access; or they are the pager's own, and nothing uses them.
    pub(crate) unsafe fn move_pages(&self, to: usize, from: Range<usize>) -> (usize, Result<(), Errno>) {
        let (dst, src, len) = (to as u64, from.start as u64, from.len() as u64);
        let mut argument = uapi::uffdio_move { dst, src, len, mode: 0, move_: 0 };
        // SAFETY: UFFDIO_MOVE takes this structure; the caller answers for the pages.
        let result = unsafe { kernel::ioctl(&self.0, UFFDIO_MOVE, &mut argument) };
        progress(result, argument.move_)
    }

    /// Makes each access to a missing page raise `SIGBUS`.
    pub(crate) fn poison(&self, page: usize) -> Result<(), Errno> {
        let mut argument = uapi::uffdio_poison { range: of(&(page..page + PAGE)), mode: 0, updated: 0 };
        // SAFETY: UFFDIO_POISON takes this structure and changes missing pages only.
        unsafe { kernel::ioctl(&self.0, UFFDIO_POISON, &mut argument) }.map(drop)
    }
}

/// The result of a request that may have done a part: `done` is a number of bytes, or a negated
/// errno if nothing was done.
fn progress(result: Result<usize, Errno>, done: i64) -> (usize, Result<(), Errno>) {
    (usize::try_from(done).unwrap_or(0), result.map(drop))
}

fn of(range: &Range<usize>) -> uapi::uffdio_range {
    uapi::uffdio_range { start: range.start as u64, len: range.len() as u64 }
}

/// Parses a message; `None` if its kind is unknown.
///
/// # Safety
/// The kernel has just written the message for this process, and it is parsed once.
pub(crate) unsafe fn parse(message: &uapi::uffd_msg) -> Option<Message> {
    let address = |number: u64| number as usize;
    // The generated headers lack the numbers of the events.
    Some(match message.event {
        0x12 => {
            // SAFETY: the event selects `pagefault`; all fields are integers.
            let fault = unsafe { message.arg.pagefault };
            // SAFETY: the feature `THREAD_ID` is on, so the kernel has set this only field.
            let thread = unsafe { fault.feat.ptid };
            Message::Fault { page: address(fault.address) & !(PAGE - 1), thread }
        }
        0x13 => {
            // SAFETY: the event selects `fork`: a new descriptor of this thread's table, which has
            // no other owner.
            Message::Fork(unsafe { Descriptor::new(message.arg.fork.ufd.cast_signed()) })
        }
        0x14 => {
            // SAFETY: the event selects `remap`; all fields are integers.
            let moved = unsafe { message.arg.remap };
            Message::Moved { from: address(moved.from)..address(moved.from + moved.len), to: address(moved.to) }
        }
        0x15 | 0x16 => {
            // SAFETY: the event selects `remove`; all fields are integers.
            let gone = unsafe { message.arg.remove };
            let range = address(gone.start)..address(gone.end);
            if message.event == 0x15 { Message::Dropped(range) } else { Message::Unmapped(range) }
        }
        _ => return None,
    })
}
