//! Writes by the calls that a debugger uses: process_vm_writev(2) and `/proc/PID/mem`. The kernel
//! writes for ptrace(2) as it does for `/proc/PID/mem`.
#![cfg(not(loom))]
#![allow(unsafe_code, reason = "a system call writes to the tracked memory")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
mod common;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use common::{PAGE, TRAPS, read, write};
use fieldstone_pages::{Mechanism, Memory, Tracking};

fn process_vm_writev(address: usize) -> io::Result<()> {
    let mut nine = 9_u8;
    let local = libc::iovec { iov_base: (&raw mut nine).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address), iov_len: 1 };
    // SAFETY: the call reads one byte of a live local, and the tracked memory outlives the call.
    let written = unsafe { libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    if written == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn proc_mem(address: usize) -> io::Result<()> {
    File::options().write(true).open("/proc/self/mem")?.write_all_at(&[9], address as u64)
}

/// Writes a 9 to a clean page. Returns the error number of the write, else whether it was found.
fn found(memory: Memory, mechanism: Mechanism, write_nine: fn(usize) -> io::Result<()>) -> Result<bool, i32> {
    write(&memory, 0, 1);
    let tracking = Tracking::with(memory, mechanism).unwrap();
    assert_eq!(tracking.dirty().unwrap().count(), 0, "{mechanism}");
    let written = write_nine(tracking.memory().as_ptr().expose_provenance());
    let dirty = tracking.dirty().unwrap().count();
    let expected = if written.is_ok() { 9 } else { 1 };
    assert_eq!(read(tracking.memory(), 0), expected, "{mechanism}");
    written.map(|()| dirty == 1).map_err(|error| error.raw_os_error().unwrap())
}

/// The table of detected writes in docs/pages.md.
#[test]
fn a_foreign_write_is_found_or_fails_except_a_forced_one_by_mprotect() {
    for mechanism in [Mechanism::Scan].into_iter().chain(TRAPS) {
        let (call, private, shared) = match mechanism {
            Mechanism::Scan => (Ok(true), Ok(true), Ok(true)),
            Mechanism::UserfaultThread => (Ok(true), Err(libc::EIO), Err(libc::EIO)),
            Mechanism::UserfaultSignal => (Err(libc::EFAULT), Err(libc::EIO), Err(libc::EIO)),
            _ => (Err(libc::EFAULT), Ok(false), Err(libc::EIO)),
        };
        for (memory, forced) in [(Memory::anonymous(PAGE), private), (Memory::shared(PAGE), shared)] {
            let memory = memory.unwrap();
            let name = format!("{mechanism}, {memory:?}");
            assert_eq!(found(memory, mechanism, proc_mem), forced, "{name}");
        }
        assert_eq!(found(Memory::anonymous(PAGE).unwrap(), mechanism, process_vm_writev), call, "{mechanism}");
    }
}
