//! What an agent learns of its process, and the calls that it makes at its start.

#![allow(unsafe_code, reason = "makes system calls, and reads variables of libc")]

use core::ffi::{CStr, c_char, c_int};
use core::ptr::NonNull;

use fieldstone_syscall::{failed, syscall};

unsafe extern "C" {
    /// The environment of the process; null until libc has started.
    static environ: *const *const c_char;
    /// The base name of the program, as it was called.
    static program_invocation_short_name: *const c_char;
}

/// Whether libc has started: before that, the loader runs alone.
#[must_use]
pub fn is_started() -> bool {
    // SAFETY: libc defines the variable; before its start the loader's zero is read.
    unsafe { !environ.is_null() }
}

/// The value of an environment variable, during the start of the process.
#[must_use]
pub fn variable(name: &CStr) -> Option<&'static CStr> {
    if !is_started() {
        return None;
    }
    // SAFETY: `environ` is not null, and ends in null; no other code changes it during the start.
    unsafe {
        let mut entry = environ;
        while !(*entry).is_null() {
            let text: &'static CStr = CStr::from_ptr(*entry);
            let rest = text.to_bytes_with_nul().strip_prefix(name.to_bytes());
            if let Some(value) = rest.and_then(|rest| rest.strip_prefix(b"=")) {
                return CStr::from_bytes_with_nul(value).ok();
            }
            entry = entry.add(1);
        }
    }
    None
}

/// The path of the program, as it was called.
#[must_use]
pub fn program_path() -> &'static [u8] {
    // SAFETY: the kernel stores a C string at this address, which lives as long as the process.
    unsafe {
        let name = libc::getauxval(libc::AT_EXECFN);
        if name == 0 {
            b"program"
        } else {
            CStr::from_ptr(core::ptr::with_exposed_provenance(name as usize)).to_bytes()
        }
    }
}

/// The base name of the program; empty before libc has started.
#[must_use]
pub fn program_name() -> &'static [u8] {
    // SAFETY: libc sets the variable to a C string at its start, which it never changes.
    unsafe {
        let name = program_invocation_short_name;
        if name.is_null() { &[] } else { CStr::from_ptr(name).to_bytes() }
    }
}

/// The process id, in the process's own pid namespace.
#[must_use]
pub fn getpid() -> u32 {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) as u32 }
}

/// Maps zeroed private memory without a charge for what is not touched. `None` without address
/// space.
#[must_use]
pub fn map(bytes: usize) -> Option<NonNull<u8>> {
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: the kernel chooses the address, so no existing mapping changes.
    pointer(unsafe { syscall(libc::SYS_mmap, [0, bytes, access, flags, usize::MAX, 0]) })
}

/// Opens the file at `path` and maps its first `bytes` bytes, shared.
///
/// # Errors
/// The number of the kernel's error; `ENOENT` for a file that is shorter: the path names another
/// file by now.
pub fn map_file(path: &CStr, bytes: usize) -> Result<NonNull<u8>, c_int> {
    let flags = (libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    let at = libc::AT_FDCWD as usize;
    // SAFETY: `path` is a C string.
    let fd = unsafe { syscall(libc::SYS_openat, [at, path.as_ptr() as usize, flags, 0, 0, 0]) };
    if failed(fd) {
        return Err(-fd as c_int);
    }
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    // SAFETY: the kernel chooses the address; the descriptor is this function's own.
    let mapped = unsafe {
        let end = syscall(libc::SYS_lseek, [fd as usize, 0, libc::SEEK_END as usize, 0, 0, 0]);
        let mapped = if !failed(end) && end as usize >= bytes {
            syscall(libc::SYS_mmap, [0, bytes, access, libc::MAP_SHARED as usize, fd as usize, 0])
        } else {
            -(libc::ENOENT as isize)
        };
        syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]);
        mapped
    };
    pointer(mapped).ok_or(-mapped as c_int)
}

fn pointer(mapped: isize) -> Option<NonNull<u8>> {
    if failed(mapped) { None } else { NonNull::new(core::ptr::with_exposed_provenance_mut(mapped as usize)) }
}

/// Writes to standard error; errors are ignored.
pub fn write_error(text: &[u8]) {
    // SAFETY: the kernel reads the bytes of `text`, which is borrowed until the call returns.
    unsafe { syscall(libc::SYS_write, [2, text.as_ptr() as usize, text.len(), 0, 0, 0]) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_has_a_name_and_variables() {
        assert!(!program_name().is_empty() && program_path().ends_with(program_name()));
        assert_eq!(getpid(), std::process::id());
        let path = std::env::var("PATH").ok();
        assert_eq!(variable(c"PATH").map(|value| value.to_str().unwrap()), path.as_deref());
        assert_eq!(variable(c"FIELDSTONE_NO_SUCH_VARIABLE"), None);
    }

    #[test]
    fn a_file_that_is_too_short_is_not_mapped() {
        assert_eq!(map_file(c"/no/such/file", 1), Err(libc::ENOENT));
        assert!(map_file(c"/proc/self/exe", 1 << 40).is_err());
        assert!(map(4096).is_some());
    }
}
