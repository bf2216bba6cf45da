//! A helper process: forked from this one without exec, connected to it by a socket.
//!
//! ```text
//!   this process                 helper (all signals blocked, only the socket open)
//!   UnixStream ─── requests ───▶ work(socket) ... _exit
//!              ◀── replies ───── end of file when this process ends for any reason
//! ```
//! Invariant: after the fork the helper neither allocates nor takes a lock. Another thread of the
//! parent may have held the allocator's lock at the fork, and no thread of the helper releases it.
#![allow(unsafe_code, reason = "fork, signal masks and _exit have no safe form")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr;

use crate::{Error, Result};

/// Forks a helper that runs `work` with its end of the socket and then exits. Returns this
/// process's end and the helper's pid.
///
/// `work` must not allocate. Its working directory is `/`, and its standard descriptors are
/// `/dev/null`.
///
/// # Errors
/// [`Error::Call`] when processes or descriptors are exhausted.
pub(crate) fn fork(work: impl FnOnce(&OwnedFd)) -> Result<(UnixStream, u32)> {
    let failed = |call| move |source| Error::Call { call, source };
    let (parent_end, helper_end) = UnixStream::pair().map_err(failed("socketpair"))?;
    let former_mask = block_signals();
    // SAFETY: the child runs only `run_helper`, which makes system calls on its own stack, takes no
    // lock, and never returns.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(parent_end);
        run_helper(&helper_end.into(), work);
    }
    let forked = u32::try_from(pid).map_err(|_| io::Error::last_os_error());
    // SAFETY: `block_signals` returned this mask, so it is initialised.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const former_mask, ptr::null_mut()) };
    Ok((parent_end, forked.map_err(failed("fork"))?))
}

/// Blocks every signal for this thread, so that no handler of the parent runs in the child; returns
/// the previous mask.
pub(crate) fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut former = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigfillset initialises `all` before its use. A zeroed mask is a valid empty one, so
    // `former` is initialised even if the call fails.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), former.as_mut_ptr());
        former.assume_init()
    }
}

/// Exits without running the parent's exit handlers, buffers or destructors.
fn exit_immediately() -> ! {
    // SAFETY: _exit is async-signal-safe and accesses no memory of the process.
    unsafe { libc::_exit(0) }
}

/// Exits on drop without running code of the parent, so also when a panic unwinds.
pub(crate) struct ExitOnDrop;

impl Drop for ExitOnDrop {
    fn drop(&mut self) {
        exit_immediately();
    }
}

fn run_helper(socket: &OwnedFd, work: impl FnOnce(&OwnedFd)) -> ! {
    let _exit = ExitOnDrop;
    close_all_but(socket);
    let _ = rustix::process::chdir(c"/");
    work(socket);
    exit_immediately()
}

/// Closes all inherited descriptors but the socket: an open pipe would block its reader. A kernel
/// before 5.9 has no close_range(2); descriptors then stay open until the helper exits.
fn close_all_but(socket: &OwnedFd) {
    let keep = socket.as_raw_fd();
    // SAFETY: the calls change descriptors only, and this process uses no descriptor but `keep`.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for standard in (0..3).filter(|standard| *standard != keep && null >= 0) {
            libc::dup2(null, standard);
        }
        let close = |first: i32, last: i32| libc::syscall(libc::SYS_close_range, first, last, 0);
        if keep > 3 {
            close(3, keep - 1);
        }
        close(keep.max(2) + 1, i32::MAX);
    }
}
