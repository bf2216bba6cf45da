//! The process's userfaultfds: one for each way to be told, opened when it is first needed, and shared by all regions.
//!
//! A mode belongs to the descriptor, not to the memory: asynchronous write protection and faults by signal are asked for when it
//! is opened. So there are three, however many regions.

#![allow(unsafe_code, reason = "publishes descriptors that live as long as the process")]

use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use fieldstone_sys::userfault::{PageScan, Reach, Userfaultfd};
use linux_raw_sys::general as uapi;

use crate::{fork, serve};

/// How the faults of a descriptor's memory are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// To a thread of ours that reads the descriptor; who faults waits.
    Thread,
    /// To who faults, as a `SIGBUS`.
    Signal,
    /// Writes to nobody: the kernel notes them, and `PAGEMAP_SCAN` reads the notes. Missing pages, to a thread.
    Scan,
}

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) fd: Userfaultfd,
    /// For [`Told::Scan`].
    pub(crate) scan: Option<PageScan>,
    /// Whether write protection holds on pages that were never touched.
    pub(crate) unpopulated: bool,
}

static SERVICES: [AtomicPtr<Service>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];

/// The service for a way to be told.
///
/// # Errors
/// Why there is none.
pub(crate) fn service(told: Told) -> io::Result<&'static Service> {
    let place = &SERVICES[told as usize];
    fork::setting_up(|| {
        // SAFETY: a published service is never freed.
        if let Some(service) = unsafe { place.load(Ordering::Acquire).as_ref() } {
            return Ok(service);
        }
        let service: &'static Service = Box::leak(Box::new(open(told)?));
        if told != Told::Signal {
            serve::start(service)?;
        }
        place.store(std::ptr::from_ref(service).cast_mut(), Ordering::Release);
        Ok(service)
    })
}

fn open(told: Told) -> io::Result<Service> {
    let more = uapi::UFFD_FEATURE_WP_UNPOPULATED
        | uapi::UFFD_FEATURE_WP_HUGETLBFS_SHMEM
        | uapi::UFFD_FEATURE_POISON
        | uapi::UFFD_FEATURE_MOVE
        | uapi::UFFD_FEATURE_MISSING_HUGETLBFS
        | uapi::UFFD_FEATURE_MISSING_SHMEM;
    let own = match told {
        Told::Thread => uapi::UFFD_FEATURE_THREAD_ID | uapi::UFFD_FEATURE_EXACT_ADDRESS,
        Told::Signal => uapi::UFFD_FEATURE_SIGBUS,
        Told::Scan => uapi::UFFD_FEATURE_WP_ASYNC | uapi::UFFD_FEATURE_THREAD_ID | uapi::UFFD_FEATURE_EXACT_ADDRESS,
    };
    let needed = match told {
        Told::Thread => uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP,
        Told::Signal => uapi::UFFD_FEATURE_PAGEFAULT_FLAG_WP | uapi::UFFD_FEATURE_SIGBUS,
        Told::Scan => uapi::UFFD_FEATURE_WP_ASYNC | uapi::UFFD_FEATURE_WP_UNPOPULATED,
    };
    // A signal cannot be sent for what the kernel itself does.
    let reach = if told == Told::Signal { Reach::User } else { Reach::UserAndKernel };
    let (fd, has) = Userfaultfd::open(needed, own | more, reach)?;
    let scan = if told == Told::Scan { Some(PageScan::open()?) } else { None };
    Ok(Service { fd, scan, unpopulated: has & u64::from(uapi::UFFD_FEATURE_WP_UNPOPULATED) != 0 })
}

/// Closes what names the parent's memory.
pub(crate) fn forget_in_child() {
    for place in &SERVICES {
        // SAFETY: a published service is never freed, and the child's only thread runs this. The regions of the parent's
        // generation do not use it any more.
        if let Some(service) = unsafe { place.swap(null_mut(), Ordering::AcqRel).as_ref() } {
            // SAFETY: the descriptor is this process's own copy; nothing of ours uses it again.
            unsafe { libc::close(service.fd.number()) };
        }
    }
}
