//! Which hugetlb pages the kernel holds by their frames.
//!
//! Direct I/O, io_uring, RDMA and VFIO *pin* the frame of a page and write to it past the page tables. A copy of the page
//! would miss what they write later. No file of the kernel shows a pin, but fork(2) heeds it: the child gets a copy of a
//! pinned page at once, and shares every other page (`copy_hugetlb_page_range`, Linux 5.12).
//!
//! ```text
//! 1. the caller write-protects the pages by userfaultfd: from now on no writer can pin one of them
//! 2. clone(CLONE_VFORK) starts a child, which reads the parent's page table:
//!        mapped by both processes: not pinned        mapped by the parent alone: pinned
//! 3. the child ends, and this thread goes on
//! ```
//!
//! Invariants: the child makes system calls only and runs none of the program's handlers, since every signal is blocked.
//! It sends no SIGCHLD, and only a wait for clone children (`__WALL`) sees it.
//!
//! Some writers take a reference without pinning: direct I/O on network file systems, and on all before Linux 6.5. A
//! descriptor that is open for it counts as a pin of every page.
//!
//! Cost: a fork (0.2 ms for a small process), and one read a page.

#![allow(unsafe_code, reason = "starts a child, and reads the process's own tables from /proc")]

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};

use crate::kept::{Descriptor, Kept, raise};
use crate::raw::{self, Raw};
use crate::table::{GIANT, GRANULE, PAGE};

const TABLE: &CStr = c"/proc/self/pagemap";
const DESCRIPTORS: &CStr = c"/proc/self/fd";

// Bits of an entry of `pagemap`.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const EXCLUSIVE: u64 = 1 << 56;

/// A buffer that is registered stays pinned however often it is looked at; a read from a disk ends within milliseconds.
const LOOKS: usize = 3;
const PAUSE_NANOSECONDS: i64 = 1_000_000;

/// Descriptors are searched for up to this number: some milliseconds.
const MOST_SEARCHED: c_int = 1 << 16;

/// Magic numbers of file systems whose direct I/O takes references without pinning: NFS, Ceph, 9p, and FUSE of older kernels.
const REMOTE: [i64; 4] = [0x6969, 0x00c3_6400, 0x0102_1997, 0x6573_5546];

/// The page table of this process, opened while that was permitted.
static KEPT: Kept = Kept::new();
/// Its inode, by which it is recognised.
static INODE: AtomicU64 = AtomicU64::new(0);

/// Whether the kernel holds a page.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// It cannot be seen.
    Unknown = 0,
    /// The page can be moved.
    Free = 1,
    /// Something is written to its frame, or may be.
    Pinned = 2,
}

impl Hold {
    fn of(byte: u8) -> Self {
        match byte {
            1 => Self::Free,
            2 => Self::Pinned,
            _ => Self::Unknown,
        }
    }

    /// From the entry of a page that a child shares unless it is pinned.
    fn of_entry(entry: u64) -> Self {
        match entry {
            _ if entry & SWAPPED != 0 => Self::Unknown,
            _ if entry & PRESENT != 0 && entry & EXCLUSIVE != 0 => Self::Pinned,
            _ => Self::Free,
        }
    }
}

/// Opens the page table that stays open. False where this user may not.
pub(crate) fn keep() -> bool {
    let Some(table) = open_table() else { return false };
    let fd = raise(table.into_kept());
    INODE.store(raw::status(fd).st_ino, SeqCst);
    KEPT.keep(fd);
    true
}

/// Closes the kept table: nothing lies on hugetlb pages any more.
pub(crate) fn discard() {
    KEPT.discard(is_kept);
}

fn is_kept(fd: i32) -> bool {
    let inode = raw::status(fd).st_ino;
    inode != 0 && inode == INODE.load(SeqCst)
}

fn open_table() -> Option<Descriptor> {
    // SAFETY: a C string.
    let fd = unsafe { raw::open(TABLE.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    (!raw::failed(fd)).then(|| Descriptor::fresh(fd as i32))
}

/// As [`look`], but gives direct I/O that is under way a moment to end.
pub(crate) fn look_patiently(address: usize, holds: &mut [Hold]) {
    for turn in 0..LOOKS {
        if turn > 0 {
            raw::sleep(PAUSE_NANOSECONDS);
        }
        look(address, holds);
        if !holds.contains(&Hold::Pinned) {
            return;
        }
    }
}

/// Looks at as many granules from `address` on as there are `holds`. Nobody may be able to write to them meanwhile.
fn look(address: usize, holds: &mut [Hold]) {
    holds.fill(Hold::Unknown);
    match has_unpinned_writer() {
        None => return,
        Some(true) => return holds.fill(Hold::Pinned),
        Some(false) => {}
    }
    let kept = KEPT.get().filter(|&fd| is_kept(fd)).map(Descriptor::kept);
    let Some(table) = kept.or_else(open_table) else { return };
    // SAFETY: no address is named, so nothing that exists is touched.
    let mapped = unsafe { raw::mmap(0, PAGE, crate::place::READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0) };
    if raw::failed(mapped) {
        return;
    }
    let answers = core::ptr::with_exposed_provenance::<[AtomicU8; GIANT]>(mapped.cast_unsigned());
    // SAFETY: just mapped, zeroed, a page long and aligned; parent and child share it, and it is all atomics.
    let answers = unsafe { &*answers };
    // Without memory for the child's copy of a pinned page there is no child.
    if ask_child(table.fd, address, &answers[..holds.len()]) == -(libc::ENOMEM as Raw) {
        holds.fill(Hold::Pinned);
    } else {
        holds.iter_mut().zip(answers).for_each(|(hold, answer)| *hold = Hold::of(answer.load(SeqCst)));
    }
    // SAFETY: mapped by this call, and not referred to any more.
    unsafe { raw::munmap(mapped.cast_unsigned(), PAGE) };
}

/// Starts a child that answers for each granule from `address` on, and waits for its end. Leaves zeroes where that fails, with
/// a negated errno.
fn ask_child(table: c_int, address: usize, answers: &[AtomicU8]) -> Raw {
    let (all, mut mask) = (u64::MAX, 0_u64);
    let set_mask = |new: *const u64, old: *mut u64| {
        let arguments = [libc::SIG_SETMASK as usize, new as usize, old as usize, size_of::<u64>(), 0, 0];
        // SAFETY: the kernel reads the new mask and writes the old one, both of them eight bytes.
        unsafe { raw::syscall(libc::SYS_rt_sigprocmask, arguments) }
    };
    let masked = set_mask(&raw const all, &raw mut mask);
    if raw::failed(masked) {
        return masked;
    }
    let flags = libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_UNTRACED;
    // SAFETY: without CLONE_VM the child has its own copy of this stack, as after fork(2); it makes system calls only.
    let child = unsafe { raw::syscall(libc::SYS_clone, [flags as usize, 0, 0, 0, 0, 0]) };
    if child == 0 {
        answer_all(table, address, answers);
    }
    if !raw::failed(child) {
        // SAFETY: asks for no status. The program may have taken this child's end already: then nothing is left to wait for.
        unsafe { raw::syscall(libc::SYS_wait4, [child.cast_unsigned(), 0, libc::__WALL as usize, 0, 0, 0]) };
    }
    set_mask(&raw const mask, core::ptr::null_mut());
    child
}

/// The child's whole life.
fn answer_all(table: c_int, address: usize, answers: &[AtomicU8]) -> ! {
    for (granule, answer) in answers.iter().enumerate() {
        let mut entry = [0u8; 8];
        let offset = (address + granule * GRANULE) / PAGE * entry.len();
        if raw::pread(table, &mut entry, offset) == entry.len().cast_signed() {
            answer.store(Hold::of_entry(u64::from_le_bytes(entry)) as u8, SeqCst);
        }
    }
    loop {
        // SAFETY: ends this process, which is the child.
        unsafe { raw::syscall(libc::SYS_exit_group, [0; 6]) };
    }
}

/// Whether a descriptor is open by which the kernel writes to frames that it has not pinned. `None` where that cannot be seen.
fn has_unpinned_writer() -> Option<bool> {
    // SAFETY: a C string.
    let directory = unsafe { raw::open(DESCRIPTORS.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    if raw::failed(directory) {
        return search_descriptors();
    }
    let directory = Descriptor::fresh(directory as i32);
    let mut buffer = [0u8; 2048];
    loop {
        let arguments = [directory.fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
        // SAFETY: the kernel writes inside the buffer only.
        let read = unsafe { raw::syscall(libc::SYS_getdents64, arguments) };
        match usize::try_from(read) {
            Err(_) => return None,
            Ok(0) => return Some(false),
            Ok(read) if numbers(&buffer[..read]).any(writes_unpinned) => return Some(true),
            Ok(_) => {}
        }
    }
}

/// The answer where no descriptor is free for a look into the directory: its size is the number of those that are open
/// (Linux 6.2), and each is searched for from the lowest on.
fn search_descriptors() -> Option<bool> {
    let mut left = raw::status_at(DESCRIPTORS).st_size;
    for fd in 0..MOST_SEARCHED {
        // SAFETY: asks for the flags of a descriptor.
        let flags = unsafe { raw::syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) };
        match () {
            () if left == 0 => return None,
            () if flags == -(libc::EBADF as isize) => continue,
            () if writes_unpinned(fd) => return Some(true),
            () if left == 1 => return Some(false),
            () => left -= 1,
        }
    }
    None
}

/// The descriptors in entries of `/proc/self/fd`.
fn numbers(entries: &[u8]) -> impl Iterator<Item = c_int> {
    let mut rest = entries;
    core::iter::from_fn(move || {
        // struct linux_dirent64: inode, offset, length (2 bytes at 16), type, name from 19 on.
        let length = usize::from(u16::from_le_bytes([*rest.get(16)?, *rest.get(17)?]));
        let (entry, behind) = rest.split_at_checked(length)?;
        rest = behind;
        Some(CStr::from_bytes_until_nul(entry.get(19..)?).unwrap_or(c"."))
    })
    .filter_map(|name| name.to_str().ok()?.parse().ok())
}

/// Whether a descriptor is open for direct I/O that does not pin. One that was closed meanwhile is not.
fn writes_unpinned(fd: c_int) -> bool {
    // SAFETY: asks for the flags of a descriptor.
    let flags = unsafe { raw::syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    if flags == -(libc::EBADF as isize) {
        return false;
    }
    // Also where a sandbox refuses the question.
    raw::failed(flags) || flags & libc::O_DIRECT as isize != 0 && (!raw::kernel_is(6, 5) || is_remote(fd))
}

fn is_remote(fd: c_int) -> bool {
    let mut found = core::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel fills the record; zeroed is a valid one.
    let (result, found) = unsafe {
        let result = raw::syscall(libc::SYS_fstatfs, [fd as usize, found.as_mut_ptr() as usize, 0, 0, 0, 0]);
        (result, found.assume_init())
    };
    raw::failed(result) || REMOTE.contains(&found.f_type)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::vec;

    use super::*;

    /// The holds of `count` pages of ordinary memory, which the kernel treats alike.
    fn holds_of(address: usize, count: usize) -> vec::Vec<Hold> {
        let mut holds = vec![Hold::Unknown; count];
        look(address, &mut holds);
        holds
    }

    #[test]
    fn a_shared_page_is_free_and_an_exclusive_one_is_pinned() {
        assert_eq!(Hold::of_entry(PRESENT), Hold::Free);
        assert_eq!(Hold::of_entry(PRESENT | EXCLUSIVE), Hold::Pinned);
        assert_eq!(Hold::of_entry(0), Hold::Free, "nothing is there");
        assert_eq!(Hold::of_entry(SWAPPED), Hold::Unknown);
        for hold in [Hold::Unknown, Hold::Free, Hold::Pinned] {
            assert_eq!(Hold::of(hold as u8), hold);
        }
    }

    #[test]
    fn pages_that_nothing_holds_are_free() {
        // SAFETY: no address is named, so nothing that exists is touched.
        let mapped = unsafe { raw::map_anonymous(0, 2 * GRANULE, crate::place::READ_WRITE, 0) }.cast_unsigned();
        // SAFETY: just mapped.
        unsafe { core::ptr::with_exposed_provenance_mut::<u8>(mapped).write(1) };
        assert_eq!(holds_of(mapped, 2), [Hold::Free, Hold::Free]);
    }

    #[test]
    fn a_page_of_a_registered_buffer_is_pinned() {
        const REGISTER_BUFFERS: usize = 0;
        let mut parameters = [0u8; 120];
        let setup = [4, parameters.as_mut_ptr() as usize, 0, 0, 0, 0];
        // SAFETY: the kernel reads and fills the parameters, which are as long.
        let ring = unsafe { raw::syscall(libc::SYS_io_uring_setup, setup) };
        if raw::failed(ring) {
            std::println!("SKIP no io_uring here");
            return;
        }
        // SAFETY: no address is named, so nothing that exists is touched.
        let mapped = unsafe { raw::map_anonymous(0, 2 * GRANULE, crate::place::READ_WRITE, 0) }.cast_unsigned();
        let buffer = [mapped, PAGE];
        let register = [ring.cast_unsigned(), REGISTER_BUFFERS, buffer.as_ptr() as usize, 1, 0, 0];
        // SAFETY: one iovec, of this test's own mapping.
        assert!(!raw::failed(unsafe { raw::syscall(libc::SYS_io_uring_register, register) }));
        assert_eq!(holds_of(mapped, 2), [Hold::Pinned, Hold::Free]);
        raw::close(ring as i32);
    }

    #[test]
    fn descriptors_are_found_without_the_directory() {
        let held = File::open("/dev/null").unwrap();
        match search_descriptors() {
            Some(found) => assert_eq!(Some(found), has_unpinned_writer()),
            None => std::println!("SKIP this kernel does not say how many descriptors are open"),
        }
        drop(held);
    }

    #[test]
    fn entries_of_a_directory_are_read_as_numbers() {
        let open = File::open("/dev/null").unwrap();
        let directory = File::open("/proc/self/fd").unwrap();
        let mut buffer = [0u8; 4096];
        let arguments = [directory.as_raw_fd() as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
        // SAFETY: the kernel writes inside the buffer only.
        let read = unsafe { raw::syscall(libc::SYS_getdents64, arguments) };
        let found: vec::Vec<_> = numbers(&buffer[..read.cast_unsigned()]).collect();
        assert!(found.contains(&open.as_raw_fd()), "{found:?}");
        assert!(!writes_unpinned(open.as_raw_fd()) && !is_remote(open.as_raw_fd()));
        assert_eq!(numbers(&[0; 7]).count(), 0);
    }
}
