//! Machine code generated at run time: written while writable, run once executable.

#![allow(unsafe_code, reason = "calls code that it generates")]

use crate::{
    memory::Request,
    model::PAGE,
    test_thread::{CheckResult, TestThread, expect_result},
};

/// Maps a page, writes a function that returns a number, makes the page executable, calls it,
/// unmaps it. x86-64 only.
pub(crate) fn execute(test: &mut TestThread) -> CheckResult {
    let memory = test.memory;
    let number = test.random.draw().to_le_bytes();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let request =
        Request { address: 0, bytes: PAGE, protection: libc::PROT_READ | libc::PROT_WRITE, flags, file: None };
    let address = memory.map(request).map_err(|errno| format!("{request:x?} answered {errno:?}"))?;
    test.check_fresh(address, 1)?;
    // mov rax, number; ret
    let code = [&[0x48, 0xb8][..], &number, &[0xc3]].concat();
    memory.write(address, &code);
    expect_result("mprotect to executable", memory.protect(address, PAGE, libc::PROT_READ | libc::PROT_EXEC), Ok(()))?;
    // SAFETY: the page holds a complete function of this type for this architecture, and mprotect
    // just made it executable.
    let function: extern "C" fn() -> u64 = unsafe { std::mem::transmute(address) };
    let result = function();
    expect_result("munmap of the code", memory.unmap(address, PAGE), Ok(()))?;
    let expected = u64::from_le_bytes(number);
    if result == expected { Ok(()) } else { Err(format!("the code returned {result:#x}, expected {expected:#x}")) }
}
