//! The calls that a sample was taken in, found on its stack: a loop whose body is a call counts its laps in the caller.
//!
//! ```text
//!   rsp ─→ saved registers, locals      a word with a call instruction right before the place that it points to
//!          return address          ←──  is taken for a return address
//!          …                            [rbp] is the caller's frame pointer where the word lies right above rbp
//!          return address of the caller
//! ```
//! No tables of unwinding are read, so a word that was left on the stack by an earlier call can be taken for a return address. What follows from
//! it is evidence: counters that do not count steadily are left out ([`fieldstone_sharing::Progress`]). The stack is read when the sample is looked
//! at, some milliseconds after it was taken; a thread that makes the same calls all the time has the same return addresses there.

use fieldstone_rewrite::{Memory, Registers};

/// Words of the stack that are looked at.
const MOST_WORDS: usize = 96;
const RBP: usize = 5;
const RSP: usize = 4;
/// The longest call that is recognised.
const LONGEST_CALL: usize = 7;

/// The return addresses on the stack, the innermost first, each with the registers of its caller. Those that a call need not keep have the callee's
/// values.
pub(super) fn callers(memory: &dyn Memory, registers: &Registers) -> Vec<Registers> {
    let mut bytes = [0; MOST_WORDS * 8];
    let start = registers.gpr[RSP] & !7;
    let got = memory.read(start, &mut bytes);
    let words = bytes[..got].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let mut found = Vec::new();
    let mut frame = registers.gpr[RBP];
    for (at, word) in (start..).step_by(8).zip(words) {
        if word.abs_diff(registers.gpr[RSP]) < 1 << 24 || !is_behind_call(memory, word) {
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
fn is_behind_call(memory: &dyn Memory, address: u64) -> bool {
    let mut bytes = [0; LONGEST_CALL];
    let Some(start) = address.checked_sub(LONGEST_CALL as u64).filter(|&start| start >= 0x1000) else { return false };
    if memory.read(start, &mut bytes) < LONGEST_CALL {
        return false;
    }
    let is_indirect = |length: usize| indirect_call_bytes(&bytes[LONGEST_CALL - length..]) == Some(length);
    bytes[LONGEST_CALL - 5] == 0xe8 || (2..=LONGEST_CALL).any(is_indirect)
}

/// The length of the indirect call (`FF /2`) that these bytes begin with, in bytes, without prefixes. None where it is no such call.
fn indirect_call_bytes(code: &[u8]) -> Option<usize> {
    let &[0xff, form, ref after @ ..] = code else { return None };
    if form & 0x38 != 0x10 {
        return None;
    }
    let (mode, operand) = (form >> 6, form & 7);
    let has_index = mode != 3 && operand == 4;
    // Without a displacement by its mode, base 5 stands for one of four bytes.
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
    use fieldstone_rewrite::Image;

    use super::*;

    /// Code and a stack, at 0x40_0000 and 0x7000_0000.
    struct Both(Image, Image);

    impl Memory for Both {
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
        // jmp rax; inc [rax]; no room for an index; another instruction
        for code in [&[0xff, 0xe0][..], &[0xff, 0x00], &[0xff, 0x14], &[0x89, 0xd0]] {
            assert_eq!(indirect_call_bytes(code), None, "{code:02x?}");
        }
    }

    #[test]
    fn return_addresses_are_told_from_other_words() {
        // call +0 (5 bytes); call rax (2); call [rbx + 8] (3); nop
        let code = [&[0x90; 8][..], &[0xe8, 0, 0, 0, 0, 0xff, 0xd0, 0xff, 0x53, 0x08, 0x90]].concat();
        let (stack, frame) = (0x7000_0000, 0x7000_0018);
        let words = [0x40_000d_u64, 7, 0x40_000e, 0x7000_0040, 0x40_000f, 0x40_0011, 0x40_0012];
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let memory = Both(Image { start: 0x40_0000, bytes: code }, Image { start: stack, bytes });
        let mut registers = Registers { rip: 0x40_0000, ..Registers::default() };
        (registers.gpr[RSP], registers.gpr[RBP]) = (stack, frame);
        let found = callers(&memory, &registers);
        let told: Vec<_> = found.iter().map(|caller| (caller.rip, caller.gpr[RSP], caller.gpr[RBP])).collect();
        let up = 0x7000_0040;
        assert_eq!(told, [(0x40_000d, stack + 8, frame), (0x40_000f, stack + 0x28, up), (0x40_0012, stack + 0x38, up)]);
    }
}
