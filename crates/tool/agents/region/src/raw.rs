//! System calls as the kernel has them: no errno, no cancellation, no libc in between.
//!
//! The entries of libc that end in these calls are ours (see `entries`), so the agent must not call them by name.
//! A result in `-4095..0` is a negated errno.

#![allow(unsafe_code, reason = "system calls are made here and nowhere else in the agent")]

use core::arch::asm;

/// A negated errno, or what the call returned.
pub(crate) type Raw = isize;

/// Whether a raw result is an error.
pub(crate) const fn failed(result: Raw) -> bool {
    result < 0 && result >= -4095
}

/// Makes the system call `number`.
///
/// # Safety
/// As the call itself demands: its pointers have to be valid, and what it unmaps or overwrites must not be in use.
pub(crate) unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> Raw {
    #[cfg(test)]
    if let Some(result) = crate::model::answer(number, args) {
        return result;
    }
    // SAFETY: the caller vouches for the call and its arguments.
    unsafe { trap(number, args) }
}

#[cfg(target_arch = "x86_64")]
unsafe fn trap(number: libc::c_long, args: [usize; 6]) -> Raw {
    let result: isize;
    // SAFETY: the kernel clobbers rax, rcx and r11 only; what the call does to memory is the caller's word.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn trap(number: libc::c_long, args: [usize; 6]) -> Raw {
    let result: isize;
    // SAFETY: the kernel preserves every register but x0; what the call does to memory is the caller's word.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") args[0] as isize => result,
            in("x1") args[1], in("x2") args[2], in("x3") args[3], in("x4") args[4], in("x5") args[5],
            options(nostack));
    }
    result
}

/// `mmap(2)`.
///
/// # Safety
/// With `MAP_FIXED`, nothing that is in use may lie in the range.
pub(crate) unsafe fn mmap(address: usize, bytes: usize, prot: i32, flags: i32, fd: i32, offset: usize) -> Raw {
    // SAFETY: the caller's word.
    unsafe { syscall(libc::SYS_mmap, [address, bytes, prot as usize, flags as usize, fd as usize, offset]) }
}

/// Maps fresh private anonymous memory, at `address` exactly if `MAP_FIXED` is in `flags`.
///
/// # Safety
/// As [`mmap`].
pub(crate) unsafe fn map_anonymous(address: usize, bytes: usize, prot: i32, flags: i32) -> Raw {
    // SAFETY: the caller's word.
    unsafe { mmap(address, bytes, prot, flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) }
}

/// What [`map_new`] returns where something is mapped already.
pub(crate) const TAKEN: Raw = -(libc::EEXIST as Raw);

/// Maps fresh private anonymous memory at exactly `address`, and only where nothing is mapped: [`TAKEN`] otherwise.
/// Before Linux 4.17 the kernel takes the address for a hint; what it then maps elsewhere is unmapped.
pub(crate) fn map_new(address: usize, bytes: usize, prot: i32, flags: i32) -> Raw {
    // SAFETY: NOREPLACE, and a hint where the kernel does not know it, never replace a mapping.
    let result = unsafe { map_anonymous(address, bytes, prot, flags | libc::MAP_FIXED_NOREPLACE) };
    if failed(result) || result == address.cast_signed() {
        return result;
    }
    // SAFETY: the kernel returned this new mapping to this call, and nobody else knows it.
    unsafe { munmap(result.cast_unsigned(), bytes) };
    TAKEN
}

/// `munmap(2)`.
///
/// # Safety
/// Nothing in the range may be in use.
pub(crate) unsafe fn munmap(address: usize, bytes: usize) -> Raw {
    // SAFETY: the caller's word.
    unsafe { syscall(libc::SYS_munmap, [address, bytes, 0, 0, 0, 0]) }
}

/// `mprotect(2)`.
///
/// # Safety
/// The range's users must bear the new protection.
pub(crate) unsafe fn mprotect(address: usize, bytes: usize, prot: i32) -> Raw {
    // SAFETY: the caller's word.
    unsafe { syscall(libc::SYS_mprotect, [address, bytes, prot as usize, 0, 0, 0]) }
}

/// `madvise(2)`.
///
/// # Safety
/// An advice that drops contents needs a range whose contents nobody wants.
pub(crate) unsafe fn madvise(address: usize, bytes: usize, advice: i32) -> Raw {
    // SAFETY: the caller's word.
    unsafe { syscall(libc::SYS_madvise, [address, bytes, advice as usize, 0, 0, 0]) }
}

/// `mremap(2)`.
///
/// # Safety
/// What lies in the old range moves, what lies in a fixed new range goes.
pub(crate) unsafe fn mremap(old: usize, old_bytes: usize, new_bytes: usize, flags: i32, new: usize) -> Raw {
    // SAFETY: the caller's word.
    unsafe { syscall(libc::SYS_mremap, [old, old_bytes, new_bytes, flags as usize, new, 0]) }
}

/// Opens the file at `path`, a C string, read-only or as `flags` say.
///
/// # Safety
/// `path` has to point to a C string.
pub(crate) unsafe fn open(path: *const libc::c_char, flags: i32) -> Raw {
    // SAFETY: the caller's word.
    unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path as usize, flags as usize, 0, 0, 0]) }
}

/// Reads up to `buffer.len()` bytes at `offset`.
pub(crate) fn pread(fd: i32, buffer: &mut [u8], offset: usize) -> Raw {
    // SAFETY: the kernel writes inside the buffer only.
    unsafe { syscall(libc::SYS_pread64, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), offset, 0, 0]) }
}

/// The status of an open file; all zeroes where there is none.
pub(crate) fn status(fd: i32) -> libc::stat {
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills the record, or leaves the zeroes, which are a valid one.
    unsafe {
        syscall(libc::SYS_fstat, [fd as usize, status.as_mut_ptr() as usize, 0, 0, 0, 0]);
        status.assume_init()
    }
}

/// The status of the file at `path`; all zeroes where there is none.
pub(crate) fn status_at(path: &core::ffi::CStr) -> libc::stat {
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, status.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: a C string; the kernel fills the record, or leaves the zeroes, which are a valid one.
    unsafe {
        syscall(libc::SYS_newfstatat, arguments);
        status.assume_init()
    }
}

/// The length of a regular file; zero for anything else.
pub(crate) fn file_bytes(fd: i32) -> usize {
    let status = status(fd);
    if status.st_mode & libc::S_IFMT == libc::S_IFREG { status.st_size as usize } else { 0 }
}

/// Closes a descriptor of the agent's own.
pub(crate) fn close(fd: i32) {
    // SAFETY: only descriptors that the agent opened come here.
    unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// `sysinfo(2)`.
pub(crate) fn sysinfo() -> libc::sysinfo {
    let mut info = core::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the kernel fills the record; zeroed is a valid one.
    unsafe {
        syscall(libc::SYS_sysinfo, [info.as_mut_ptr() as usize, 0, 0, 0, 0, 0]);
        info.assume_init()
    }
}

/// Memory that can be used without swapping, page cache included: `MemAvailable` of `/proc/meminfo`, in bytes. `None` where it
/// cannot be read.
pub(crate) fn available_bytes() -> Option<usize> {
    let mut text = [0u8; 512];
    // SAFETY: a C string.
    let fd = unsafe { open(c"/proc/meminfo".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if failed(fd) {
        return None;
    }
    let read = usize::try_from(pread(fd as i32, &mut text, 0)).ok();
    close(fd as i32);
    let line = text[..read?.min(text.len())]
        .split(|&byte| byte == b'\n')
        .find_map(|line| line.strip_prefix(b"MemAvailable:"))?;
    let digits = line.iter().filter(|byte| byte.is_ascii_digit());
    let kib = digits.fold(0_usize, |number, digit| number.saturating_mul(10).saturating_add(usize::from(digit - b'0')));
    Some(kib.saturating_mul(1024))
}

/// The soft limit on a resource, `usize::MAX` where there is none or it cannot be read.
pub(crate) fn limit(resource: libc::__rlimit_resource_t) -> usize {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let arguments = [0, resource as usize, 0, (&raw mut limit) as usize, 0, 0];
    // SAFETY: sets nothing; the kernel fills the record or leaves it.
    unsafe { syscall(libc::SYS_prlimit64, arguments) };
    limit.rlim_cur as usize
}

/// Whether the running kernel is of this version or a later one. False where that cannot be read.
pub(crate) fn kernel_is(major: u32, minor: u32) -> bool {
    let mut names = core::mem::MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the kernel fills the record; zeroed is a valid one.
    let names = unsafe {
        syscall(libc::SYS_uname, [names.as_mut_ptr() as usize, 0, 0, 0, 0, 0]);
        names.assume_init()
    };
    let mut numbers = [0_u32; 2];
    let mut at = 0;
    for byte in names.release.map(|byte| byte as u8) {
        match byte {
            b'0'..=b'9' => numbers[at] = numbers[at].saturating_mul(10) + u32::from(byte - b'0'),
            b'.' if at == 0 => at = 1,
            _ => break,
        }
    }
    numbers >= [major, minor]
}

/// Sleeps for less than a second; a signal ends the sleep.
pub(crate) fn sleep(nanoseconds: i64) {
    let pause = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    // SAFETY: the kernel reads the record.
    unsafe { syscall(libc::SYS_nanosleep, [&raw const pause as usize, 0, 0, 0, 0, 0]) };
}

/// Gives up the processor for a moment.
pub(crate) fn yield_now() {
    // SAFETY: takes nothing, changes nothing.
    unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
}

/// The process id, straight from the kernel.
pub(crate) fn getpid() -> u32 {
    // SAFETY: takes nothing, changes nothing.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) as u32 }
}

/// The parent's process id.
pub(crate) fn getppid() -> u32 {
    // SAFETY: takes nothing, changes nothing.
    unsafe { syscall(libc::SYS_getppid, [0; 6]) as u32 }
}
