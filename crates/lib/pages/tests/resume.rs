//! Threads that fault at a registered instruction continue at its resume point.

#![cfg(all(not(loom), target_arch = "x86_64"))]
#![allow(unsafe_code, reason = "faults on purpose, at instructions written here")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]
mod common;

use std::arch::asm;
use std::os::unix::process::ExitStatusExt;

use common::{PAGE, doomed, forked};
use fieldstone_pages::{Memory, ResumePoint, resume_faults};

unsafe extern "C" {
    #[link_name = "__start_fieldstone_test_points"]
    static START: ResumePoint;
    #[link_name = "__stop_fieldstone_test_points"]
    static STOP: ResumePoint;
}

/// Stores a byte. False if the address is inaccessible.
#[inline(never)]
fn store(address: *mut u8, value: u8) -> bool {
    // SAFETY: the table has this instruction. At the label nothing has changed.
    unsafe {
        asm!(
            "2: mov byte ptr [{address}], {value}",
            ".pushsection fieldstone_test_points,\"aR\",@progbits",
            ".balign 4",
            ".long 2b - .",
            ".long {refused} - .",
            ".popsection",
            address = in(reg) address,
            value = in(reg_byte) value,
            refused = label { return false },
            options(nostack, preserves_flags)
        );
    }
    true
}

fn register() {
    // SAFETY: the linker collects the entries of `store` between the symbols.
    unsafe {
        let (start, stop) = (&raw const START, &raw const STOP);
        let points = std::slice::from_raw_parts(start, stop.offset_from_unsigned(start));
        resume_faults(points).unwrap();
        resume_faults(points).unwrap();
    }
}

/// A page, and a guard behind it.
fn page_and_guard() -> Memory {
    let memory = Memory::anonymous(2 * PAGE).unwrap();
    memory.guard(PAGE..2 * PAGE).unwrap();
    memory
}

#[test]
fn a_refused_store_continues_at_its_resume_point() {
    register();
    let memory = page_and_guard();
    let at = |offset| memory.as_ptr().wrapping_add(offset);
    for round in 0..1000 {
        assert!(store(at(round), 7) && !store(at(PAGE + round), 7));
    }
    // SAFETY: the byte is in the accessible page.
    assert_eq!(unsafe { at(999).read() }, 7);
    assert!(!store(std::ptr::null_mut(), 1));
}

#[test]
fn threads_and_forked_children_continue_too() {
    register();
    let memory = page_and_guard();
    let guard = memory.as_ptr().wrapping_add(PAGE).expose_provenance();
    let refused = move || !store(std::ptr::with_exposed_provenance_mut(guard), 1);
    assert!(std::thread::spawn(refused).join().unwrap());
    assert_eq!(forked(refused), 0);
}

#[test]
fn other_instructions_still_end_the_process() {
    let output = doomed("other_instructions_still_end_the_process", || {
        register();
        let memory = page_and_guard();
        // SAFETY: the store faults, which ends the process.
        unsafe { memory.as_ptr().add(PAGE).write_volatile(1) };
    });
    if let Some(output) = output {
        assert_eq!(output.status.signal(), Some(libc::SIGSEGV));
    }
}
