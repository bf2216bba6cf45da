//! Detects hugetlb pages that the kernel has pinned.
//!
//! Direct I/O, io_uring, RDMA and VFIO *pin* the frame of a page and write to it without the page
//! tables. A copy of the page would miss later writes. The kernel reports pins in no file, but
//! fork(2) respects them: the child gets a copy of a pinned page at once and shares every other
//! page (`copy_hugetlb_page_range`, Linux 5.12).
//!
//! ```text
//! 1. the caller write-protects the pages by userfaultfd: no new writer can pin one of them
//! 2. clone(CLONE_VFORK) starts a child, which reads the parent's page table:
//!        mapped by both processes: not pinned        mapped by the parent alone: pinned
//! 3. the child exits, and this thread continues
//! ```
//!
//! Invariants: the child makes system calls only and runs no signal handler, since every signal is
//! blocked. It sends no SIGCHLD, and only a wait for clone children (`__WALL`) sees it.
//!
//! Some writers take a reference without a pin: direct I/O on network file systems, and all direct
//! I/O before Linux 6.5. A descriptor open for such I/O counts as a pin of every page.
//!
//! Cost: one fork (0.2 ms for a small process), and one read for each page.

#![allow(unsafe_code, reason = "starts a child, and reads the process's own tables from /proc")]

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};

use crate::descriptors::{Descriptor, StoredDescriptor, move_high};
use crate::raw::{self, RawResult};
use crate::table::{GIANT, GRANULE, PAGE};

const PAGEMAP: &CStr = c"/proc/self/pagemap";
const DESCRIPTORS: &CStr = c"/proc/self/fd";

// Bits of an entry of `pagemap`.
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const EXCLUSIVE: u64 = 1 << 56;

/// Attempts until a page counts as pinned: a disk read ends within milliseconds, a registered
/// buffer stays pinned.
const ATTEMPTS: usize = 3;
const PAUSE_NANOSECONDS: i64 = 1_000_000;

/// The highest descriptor that is searched; the search takes some milliseconds.
const MAX_SEARCHED: c_int = 1 << 16;

/// Magic numbers of file systems whose direct I/O takes no pins: NFS, Ceph, 9p, and FUSE of older
/// kernels.
const UNPINNED_FILE_SYSTEMS: [i64; 4] = [0x6969, 0x00c3_6400, 0x0102_1997, 0x6573_5546];

/// The page table of this process (`/proc/self/pagemap`), opened at the start, while that is
/// permitted.
static STORED: StoredDescriptor = StoredDescriptor::new();
/// The inode of that file, which identifies it.
static INODE: AtomicU64 = AtomicU64::new(0);

/// Whether the kernel has pinned a page.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinState {
    /// The state cannot be determined.
    Unknown = 0,
    /// The page can be moved.
    Unpinned = 1,
    /// Its frame may be written without the page tables.
    Pinned = 2,
}

impl PinState {
    fn of(byte: u8) -> Self {
        match byte {
            1 => Self::Unpinned,
            2 => Self::Pinned,
            _ => Self::Unknown,
        }
    }

    /// The state by the entry of a page that a child shares unless it is pinned.
    fn of_entry(entry: u64) -> Self {
        match entry {
            _ if entry & SWAPPED != 0 => Self::Unknown,
            _ if entry & PRESENT != 0 && entry & EXCLUSIVE != 0 => Self::Pinned,
            _ => Self::Unpinned,
        }
    }
}

/// Opens the page table and keeps it open. False if this user may not.
pub(crate) fn open_stored() -> bool {
    let Some(table) = open_table() else { return false };
    let fd = move_high(table.into_stored());
    INODE.store(raw::status(fd).st_ino, SeqCst);
    STORED.store(fd);
    true
}

/// Closes the page table: no memory is on hugetlb pages any more.
pub(crate) fn discard() {
    STORED.discard(is_stored);
}

fn is_stored(fd: i32) -> bool {
    let inode = raw::status(fd).st_ino;
    inode != 0 && inode == INODE.load(SeqCst)
}

fn open_table() -> Option<Descriptor> {
    // SAFETY: `PAGEMAP` is a NUL-terminated C string.
    let fd = unsafe { raw::open(PAGEMAP.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    (!raw::failed(fd)).then(|| Descriptor::fresh(fd as i32))
}

/// As [`detect`], but retries so that direct I/O in progress can end.
pub(crate) fn detect_with_retries(address: usize, pins: &mut [PinState]) {
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            raw::sleep(PAUSE_NANOSECONDS);
        }
        detect(address, pins);
        if !pins.contains(&PinState::Pinned) {
            return;
        }
    }
}

/// Sets `pins` for the granules from `address` on. No thread may be able to write to them
/// meanwhile.
fn detect(address: usize, pins: &mut [PinState]) {
    pins.fill(PinState::Unknown);
    match has_unpinned_writer() {
        None => return,
        Some(true) => return pins.fill(PinState::Pinned),
        Some(false) => {}
    }
    let stored = STORED.get().filter(|&fd| is_stored(fd)).map(Descriptor::stored);
    let Some(table) = stored.or_else(open_table) else { return };
    // SAFETY: without a fixed address the kernel picks a free range, so no mapping is replaced.
    let mapped =
        unsafe { raw::mmap(0, PAGE, crate::placement::READ_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1, 0) };
    if raw::failed(mapped) {
        return;
    }
    let states = core::ptr::with_exposed_provenance::<[AtomicU8; GIANT]>(mapped.cast_unsigned());
    // SAFETY: the page is mapped, zeroed and aligned; parent and child share it and access it by
    // atomics only.
    let states = unsafe { &*states };
    // ENOMEM means that the child could not copy a pinned page.
    if run_child(table.fd, address, &states[..pins.len()]) == -(libc::ENOMEM as RawResult) {
        pins.fill(PinState::Pinned);
    } else {
        pins.iter_mut().zip(states).for_each(|(pin, state)| *pin = PinState::of(state.load(SeqCst)));
    }
    // SAFETY: this call mapped the page, and `states` is not used after this.
    unsafe { raw::munmap(mapped.cast_unsigned(), PAGE) };
}

/// Starts a child that writes the state of each granule from `address` on, and waits for its exit.
/// On failure returns a negated errno and leaves the states zero.
fn run_child(table: c_int, address: usize, states: &[AtomicU8]) -> RawResult {
    let (all, mut mask) = (u64::MAX, 0_u64);
    let set_mask = |new: *const u64, old: *mut u64| {
        let arguments = [libc::SIG_SETMASK as usize, new as usize, old as usize, size_of::<u64>(), 0, 0];
        // SAFETY: the kernel reads the new mask and writes the old one; each is null or points to
        // eight bytes.
        unsafe { raw::syscall(libc::SYS_rt_sigprocmask, arguments) }
    };
    let masked = set_mask(&raw const all, &raw mut mask);
    if raw::failed(masked) {
        return masked;
    }
    let flags = libc::CLONE_VFORK | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_UNTRACED;
    // SAFETY: without CLONE_VM the child has its own copy of this stack, as after fork(2), and only
    // makes system calls.
    let child = unsafe { raw::syscall(libc::SYS_clone, [flags as usize, 0, 0, 0, 0, 0]) };
    if child == 0 {
        child_main(table, address, states);
    }
    if !raw::failed(child) {
        // SAFETY: no status is requested. If the program has already reaped the child, the call
        // fails without effect.
        unsafe { raw::syscall(libc::SYS_wait4, [child.cast_unsigned(), 0, libc::__WALL as usize, 0, 0, 0]) };
    }
    set_mask(&raw const mask, core::ptr::null_mut());
    child
}

/// The code of the child.
fn child_main(table: c_int, address: usize, states: &[AtomicU8]) -> ! {
    for (granule, state) in states.iter().enumerate() {
        let mut entry = [0u8; 8];
        let offset = (address + granule * GRANULE) / PAGE * entry.len();
        if raw::pread(table, &mut entry, offset) == entry.len().cast_signed() {
            state.store(PinState::of_entry(u64::from_le_bytes(entry)) as u8, SeqCst);
        }
    }
    loop {
        // SAFETY: the call ends this process, which is the child.
        unsafe { raw::syscall(libc::SYS_exit_group, [0; 6]) };
    }
}

/// Whether a descriptor is open by which the kernel writes to frames without a pin. `None` if that
/// cannot be determined.
fn has_unpinned_writer() -> Option<bool> {
    // SAFETY: `DESCRIPTORS` is a NUL-terminated C string.
    let directory = unsafe { raw::open(DESCRIPTORS.as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) };
    if raw::failed(directory) {
        return search_descriptors();
    }
    let directory = Descriptor::fresh(directory as i32);
    let mut buffer = [0u8; 2048];
    loop {
        let arguments = [directory.fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
        // SAFETY: the kernel writes at most `buffer.len()` bytes to the buffer.
        let read = unsafe { raw::syscall(libc::SYS_getdents64, arguments) };
        match usize::try_from(read) {
            Err(_) => return None,
            Ok(0) => return Some(false),
            Ok(read) if numbers(&buffer[..read]).any(writes_unpinned) => return Some(true),
            Ok(_) => {}
        }
    }
}

/// As [`has_unpinned_writer`], if no descriptor is free to open the directory. Its size is the
/// number of open descriptors (Linux 6.2); each number is tried from the lowest on.
fn search_descriptors() -> Option<bool> {
    let mut left = raw::status_at(DESCRIPTORS).st_size;
    for fd in 0..MAX_SEARCHED {
        // SAFETY: F_GETFD reads the flags of a descriptor and changes nothing.
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

/// The descriptors in directory entries of `/proc/self/fd`.
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

/// Whether a descriptor is open for direct I/O without pins. False if it was closed meanwhile.
fn writes_unpinned(fd: c_int) -> bool {
    // SAFETY: F_GETFL reads the flags of a descriptor and changes nothing.
    let flags = unsafe { raw::syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    if flags == -(libc::EBADF as isize) {
        return false;
    }
    // A sandbox that refuses the question counts as such a writer.
    raw::failed(flags) || flags & libc::O_DIRECT as isize != 0 && (!raw::kernel_is(6, 5) || lacks_pins(fd))
}

fn lacks_pins(fd: c_int) -> bool {
    let mut found = core::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel writes within the record, and all zeroes are a valid value of it.
    let (result, found) = unsafe {
        let result = raw::syscall(libc::SYS_fstatfs, [fd as usize, found.as_mut_ptr() as usize, 0, 0, 0, 0]);
        (result, found.assume_init())
    };
    raw::failed(result) || UNPINNED_FILE_SYSTEMS.contains(&found.f_type)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::vec;

    use super::*;

    /// The states of `count` pages of ordinary memory, which the kernel treats like hugetlb pages.
    fn pins_of(address: usize, count: usize) -> vec::Vec<PinState> {
        let mut pins = vec![PinState::Unknown; count];
        detect(address, &mut pins);
        pins
    }

    #[test]
    fn a_shared_page_is_free_and_an_exclusive_one_is_pinned() {
        assert_eq!(PinState::of_entry(PRESENT), PinState::Unpinned);
        assert_eq!(PinState::of_entry(PRESENT | EXCLUSIVE), PinState::Pinned);
        assert_eq!(PinState::of_entry(0), PinState::Unpinned, "nothing is mapped");
        assert_eq!(PinState::of_entry(SWAPPED), PinState::Unknown);
        for pin in [PinState::Unknown, PinState::Unpinned, PinState::Pinned] {
            assert_eq!(PinState::of(pin as u8), pin);
        }
    }

    #[test]
    fn pages_without_a_pin_are_free() {
        // SAFETY: without a fixed address the kernel picks a free range, so no mapping is replaced.
        let mapped = unsafe { raw::map_anonymous(0, 2 * GRANULE, crate::placement::READ_WRITE, 0) }.cast_unsigned();
        // SAFETY: the page was mapped writable just now, and only this test uses it.
        unsafe { core::ptr::with_exposed_provenance_mut::<u8>(mapped).write(1) };
        assert_eq!(pins_of(mapped, 2), [PinState::Unpinned, PinState::Unpinned]);
    }

    #[test]
    fn a_page_of_a_registered_buffer_is_pinned() {
        const REGISTER_BUFFERS: usize = 0;
        let mut parameters = [0u8; 120];
        let setup = [4, parameters.as_mut_ptr() as usize, 0, 0, 0, 0];
        // SAFETY: the kernel reads and fills the parameters, an array of the size of
        // io_uring_params.
        let ring = unsafe { raw::syscall(libc::SYS_io_uring_setup, setup) };
        if raw::failed(ring) {
            std::println!("SKIP no io_uring here");
            return;
        }
        // SAFETY: without a fixed address the kernel picks a free range, so no mapping is replaced.
        let mapped = unsafe { raw::map_anonymous(0, 2 * GRANULE, crate::placement::READ_WRITE, 0) }.cast_unsigned();
        let buffer = [mapped, PAGE];
        let register = [ring.cast_unsigned(), REGISTER_BUFFERS, buffer.as_ptr() as usize, 1, 0, 0];
        // SAFETY: the kernel reads one iovec, `buffer`, that names a mapping of this test.
        assert!(!raw::failed(unsafe { raw::syscall(libc::SYS_io_uring_register, register) }));
        assert_eq!(pins_of(mapped, 2), [PinState::Pinned, PinState::Unpinned]);
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
        // SAFETY: the kernel writes at most `buffer.len()` bytes to the buffer.
        let read = unsafe { raw::syscall(libc::SYS_getdents64, arguments) };
        let found: vec::Vec<_> = numbers(&buffer[..read.cast_unsigned()]).collect();
        assert!(found.contains(&open.as_raw_fd()), "{found:?}");
        assert!(!writes_unpinned(open.as_raw_fd()) && !lacks_pins(open.as_raw_fd()));
        assert_eq!(numbers(&[0; 7]).count(), 0);
    }
}
