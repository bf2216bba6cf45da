//! `execve` and its variants: loads the agent into programs that this one executes.
//!
//! The constructor removed the agent's two environment variables. They are added again for each
//! program that can load the agent: linked for the same dynamic loader, and not set-user-id. Others
//! run unchanged and are counted.
//!
//! Invariants: runs between `vfork` and exec, on a small stack and in the memory of the parent. So
//! it allocates nothing and writes nothing that the parent reads.

#![allow(unsafe_code, reason = "reads the program's argument vectors and makes the call")]

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::SESSION_VARIABLE;

use crate::arch::ELF_MACHINE;
use crate::environment::{PRELOAD, agent_variables, is_variable, loader};
use crate::raw::{self, RawResult};
use crate::state::slot;

/// `char *const argv[]`.
pub(crate) type StringVector = *const *const c_char;

/// An environment of at most this length is rebuilt on the stack; `posix_spawn` leaves 32 KiB of
/// stack.
const MAX_STACK_ENTRIES: usize = 1024;
/// The longest `LD_PRELOAD` that is merged with the agent's.
const PRELOAD_BYTES: usize = 4096;

/// `execveat(2)` with the agent's variables added.
///
/// # Safety
/// The vectors have to be null or arrays of C strings that end in null, as for `execveat`.
pub(crate) unsafe fn execveat(
    directory: c_int,
    path: *const c_char,
    argv: StringVector,
    envp: StringVector,
    flags: c_int,
) -> RawResult {
    // SAFETY: the caller guarantees that the vector is null or ends in null.
    let count = unsafe { length(envp) };
    if !is_agent_accessible() || !can_load_agent(directory, path, flags, 0) {
        let unchanged = slot().map(|slot| &slot.exec_untouched);
        if let Some(unchanged) = unchanged {
            unchanged.fetch_add(1, Relaxed);
        }
        // SAFETY: the caller passes the arguments under the contract of `execveat`.
        let failed = unsafe { make_call(directory, path, argv, envp, flags) };
        // No program was started, mostly because a directory of PATH lacks it.
        if let Some(unchanged) = unchanged {
            unchanged.fetch_sub(1, Relaxed);
        }
        return failed;
    }
    let mut merged = [0u8; PRELOAD_BYTES];
    let mut short = [core::ptr::null::<c_char>(); MAX_STACK_ENTRIES];
    if count + 3 <= MAX_STACK_ENTRIES {
        // SAFETY: the vector has `count` entries, and `short` holds `count + 3`.
        unsafe { build_environment(envp, count, &mut short, &mut merged) };
        // SAFETY: `build_environment` wrote C strings and a final null to `short`; the other
        // arguments are the caller's.
        return unsafe { make_call(directory, path, argv, short.as_ptr(), flags) };
    }
    let bytes = (count + 3) * size_of::<*const c_char>();
    // SAFETY: without a fixed address the kernel picks a free range, so no mapping is replaced.
    let mapped = unsafe { raw::map_anonymous(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0) };
    if raw::failed(mapped) {
        return mapped;
    }
    let start = core::ptr::with_exposed_provenance_mut::<*const c_char>(mapped.cast_unsigned());
    // SAFETY: this call mapped `bytes` zeroed bytes, which hold `count + 3` null pointers.
    let long = unsafe { core::slice::from_raw_parts_mut(start, count + 3) };
    // SAFETY: the vector has `count` entries, and `long` holds `count + 3` after which it ends in
    // null.
    let result = unsafe {
        build_environment(envp, count, long, &mut merged);
        make_call(directory, path, argv, start, flags)
    };
    // SAFETY: reached only if the call failed; this call mapped the vector, and nothing else refers
    // to it.
    unsafe { raw::munmap(mapped.cast_unsigned(), bytes) };
    result
}

unsafe fn make_call(
    directory: c_int,
    path: *const c_char,
    argv: StringVector,
    envp: StringVector,
    flags: c_int,
) -> RawResult {
    let (path, argv, envp) = (path as usize, argv as usize, envp as usize);
    if directory == libc::AT_FDCWD && flags == 0 {
        // SAFETY: the caller passes the arguments under the contract of `execve`.
        return unsafe { raw::syscall(libc::SYS_execve, [path, argv, envp, 0, 0, 0]) };
    }
    // SAFETY: the caller passes the arguments under the contract of `execveat`.
    unsafe { raw::syscall(libc::SYS_execveat, [directory as usize, path, argv, envp, flags as usize, 0]) }
}

unsafe fn length(vector: StringVector) -> usize {
    let mut count = 0;
    // SAFETY: the caller passes a vector that is null or ends in null.
    while !vector.is_null() && unsafe { !(*vector.add(count)).is_null() } {
        count += 1;
    }
    count
}

/// Copies the environment and appends the agent's two variables, with the program's own
/// `LD_PRELOAD` merged into the first. They are appended because a program that overwrites its
/// environment with a title needs it contiguous.
unsafe fn build_environment(
    envp: StringVector,
    count: usize,
    into: &mut [*const c_char],
    merged: &mut [u8; PRELOAD_BYTES],
) {
    let Some(ours) = agent_variables() else { return };
    let mut preload = ours.preload.as_ptr();
    let mut next = 0;
    for index in 0..count {
        // SAFETY: the caller counted `count` entries before the final null.
        let entry = unsafe { *envp.add(index) };
        // SAFETY: each entry is a C string by the contract of `execve`.
        let text = unsafe { CStr::from_ptr(entry) };
        if is_variable(text, PRELOAD) {
            let theirs = &text.to_bytes()[PRELOAD.to_bytes().len() + 1..];
            if merge_preload(ours.preload, theirs, merged) {
                preload = merged.as_ptr().cast();
            }
        } else if !is_variable(text, SESSION_VARIABLE) {
            into[next] = entry;
            next += 1;
        }
    }
    into[next] = preload;
    into[next + 1] = ours.session.as_ptr();
    into[next + 2] = core::ptr::null();
}

/// Writes `LD_PRELOAD=agent:theirs`. False if there is nothing to merge, or if it does not fit.
fn merge_preload(ours: &CStr, theirs: &[u8], merged: &mut [u8; PRELOAD_BYTES]) -> bool {
    let ours = ours.to_bytes();
    let end = ours.len() + 1 + theirs.len();
    if theirs.is_empty() || end >= merged.len() {
        return false;
    }
    merged[..ours.len()].copy_from_slice(ours);
    merged[ours.len()] = b':';
    merged[ours.len() + 1..end].copy_from_slice(theirs);
    merged[end] = 0;
    true
}

/// Whether an executed program could open the agent and the session, with its user and its root
/// directory.
fn is_agent_accessible() -> bool {
    let Some(ours) = agent_variables() else { return false };
    let value = |entry: &'static CStr, name: &CStr| &entry.to_bytes_with_nul()[name.to_bytes().len() + 1..];
    // faccessat checks as the real user without capabilities, which is what exec leaves of a
    // program that gave up root.
    let is_accessible = |path: &[u8], mode: c_int| {
        let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, mode as usize, 0, 0, 0];
        // SAFETY: `path` is the end of a C string, so it is NUL-terminated.
        !raw::failed(unsafe { raw::syscall(libc::SYS_faccessat, arguments) })
    };
    is_accessible(value(ours.preload, PRELOAD), libc::R_OK)
        && is_accessible(value(ours.session, SESSION_VARIABLE), libc::R_OK | libc::W_OK)
}

/// Whether the file at `path` can load the agent.
fn can_load_agent(directory: c_int, path: *const c_char, call_flags: c_int, depth: u32) -> bool {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    if call_flags & libc::AT_EMPTY_PATH != 0 {
        return can_fd_load_agent(directory, depth);
    }
    let arguments = [directory as usize, path as usize, flags as usize, 0, 0, 0];
    // SAFETY: the kernel reads the path, and returns EFAULT for an invalid pointer.
    let fd = unsafe { raw::syscall(libc::SYS_openat, arguments) };
    if raw::failed(fd) {
        return false;
    }
    let can_load = can_fd_load_agent(fd as c_int, depth);
    raw::close(fd as c_int);
    can_load
}

fn can_fd_load_agent(fd: c_int, depth: u32) -> bool {
    let mut head = [0u8; 256];
    let read = raw::pread(fd, &mut head, 0);
    if read < 4 || is_set_id(fd) {
        return false;
    }
    if head.starts_with(b"#!") {
        return depth < 4
            && interpreter(&mut head).is_some_and(|path| can_load_agent(libc::AT_FDCWD, path.as_ptr(), 0, depth + 1));
    }
    head.starts_with(b"\x7fELF\x02") && same_loader(fd, &head)
}

fn is_set_id(fd: c_int) -> bool {
    let mode = raw::status(fd).st_mode;
    mode == 0 || mode & (libc::S_ISUID | libc::S_ISGID) != 0
}

/// The interpreter in the first line of a script.
fn interpreter(head: &mut [u8; 256]) -> Option<&CStr> {
    let start = 2 + head[2..].iter().position(|&byte| byte != b' ' && byte != b'\t')?;
    let end = start + head[start..].iter().position(|byte| b" \t\n\r\0".contains(byte))?;
    head[end] = 0;
    CStr::from_bytes_with_nul(&head[start..=end]).ok()
}

/// Whether an ELF file is for this machine and requests the loader that this process runs under.
fn same_loader(fd: c_int, head: &[u8; 256]) -> bool {
    const HEADER_BYTES: usize = 56;
    let half = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let table = usize::from_le_bytes(core::array::from_fn(|byte| head[32 + byte]));
    if half(18) != usize::from(ELF_MACHINE) || half(54) != HEADER_BYTES {
        return false;
    }
    (0..half(56).min(64)).any(|index| {
        let mut header = [0u8; HEADER_BYTES];
        let read = raw::pread(fd, &mut header, table + index * HEADER_BYTES);
        let word = |at: usize| usize::from_le_bytes(core::array::from_fn(|byte| header[at + byte]));
        let kind = u32::from_le_bytes(core::array::from_fn(|byte| header[byte]));
        read == HEADER_BYTES as RawResult && kind == libc::PT_INTERP && names_our_loader(fd, word(8), word(32))
    })
}

fn names_our_loader(fd: c_int, offset: usize, bytes: usize) -> bool {
    let mut path = [0u8; 128];
    let Some(buffer) = path.get_mut(..bytes) else { return false };
    raw::pread(fd, buffer, offset) == bytes.cast_signed()
        && CStr::from_bytes_until_nul(buffer).is_ok_and(|path| loader() == Some(path))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::string::String;

    use super::*;
    use crate::environment::set_loader;

    fn merged(ours: &CStr, theirs: &[u8]) -> Option<String> {
        let mut buffer = [b'x'; PRELOAD_BYTES];
        let merged = merge_preload(ours, theirs, &mut buffer);
        merged.then(|| String::from(CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap()))
    }

    #[test]
    fn the_program_s_preload_follows_the_agent() {
        assert_eq!(merged(c"LD_PRELOAD=/a.so", b"b.so:c.so").as_deref(), Some("LD_PRELOAD=/a.so:b.so:c.so"));
        assert_eq!(merged(c"LD_PRELOAD=/a.so", b""), None);
    }

    #[test]
    fn a_preload_that_does_not_fit_is_omitted() {
        let ours = c"LD_PRELOAD=/a.so";
        let buffer = PRELOAD_BYTES - ours.to_bytes().len() - 2;
        assert_eq!(merged(ours, &[b'y'; PRELOAD_BYTES][..buffer]).unwrap().len(), PRELOAD_BYTES - 1);
        assert_eq!(merged(ours, &[b'y'; PRELOAD_BYTES][..buffer + 1]), None);
    }

    fn named(line: &[u8]) -> Option<String> {
        let mut head = [b'x'; 256];
        head[..line.len()].copy_from_slice(line);
        interpreter(&mut head).map(|path| String::from(path.to_str().unwrap()))
    }

    #[test]
    fn the_first_line_of_a_script_names_its_interpreter() {
        assert_eq!(named(b"#!/bin/sh\n").as_deref(), Some("/bin/sh"));
        assert_eq!(named(b"#! \t/usr/bin/env python3\n").as_deref(), Some("/usr/bin/env"));
        assert_eq!(named(b"#!/bin/sh\0").as_deref(), Some("/bin/sh"), "a file that ends after it");
        assert_eq!(named(b"#!/endless"), None);
    }

    #[test]
    fn a_program_of_the_same_loader_can_load_the_agent() {
        let running = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(!can_fd_load_agent(running.as_raw_fd(), 0), "no loader is known yet");
        set_loader(c"/lib/ld-of-another-world.so".as_ptr());
        assert!(!can_fd_load_agent(running.as_raw_fd(), 0), "another loader");
        crate::start::record_loader();
        assert!(can_fd_load_agent(running.as_raw_fd(), 0));
        assert!(can_load_agent(libc::AT_FDCWD, c"/proc/self/exe".as_ptr(), 0, 0));
        assert!(!can_load_agent(libc::AT_FDCWD, c"/proc/self/maps".as_ptr(), 0, 0), "not a program");
        assert!(!can_load_agent(libc::AT_FDCWD, c"/no/such/file".as_ptr(), 0, 0));
    }
}
