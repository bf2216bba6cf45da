//! Shared by the tests: probes of memory that cannot fault, and small shortcuts.

#![allow(dead_code, unsafe_code, reason = "each test file uses some of this; it probes memory")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]

use std::alloc::Layout;
use std::ptr::NonNull;

use fieldstone_guard::Slots;

pub(crate) const PAGE: usize = 4096;

/// Whether a byte can be read. The kernel reads it, so nothing faults.
pub(crate) fn is_accessible(address: usize) -> bool {
    let mut byte = 0_u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: 1 };
    // SAFETY: the call writes to a live local only.
    unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) == 1 }
}

pub(crate) fn layout(bytes: usize, alignment: usize) -> Layout {
    Layout::from_size_align(bytes, alignment).unwrap()
}

pub(crate) fn alloc(slots: &Slots, bytes: usize) -> NonNull<u8> {
    slots.alloc(layout(bytes, 16)).unwrap()
}

/// Frees an object without a finding.
pub(crate) fn free(slots: &Slots, object: NonNull<u8>) {
    // SAFETY: the tests access freed objects by probes only.
    assert_eq!(unsafe { slots.free(object) }, Ok(()));
}

/// Writes a byte at an offset from an object.
pub(crate) fn write(object: NonNull<u8>, offset: isize, value: u8) {
    // SAFETY: the tests write inside an object or its padding, which is accessible.
    unsafe { object.as_ptr().offset(offset).write_volatile(value) }
}

pub(crate) fn read(object: NonNull<u8>, offset: usize) -> u8 {
    // SAFETY: the tests read inside an object.
    unsafe { object.as_ptr().add(offset).read_volatile() }
}

/// Fills an object.
pub(crate) fn fill(object: NonNull<u8>, bytes: usize, value: u8) {
    // SAFETY: the tests pass live objects.
    unsafe { object.as_ptr().write_bytes(value, bytes) }
}

/// Whether all bytes of an object have a value.
pub(crate) fn is_filled(object: NonNull<u8>, bytes: usize, value: u8) -> bool {
    // SAFETY: the tests pass live objects, which no other thread writes.
    let contents = unsafe { std::slice::from_raw_parts(object.as_ptr(), bytes) };
    contents.iter().all(|&byte| byte == value)
}

/// The number of mappings of this process.
pub(crate) fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// The exit status of a child that runs `f`; 101 if it panicked, negative for a signal.
pub(crate) fn in_child(f: impl FnOnce()) -> i32 {
    // SAFETY: the child runs `f` and ends without returning.
    match unsafe { libc::fork() } {
        0 => {
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            // SAFETY: the call ends the child, which owns no resource.
            unsafe { libc::_exit(if result.is_ok() { 0 } else { 101 }) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child of this test.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            if libc::WIFSIGNALED(status) { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
        }
    }
}
