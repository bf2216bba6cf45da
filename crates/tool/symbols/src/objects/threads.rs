//! Finds the thread whose stack or thread-local memory contains an address.
//!
//! ```text
//!   mapping of a thread   │ ... stack pointer → │ thread-local memory of the program │ descriptor │
//!                                                                    thread pointer: ↑
//!                                           the first and third word of the descriptor (glibc)
//! ```
//! A mapping is the stack of a thread if it contains a stack pointer and a thread pointer, and if
//! it has a guard below it or ends near the thread pointer. The kernel shows the stack pointer of a
//! waiting thread; samples contain that of a running one. Only a tracer can read a thread pointer,
//! so it is found by the descriptor that glibc and musl store there.
//!
//! A stack pointer alone is not sufficient. Go keeps stacks of goroutines in its heap, and stacks
//! of coroutines can be in any memory.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use fieldstone_rewrite::registers::RSP;
use fieldstone_rewrite::{ReadableMemory, Registers};
use fieldstone_sys::process::threads;

use super::maps::Maps;

/// Alignment of thread pointers.
const ALIGNMENT: u64 = 64;
/// Limit of the thread-local memory below a thread pointer.
const MAX_LOCAL_BYTES: u64 = 64 << 10;
/// Limit of threads.
const MAX_THREADS: usize = 4096;
/// Memory below the stack pointer that leaf functions use (System V ABI).
const RED_ZONE_BYTES: u64 = 128;

/// The stack pointer of each thread.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadStacks {
    stacks: BTreeMap<u32, u64>,
}

impl ThreadStacks {
    /// Reads the stack pointers of waiting threads. Running threads keep the previous value.
    pub(super) fn refresh(&mut self, pid: u32) {
        let Ok(threads) = threads(pid) else { return };
        let read = threads.into_iter().take(MAX_THREADS).map(|thread| (thread, waiting_stack_pointer(pid, thread)));
        let before = std::mem::take(&mut self.stacks);
        self.stacks = read.filter_map(|(thread, at)| Some((thread, at.or(before.get(&thread).copied())?))).collect();
    }

    /// Records the stack pointer of a thread from a sample.
    pub(super) fn record_registers(&mut self, thread: u32, registers: &Registers) {
        self.stacks.insert(thread, registers.gpr[RSP]);
    }

    /// The thread whose stack contains `address`. If the mapping contains several stack pointers,
    /// the nearest one below the address decides.
    pub(super) fn stack_owner(&self, memory: &dyn ReadableMemory, maps: &Maps, address: u64) -> Option<u32> {
        let range = maps.at(address).filter(|mapping| mapping.is_read_write())?.range();
        // Memory below the red zone of a stack pointer is not in use.
        let distance = |stack: u64| (stack > address.saturating_add(RED_ZONE_BYTES), address.abs_diff(stack));
        let (&thread, &stack) = self.within(&range).min_by_key(|&(_, &stack)| distance(stack))?;
        let near_end = range.end.saturating_sub(MAX_LOCAL_BYTES).max(stack);
        let pointer = [near_end, stack].into_iter().find_map(|from| thread_pointer_above(memory, from, range.end))?;
        (maps.is_guarded(address) || range.end - pointer <= MAX_LOCAL_BYTES).then_some(thread)
    }

    /// Whether the range contains a stack pointer.
    pub(super) fn has_stack_in(&self, range: &Range<u64>) -> bool {
        self.within(range).next().is_some()
    }

    fn within(&self, range: &Range<u64>) -> impl Iterator<Item = (&u32, &u64)> {
        self.stacks.iter().filter(|(_, stack)| range.contains(stack))
    }
}

/// The stack pointer of a thread that waits in the kernel: the second last field of
/// `/proc/PID/task/TID/syscall`. `None` for a running thread.
fn waiting_stack_pointer(pid: u32, thread: u32) -> Option<u64> {
    let line = fs::read_to_string(format!("/proc/{pid}/task/{thread}/syscall")).ok()?;
    let word = line.split_ascii_whitespace().rev().nth(1)?;
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

/// The first thread pointer from `address` to `end`, within [`MAX_LOCAL_BYTES`].
pub(super) fn thread_pointer_above(memory: &dyn ReadableMemory, address: u64, end: u64) -> Option<u64> {
    let first = address.checked_next_multiple_of(ALIGNMENT)?;
    let bytes = end.checked_sub(first)?.min(MAX_LOCAL_BYTES);
    let mut read = vec![0; usize::try_from(bytes).ok()?];
    let count = memory.read(first, &mut read);
    let word = |at: usize| read[..count].get(at..at + 8)?.first_chunk().copied().map(u64::from_le_bytes);
    (0..count).step_by(64).zip(0..).map(|(at, count)| (at, first + count * ALIGNMENT)).find_map(|(at, address)| {
        // In both libraries: word 0 is this address, word 1 the dynamic thread vector.
        let begins = word(at)? == address && word(at + 8)? % 8 == 0;
        // glibc: word 2 is this address, word 5 the stack canary, whose lowest byte is 0
        let is_of_glibc = || Some(word(at + 16)? == address && word(at + 40)? % 256 == 0);
        // musl: words 2 and 3 link the threads in a ring
        let is_of_musl = || Some(word_at(memory, word(at + 16)?.checked_add(24)?)? == address);
        (begins && (is_of_glibc()? || is_of_musl().unwrap_or(false))).then_some(address)
    })
}

fn word_at(memory: &dyn ReadableMemory, address: u64) -> Option<u64> {
    let mut word = [0; 8];
    (memory.read(address, &mut word) == word.len()).then(|| u64::from_le_bytes(word))
}
