//! Node-heavy programs on an allocator: the heap on blocks against mimalloc and the system's, side by side.
//!
//! Three workloads, each returning a sum that does not depend on the allocator:
//! `trees` builds and frees binary trees, as in the binary-trees benchmark; `map` inserts in and removes from a search tree of
//! nodes of five sizes, at random; `mail` has two threads build lists that the other one frees.
//!
//! A round runs every allocator once on the same work, in an order that turns from round to round; what is returned is the ratio
//! of the first to each other in each round, so that what the machine does meanwhile meets all alike.

#![allow(unsafe_code, reason = "calls allocators as programs do")]

use std::alloc::{GlobalAlloc, Layout, System, handle_alloc_error};
use std::ptr::null_mut;
use std::sync::mpsc;
use std::time::Instant;

use fieldstone_blocks::PageKind;
use fieldstone_blocks::heap::{GlobalHeap, Large};
use mimalloc::MiMalloc;

// On small pages, as the others are: what huge pages give is not the allocator's.
static BLOCKS: GlobalHeap = GlobalHeap::with(PageKind::Small4k, Large::Runs);
static MIMALLOC: MiMalloc = MiMalloc;
static SYSTEM: System = System;

/// A program that does little but allocate and free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Binary trees of several depths, one of them long-lived.
    Trees,
    /// A search tree of 200,000 nodes of 48 to 112 bytes, inserted and removed at random.
    Map,
    /// Two threads, each of which frees what the other one has allocated.
    Mail,
}

/// What one round measured.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// Nanoseconds of the heap on blocks.
    pub blocks_ns: f64,
    /// Its time divided by mimalloc's: under 1 is faster.
    pub to_mimalloc: f64,
    /// Its time divided by the system allocator's.
    pub to_system: f64,
}

/// Measures a workload `rounds` times, `size` times its unit of some 10 ms, with all allocators in turn; the first round, which
/// faults the memory in, is left out.
///
/// # Panics
/// When the allocators' results differ.
#[must_use]
pub fn measure(workload: Workload, size: u32, rounds: usize) -> Vec<Round> {
    let run = |which: usize| match which {
        0 => timed(&BLOCKS, workload, size),
        1 => timed(&MIMALLOC, workload, size),
        _ => timed(&SYSTEM, workload, size),
    };
    let round = |round: usize| {
        let mut found = [(0.0, 0); 3];
        for turn in 0..3 {
            let which = (round + turn) % 3;
            found[which] = run(which);
        }
        assert!(found.iter().all(|&(_, sum)| sum == found[0].1), "all did the same: {found:?}");
        let [blocks_ns, mimalloc_ns, system_ns] = found.map(|(time_ns, _)| time_ns);
        Round { blocks_ns, to_mimalloc: blocks_ns / mimalloc_ns, to_system: blocks_ns / system_ns }
    };
    (0..=rounds).map(round).skip(1).collect()
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of seconds are far below 2^53")]
fn timed<A: GlobalAlloc + Sync>(alloc: &'static A, workload: Workload, size: u32) -> (f64, u64) {
    let start = Instant::now();
    let sum = run(alloc, workload, size);
    (start.elapsed().as_nanos() as f64, sum)
}

/// Runs a workload on an allocator; the sum of what its nodes held.
pub fn run<A: GlobalAlloc + Sync>(alloc: &'static A, workload: Workload, size: u32) -> u64 {
    match workload {
        Workload::Trees => trees(alloc, size),
        Workload::Map => map(alloc, size),
        Workload::Mail => mail(alloc, size),
    }
}

/// A node of any workload; larger sizes have room behind it.
struct Node {
    left: *mut Node,
    right: *mut Node,
    key: u64,
    bytes: usize,
}

#[expect(clippy::cast_ptr_alignment, reason = "the layout is a node's, or that of a larger one")]
fn new<A: GlobalAlloc>(alloc: &A, bytes: usize, key: u64) -> *mut Node {
    let layout = layout(bytes);
    // SAFETY: the layout is not of size zero.
    let node = unsafe { alloc.alloc(layout) };
    if node.is_null() {
        handle_alloc_error(layout);
    }
    let node = node.cast::<Node>();
    // SAFETY: it was just allocated, with room for a node.
    unsafe { node.write(Node { left: null_mut(), right: null_mut(), key, bytes }) };
    node
}

/// Frees a node; its key.
///
/// # Safety
/// It came from [`new`] of this allocator, and nobody uses it any more.
unsafe fn free<A: GlobalAlloc>(alloc: &A, node: *mut Node) -> u64 {
    // SAFETY: the caller passes a node of `new` of this allocation, which nothing else uses.
    unsafe {
        let (key, bytes) = ((*node).key, (*node).bytes);
        alloc.dealloc(node.cast(), layout(bytes));
        key
    }
}

const fn layout(bytes: usize) -> Layout {
    let node = Layout::new::<Node>();
    // SAFETY: the alignment is a layout's, and sizes here are far below the limit.
    unsafe { Layout::from_size_align_unchecked(if bytes < node.size() { node.size() } else { bytes }, node.align()) }
}

fn trees<A: GlobalAlloc>(alloc: &A, size: u32) -> u64 {
    let long_lived = grow(alloc, 14);
    let mut sum = 0;
    for _ in 0..size {
        for depth in [4, 8, 12, 14] {
            for _ in 0..1_u32 << (14 - depth) {
                // SAFETY: the tree is whole and this function's.
                sum += unsafe { fell(alloc, grow(alloc, depth)) };
            }
        }
    }
    // SAFETY: `long_lived` was grown in this allocation, and nothing else refers to it.
    sum + unsafe { fell(alloc, long_lived) }
}

fn grow<A: GlobalAlloc>(alloc: &A, depth: u32) -> *mut Node {
    let node = new(alloc, size_of::<Node>(), 1);
    if depth > 0 {
        let (left, right) = (grow(alloc, depth - 1), grow(alloc, depth - 1));
        // SAFETY: the node was just made.
        unsafe {
            (*node).left = left;
            (*node).right = right;
        }
    }
    node
}

/// Frees a tree; the sum of its keys.
unsafe fn fell<A: GlobalAlloc>(alloc: &A, node: *mut Node) -> u64 {
    if node.is_null() {
        return 0;
    }
    // SAFETY: a tree's nodes are its own, each is in it once.
    unsafe {
        let (left, right) = ((*node).left, (*node).right);
        fell(alloc, left) + fell(alloc, right) + free(alloc, node)
    }
}

/// A stream of numbers that looks random (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

fn map<A: GlobalAlloc>(alloc: &A, size: u32) -> u64 {
    let mut random = Random(88_172_645_463_325_252);
    let mut root = null_mut();
    let mut sum = 0;
    for _ in 0..u64::from(size) * 20_000 + 200_000 {
        let key = random.next() % 400_000;
        // SAFETY: the tree is this function's, and whole.
        unsafe {
            let place = find(&raw mut root, key);
            if (*place).is_null() {
                *place = new(alloc, 48 + 16 * (key % 5) as usize, key);
            } else {
                sum += take_out(alloc, place);
            }
        }
    }
    // SAFETY: the rest of the tree was grown in this allocation, and nothing else refers to it.
    sum + unsafe { fell(alloc, root) }
}

/// Where a key is, or would be. Keys come at random, so that the tree needs no balancing.
unsafe fn find(mut place: *mut *mut Node, key: u64) -> *mut *mut Node {
    // SAFETY: links of a tree are null or point to its nodes.
    unsafe {
        while !(*place).is_null() && (**place).key != key {
            place = if key < (**place).key { &raw mut (**place).left } else { &raw mut (**place).right };
        }
    }
    place
}

/// Takes the node at `place` out of its tree; its key.
unsafe fn take_out<A: GlobalAlloc>(alloc: &A, place: *mut *mut Node) -> u64 {
    // SAFETY: as in `find`; the node that is freed is in the tree no more.
    unsafe {
        let node = *place;
        if (*node).left.is_null() || (*node).right.is_null() {
            *place = if (*node).left.is_null() { (*node).right } else { (*node).left };
        } else {
            let mut next = &raw mut (*node).right;
            while !(**next).left.is_null() {
                next = &raw mut (**next).left;
            }
            let heir = *next;
            *next = (*heir).right;
            (*heir).left = (*node).left;
            (*heir).right = (*node).right;
            *place = heir;
        }
        free(alloc, node)
    }
}

/// A list on its way to the thread that frees it.
struct Letter(*mut Node);

// SAFETY: a list belongs to who has the letter.
unsafe impl Send for Letter {}

fn mail<A: GlobalAlloc + Sync>(alloc: &'static A, size: u32) -> u64 {
    let (to_left, from_right) = mpsc::sync_channel(16);
    let (to_right, from_left) = mpsc::sync_channel(16);
    std::thread::scope(|scope| {
        let left = scope.spawn(move || correspond(alloc, size, &to_right, &from_right));
        let right = correspond(alloc, size, &to_left, &from_left);
        right + left.join().unwrap_or(u64::MAX)
    })
}

fn correspond<A: GlobalAlloc>(
    alloc: &A,
    size: u32,
    to: &mpsc::SyncSender<Letter>,
    from: &mpsc::Receiver<Letter>,
) -> u64 {
    let mut sum = 0;
    for _ in 0..size * 20 {
        let mut list = null_mut();
        for key in 0..1000 {
            let node = new(alloc, 32 + 16 * (key % 4) as usize, key);
            // SAFETY: the node was just made.
            unsafe { (*node).right = list };
            list = node;
        }
        // The other side takes one before it sends its next, so neither waits for long.
        if to.send(Letter(list)).is_err() {
            return 0;
        }
        let Ok(Letter(list)) = from.recv() else { return 0 };
        // SAFETY: the list is ours now; its nodes have no left sides.
        sum += unsafe { fell_list(alloc, list) };
    }
    sum
}

unsafe fn fell_list<A: GlobalAlloc>(alloc: &A, mut list: *mut Node) -> u64 {
    let mut sum = 0;
    while !list.is_null() {
        // SAFETY: a list's nodes are its own.
        unsafe {
            let next = (*list).right;
            sum += free(alloc, list);
            list = next;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Workload; 3] = [Workload::Trees, Workload::Map, Workload::Mail];

    #[test]
    fn every_allocator_does_the_same() {
        for workload in ALL {
            assert_eq!(measure(workload, 1, 1).len(), 1);
        }
        assert_eq!(mail(&SYSTEM, 1), 2 * 20 * 999 * 500);
    }
}
