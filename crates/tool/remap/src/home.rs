//! Where a system call is made in a thread's name. Should the repairer be killed in the middle, the thread goes on by itself from there.
//!
//! ```text
//!   syscall                    the thread stops here, and is set where it was
//!   rt_sigprocmask [mask]      should its tracer be killed, it runs on: signals that were blocked for the call come now
//!   mov rax, [saved]           every register as it was
//!   …
//!   jmp [saved]                and back to its own code
//!   saved: rax, rcx, …, rip    mask   busy
//! ```
//! The place is a page of its own in the process; the call that makes the page is made in the unused end of a page of code, as the vdso
//! has one. One call is made at a time. Flags and the stack are not touched. `busy` is set from before a thread is sent here until it is
//! back: a page in which it is set belongs to that thread, and is never used or unmapped by who comes next, since a handler of signals
//! may return there.

use fieldstone_sys::ptrace::Registers;
use fieldstone_sys::userfault::Message;

use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::space::Mapping;

/// Bytes of the page, and of it with the one behind it, in which the kernel may write.
const PAGE_BYTES: u64 = 4096;
pub(crate) const BYTES: u64 = 2 * PAGE_BYTES;
/// Bytes of the code with its words.
const STUB_BYTES: usize = 256;
const SAVED_AT: usize = 128;
const WORD: usize = 8;
const MASK_AT: usize = SAVED_AT + 10 * WORD;
const BUSY_AT: usize = MASK_AT + WORD;
/// Where messages of the userfaultfd that tell of children lie, and how many have room.
const BIRTHS_AT: u64 = PAGE_BYTES;
const MOST_BIRTHS: usize = 64;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `mov eax, rt_sigprocmask; mov edi, SIG_SETMASK; mov edx, 0; mov r10d, 8; lea rsi, [rip + …]`: no flag is changed.
const SET_MASK: [u8; 24] =
    [0xb8, 14, 0, 0, 0, 0xbf, 2, 0, 0, 0, 0xba, 0, 0, 0, 0, 0x41, 0xba, 8, 0, 0, 0, 0x48, 0x8d, 0x35];
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
    /// The unused end of a page of code, which has the code as long as there is no page.
    pub(crate) first: u64,
    /// The page, once there is one.
    pub(crate) home: Option<u64>,
}

impl Way {
    const fn stub(self) -> u64 {
        match self.home {
            Some(home) => home,
            None => self.first,
        }
    }

    /// Where the next call is made by a thread with these registers and blocked signals, which are kept for it.
    pub(crate) fn prepare(self, memory: &Memory, before: &Registers, mask: u64) -> Result<u64> {
        let mut words = saved(before);
        words.extend(mask.to_le_bytes());
        words.extend(1_u64.to_le_bytes());
        memory.write(self.stub() + SAVED_AT as u64, &words)?;
        Ok(self.stub())
    }

    /// The thread is back.
    pub(crate) fn end(self, memory: &Memory) -> Result<()> {
        end_call(memory, self.stub())
    }
}

/// Marks the code of a call as left by its thread.
pub(crate) fn end_call(memory: &Memory, stub: u64) -> Result<()> {
    memory.write(stub + BUSY_AT as u64, &0_u64.to_le_bytes())
}

/// The code of a call that has the instruction at `rip`.
pub(crate) fn call_with(memory: &Memory, rip: u64) -> Option<u64> {
    let (stub, code) = (rip & !(STUB_BYTES as u64 - 1), code());
    let mut there = vec![0; code.len()];
    memory.read_exact(stub, &mut there).ok()?;
    (there == code && rip - stub < code.len() as u64).then_some(stub)
}

/// The registers and the blocked signals of a thread before the call that it is in. `now` are its registers there.
pub(crate) fn saved_in(memory: &Memory, stub: u64, now: &Registers) -> Result<(Registers, u64)> {
    let word = |number: usize| memory.word(stub + (SAVED_AT + number * WORD) as u64);
    let (rax, rcx, rdx, rsi, rdi) = (word(0)?, word(1)?, word(2)?, word(3)?, word(4)?);
    let (r8, r9, r10, r11, rip) = (word(5)?, word(6)?, word(7)?, word(8)?, word(9)?);
    // No call is under way any more.
    let before = Registers { rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11, rip, orig_rax: u64::MAX, ..*now };
    Ok((before, memory.word(stub + MASK_AT as u64)?))
}

/// The page that the kernel writes in.
pub(crate) const fn written(home: u64) -> std::ops::Range<u64> {
    home + PAGE_BYTES..home + BYTES
}

/// Where the messages lie that tell of children, in that page.
pub(crate) fn birth_slots(home: u64) -> impl Iterator<Item = u64> {
    (0..MOST_BIRTHS).map(move |number| home + BIRTHS_AT + (number * Message::BYTES) as u64)
}

/// Whether a thread may still return to this page, whose repairer was killed in the middle of a call.
pub(crate) fn is_busy(memory: &Memory, home: u64) -> bool {
    memory.word(home + BUSY_AT as u64).is_ok_and(|busy| busy != 0)
}

/// Finds room for the code at the end of a page of code, and writes it there. What killed repairers have left is left alone.
///
/// # Errors
/// [`Error::Refused`] where there is no room.
pub(crate) fn settle_first(pid: u32, memory: &Memory, mappings: &[Mapping]) -> Result<u64> {
    let is_code = |mapping: &&Mapping| mapping.permissions == "r-xp";
    let vdso = mappings.iter().filter(|mapping| mapping.name == "[vdso]");
    for mapping in vdso.chain(mappings).filter(is_code) {
        let mut page = [0; 4096];
        if memory.read_exact(mapping.range.end - PAGE_BYTES, &mut page).is_err() {
            continue;
        }
        let is_other = |slot: &&[u8]| !slot.starts_with(&code());
        let slot = page.rchunks_exact(STUB_BYTES).take(8).position(|slot| is_other(&slot)).unwrap_or(0);
        if page.rchunks_exact(STUB_BYTES).nth(slot).is_some_and(|slot| slot.iter().all(|&byte| byte == 0)) {
            let at = mapping.range.end - ((slot + 1) * STUB_BYTES) as u64;
            if memory.write(at, &code()).is_ok() {
                return Ok(at);
            }
        }
    }
    let why = "none of its code ends before the end of a page, where a first system call could be made in its name";
    Err(Error::Refused { pid, why: why.to_owned() })
}

/// Takes that code away again. Nobody is in it.
pub(crate) fn leave_first(memory: &Memory, first: u64) -> Result<()> {
    memory.write(first, &[0; STUB_BYTES])
}

/// The code.
pub(crate) fn code() -> Vec<u8> {
    let mut code = SYSCALL.to_vec();
    let refer = |opcode: &[u8], to: usize, code: &mut Vec<u8>| {
        code.extend(opcode);
        let next = code.len() + size_of::<i32>();
        code.extend(i32::try_from(to - next).unwrap_or(0).to_le_bytes());
    };
    refer(&SET_MASK, MASK_AT, &mut code);
    code.extend(SYSCALL);
    let opcodes = LOADS.iter().map(<[u8; 3]>::as_slice).chain([JUMP.as_slice()]);
    for (number, opcode) in opcodes.enumerate() {
        refer(opcode, SAVED_AT + number * WORD, &mut code);
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
        let [call, _, _, _, _, mask, set, loads @ .., jump] = instructions.as_slice() else {
            panic!("{instructions:?}")
        };
        assert_eq!(
            (call.mnemonic(), set.mnemonic(), jump.mnemonic()),
            (Mnemonic::Syscall, Mnemonic::Syscall, Mnemonic::Jmp)
        );
        assert_eq!(mask.ip_rel_memory_address(), 0x1000 + MASK_AT as u64);
        const { assert!(BUSY_AT + WORD <= STUB_BYTES) };
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
