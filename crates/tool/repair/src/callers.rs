//! The callers of a sampled instruction, found on its stack. A loop whose body is a call has its
//! counter in the caller.
//!
//! ```text
//!   rsp ─→ saved registers, locals   a word is a return address if a call instruction
//!          return address       ←──  ends at the address that it contains
//!          …                         [rbp] is the caller's frame pointer if the word
//!          return address of caller  is right above rbp
//! ```
//! No unwind tables are read, so a stale word of an earlier call can look like a return address.
//! The results are evidence only: counters that do not count steadily are rejected
//! ([`fieldstone_sharing::Progress`]). The stack is read when the sample is analysed, some
//! milliseconds after it was taken. A thread that repeats the same calls has the same return
//! addresses there.
//!
//! Cost: one read of the stack, and one read of the code for each word that can be an address.

use fieldstone_rewrite::{ReadableMemory, Registers};

use crate::tuning::{MAX_STACK_WORDS, STACK_NEIGHBOURHOOD_BYTES};

/// Indices of registers in [`Registers::gpr`].
const RBP: usize = 5;
const RSP: usize = 4;
/// The longest recognised call instruction, in bytes.
const LONGEST_CALL: usize = 7;

/// The registers of the callers, the innermost first, with the return address as `rip`.
/// Caller-saved registers have the callee's values.
pub(crate) fn callers(memory: &dyn ReadableMemory, registers: &Registers) -> Vec<Registers> {
    let mut bytes = [0; MAX_STACK_WORDS * 8];
    let start = registers.gpr[RSP] & !7;
    let got = memory.read(start, &mut bytes);
    let words = bytes[..got].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let mut found = Vec::new();
    let mut frame = registers.gpr[RBP];
    for (at, word) in (start..).step_by(8).zip(words) {
        if word.abs_diff(registers.gpr[RSP]) < STACK_NEIGHBOURHOOD_BYTES || !is_after_call(memory, word) {
            continue;
        }
        if at == frame.wrapping_add(8) {
            let mut saved = [0; 8];
            frame = if memory.read(frame, &mut saved) == 8 { u64::from_le_bytes(saved) } else { 0 };
        }
        let mut caller = Registers { rip: word, ..*registers };
        (caller.gpr[RSP], caller.gpr[RBP]) = (at + 8, frame);
        found.push(caller);
    }
    found
}

/// Whether a call instruction ends at this address.
fn is_after_call(memory: &dyn ReadableMemory, address: u64) -> bool {
    let mut bytes = [0; LONGEST_CALL];
    let Some(start) = address.checked_sub(LONGEST_CALL as u64).filter(|&start| start >= 0x1000) else { return false };
    if memory.read(start, &mut bytes) < LONGEST_CALL {
        return false;
    }
    let is_indirect = |length: usize| indirect_call_bytes(&bytes[LONGEST_CALL - length..]) == Some(length);
    bytes[LONGEST_CALL - 5] == 0xe8 || (2..=LONGEST_CALL).any(is_indirect)
}

/// The length in bytes, without prefixes, of the indirect call (`FF /2`) at the start of `code`.
/// `None` for another instruction.
fn indirect_call_bytes(code: &[u8]) -> Option<usize> {
    let &[0xff, form, ref after @ ..] = code else { return None };
    if form & 0x38 != 0x10 {
        return None;
    }
    let (mode, operand) = (form >> 6, form & 7);
    let has_index = mode != 3 && operand == 4;
    // In mode 0 base 5 means a displacement of four bytes.
    let base = if has_index { after.first()? & 7 } else { operand };
    let displacement = match mode {
        0 if base == 5 => 4,
        1 => 1,
        2 => 4,
        _ => 0,
    };
    Some(2 + usize::from(has_index) + displacement)
}

#[cfg(test)]
mod tests {
    use fieldstone_rewrite::MemoryImage;

    use super::*;

    /// Code at 0x40_0000 and a stack at 0x7000_0000.
    struct CodeAndStack(MemoryImage, MemoryImage);

    impl ReadableMemory for CodeAndStack {
        fn read(&self, address: u64, into: &mut [u8]) -> usize {
            self.0.read(address, into).max(self.1.read(address, into))
        }
    }

    #[test]
    fn indirect_calls_have_the_length_of_their_operand() {
        // call rax; [rax]; [rip + 0]; [rax + 8]; [rax + 0]; [rsp]; [rax * 8]; [rsp + 8]; [rsp + 0]
        for (code, length) in [
            (&[0xff, 0xd0, 0x90][..], 2),
            (&[0xff, 0x10], 2),
            (&[0xff, 0x15, 0, 0, 0, 0], 6),
            (&[0xff, 0x50, 8], 3),
            (&[0xff, 0x90, 0, 0, 0, 0], 6),
            (&[0xff, 0x14, 0x24], 3),
            (&[0xff, 0x14, 0xc5, 0, 0, 0, 0], 7),
            (&[0xff, 0x54, 0x24, 8], 4),
            (&[0xff, 0x94, 0x24, 0, 0, 0, 0], 7),
        ] {
            assert_eq!(indirect_call_bytes(code), Some(length), "{code:02x?}");
        }
        // jmp rax; inc [rax]; a missing index byte; another instruction
        for code in [&[0xff, 0xe0][..], &[0xff, 0x00], &[0xff, 0x14], &[0x89, 0xd0]] {
            assert_eq!(indirect_call_bytes(code), None, "{code:02x?}");
        }
    }

    #[test]
    fn return_addresses_are_distinguished_from_other_words() {
        // call +0 (5 bytes); call rax (2); call [rbx + 8] (3); nop
        let code = [&[0x90; 8][..], &[0xe8, 0, 0, 0, 0, 0xff, 0xd0, 0xff, 0x53, 0x08, 0x90]].concat();
        let (stack, frame) = (0x7000_0000, 0x7000_0018);
        let words = [0x40_000d_u64, 7, 0x40_000e, 0x7000_0040, 0x40_000f, 0x40_0011, 0x40_0012];
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let memory = CodeAndStack(MemoryImage { start: 0x40_0000, bytes: code }, MemoryImage { start: stack, bytes });
        let mut registers = Registers { rip: 0x40_0000, ..Registers::default() };
        (registers.gpr[RSP], registers.gpr[RBP]) = (stack, frame);
        let found = callers(&memory, &registers);
        let found: Vec<_> = found.iter().map(|caller| (caller.rip, caller.gpr[RSP], caller.gpr[RBP])).collect();
        let outer = 0x7000_0040;
        let expected =
            [(0x40_000d, stack + 8, frame), (0x40_000f, stack + 0x28, outer), (0x40_0012, stack + 0x38, outer)];
        assert_eq!(found, expected);
    }
}
