//! A probe: code that reads moved pages before the kernel changes their memory.
//!
//! ```text
//!   mov eax, 10   ──→   mov rcx, page     for each page: is it in [rdi, rdi + rsi)?
//!   syscall             …
//!           ↑           mov rcx, moved    then its moved page is read, and faults while it is missing
//!           │           cmp byte ptr [rcx], 0
//!           └────────   mov eax, 10
//! ```
//! A system call changes rax, rcx and r11, and compilers assume no flags after it. So the probe may
//! use all of them.

use iced_x86::{Code, Instruction, MemoryOperand, Register};

use crate::assembly::Assembly;
use crate::error::Result;
use crate::page::PAGE_BYTES;

/// Size of `mov eax, number`, which the jump to the probe replaces.
pub const LOAD_BYTES: u64 = 5;
/// Maximum size of the code for one page, and of the rest.
pub const BYTES_PER_PAGE: u64 = 56;
const PAGE: i32 = 4096;

/// A page that a probe checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageProbe {
    /// The page that the call may concern.
    pub page: u64,
    /// The page that is read then: the same, or one that clones of this code page redirect to.
    pub moved: u64,
}

/// The probe for these pages at address `at`, for the system call `number`, which is loaded at
/// `from`.
///
/// # Errors
/// [`crate::RefusalReason::OutOfReach`] if the jump back does not reach.
pub fn probe_code(probes: &[PageProbe], number: u32, at: u64, from: u64) -> Result<Vec<u8>> {
    let mut code = Assembly::default();
    for &PageProbe { page, moved } in probes {
        let next = code.label();
        code.load(Register::RCX, page);
        code.lea(Register::RAX, Register::RDI, Register::RSI, 1, 0);
        code.add(Instruction::with2(Code::Cmp_r64_rm64, Register::RAX, Register::RCX));
        code.jump(Code::Jbe_rel32_64, next.target());
        code.add(Instruction::with2(Code::Add_rm64_imm32, Register::RCX, PAGE));
        code.add(Instruction::with2(Code::Cmp_r64_rm64, Register::RDI, Register::RCX));
        code.jump(Code::Jae_rel32_64, next.target());
        code.load(Register::RCX, moved);
        let there = MemoryOperand::with_base(Register::RCX);
        code.add(Instruction::with2(Code::Cmp_rm8_imm8, there, 0));
        code.place(next);
    }
    code.add(Instruction::with2(Code::Mov_r32_imm32, Register::EAX, number));
    code.jump(Code::Jmp_rel32_64, from + LOAD_BYTES);
    Ok(code.encode(at, from)?.bytes)
}

const _: () = assert!(PAGE as u64 == PAGE_BYTES, "one size of pages");

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Mnemonic};

    use super::*;

    fn decoded(pages: &[u64]) -> Vec<Instruction> {
        let probes: Vec<PageProbe> = pages.iter().map(|&page| PageProbe { page, moved: 0x7fff_ffff_e000 }).collect();
        let bytes = probe_code(&probes, 10, 0x7f00_0000_0000, 0x7f00_0010_0000).unwrap();
        assert!(bytes.len() as u64 <= BYTES_PER_PAGE * (pages.len() as u64 + 1), "{}", bytes.len());
        Decoder::with_ip(64, &bytes, 0x7f00_0000_0000, DecoderOptions::NONE).into_iter().collect()
    }

    #[test]
    fn a_probe_returns_behind_the_load_of_the_number() {
        for pages in [&[][..], &[0x5000], &[0x5000, 0x7fff_0000_0000]] {
            let code = decoded(pages);
            let [.., load, back] = &code[..] else { panic!("{code:?}") };
            assert_eq!((load.mnemonic(), load.op0_register(), load.immediate32()), (Mnemonic::Mov, Register::EAX, 10));
            assert_eq!(back.near_branch_target(), 0x7f00_0010_0005);
            assert_eq!(code.len(), 2 + 9 * pages.len());
        }
    }
}
