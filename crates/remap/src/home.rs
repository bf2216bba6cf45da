//! Where a system call is made in a thread's name: a thread that nobody waits for any more goes home from there by itself.
//!
//! ```text
//!   syscall                  the thread stops here, and is set where it was
//!   mov rax, [saved]         should its tracer be killed, it runs on: every register as it was
//!   …
//!   jmp [saved]              and home
//!   saved: rax, rcx, …, rip
//! ```
//! A page of its own in the process; one call is made at a time. Flags and the stack are not touched.

use fieldstone_sys::ptrace::Registers;

use crate::error::Result;
use crate::memory::Memory;

/// Bytes of the page.
pub(crate) const BYTES: u64 = 4096;
const SAVED_AT: usize = 128;
const WORD: usize = 8;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `mov register, [rip + …]`, in the order in which the words are kept: rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11.
const LOADS: [[u8; 3]; 9] = [
    [0x48, 0x8b, 0x05],
    [0x48, 0x8b, 0x0d],
    [0x48, 0x8b, 0x15],
    [0x48, 0x8b, 0x35],
    [0x48, 0x8b, 0x3d],
    [0x4c, 0x8b, 0x05],
    [0x4c, 0x8b, 0x0d],
    [0x4c, 0x8b, 0x15],
    [0x4c, 0x8b, 0x1d],
];
const JUMP: [u8; 2] = [0xff, 0x25];
/// What a call that was interrupted leaves in rax, and the call that goes on with one that has a time.
const BEGINS_AGAIN: [i64; 3] = [-512, -513, -514];
const GOES_ON: i64 = -516;

/// Where calls can be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// A `syscall` instruction of the program's own: who is left there goes astray.
    pub(crate) syscall: u64,
    /// The page, once there is one.
    pub(crate) home: Option<u64>,
}

impl Way {
    /// Where the next call is made by a thread with these registers, which is kept for it.
    pub(crate) fn prepare(self, memory: &Memory, before: &Registers) -> Result<u64> {
        let Some(home) = self.home else { return Ok(self.syscall) };
        memory.write(home + SAVED_AT as u64, &saved(before))?;
        Ok(home)
    }

    /// Whether an address is in the page.
    pub(crate) fn has(self, address: u64) -> bool {
        self.home.is_some_and(|home| (home..home + BYTES).contains(&address))
    }
}

/// The page's code.
pub(crate) fn code() -> Vec<u8> {
    let mut code = SYSCALL.to_vec();
    let opcodes = LOADS.iter().map(<[u8; 3]>::as_slice).chain([JUMP.as_slice()]);
    for (number, opcode) in opcodes.enumerate() {
        code.extend(opcode);
        let next = code.len() + size_of::<i32>();
        let distance = i32::try_from(SAVED_AT + number * WORD - next).unwrap_or(0);
        code.extend(distance.to_le_bytes());
    }
    code
}

/// What its words have to be for a thread to go on as it was. A call that was interrupted is begun again, as the kernel would.
fn saved(before: &Registers) -> Vec<u8> {
    let (mut rax, mut rip) = (before.rax, before.rip);
    if before.orig_rax.cast_signed() >= 0 {
        let ended = before.rax.cast_signed();
        if BEGINS_AGAIN.contains(&ended) || ended == GOES_ON {
            rax = if ended == GOES_ON { libc::SYS_restart_syscall.cast_unsigned() } else { before.orig_rax };
            rip -= SYSCALL.len() as u64;
        }
    }
    let words =
        [rax, before.rcx, before.rdx, before.rsi, before.rdi, before.r8, before.r9, before.r10, before.r11, rip];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};

    use super::*;

    #[test]
    fn each_register_is_loaded_from_its_word() {
        let code = code();
        assert!(code.len() <= SAVED_AT);
        let instructions: Vec<_> = Decoder::with_ip(64, &code, 0x1000, DecoderOptions::NONE).into_iter().collect();
        let [call, loads @ .., jump] = instructions.as_slice() else { panic!("{instructions:?}") };
        assert_eq!((call.mnemonic(), jump.mnemonic()), (Mnemonic::Syscall, Mnemonic::Jmp));
        let order = [
            Register::RAX,
            Register::RCX,
            Register::RDX,
            Register::RSI,
            Register::RDI,
            Register::R8,
            Register::R9,
            Register::R10,
            Register::R11,
        ];
        assert_eq!(loads.iter().map(iced_x86::Instruction::op0_register).collect::<Vec<_>>(), order);
        for (number, instruction) in loads.iter().chain([jump]).enumerate() {
            let word = 0x1000 + (SAVED_AT + number * WORD) as u64;
            assert_eq!(instruction.ip_rel_memory_address(), word, "{instruction:?}");
        }
    }

    #[test]
    fn a_call_that_was_interrupted_is_begun_again() {
        let mut before = crate::leave::tests::registers();
        let words = |registers: &Registers| {
            let saved = saved(registers);
            let word = |at: usize| u64::from_le_bytes(saved[at * WORD..][..WORD].try_into().unwrap());
            (word(0), word(9))
        };
        (before.rax, before.rip, before.orig_rax) = (5, 0x1000, u64::MAX);
        assert_eq!(words(&before), (5, 0x1000));
        (before.rax, before.orig_rax) = ((-512_i64).cast_unsigned(), 0);
        assert_eq!(words(&before), (0, 0xffe), "read(2)");
        before.rax = (-516_i64).cast_unsigned();
        assert_eq!(words(&before), (219, 0xffe), "restart_syscall(2)");
        before.rax = (-4_i64).cast_unsigned();
        assert_eq!(words(&before), ((-4_i64).cast_unsigned(), 0x1000), "EINTR is told");
    }
}
