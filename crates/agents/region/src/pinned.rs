//! Whether the kernel may be writing to the program's memory past its page tables.
//!
//! Direct I/O and io_uring's registered buffers hold pages by their frames. Nothing keeps such a writer out while a
//! page is copied, and what it writes afterwards goes to the frame that was left. So a program that has such a
//! descriptor open keeps its hugetlb pages where they are. (vmsplice and RDMA pin pages too and cannot be seen.)

#![allow(unsafe_code, reason = "reads the process's own descriptors from /proc")]

use core::ffi::{CStr, c_int};

use crate::raw;

const DIRECTORY: &CStr = c"/proc/self/fdinfo";
const URING: &[u8] = b"anon_inode:[io_uring]";

/// Whether a descriptor is open through which pages can be pinned. True too where that cannot be told.
pub(crate) fn possible() -> bool {
    // SAFETY: a C string.
    let directory = unsafe { raw::open(DIRECTORY.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    if raw::failed(directory) {
        return true;
    }
    let found = any_entry(directory as c_int);
    raw::close(directory as c_int);
    found
}

fn any_entry(directory: c_int) -> bool {
    let mut buffer = [0u8; 2048];
    loop {
        let place = buffer.as_mut_ptr() as usize;
        // SAFETY: the kernel writes inside the buffer only.
        let read = unsafe { raw::syscall(libc::SYS_getdents64, [directory as usize, place, buffer.len(), 0, 0, 0]) };
        if read <= 0 {
            return read < 0;
        }
        let mut at = 0;
        while at < read.cast_unsigned() {
            // struct linux_dirent64: inode, offset, length (2 bytes at 16), type, name from 19 on.
            let length = usize::from(u16::from_le_bytes([buffer[at + 16], buffer[at + 17]]));
            let name = CStr::from_bytes_until_nul(&buffer[at + 19..at + length]).unwrap_or(c".");
            if name.to_bytes()[0] != b'.' && (is_direct(directory, name) || is_uring(name)) {
                return true;
            }
            at += length;
        }
    }
}

fn is_direct(directory: c_int, name: &CStr) -> bool {
    let arguments = [directory as usize, name.as_ptr() as usize, (libc::O_RDONLY | libc::O_CLOEXEC) as usize, 0, 0, 0];
    // SAFETY: a C string.
    let fd = unsafe { raw::syscall(libc::SYS_openat, arguments) };
    // Closed meanwhile by another thread: it pins nothing any more.
    if raw::failed(fd) {
        return false;
    }
    let mut text = [0u8; 128];
    let read = raw::pread(fd as c_int, &mut text, 0);
    raw::close(fd as c_int);
    flags_of(&text[..usize::try_from(read).unwrap_or(0)]).is_none_or(|flags| flags & libc::O_DIRECT != 0)
}

/// The open flags in a text of `/proc/PID/fdinfo`, where they are octal.
fn flags_of(text: &[u8]) -> Option<i32> {
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"flags:"))?;
    let digits = line.trim_ascii();
    digits.iter().try_fold(0_i32, |flags, digit| match digit {
        b'0'..=b'7' => flags.checked_mul(8)?.checked_add(i32::from(digit - b'0')),
        _ => None,
    })
}

fn is_uring(name: &CStr) -> bool {
    let mut path = [0u8; 40];
    let prefix = b"/proc/self/fd/";
    let name = name.to_bytes_with_nul();
    if prefix.len() + name.len() > path.len() {
        return false;
    }
    path[..prefix.len()].copy_from_slice(prefix);
    path[prefix.len()..prefix.len() + name.len()].copy_from_slice(name);
    let mut target = [0u8; 32];
    let at = libc::AT_FDCWD as usize;
    let arguments = [at, path.as_ptr() as usize, target.as_mut_ptr() as usize, target.len(), 0, 0];
    // SAFETY: the path is a C string; the kernel writes inside the buffer only.
    let read = unsafe { raw::syscall(libc::SYS_readlinkat, arguments) };
    usize::try_from(read).is_ok_and(|read| target[..read].starts_with(URING))
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;

    #[test]
    fn flags_are_octal() {
        assert_eq!(flags_of(b"pos:\t0\nflags:\t0100002\nmnt_id:\t9\n"), Some(0o100_002));
        assert_eq!(flags_of(b"pos:\t0\n"), None);
        assert_eq!(flags_of(b"flags:\t09\n"), None);
    }

    #[test]
    fn a_direct_descriptor_is_seen_while_it_is_open() {
        let path = std::env::temp_dir().join(std::format!("fieldstone-direct-{}", std::process::id()));
        File::create(&path).unwrap();
        let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
        std::fs::remove_file(&path).unwrap();
        let Ok(direct) = direct else {
            std::println!("SKIP no direct I/O in the temporary directory");
            return;
        };
        assert!(possible());
        drop(direct);
        assert!(!possible());
    }
}
