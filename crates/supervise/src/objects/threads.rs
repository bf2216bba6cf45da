//! Stacks and thread-local memory.
//!
//! ```text
//!   a thread's mapping    │ ... stack pointer → │ thread-local memory of the program │ descriptor │
//!                                                                                      ↑ the thread pointer: its first and
//!                                                                                        third word are its own address
//! ```
//! A stack is told by the stack pointer of its thread, which the kernel shows for one that waits, and a sample for one that runs. The
//! Such a mapping has a guard below it; stacks without one (Go's, glibc's since 2.42) are told as mappings. The
//! thread pointer is found by what it points to, since only a tracer is told it: the descriptor that glibc and musl put there.

use std::collections::BTreeMap;
use std::fs;

use fieldstone_rewrite::registers::RSP;
use fieldstone_rewrite::{Memory, Registers};
use fieldstone_sys::process::threads;

use super::maps::Maps;

/// Thread pointers are at multiples of this.
const ALIGNMENT: u64 = 64;
/// Thread-local memory is at most so far below.
const MOST_LOCAL_BYTES: u64 = 64 << 10;
/// Threads that are asked for.
const MOST_THREADS: usize = 4096;
/// Functions that call none use so much below the stack pointer.
const RED_ZONE_BYTES: u64 = 128;

/// Stack pointers by thread.
#[derive(Clone, Debug, Default)]
pub(super) struct Threads {
    stacks: BTreeMap<u32, u64>,
}

impl Threads {
    /// Asks the kernel for those that wait.
    pub(super) fn look(&mut self, pid: u32) {
        let Ok(threads) = threads(pid) else { return };
        let seen = threads.into_iter().take(MOST_THREADS).map(|thread| (thread, waiting_at(pid, thread)));
        let before = std::mem::take(&mut self.stacks);
        self.stacks = seen.filter_map(|(thread, at)| Some((thread, at.or(before.get(&thread).copied())?))).collect();
    }

    /// A thread has these registers.
    pub(super) fn saw(&mut self, thread: u32, registers: &Registers) {
        self.stacks.insert(thread, registers.gpr[RSP]);
    }

    /// The thread whose stack `address` is in: of those in the same mapping the one that is nearest below.
    pub(super) fn with_stack_at(&self, maps: &Maps, address: u64) -> Option<u32> {
        let range = maps.at(address).filter(|mapping| mapping.is_read_write())?.range();
        // What lies below a stack pointer may still be used, and no longer.
        let far = |stack: u64| (stack > address.saturating_add(RED_ZONE_BYTES), address.abs_diff(stack));
        let within = self.stacks.iter().filter(|(_, stack)| range.contains(stack));
        within.min_by_key(|&(_, &stack)| far(stack)).filter(|_| maps.is_guarded(address)).map(|(&thread, _)| thread)
    }
}

/// The stack pointer of a thread that waits in the kernel: the word before the last of `/proc/PID/task/TID/syscall`.
fn waiting_at(pid: u32, thread: u32) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")).ok()?;
    let word = line.split_ascii_whitespace().rev().nth(1)?;
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

/// The thread pointer that is nearest above `address`, before `end`.
pub(super) fn pointer_above(memory: &dyn Memory, address: u64, end: u64) -> Option<u64> {
    let first = address.checked_next_multiple_of(ALIGNMENT)?;
    let bytes = end.checked_sub(first)?.min(MOST_LOCAL_BYTES);
    let mut read = vec![0; usize::try_from(bytes).ok()?];
    let got = memory.read(first, &mut read);
    let word = |at: usize| read[..got].get(at..at + 8)?.first_chunk().copied().map(u64::from_le_bytes);
    (0..got).step_by(64).zip(0..).map(|(at, count)| (at, first + count * ALIGNMENT)).find_map(|(at, address)| {
        // itself, the vector of libraries' thread-local memory, itself, …, at 40 the stack's canary, whose last byte is 0
        let own = word(at)? == address && word(at + 16)? == address;
        let rest = word(at + 8)? % 8 == 0 && word(at + 40)? % 256 == 0;
        (own && rest).then_some(address)
    })
}
