//! Events of a repair: redirected accesses, restored pages, children, and the end of the process.

use std::fmt;

/// Why a page was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreReason {
    /// The caller requested it.
    Requested,
    /// The kernel accesses it, in this system call. `None` if the call is unknown.
    Kernel(Option<u32>),
    /// An access cannot be redirected.
    Access {
        /// Address of the instruction.
        ip: u64,
        /// The cause.
        reason: String,
    },
    /// The program unmaps, moves, protects or empties it.
    Removed,
    /// The repairer that moved it was killed.
    Abandoned,
    /// The program closed the descriptor that watches it.
    DescriptorClosed,
}

impl fmt::Display for RestoreReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => write!(f, "it was requested"),
            Self::Kernel(Some(number)) => write!(f, "the kernel uses it, in system call {number}"),
            Self::Kernel(None) => write!(f, "the kernel uses it"),
            Self::Access { ip, reason } => write!(f, "the access at {ip:#x} cannot be redirected: {reason}"),
            Self::Removed => write!(f, "the program unmapped, moved, protected or emptied it"),
            Self::Abandoned => write!(f, "the repairer that moved it was killed"),
            Self::DescriptorClosed => {
                write!(f, "the program closed all its descriptors, and the one that watches it too")
            }
        }
    }
}

/// An access to watched bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedAccess {
    /// The thread.
    pub thread: u32,
    /// Address of the instruction.
    pub ip: u64,
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes.
    pub bytes: u32,
    /// Whether it reads them.
    pub read: bool,
    /// Whether it writes them.
    pub write: bool,
}

/// The kind of code that redirects an access to a moved page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// A clone of the loop around it. The thread stays in the clone until it leaves the loop.
    Loop,
    /// A clone of the code up to the next jump or call. The thread enters and leaves it at each
    /// access.
    Stretch,
    /// No clone: this access alone is redirected, and the next one faults again.
    Alone,
}

/// An event of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemapEvent {
    /// An access was redirected.
    Redirected {
        /// The thread.
        thread: u32,
        /// Address of the instruction.
        ip: u64,
        /// Address of the page.
        page: u64,
        /// Whether code was made for it: a clone, or its first rewritelet.
        new: bool,
        /// The kind of clone that was made.
        route: Route,
    },
    /// Watched bytes were accessed.
    Watched(WatchedAccess),
    /// A page was restored.
    Restored {
        /// Address of the page.
        page: u64,
        /// The reason.
        why: RestoreReason,
    },
    /// The pages of this forked child were restored in it.
    ChildRestored(u32),
    /// The process has ended or executes another program.
    Ended,
}
