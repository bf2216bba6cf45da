//! AArch64: the instructions and numbers of the agent that differ between architectures.

#![allow(unsafe_code, reason = "maintains caches")]

use core::arch::asm;

/// Candidate bases of the region, far from programs and libraries and above every heap: libc's
/// allocator reports corruption if the break moves down.
pub(crate) const BASES: [usize; 3] = [0xc000_0000_0000, 0xd000_0000_0000, 0xb800_0000_0000];
/// The first address above the user address space.
pub(crate) const ADDRESS_SPACE_END: usize = 1 << 48;
/// `e_machine` of the ELF files that this machine runs.
pub(crate) const ELF_MACHINE: u16 = libc::EM_AARCH64;
/// The flag of mmap(2) for an address below 2 GiB; 0 if the architecture has none.
pub(crate) const MAP_32BIT: i32 = 0;

/// `ldr x16, #8 ; br x16`: jumps to the address in the 8 bytes behind it.
pub(crate) const JUMP: [u8; 8] = [0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6];

/// Assembly of a function: passes its return address as fourth argument to the function `{}`.
macro_rules! jump_with_return_address {
    () => {
        "mov x3, x30\nb {}"
    };
}
pub(crate) use jump_with_return_address;

/// Whether `code` makes the system call `number`: it has `mov x8, #number` and `svc #0`.
pub(crate) fn makes_call(code: &[u8], number: u32) -> bool {
    let set = (0xd280_0008 | number << 5).to_le_bytes();
    let has = |word: [u8; 4]| code.chunks_exact(4).any(|bytes| bytes == word);
    has(set) && has(0xd400_0001_u32.to_le_bytes())
}

/// Makes the next execution of `code`, at most one cache line long, read its new bytes.
pub(crate) fn flush(code: core::ops::Range<usize>) {
    // SAFETY: the instructions maintain caches for mapped code and change no data.
    unsafe {
        asm!(
            "dc cvau, {0}", "dc cvau, {1}", "dsb ish", "ic ivau, {0}", "ic ivau, {1}", "dsb ish", "isb",
            in(reg) code.start, in(reg) code.end - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_its_number_and_the_instruction() {
        // mov x8, #215; svc #0; ret
        let words = [0xd280_1ae8_u32, 0xd400_0001, 0xd65f_03c0];
        let code: std::vec::Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(makes_call(&code, 215));
        assert!(!makes_call(&code, 222), "another number");
        assert!(!makes_call(&code[..4], 215), "no call");
    }
}
