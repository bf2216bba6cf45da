//! Frames of signal handlers: where a thread goes on once its handlers have returned.
//!
//! ```text
//!   stack, from the thread's stack pointer up
//!     …  what the handler uses
//!     frame   r8 … rsp  rip  flags  (cs gs fs ss)  …     as the kernel saved them, and takes them back at rt_sigreturn(2)
//!     …  what the thread used before
//! ```
//! While a repairer holds a thread, no handler begins in code of ours: the thread is led out first. But a handler may have begun before a
//! head was overwritten, or after the repairer was killed. So whoever takes such code away changes these frames first.
//!
//! A frame is found by its segments, which are the same in all 64-bit code of Linux. One that a handler has copied somewhere else, or that
//! lies further up than [`SCANNED_BYTES`], is not found.

use fieldstone_rewrite::Memory as _;
use fieldstone_sys::ptrace::Registers;

use crate::error::Result;
use crate::memory::Memory;

/// `cs` 0x33, `gs` 0, `fs` 0, `ss` 0x2b, each of 16 bits.
const SEGMENTS: u64 = 0x002b_0000_0000_0033;
/// Words of a `sigcontext` up to its segments, and where some of them are.
const WORDS: usize = 18;
const RSP: usize = 15;
const WORD: usize = 8;
/// How far above the stack pointer frames are looked for. Reading so much takes some ten microseconds.
const SCANNED_BYTES: usize = 64 << 10;
/// Stacks of one thread, as of handlers that have their own.
const MOST_STACKS: usize = 4;

/// The registers that a thread gets back when a handler returns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Where they are kept.
    at: u64,
    words: [u64; WORDS],
}

impl Frame {
    /// The frames of a thread whose stack pointer this is, and of the stacks that its handlers were called from.
    pub(crate) fn all(memory: &Memory, rsp: u64) -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        let mut stacks = vec![rsp];
        while let Some(&from) = stacks.last().filter(|_| stacks.len() <= MOST_STACKS) {
            let here = Self::above(memory, from);
            let is_scanned = |at: u64| stacks.iter().any(|&from| at.wrapping_sub(from) < SCANNED_BYTES as u64);
            let next = here.iter().map(|frame| frame.words[RSP]).find(|&at| !is_scanned(at));
            found.extend(here);
            let Some(next) = next else { break };
            stacks.push(next);
        }
        found
    }

    fn above(memory: &Memory, rsp: u64) -> Vec<Self> {
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

    /// The registers. Those that are not kept in a frame are those of `now`.
    pub(crate) const fn registers(&self, now: &Registers) -> Registers {
        let [r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags] = self.words;
        Registers { r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags, ..*now }
    }

    /// Has the thread get these registers.
    pub(crate) fn set(&self, memory: &Memory, to: &Registers) -> Result<()> {
        let Registers {
            r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags, ..
        } = *to;
        let words = [r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp, rip, eflags];
        memory.write(self.at, words.map(u64::to_le_bytes).as_flattened())
    }
}
