//! Signal frames: the registers with which a thread continues when its signal handlers return.
//!
//! ```text
//!   stack, from the thread's stack pointer up
//!     …  data of the handler
//!     frame   r8 … rsp  rip  flags  (cs gs fs ss)  …     saved by the kernel, restored by rt_sigreturn(2)
//!     …  data of the interrupted code
//! ```
//! While a thread is traced, no handler starts in the code cache: the thread leaves the cache
//! first. But a handler may have started before a loop head was patched or after a repairer was
//! killed. So these frames are changed before such code is removed.
//!
//! Algorithm: the stack is searched for the segment registers, which are the same in all 64-bit
//! code of Linux. Limits: a frame that a handler copied elsewhere, or one above [`SCANNED_BYTES`],
//! is not found.

use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::ptrace::TraceeRegisters;

use crate::error::Result;

/// `cs` 0x33, `gs` 0, `fs` 0, `ss` 0x2b, of 16 bits each.
const SEGMENTS: u64 = 0x002b_0000_0000_0033;
/// Words of a `sigcontext` before its segments, and indices of some of them.
const WORDS: usize = 18;
const RSP: usize = 15;
const WORD: usize = 8;
/// Bytes searched above a stack pointer. Reading them takes some 10 µs.
const SCANNED_BYTES: usize = 64 << 10;
/// Maximum number of stacks of one thread. Handlers may have stacks of their own.
const MAX_STACKS: usize = 4;

/// The registers that a thread gets back when a handler returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignalFrame {
    /// Address of the saved words.
    at: u64,
    words: [u64; WORDS],
}

impl SignalFrame {
    /// The frames on the stack of a thread with this stack pointer, and on the stacks that its
    /// handlers interrupted.
    pub(crate) fn find_all(memory: &ProcessMemory, rsp: u64) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        let mut stacks = vec![rsp];
        while let Some(&from) = stacks.last().filter(|_| stacks.len() <= MAX_STACKS) {
            let here = Self::find_above(memory, from);
            let is_scanned = |at: u64| stacks.iter().any(|&from| at.wrapping_sub(from) < SCANNED_BYTES as u64);
            let next = here.iter().map(|frame| frame.words[RSP]).find(|&at| !is_scanned(at));
            found.extend(here);
            let Some(next) = next else { break };
            stacks.push(next);
        }
        found
    }

    fn find_above(memory: &ProcessMemory, rsp: u64) -> Vec<Self> {
        let start = rsp.next_multiple_of(WORD as u64);
        let mut bytes = vec![0; SCANNED_BYTES];
        let got = memory.read(start, &mut bytes);
        let (whole, _) = bytes[..got].as_chunks::<WORD>();
        let words: Vec<u64> = whole.iter().map(|&word| u64::from_le_bytes(word)).collect();
        let frames = words.windows(WORDS + 1).zip((start..).step_by(WORD));
        frames
            .filter(|(window, _)| window[WORDS] == SEGMENTS)
            .filter_map(|(window, at)| Some(Self { at, words: *window.first_chunk()? }))
            .collect()
    }

    /// The saved registers, completed by those of `now`.
    pub(crate) fn registers(&self, now: &TraceeRegisters) -> TraceeRegisters {
        let mut registers = *now;
        for (register, word) in in_saved_order(&mut registers).into_iter().zip(self.words) {
            *register = word;
        }
        registers
    }

    /// Replaces the saved registers.
    pub(crate) fn set(&self, memory: &ProcessMemory, to: &TraceeRegisters) -> Result<()> {
        let words = in_saved_order(&mut { *to }).map(|register| register.to_le_bytes());
        Ok(memory.write(self.at, words.as_flattened())?)
    }
}

/// The registers in the order in which a frame has them.
const fn in_saved_order(registers: &mut TraceeRegisters) -> [&mut u64; WORDS] {
    [
        &mut registers.r8,
        &mut registers.r9,
        &mut registers.r10,
        &mut registers.r11,
        &mut registers.r12,
        &mut registers.r13,
        &mut registers.r14,
        &mut registers.r15,
        &mut registers.rdi,
        &mut registers.rsi,
        &mut registers.rbp,
        &mut registers.rbx,
        &mut registers.rdx,
        &mut registers.rax,
        &mut registers.rcx,
        &mut registers.rsp,
        &mut registers.rip,
        &mut registers.eflags,
    ]
}
