//! x86-64: the instructions and numbers of the agent that differ between architectures.

/// Candidate bases of the region, far from programs and libraries and above every heap: libc's
/// allocator reports corruption if the break moves down.
pub(crate) const BASES: [usize; 3] = [0x6000_0000_0000, 0x6800_0000_0000, 0x5800_0000_0000];
/// The first address above the user address space.
pub(crate) const ADDRESS_SPACE_END: usize = 1 << 47;
/// `e_machine` of the ELF files that this machine runs.
pub(crate) const ELF_MACHINE: u16 = libc::EM_X86_64;
/// The flag of mmap(2) for an address below 2 GiB; 0 if the architecture has none.
pub(crate) const MAP_32BIT: i32 = libc::MAP_32BIT;

/// `jmp *0(%rip)`: jumps to the address in the 8 bytes behind it.
pub(crate) const JUMP: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];

/// Assembly of a function: passes its return address as fourth argument to the function `{}`. At
/// the entry of a function the return address is on top of the stack.
macro_rules! jump_with_return_address {
    () => {
        "mov rcx, [rsp]\njmp {}"
    };
}
pub(crate) use jump_with_return_address;

/// Whether `code` makes the system call `number`: `mov $number,%eax` directly followed by `syscall`.
pub(crate) fn makes_call(code: &[u8], number: u32) -> bool {
    let [a, b, c, d] = number.to_le_bytes();
    code.windows(7).any(|bytes| bytes == [0xb8, a, b, c, d, 0x0f, 0x05])
}

/// Makes the next execution of `_code` read its new bytes; the processor does that itself.
pub(crate) fn flush(_code: core::ops::Range<usize>) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_its_number_and_the_instruction() {
        let code = [0xf3, 0x0f, 0x1e, 0xfa, 0xb8, 0x0b, 0, 0, 0, 0x0f, 0x05, 0xc3];
        assert!(makes_call(&code, 11));
        assert!(!makes_call(&code, 9), "another number");
        assert!(!makes_call(&code[..10], 11), "cut off");
        let apart = [0xb8, 0x0b, 0, 0, 0, 0x90, 0x0f, 0x05];
        assert!(!makes_call(&apart, 11), "another instruction may have changed the number");
    }
}
