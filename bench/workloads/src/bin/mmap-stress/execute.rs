//! Machine code made at run time: written while writable, run once executable.

#![allow(unsafe_code, reason = "calls the bytes that it has just written")]

use crate::{
    memory::Request,
    model::PAGE,
    world::{Verdict, World, answers},
};

/// Maps a page, writes a function that returns a number, makes it executable, calls it, unmaps it. x86-64 only.
pub(crate) fn execute(world: &mut World) -> Verdict {
    let memory = world.memory;
    let number = world.random.draw().to_le_bytes();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let request =
        Request { address: 0, bytes: PAGE, protection: libc::PROT_READ | libc::PROT_WRITE, flags, file: None };
    let address = memory.map(request).map_err(|errno| format!("{request:x?} answered {errno:?}"))?;
    world.check_fresh(address, 1)?;
    // mov rax, number; ret
    let code = [&[0x48, 0xb8][..], &number, &[0xc3]].concat();
    memory.write(address, &code);
    answers("mprotect to executable", memory.protect(address, PAGE, libc::PROT_READ | libc::PROT_EXEC), Ok(()))?;
    // SAFETY: the page holds a whole function of this type for this architecture, and is executable now.
    let function: extern "C" fn() -> u64 = unsafe { std::mem::transmute(address) };
    let result = function();
    answers("munmap of the code", memory.unmap(address, PAGE), Ok(()))?;
    let expected = u64::from_le_bytes(number);
    if result == expected { Ok(()) } else { Err(format!("the code returned {result:#x}, expected {expected:#x}")) }
}
