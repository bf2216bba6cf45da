//! Stacks and thread-local memory.
//!
//! ```text
//!   a thread's mapping    │ ... stack pointer → │ thread-local memory of the program │ descriptor │
//!                                                                                      ↑ the thread pointer: its first and
//!                                                                                        third word are its own address
//! ```
//! A mapping is a thread's stack if the stack pointer and the thread pointer are in it, and it has a guard below it or ends with what the
//! thread pointer points to. The stack pointer is the one that the kernel shows of a thread that waits, and a sample of one that runs. The
//! thread pointer is known to tracers only; it is found by what it points to: the descriptor that glibc and musl put there.
//!
//! A stack pointer alone says little. Go keeps the stacks of its goroutines in its heap, and coroutines have theirs in memory of all kinds.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

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
    pub(super) fn with_stack_at(&self, memory: &dyn Memory, maps: &Maps, address: u64) -> Option<u32> {
        let range = maps.at(address).filter(|mapping| mapping.is_read_write())?.range();
        // What lies below a stack pointer may still be used, and no longer.
        let far = |stack: u64| (stack > address.saturating_add(RED_ZONE_BYTES), address.abs_diff(stack));
        let (&thread, &stack) = self.within(&range).min_by_key(|&(_, &stack)| far(stack))?;
        let near_end = range.end.saturating_sub(MOST_LOCAL_BYTES).max(stack);
        let pointer = [near_end, stack].into_iter().find_map(|from| pointer_above(memory, from, range.end))?;
        (maps.is_guarded(address) || range.end - pointer <= MOST_LOCAL_BYTES).then_some(thread)
    }

    /// Whether a thread has its stack pointer there.
    pub(super) fn any_in(&self, range: &Range<u64>) -> bool {
        self.within(range).next().is_some()
    }

    fn within(&self, range: &Range<u64>) -> impl Iterator<Item = (&u32, &u64)> {
        self.stacks.iter().filter(|(_, stack)| range.contains(stack))
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
        // Both begin with their own address and the vector of libraries' thread-local memory.
        let begins = word(at)? == address && word(at + 8)? % 8 == 0;
        // glibc: its own address once more, and at 40 the stack's canary, whose last byte is 0
        let is_of_glibc = || Some(word(at + 16)? == address && word(at + 40)? % 256 == 0);
        // musl: the thread before and the one behind, in a ring
        let is_of_musl = || Some(word_at(memory, word(at + 16)?.checked_add(24)?)? == address);
        (begins && (is_of_glibc()? || is_of_musl().unwrap_or(false))).then_some(address)
    })
}

fn word_at(memory: &dyn Memory, address: u64) -> Option<u64> {
    let mut word = [0; 8];
    (memory.read(address, &mut word) == word.len()).then(|| u64::from_le_bytes(word))
}
