//! Overwrites the first bytes of functions of libc with jumps to the agent.
//!
//! ```text
//! x86-64   jmp *0(%rip) ; .quad target          14 bytes
//! aarch64  ldr x16, #8 ; br x16 ; .quad target  16 bytes
//! ```
//!
//! It happens once, before any thread and any constructor runs (the agent is linked `-z
//! initfirst`). The agent's functions make the system call themselves, so the old code never runs
//! again and needs no relocation. A function is patched only if it is long enough for the jump and
//! makes the one system call that the agent replaces.

#![allow(unsafe_code, reason = "writes libc's code")]

use core::ptr::{with_exposed_provenance as at, with_exposed_provenance_mut as at_mut};

use crate::arch::{self, JUMP};
use crate::elf::{LoadedObject, SymbolRange};
use crate::raw;
use crate::table::PAGE;

/// The jump and the address behind it.
const JUMP_BYTES: usize = JUMP.len() + 8;

/// A function of libc, its system call, and the address of its replacement.
pub(crate) struct FunctionPatch {
    pub(crate) name: &'static core::ffi::CStr,
    pub(crate) number: libc::c_long,
    pub(crate) target: usize,
}

/// Whether the function makes the system call `number` and is long enough for the jump.
fn is_patchable(symbol: SymbolRange, number: libc::c_long) -> bool {
    if symbol.bytes < JUMP_BYTES {
        return false;
    }
    // SAFETY: a defined function of a loaded object is readable for its size.
    let code = unsafe { core::slice::from_raw_parts(at::<u8>(symbol.address), symbol.bytes.min(320)) };
    arch::makes_call(code, number as u32)
}

/// The function of libc that `patch` replaces, if it can be patched.
fn find_function(libc: &LoadedObject, patch: &FunctionPatch) -> Option<SymbolRange> {
    libc.symbol(patch.name).filter(|&symbol| is_patchable(symbol, patch.number))
}

/// Patches every required function or none, and also the optional ones that can be patched. Only
/// the pages from the first to the last patched function change their protection: the cost grows
/// with their number.
pub(crate) fn apply(libc: &LoadedObject, required: &[FunctionPatch], optional: &[FunctionPatch]) -> bool {
    if !required.iter().all(|patch| find_function(libc, patch).is_some()) {
        return false;
    }
    let patches = || required.iter().chain(optional);
    let addresses = || patches().filter_map(|patch| find_function(libc, patch)).map(|symbol| symbol.address);
    let (Some(first), Some(last)) = (addresses().min(), addresses().max()) else { return true };
    let start = first / PAGE * PAGE;
    let bytes = (last + JUMP_BYTES).next_multiple_of(PAGE) - start;
    let (write, run) = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC, libc::PROT_READ | libc::PROT_EXEC);
    // SAFETY: the code stays readable and executable; it is writable until the call below.
    if raw::failed(unsafe { raw::mprotect(start, bytes, write) }) {
        return false;
    }
    for patch in patches() {
        if let Some(symbol) = find_function(libc, patch) {
            overwrite(symbol.address, patch.target);
        }
    }
    // SAFETY: restores the protection that the loader set for libc's code.
    unsafe { raw::mprotect(start, bytes, run) };
    true
}

fn overwrite(address: usize, target: usize) {
    let mut code = [0u8; JUMP_BYTES];
    code[..JUMP.len()].copy_from_slice(&JUMP);
    code[JUMP.len()..].copy_from_slice(&target.to_le_bytes());
    // SAFETY: the page is writable now, the function is long enough, and no other thread exists
    // that runs it.
    unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), at_mut::<u8>(address), JUMP_BYTES) };
    arch::flush(address..address + JUMP_BYTES);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_function_cannot_be_patched() {
        let address = a_call_target as *const () as usize;
        assert!(!is_patchable(SymbolRange { address, bytes: JUMP_BYTES - 1 }, libc::SYS_mmap));
    }

    fn a_call_target() {}

    #[test]
    fn the_functions_of_libc_can_be_patched() {
        let Some(libc) = crate::elf::find(c"libc.so.6") else {
            std::println!("SKIP not linked to glibc");
            return;
        };
        let (memory, execution) = (crate::entries::memory_functions(), crate::entries::exec_functions());
        for patch in memory.iter().chain(&execution).chain(&crate::entries::optional_functions()) {
            let symbol = libc.symbol(patch.name).unwrap();
            assert!(is_patchable(symbol, patch.number), "{:?}", patch.name);
        }
    }
}
