//! The code from which an injected system call is made. A thread returns from it by itself if its
//! tracer is killed.
//!
//! ```text
//!   syscall                    the thread stops here; the tracer restores its registers
//!   rt_sigprocmask [mask]      only without a tracer: unblock the signals blocked for the call
//!   mov rax, [saved]           only without a tracer: restore each register
//!   …
//!   jmp [saved]                only without a tracer: return to the program's code
//!   saved: rax, rcx, …, rip    mask   busy
//! ```
//! The stub has a page of its own in the process, the stub page. The mmap(2) call that creates this
//! page runs from unused bytes at the end of a code page, for example of the vdso.
//!
//! Invariants: one call is made at a time. Flags and stack do not change. `busy` is 1 from before a
//! thread enters the stub until it has left. A stub page with `busy` set is never reused or
//! unmapped by a later tracer, because a signal handler may still return to it.

use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::ptrace::TraceeRegisters;
use fieldstone_sys::smaps::Mapping;
use fieldstone_sys::userfault::Message;

use crate::error::{Error, Result};

/// Size of the stub page, and of it together with the data page that follows.
const PAGE_BYTES: u64 = 4096;
pub(crate) const BYTES: u64 = 2 * PAGE_BYTES;
/// Size of the code with its saved words.
const STUB_BYTES: usize = 256;
const SAVED_AT: usize = 128;
const WORD: usize = 8;
const MASK_AT: usize = SAVED_AT + 10 * WORD;
const BUSY_AT: usize = MASK_AT + WORD;
/// Offset and number of the slots for userfaultfd messages about children.
const CHILD_SLOTS_AT: u64 = PAGE_BYTES;
const MAX_CHILD_SLOTS: usize = 64;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// `mov eax, rt_sigprocmask; mov edi, SIG_SETMASK; mov edx, 0; mov r10d, 8; lea rsi, [rip + …]`. It
/// changes no flag.
const SET_SIGNAL_MASK: [u8; 24] =
    [0xb8, 14, 0, 0, 0, 0xbf, 2, 0, 0, 0, 0xba, 0, 0, 0, 0, 0x41, 0xba, 8, 0, 0, 0, 0x48, 0x8d, 0x35];
/// `mov register, [rip + …]`, in the order of the saved words: rax, rcx, rdx, rsi, rdi, r8, r9,
/// r10, r11.
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
/// Values that an interrupted call leaves in rax. The second one asks for `restart_syscall`.
const RESTART_ERRORS: [i64; 3] = [-512, -513, -514];
const RESTART_BLOCK: i64 = -516;

/// The code from which calls are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallStub {
    /// Unused bytes at the end of a code page. They hold the stub until the stub page exists.
    pub(crate) bootstrap: u64,
    /// The stub page, once it exists.
    pub(crate) page: Option<u64>,
}

impl CallStub {
    const fn address(self) -> u64 {
        match self.page {
            Some(page) => page,
            None => self.bootstrap,
        }
    }

    /// Saves the registers and the blocked signals of the calling thread; returns the address of
    /// the `syscall` instruction.
    pub(crate) fn prepare(self, memory: &ProcessMemory, before: &TraceeRegisters, mask: u64) -> Result<u64> {
        let mut words = saved_words(before);
        words.extend(mask.to_le_bytes());
        words.extend(1_u64.to_le_bytes());
        memory.write(self.address() + SAVED_AT as u64, &words)?;
        Ok(self.address())
    }

    /// Marks the stub as left by its thread.
    pub(crate) fn finish(self, memory: &ProcessMemory) -> Result<()> {
        mark_idle(memory, self.address())
    }
}

/// Marks the stub at `address` as left by its thread.
pub(crate) fn mark_idle(memory: &ProcessMemory, address: u64) -> Result<()> {
    Ok(memory.write(address + BUSY_AT as u64, &0_u64.to_le_bytes())?)
}

/// The stub that contains the instruction at `rip`, or `None`.
pub(crate) fn stub_at(memory: &ProcessMemory, rip: u64) -> Option<u64> {
    let (address, code) = (rip & !(STUB_BYTES as u64 - 1), stub_code());
    let mut there = vec![0; code.len()];
    memory.read_exact(address, &mut there).ok()?;
    (there == code && rip - address < code.len() as u64).then_some(address)
}

/// Registers and blocked signals of a thread before its injected call. `now` are its current
/// registers.
pub(crate) fn saved_registers(
    memory: &ProcessMemory,
    address: u64,
    now: &TraceeRegisters,
) -> Result<(TraceeRegisters, u64)> {
    let word = |number: usize| memory.word(address + (SAVED_AT + number * WORD) as u64);
    let (rax, rcx, rdx, rsi, rdi) = (word(0)?, word(1)?, word(2)?, word(3)?, word(4)?);
    let (r8, r9, r10, r11, rip) = (word(5)?, word(6)?, word(7)?, word(8)?, word(9)?);
    // `u64::MAX`: the thread is in no system call any more.
    let before = TraceeRegisters { rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11, rip, orig_rax: u64::MAX, ..*now };
    Ok((before, memory.word(address + MASK_AT as u64)?))
}

/// The data page, which the kernel may write.
pub(crate) const fn data_page(page: u64) -> std::ops::Range<u64> {
    page + PAGE_BYTES..page + BYTES
}

/// Addresses of the slots for messages about children, in the data page.
pub(crate) fn child_slots(page: u64) -> impl Iterator<Item = u64> {
    (0..MAX_CHILD_SLOTS).map(move |number| page + CHILD_SLOTS_AT + (number * Message::BYTES) as u64)
}

/// Whether a thread of a killed tracer's call may still return to this stub page.
pub(crate) fn is_busy(memory: &ProcessMemory, page: u64) -> bool {
    memory.word(page + BUSY_AT as u64).is_ok_and(|busy| busy != 0)
}

/// Finds unused bytes at the end of a code page and writes the stub there. Stubs of killed tracers
/// stay untouched.
///
/// # Errors
/// [`Error::Refused`] if no code page has enough unused bytes.
pub(crate) fn write_bootstrap_stub(pid: u32, memory: &ProcessMemory, mappings: &[Mapping]) -> Result<u64> {
    let is_code = |mapping: &&Mapping| mapping.has_permissions("r-xp");
    let vdso = mappings.iter().filter(|mapping| mapping.name == "[vdso]");
    for mapping in vdso.chain(mappings).filter(is_code) {
        let mut page = [0; 4096];
        if memory.read_exact(mapping.end - PAGE_BYTES, &mut page).is_err() {
            continue;
        }
        let is_other = |slot: &&[u8]| !slot.starts_with(&stub_code());
        let slot = page.rchunks_exact(STUB_BYTES).take(8).position(|slot| is_other(&slot)).unwrap_or(0);
        if page.rchunks_exact(STUB_BYTES).nth(slot).is_some_and(|slot| slot.iter().all(|&byte| byte == 0)) {
            let at = mapping.end - ((slot + 1) * STUB_BYTES) as u64;
            if memory.write(at, &stub_code()).is_ok() {
                return Ok(at);
            }
        }
    }
    let why = "none of its code ends before the end of a page, where a first system call could be made on its behalf";
    Err(Error::Refused { pid, why: why.to_owned() })
}

/// Clears the bytes of the bootstrap stub. No thread may be in it.
pub(crate) fn clear_bootstrap_stub(memory: &ProcessMemory, bootstrap: u64) -> Result<()> {
    Ok(memory.write(bootstrap, &[0; STUB_BYTES])?)
}

/// Machine code of the stub.
pub(crate) fn stub_code() -> Vec<u8> {
    let mut code = SYSCALL.to_vec();
    let refer = |opcode: &[u8], to: usize, code: &mut Vec<u8>| {
        code.extend(opcode);
        let next = code.len() + size_of::<i32>();
        code.extend(i32::try_from(to - next).unwrap_or(0).to_le_bytes());
    };
    refer(&SET_SIGNAL_MASK, MASK_AT, &mut code);
    code.extend(SYSCALL);
    let opcodes = LOADS.iter().map(<[u8; 3]>::as_slice).chain([JUMP.as_slice()]);
    for (number, opcode) in opcodes.enumerate() {
        refer(opcode, SAVED_AT + number * WORD, &mut code);
    }
    code
}

/// The saved words that resume a thread with these registers. They restart an interrupted call, as
/// the kernel does.
fn saved_words(before: &TraceeRegisters) -> Vec<u8> {
    let (mut rax, mut rip) = (before.rax, before.rip);
    if before.orig_rax.cast_signed() >= 0 {
        let ended = before.rax.cast_signed();
        if RESTART_ERRORS.contains(&ended) || ended == RESTART_BLOCK {
            rax = if ended == RESTART_BLOCK { libc::SYS_restart_syscall.cast_unsigned() } else { before.orig_rax };
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
        let code = stub_code();
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
    fn an_interrupted_call_is_restarted() {
        let mut before = crate::code_cache::leave::tests::registers();
        let words = |registers: &TraceeRegisters| {
            let saved = saved_words(registers);
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
        assert_eq!(words(&before), ((-4_i64).cast_unsigned(), 0x1000), "EINTR is returned");
    }
}
