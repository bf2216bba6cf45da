//! Raw system calls: no errno, no cancellation point, no libc.
//!
//! The agent patches functions of libc that make these calls (see `entries`), so it must not call
//! those functions. A result in `-4095..0` is a negated errno.

#![allow(unsafe_code, reason = "system calls are made through here and nowhere else in the agent")]

/// The result of a system call, or a negated errno.
pub(crate) type RawResult = isize;

pub(crate) use fieldstone_syscall::failed;

/// Makes the system call `number`.
///
/// # Safety
/// The caller upholds the requirements of the call: valid pointers, and no use of memory that it
/// unmaps or overwrites.
pub(crate) unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> RawResult {
    #[cfg(test)]
    if let Some(result) = crate::model::handle(number, args) {
        return result;
    }
    // SAFETY: the caller upholds the requirements of this system call.
    unsafe { fieldstone_syscall::syscall(number, args) }
}

/// `mmap(2)`.
///
/// # Safety
/// With `MAP_FIXED`, no memory in use may be in the range.
pub(crate) unsafe fn mmap(address: usize, bytes: usize, prot: i32, flags: i32, fd: i32, offset: usize) -> RawResult {
    // SAFETY: the caller upholds the requirement on fixed ranges.
    unsafe { syscall(libc::SYS_mmap, [address, bytes, prot as usize, flags as usize, fd as usize, offset]) }
}

/// Maps fresh private anonymous memory, at `address` exactly if `MAP_FIXED` is in `flags`.
///
/// # Safety
/// With `MAP_FIXED`, no memory in use may be in the range.
pub(crate) unsafe fn map_anonymous(address: usize, bytes: usize, prot: i32, flags: i32) -> RawResult {
    // SAFETY: the caller upholds the requirement on fixed ranges.
    unsafe { mmap(address, bytes, prot, flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) }
}

/// The result of [`map_new`] if something is mapped in the range.
pub(crate) const OCCUPIED: RawResult = -(libc::EEXIST as RawResult);

/// Maps fresh private anonymous memory at exactly `address`, if nothing is mapped there; otherwise
/// returns [`OCCUPIED`]. Before Linux 4.17 the kernel treats the address as a hint; a mapping at
/// another address is unmapped again.
pub(crate) fn map_new(address: usize, bytes: usize, prot: i32, flags: i32) -> RawResult {
    // SAFETY: MAP_FIXED_NOREPLACE, or a hint in older kernels, never replaces a mapping.
    let result = unsafe { map_anonymous(address, bytes, prot, flags | libc::MAP_FIXED_NOREPLACE) };
    if failed(result) || result == address.cast_signed() {
        return result;
    }
    // SAFETY: the kernel returned this new mapping to this call, and no other code knows its
    // address.
    unsafe { munmap(result.cast_unsigned(), bytes) };
    OCCUPIED
}

/// Whether all of a range is mapped: msync(2) with `MS_ASYNC` has no other effect since Linux 2.6.19.
pub(crate) fn is_mapped(address: usize, bytes: usize) -> bool {
    // SAFETY: msync with MS_ASYNC changes no memory.
    !failed(unsafe { syscall(libc::SYS_msync, [address, bytes, libc::MS_ASYNC as usize, 0, 0, 0]) })
}

/// `munmap(2)`.
///
/// # Safety
/// No memory in the range may be in use.
pub(crate) unsafe fn munmap(address: usize, bytes: usize) -> RawResult {
    // SAFETY: the caller guarantees that the range is not in use.
    unsafe { syscall(libc::SYS_munmap, [address, bytes, 0, 0, 0, 0]) }
}

/// `mprotect(2)`.
///
/// # Safety
/// Code that uses the range must be valid under the new protection.
pub(crate) unsafe fn mprotect(address: usize, bytes: usize, prot: i32) -> RawResult {
    // SAFETY: the caller guarantees that users of the range tolerate the protection.
    unsafe { syscall(libc::SYS_mprotect, [address, bytes, prot as usize, 0, 0, 0]) }
}

/// `madvise(2)`.
///
/// # Safety
/// With an advice that discards contents, the contents of the range must be unused.
pub(crate) unsafe fn madvise(address: usize, bytes: usize, advice: i32) -> RawResult {
    // SAFETY: the caller guarantees that discarded contents are unused.
    unsafe { syscall(libc::SYS_madvise, [address, bytes, advice as usize, 0, 0, 0]) }
}

/// `mremap(2)`.
///
/// # Safety
/// The old range moves and a fixed new range is replaced; neither may be in use otherwise.
pub(crate) unsafe fn mremap(old: usize, old_bytes: usize, new_bytes: usize, flags: i32, new: usize) -> RawResult {
    // SAFETY: the caller guarantees that both ranges may change.
    unsafe { syscall(libc::SYS_mremap, [old, old_bytes, new_bytes, flags as usize, new, 0]) }
}

/// Opens the file at `path`, a C string, read-only or as `flags` say.
///
/// # Safety
/// `path` has to point to a NUL-terminated C string.
pub(crate) unsafe fn open(path: *const libc::c_char, flags: i32) -> RawResult {
    // SAFETY: the caller guarantees that `path` is a C string.
    unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path as usize, flags as usize, 0, 0, 0]) }
}

/// Reads up to `buffer.len()` bytes at `offset`.
pub(crate) fn pread(fd: i32, buffer: &mut [u8], offset: usize) -> RawResult {
    // SAFETY: the kernel writes at most `buffer.len()` bytes to the buffer.
    unsafe { syscall(libc::SYS_pread64, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), offset, 0, 0]) }
}

/// The status of an open file; all zeroes if `fd` is not open.
pub(crate) fn status(fd: i32) -> libc::stat {
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel writes within the record, and all zeroes are a valid value of it.
    unsafe {
        syscall(libc::SYS_fstat, [fd as usize, status.as_mut_ptr() as usize, 0, 0, 0, 0]);
        status.assume_init()
    }
}

/// The status of the file at `path`; all zeroes if it does not exist.
pub(crate) fn status_at(path: &core::ffi::CStr) -> libc::stat {
    let mut status = core::mem::MaybeUninit::<libc::stat>::zeroed();
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, status.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: `path` is a C string, and the kernel writes within the record, for which zeroes are
    // valid.
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

/// Closes a descriptor that the agent opened.
pub(crate) fn close(fd: i32) {
    // SAFETY: the agent opened the descriptor and does not use it afterwards.
    unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// `sysinfo(2)`.
pub(crate) fn sysinfo() -> libc::sysinfo {
    let mut info = core::mem::MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: the kernel writes within the record, and all zeroes are a valid value of it.
    unsafe {
        syscall(libc::SYS_sysinfo, [info.as_mut_ptr() as usize, 0, 0, 0, 0, 0]);
        info.assume_init()
    }
}

/// Memory available without swapping, page cache included, in bytes: `MemAvailable` of
/// `/proc/meminfo`. `None` if it cannot be read.
pub(crate) fn available_bytes() -> Option<usize> {
    let mut text = [0u8; 512];
    // SAFETY: the path is a NUL-terminated C string.
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

/// The soft limit of a resource; `usize::MAX` if it is unlimited or cannot be read.
pub(crate) fn limit(resource: libc::__rlimit_resource_t) -> usize {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let arguments = [0, resource as usize, 0, (&raw mut limit) as usize, 0, 0];
    // SAFETY: no new limit is given, and the kernel writes at most one record to `limit`.
    unsafe { syscall(libc::SYS_prlimit64, arguments) };
    limit.rlim_cur as usize
}

/// Whether the kernel has at least this version. False if the version cannot be read.
pub(crate) fn kernel_is(major: u32, minor: u32) -> bool {
    let mut names = core::mem::MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: the kernel writes within the record, and all zeroes are a valid value of it.
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
    // SAFETY: the kernel reads the record, which outlives the call.
    unsafe { syscall(libc::SYS_nanosleep, [&raw const pause as usize, 0, 0, 0, 0, 0]) };
}

/// Yields the processor to other threads.
pub(crate) fn yield_now() {
    // SAFETY: the call has no arguments and changes no memory.
    unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
}

/// The process id, from the kernel.
pub(crate) fn getpid() -> u32 {
    // SAFETY: the call has no arguments and changes no memory.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) as u32 }
}

/// The parent's process id.
pub(crate) fn getppid() -> u32 {
    // SAFETY: the call has no arguments and changes no memory.
    unsafe { syscall(libc::SYS_getppid, [0; 6]) as u32 }
}
