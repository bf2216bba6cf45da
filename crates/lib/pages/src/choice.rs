//! Selects the first mechanism of a list that works for this machine, user and memory.

use crate::error::{Error, Result};
use crate::mechanism::Mechanism;

/// For handlers in a thread.
pub(crate) const IN_THREAD: [Mechanism; 2] = [Mechanism::UserfaultThread, Mechanism::ProtectThread];
/// For handlers in a signal.
pub(crate) const IN_SIGNAL: [Mechanism; 2] = [Mechanism::UserfaultSignal, Mechanism::ProtectSignal];
/// For tracking writes: a trap in a thread also handles writes by the kernel, one in a signal is
/// faster.
pub(crate) const TRACKING: [Mechanism; 4] =
    [Mechanism::Scan, Mechanism::UserfaultThread, Mechanism::UserfaultSignal, Mechanism::ProtectSignal];

/// Sets up the first mechanism that works.
pub(crate) fn first_supported<T>(wanted: &[Mechanism], set_up: impl Fn(Mechanism) -> Result<T>) -> Result<T> {
    let mut last = Error::Unsupported { what: "control of memory", why: "no mechanism was named" };
    for &mechanism in wanted {
        match set_up(mechanism) {
            Err(error) if is_refusal(&error) => last = error,
            done => return done,
        }
    }
    Err(last)
}

/// Whether another mechanism may work, which memory shortage excludes. `EAGAIN` means a thread
/// limit.
fn is_refusal(error: &Error) -> bool {
    const REFUSED: [i32; 9] = [
        libc::EPERM,
        libc::EACCES,
        libc::ENOSYS,
        libc::EINVAL,
        libc::EOPNOTSUPP,
        libc::ENOTTY,
        libc::ENOENT,
        libc::EMFILE,
        libc::EAGAIN,
    ];
    matches!(error, Error::Unsupported { .. }) || error.errno().is_some_and(|errno| REFUSED.contains(&errno))
}
