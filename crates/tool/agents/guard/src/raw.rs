//! System calls without libc: no errno, no cancellation point, nothing that a program can interpose.
//!
//! After its start the agent makes these calls: `madvise`, `mprotect`, `mmap` and `munmap` for
//! objects, `rt_sigprocmask`, `sched_yield`, `gettid`, `clock_gettime`, and for a finding `futex`,
//! `getpid`, `rt_sigaction`, `tgkill` and `write`. A seccomp filter that kills a process for one of
//! them ends it, as allocators with the same calls do.

#![allow(unsafe_code, reason = "system calls are made through here and nowhere else in the agent")]

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;

pub(crate) use fieldstone_preload::process::{getpid, map, map_file, write_error};
use fieldstone_syscall::syscall;

/// Unmaps memory of [`map`].
///
/// # Safety
/// The range has to be mapped by [`map`] and not in use.
pub(crate) unsafe fn unmap(memory: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller guarantees that the range is mapped and not in use.
    unsafe { syscall(libc::SYS_munmap, [memory.as_ptr() as usize, bytes, 0, 0, 0, 0]) };
}

/// Leaves memory out of core dumps.
pub(crate) fn exclude_from_dumps(address: usize, bytes: usize) {
    // SAFETY: the advice changes no contents.
    unsafe { syscall(libc::SYS_madvise, [address, bytes, libc::MADV_DONTDUMP as usize, 0, 0, 0]) };
}

/// The current thread.
pub(crate) fn gettid() -> u32 {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) as u32 }
}

/// Sends a signal to the current thread. With `info` it arrives as that signal did.
pub(crate) fn signal_thread(signal: c_int, info: Option<&libc::siginfo_t>) {
    let (pid, tid, signal) = (getpid() as usize, gettid() as usize, signal as usize);
    // SAFETY: `info` is null or a valid record.
    unsafe {
        match info {
            Some(info) => {
                let info = core::ptr::from_ref(info) as usize;
                syscall(libc::SYS_rt_tgsigqueueinfo, [pid, tid, signal, info, 0, 0]);
            }
            None => {
                syscall(libc::SYS_tgkill, [pid, tid, signal, 0, 0, 0]);
            }
        }
    }
}

/// Blocks the signals of the current thread, except those of faults. Returns the old mask.
pub(crate) fn block_signals() -> u64 {
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
    let blocked = faults.iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
    let mut old = 0;
    set_mask(libc::SIG_BLOCK, &blocked, Some(&mut old));
    old
}

/// Restores the mask of [`block_signals`].
pub(crate) fn restore_signals(mask: u64) {
    set_mask(libc::SIG_SETMASK, &mask, None);
}

/// Blocks or unblocks one signal of the current thread. Returns whether it was blocked.
pub(crate) fn set_blocked(signal: c_int, is_blocked: bool) -> bool {
    let (bit, mut old) = (1 << (signal - 1), 0);
    set_mask(if is_blocked { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK }, &bit, Some(&mut old));
    old & bit != 0
}

fn set_mask(how: c_int, mask: &u64, old: Option<&mut u64>) {
    let old = old.map_or(0, |old| core::ptr::from_mut(old) as usize);
    // SAFETY: both masks have the 8 bytes of the kernel's sigset_t, or the old one is null.
    unsafe { syscall(libc::SYS_rt_sigprocmask, [how as usize, core::ptr::from_ref(mask) as usize, old, 8, 0, 0]) };
}

/// Whether the 8 bytes at an address are readable. The kernel copies them as a mask, and then refuses
/// the operation.
pub(crate) fn is_readable(address: usize) -> bool {
    const NO_OPERATION: usize = 0xff;
    // SAFETY: an operation that does not exist changes nothing, and the kernel checks the address.
    let result = unsafe { syscall(libc::SYS_rt_sigprocmask, [NO_OPERATION, address, 0, 8, 0, 0]) };
    result == -(libc::EINVAL as isize)
}

/// Ends the process at once.
pub(crate) fn exit(code: c_int) -> ! {
    loop {
        // A seccomp filter may refuse the first call.
        for call in [libc::SYS_exit_group, libc::SYS_exit] {
            // SAFETY: the calls have no pointers.
            unsafe { syscall(call, [code as usize, 0, 0, 0, 0, 0]) };
        }
    }
}

/// Waits until the word differs from `value` or the time has passed.
pub(crate) fn wait_for(word: &AtomicU32, value: u32, ns: u64) {
    let time = libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    let (word, timeout) = (core::ptr::from_ref(word) as usize, &raw const time as usize);
    // SAFETY: the word and the timeout outlive the call.
    unsafe { syscall(libc::SYS_futex, [word, libc::FUTEX_WAIT as usize, value as usize, timeout, 0, 0]) };
}

/// Wakes all that wait for the word.
pub(crate) fn wake(word: &AtomicU32) {
    let word = core::ptr::from_ref(word) as usize;
    // SAFETY: the call reads no memory.
    unsafe { syscall(libc::SYS_futex, [word, libc::FUTEX_WAKE as usize, c_int::MAX as usize, 0, 0, 0]) };
}

/// A clock in nanoseconds; 0 if it cannot be read.
pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the time to `now`.
    unsafe { syscall(libc::SYS_clock_gettime, [clock as usize, &raw mut now as usize, 0, 0, 0, 0]) };
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// The time stamp counter.
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// First address and end of the current thread's stack; an empty range if unknown.
pub(crate) fn stack_of_thread() -> (usize, usize) {
    let mut attributes = core::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut start, mut bytes) = (core::ptr::null_mut::<c_void>(), 0);
    // SAFETY: the first call initializes the attributes, the second reads them, and the third frees
    // what they own.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return (1, 1);
        }
        libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut start, &raw mut bytes);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    (start as usize, start as usize + bytes)
}
