//! The mechanisms of traps and their limits: what each one supports and what it does not.

use std::fmt;

/// How faults are raised and delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanism {
    /// userfaultfd, delivered to a thread of this crate; the faulting thread waits in the kernel.
    UserfaultThread,
    /// userfaultfd, delivered to the faulting thread as `SIGBUS`.
    UserfaultSignal,
    /// mprotect(2), whose `SIGSEGV` handler forwards the fault to a thread of this crate.
    ProtectThread,
    /// mprotect(2), delivered to the faulting thread as `SIGSEGV`.
    ProtectSignal,
    /// userfaultfd's asynchronous mode: the kernel records writes, `PAGEMAP_SCAN` reads the
    /// records. No thread waits.
    Scan,
}

impl Mechanism {
    /// Whether handlers run in signal handlers.
    #[must_use]
    pub const fn is_in_signal(self) -> bool {
        matches!(self, Self::UserfaultSignal | Self::ProtectSignal)
    }

    pub(crate) const fn is_protect(self) -> bool {
        matches!(self, Self::ProtectThread | Self::ProtectSignal)
    }

    /// The mechanism's name in reports and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UserfaultThread => "userfaultfd-thread",
            Self::UserfaultSignal => "userfaultfd-signal",
            Self::ProtectThread => "mprotect-thread",
            Self::ProtectSignal => "mprotect-signal",
            Self::Scan => "pagemap-scan",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The accesses that a protected page refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Writes.
    Writes,
    /// Reads and writes. userfaultfd cannot refuse reads of present pages, so this needs
    /// mprotect(2).
    Accesses,
}

/// Something that a region does not support, because of its mechanism or because of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// System calls that access a protected page fail.
    KernelAccesses,
    /// Each separately protected range is its own mapping.
    Mappings,
    /// A thread that blocks `SIGSEGV` and `SIGBUS` is killed at a protected or missing page.
    BlockedSignals,
    /// Writes may have been missed: the process has pinned pages now, which devices and io_uring
    /// write by their frames.
    PinnedPages,
    /// Writes may be missed: the memory is shared or a file's, and other mappings can write to it.
    SharedMemory,
}

impl Loss {
    /// A short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::KernelAccesses => "kernel accesses",
            Self::Mappings => "mappings",
            Self::BlockedSignals => "blocked signals",
            Self::PinnedPages => "pinned pages",
            Self::SharedMemory => "shared memory",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KernelAccesses => {
                "a system call that accesses a trapped page (read(2) into it) fails with EFAULT: touch the page first; \
                 with a handler in a thread and /dev/userfaultfd or vm.unprivileged_userfaultfd=1 it waits for the handler instead"
            }
            Self::Mappings => {
                "each separately protected range takes one of vm.max_map_count mappings: protect long \
                 ranges; userfaultfd needs none"
            }
            Self::BlockedSignals => {
                "the kernel kills a thread that blocks SIGSEGV and SIGBUS at a trapped page: leave both unblocked; \
                 userfaultfd with a handler in a thread needs no signal"
            }
            Self::PinnedPages => {
                "this process has pinned pages (VmPin): writes through registered buffers of io_uring, and by devices, change \
                 pages without making them dirty: mark such buffers as dirty, or do not register tracked memory"
            }
            Self::SharedMemory => {
                "writes to shared memory or a file through another mapping, by write(2) or by another process do not make \
                 pages dirty: mark the pages, or use private anonymous memory"
            }
        })
    }
}
