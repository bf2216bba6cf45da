//! Following the program into the programs that it starts.
//!
//! The agent hides its two environment variables when it is loaded, and puts them back for every program that can
//! carry it: dynamically linked for the same loader, not set-user-id. Others start untouched and are counted. Runs
//! between `vfork` and exec, on a small stack and in the parent's memory: nothing is allocated, and nothing that the
//! parent sees is written.

#![allow(unsafe_code, reason = "reads the program's argument vectors and makes the call")]

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::SESSION_VARIABLE;

use crate::environment::{PRELOAD, inherited, is_variable, loader};
use crate::raw::{self, Raw};
use crate::state::slot;

/// `char *const argv[]`.
pub(crate) type Vector = *const *const c_char;

/// Environments up to this length are rebuilt on the stack; `posix_spawn` leaves 32 KiB of it.
const SHORT: usize = 1024;
/// The longest `LD_PRELOAD` that is merged with ours.
const PRELOAD_BYTES: usize = 4096;

/// `execveat(2)`, with the agent along.
///
/// # Safety
/// The vectors have to be null or arrays of C strings that end in null, as for the call itself.
pub(crate) unsafe fn execveat(directory: c_int, path: *const c_char, argv: Vector, envp: Vector, flags: c_int) -> Raw {
    // SAFETY: the caller's word.
    let count = unsafe { length(envp) };
    if !can_follow() || !carries(directory, path, flags, 0) {
        let untouched = slot().map(|slot| &slot.exec_untouched);
        if let Some(untouched) = untouched {
            untouched.fetch_add(1, Relaxed);
        }
        // SAFETY: the caller's word.
        let failed = unsafe { make_call(directory, path, argv, envp, flags) };
        // Nothing was started: a folder of PATH that has no such program, mostly.
        if let Some(untouched) = untouched {
            untouched.fetch_sub(1, Relaxed);
        }
        return failed;
    }
    let mut merged = [0u8; PRELOAD_BYTES];
    let mut short = [core::ptr::null::<c_char>(); SHORT];
    if count + 3 <= SHORT {
        // SAFETY: the vector has `count` entries, and `short` has room for three more.
        unsafe { fill(envp, count, &mut short, &mut merged) };
        // SAFETY: the new vector is as good as the old.
        return unsafe { make_call(directory, path, argv, short.as_ptr(), flags) };
    }
    let bytes = (count + 3) * size_of::<*const c_char>();
    // SAFETY: no address is named, so nothing that exists is touched.
    let mapped = unsafe { raw::map_anonymous(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0) };
    if raw::failed(mapped) {
        return mapped;
    }
    let start = core::ptr::with_exposed_provenance_mut::<*const c_char>(mapped.cast_unsigned());
    // SAFETY: just mapped, zeroed, and long enough.
    let long = unsafe { core::slice::from_raw_parts_mut(start, count + 3) };
    // SAFETY: as above.
    let result = unsafe {
        fill(envp, count, long, &mut merged);
        make_call(directory, path, argv, start, flags)
    };
    // SAFETY: the call failed, else this would not run; the vector is this call's own.
    unsafe { raw::munmap(mapped.cast_unsigned(), bytes) };
    result
}

unsafe fn make_call(directory: c_int, path: *const c_char, argv: Vector, envp: Vector, flags: c_int) -> Raw {
    let (path, argv, envp) = (path as usize, argv as usize, envp as usize);
    if directory == libc::AT_FDCWD && flags == 0 {
        // SAFETY: the caller's word.
        return unsafe { raw::syscall(libc::SYS_execve, [path, argv, envp, 0, 0, 0]) };
    }
    // SAFETY: the caller's word.
    unsafe { raw::syscall(libc::SYS_execveat, [directory as usize, path, argv, envp, flags as usize, 0]) }
}

unsafe fn length(vector: Vector) -> usize {
    let mut count = 0;
    // SAFETY: the vector is null or ends in null.
    while !vector.is_null() && unsafe { !(*vector.add(count)).is_null() } {
        count += 1;
    }
    count
}

/// Copies the environment with the agent's two variables at the end, its own `LD_PRELOAD` merged into ours. At the end,
/// because a program that writes its title over its environment needs it without holes.
unsafe fn fill(envp: Vector, count: usize, into: &mut [*const c_char], merged: &mut [u8; PRELOAD_BYTES]) {
    let Some(ours) = inherited() else { return };
    let mut preload = ours.preload.as_ptr();
    let mut next = 0;
    for index in 0..count {
        // SAFETY: the caller counted the entries.
        let entry = unsafe { *envp.add(index) };
        // SAFETY: each is a C string.
        let text = unsafe { CStr::from_ptr(entry) };
        if is_variable(text, PRELOAD) {
            let theirs = &text.to_bytes()[PRELOAD.to_bytes().len() + 1..];
            if merge(ours.preload, theirs, merged) {
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

/// `LD_PRELOAD=agent:theirs`. False where there is nothing to merge or no room for it.
fn merge(ours: &CStr, theirs: &[u8], merged: &mut [u8; PRELOAD_BYTES]) -> bool {
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

/// Whether a program could load the agent and open the session, as the user that it is and below the root that it has.
fn can_follow() -> bool {
    let Some(ours) = inherited() else { return false };
    let value = |entry: &'static CStr, name: &CStr| &entry.to_bytes_with_nul()[name.to_bytes().len() + 1..];
    // As the real user without capabilities, which is what exec leaves of a program that gave up root.
    let may = |path: &[u8], mode: c_int| {
        let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, mode as usize, 0, 0, 0];
        // SAFETY: the end of a C string is one.
        !raw::failed(unsafe { raw::syscall(libc::SYS_faccessat, arguments) })
    };
    may(value(ours.preload, PRELOAD), libc::R_OK) && may(value(ours.session, SESSION_VARIABLE), libc::R_OK | libc::W_OK)
}

/// Whether the file can carry the agent.
fn carries(directory: c_int, path: *const c_char, call_flags: c_int, depth: u32) -> bool {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    if call_flags & libc::AT_EMPTY_PATH != 0 {
        return carries_open(directory, depth);
    }
    let arguments = [directory as usize, path as usize, flags as usize, 0, 0, 0];
    // SAFETY: the kernel reads the path, and says EFAULT where there is none.
    let fd = unsafe { raw::syscall(libc::SYS_openat, arguments) };
    if raw::failed(fd) {
        return false;
    }
    let answer = carries_open(fd as c_int, depth);
    raw::close(fd as c_int);
    answer
}

fn carries_open(fd: c_int, depth: u32) -> bool {
    let mut head = [0u8; 256];
    let read = raw::pread(fd, &mut head, 0);
    if read < 4 || is_set_id(fd) {
        return false;
    }
    if head.starts_with(b"#!") {
        return depth < 4
            && interpreter(&mut head).is_some_and(|path| carries(libc::AT_FDCWD, path.as_ptr(), 0, depth + 1));
    }
    head.starts_with(b"\x7fELF\x02") && same_loader(fd, &head)
}

fn is_set_id(fd: c_int) -> bool {
    let mode = raw::status(fd).st_mode;
    mode == 0 || mode & (libc::S_ISUID | libc::S_ISGID) != 0
}

/// The interpreter that a script's first line names.
fn interpreter(head: &mut [u8; 256]) -> Option<&CStr> {
    let start = 2 + head[2..].iter().position(|&byte| byte != b' ' && byte != b'\t')?;
    let end = start + head[start..].iter().position(|byte| b" \t\n\r\0".contains(byte))?;
    head[end] = 0;
    CStr::from_bytes_with_nul(&head[start..=end]).ok()
}

/// Whether an ELF file asks for the loader that this process runs under, on this machine.
fn same_loader(fd: c_int, head: &[u8; 256]) -> bool {
    const HEADER_BYTES: usize = 56;
    let half = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let machine = if cfg!(target_arch = "x86_64") { libc::EM_X86_64 } else { libc::EM_AARCH64 };
    let table = usize::from_le_bytes(core::array::from_fn(|byte| head[32 + byte]));
    if half(18) != usize::from(machine) || half(54) != HEADER_BYTES {
        return false;
    }
    (0..half(56).min(64)).any(|index| {
        let mut header = [0u8; HEADER_BYTES];
        let read = raw::pread(fd, &mut header, table + index * HEADER_BYTES);
        let word = |at: usize| usize::from_le_bytes(core::array::from_fn(|byte| header[at + byte]));
        let kind = u32::from_le_bytes(core::array::from_fn(|byte| header[byte]));
        read == HEADER_BYTES as Raw && kind == libc::PT_INTERP && names_our_loader(fd, word(8), word(32))
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
    use crate::environment::remember_loader;

    fn merged(ours: &CStr, theirs: &[u8]) -> Option<String> {
        let mut room = [b'x'; PRELOAD_BYTES];
        let merged = merge(ours, theirs, &mut room);
        merged.then(|| String::from(CStr::from_bytes_until_nul(&room).unwrap().to_str().unwrap()))
    }

    #[test]
    fn the_programs_preload_goes_behind_ours() {
        assert_eq!(merged(c"LD_PRELOAD=/a.so", b"b.so:c.so").as_deref(), Some("LD_PRELOAD=/a.so:b.so:c.so"));
        assert_eq!(merged(c"LD_PRELOAD=/a.so", b""), None);
    }

    #[test]
    fn a_preload_that_does_not_fit_is_left_out() {
        let ours = c"LD_PRELOAD=/a.so";
        let room = PRELOAD_BYTES - ours.to_bytes().len() - 2;
        assert_eq!(merged(ours, &[b'y'; PRELOAD_BYTES][..room]).unwrap().len(), PRELOAD_BYTES - 1);
        assert_eq!(merged(ours, &[b'y'; PRELOAD_BYTES][..room + 1]), None);
    }

    fn named(line: &[u8]) -> Option<String> {
        let mut head = [b'x'; 256];
        head[..line.len()].copy_from_slice(line);
        interpreter(&mut head).map(|path| String::from(path.to_str().unwrap()))
    }

    #[test]
    fn a_scripts_first_line_names_its_interpreter() {
        assert_eq!(named(b"#!/bin/sh\n").as_deref(), Some("/bin/sh"));
        assert_eq!(named(b"#! \t/usr/bin/env python3\n").as_deref(), Some("/usr/bin/env"));
        assert_eq!(named(b"#!/bin/sh\0").as_deref(), Some("/bin/sh"), "a file that ends there");
        assert_eq!(named(b"#!/endless"), None);
    }

    #[test]
    fn a_file_of_our_loader_can_carry_the_agent() {
        let running = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(!carries_open(running.as_raw_fd(), 0), "no loader is known yet");
        remember_loader(c"/lib/ld-of-another-world.so".as_ptr());
        assert!(!carries_open(running.as_raw_fd(), 0), "another loader");
        crate::start::remember_loader();
        assert!(carries_open(running.as_raw_fd(), 0));
        assert!(carries(libc::AT_FDCWD, c"/proc/self/exe".as_ptr(), 0, 0));
        assert!(!carries(libc::AT_FDCWD, c"/proc/self/maps".as_ptr(), 0, 0), "no program");
        assert!(!carries(libc::AT_FDCWD, c"/no/such/file".as_ptr(), 0, 0));
    }
}
