//! Node-based programs on three allocators: the heap of blocks, mimalloc, and the system's.
//!
//! | workload | content |
//! |---|---|
//! | `trees` | builds and frees binary trees, as the binary-trees benchmark |
//! | `map` | inserts and removes random keys of a search tree with nodes of five sizes |
//! | `mail` | two threads; each frees lists that the other one built |
//!
//! Each workload returns a sum that does not depend on the allocator. A round runs each allocator
//! once on the same work, in a rotating order. The ratios are taken within a round, so that changes
//! of the machine affect all allocators alike.

#![allow(unsafe_code, reason = "calls allocators as programs do")]

use std::alloc::{GlobalAlloc, Layout, System, handle_alloc_error};
use std::ptr::null_mut;
use std::sync::mpsc;
use std::time::Instant;

use fieldstone_blocks::PageKind;
use fieldstone_blocks::heap::{GlobalHeap, Large};
use mimalloc::MiMalloc;

// On small pages, like the others, so that only the allocators are compared.
static BLOCKS: GlobalHeap = GlobalHeap::with(PageKind::Small4k, Large::Runs);
static MIMALLOC: MiMalloc = MiMalloc;
static SYSTEM: System = System;

/// A program that mostly allocates and frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationWorkload {
    /// Binary trees of several depths, one of them long-lived.
    Trees,
    /// A search tree of 200,000 nodes of 48 to 112 bytes, inserted and removed at random.
    Map,
    /// Two threads; each frees what the other one allocated.
    Mail,
}

/// The times of one round.
#[derive(Clone, Copy, Debug)]
pub struct HeapTimes {
    /// Nanoseconds of the heap of blocks.
    pub blocks_ns: f64,
    /// Its time divided by mimalloc's; below 1 is faster.
    pub to_mimalloc: f64,
    /// Its time divided by the system allocator's.
    pub to_system: f64,
}

/// Measures `rounds` rounds of a workload with all allocators, each run `size` times about 10 ms.
/// Drops the first round, which faults the memory in.
///
/// # Panics
/// If the results of the allocators differ.
#[must_use]
pub fn measure(workload: AllocationWorkload, size: u32, rounds: usize) -> Vec<HeapTimes> {
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
        assert!(found.iter().all(|&(_, sum)| sum == found[0].1), "results differ: {found:?}");
        let [blocks_ns, mimalloc_ns, system_ns] = found.map(|(time_ns, _)| time_ns);
        HeapTimes { blocks_ns, to_mimalloc: blocks_ns / mimalloc_ns, to_system: blocks_ns / system_ns }
    };
    (0..=rounds).map(round).skip(1).collect()
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of seconds are far below 2^53")]
fn timed<A: GlobalAlloc + Sync>(alloc: &'static A, workload: AllocationWorkload, size: u32) -> (f64, u64) {
    let start = Instant::now();
    let sum = run(alloc, workload, size);
    (start.elapsed().as_nanos() as f64, sum)
}

/// Runs a workload on an allocator. Returns the sum of the keys of its nodes.
pub fn run<A: GlobalAlloc + Sync>(alloc: &'static A, workload: AllocationWorkload, size: u32) -> u64 {
    match workload {
        AllocationWorkload::Trees => trees(alloc, size),
        AllocationWorkload::Map => map(alloc, size),
        AllocationWorkload::Mail => mail(alloc, size),
    }
}

/// A node of any workload; larger nodes have unused bytes after it.
struct HeapNode {
    left: *mut HeapNode,
    right: *mut HeapNode,
    key: u64,
    bytes: usize,
}

#[expect(clippy::cast_ptr_alignment, reason = "the layout has the alignment of a node")]
fn new<A: GlobalAlloc>(alloc: &A, bytes: usize, key: u64) -> *mut HeapNode {
    let layout = layout(bytes);
    // SAFETY: the size of the layout is at least that of a node, so not zero.
    let node = unsafe { alloc.alloc(layout) };
    if node.is_null() {
        handle_alloc_error(layout);
    }
    let node = node.cast::<HeapNode>();
    // SAFETY: the memory was just allocated with at least the size of a node.
    unsafe { node.write(HeapNode { left: null_mut(), right: null_mut(), key, bytes }) };
    node
}

/// Frees a node and returns its key.
///
/// # Safety
/// The node came from [`new`] with this allocator, and nothing else uses it.
unsafe fn free<A: GlobalAlloc>(alloc: &A, node: *mut HeapNode) -> u64 {
    // SAFETY: the caller passes an unused node that `new` created with this allocator.
    unsafe {
        let (key, bytes) = ((*node).key, (*node).bytes);
        alloc.dealloc(node.cast(), layout(bytes));
        key
    }
}

const fn layout(bytes: usize) -> Layout {
    let node = Layout::new::<HeapNode>();
    // SAFETY: the alignment comes from a valid layout, and all sizes are below 200 bytes.
    unsafe { Layout::from_size_align_unchecked(if bytes < node.size() { node.size() } else { bytes }, node.align()) }
}

fn trees<A: GlobalAlloc>(alloc: &A, size: u32) -> u64 {
    let long_lived = build_tree(alloc, 14);
    let mut sum = 0;
    for _ in 0..size {
        for depth in [4, 8, 12, 14] {
            for _ in 0..1_u32 << (14 - depth) {
                // SAFETY: the tree was just built with this allocator, and nothing else refers to
                // it.
                sum += unsafe { free_tree(alloc, build_tree(alloc, depth)) };
            }
        }
    }
    // SAFETY: `long_lived` was built with this allocator, and nothing else refers to it.
    sum + unsafe { free_tree(alloc, long_lived) }
}

fn build_tree<A: GlobalAlloc>(alloc: &A, depth: u32) -> *mut HeapNode {
    let node = new(alloc, size_of::<HeapNode>(), 1);
    if depth > 0 {
        let (left, right) = (build_tree(alloc, depth - 1), build_tree(alloc, depth - 1));
        // SAFETY: the node was just created, and nothing else refers to it.
        unsafe {
            (*node).left = left;
            (*node).right = right;
        }
    }
    node
}

/// Frees a tree and returns the sum of its keys. The tree must be built with `alloc`.
unsafe fn free_tree<A: GlobalAlloc>(alloc: &A, node: *mut HeapNode) -> u64 {
    if node.is_null() {
        return 0;
    }
    // SAFETY: the caller owns the tree, which contains each node once.
    unsafe {
        let (left, right) = ((*node).left, (*node).right);
        free_tree(alloc, left) + free_tree(alloc, right) + free(alloc, node)
    }
}

/// A pseudorandom generator (xorshift64*).
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
        // SAFETY: this function owns the tree, whose links are null or valid.
        unsafe {
            let place = find(&raw mut root, key);
            if (*place).is_null() {
                *place = new(alloc, 48 + 16 * (key % 5) as usize, key);
            } else {
                sum += remove(alloc, place);
            }
        }
    }
    // SAFETY: the rest of the tree was built with this allocator, and nothing else refers to it.
    sum + unsafe { free_tree(alloc, root) }
}

/// The link of a key, or the null link where it would be inserted. Keys are random, so the tree
/// needs no balancing.
unsafe fn find(mut place: *mut *mut HeapNode, key: u64) -> *mut *mut HeapNode {
    // SAFETY: the links of the caller's tree are null or point to its nodes.
    unsafe {
        while !(*place).is_null() && (**place).key != key {
            place = if key < (**place).key { &raw mut (**place).left } else { &raw mut (**place).right };
        }
    }
    place
}

/// Removes the node at the link `place` from its tree, frees it and returns its key.
unsafe fn remove<A: GlobalAlloc>(alloc: &A, place: *mut *mut HeapNode) -> u64 {
    // SAFETY: the links of the caller's tree are null or point to its nodes. The freed node is no
    // longer linked.
    unsafe {
        let node = *place;
        if (*node).left.is_null() || (*node).right.is_null() {
            *place = if (*node).left.is_null() { (*node).right } else { (*node).left };
        } else {
            let mut next = &raw mut (*node).right;
            while !(**next).left.is_null() {
                next = &raw mut (**next).left;
            }
            let successor = *next;
            *next = (*successor).right;
            (*successor).left = (*node).left;
            (*successor).right = (*node).right;
            *place = successor;
        }
        free(alloc, node)
    }
}

/// A list that is sent to the thread that frees it.
struct SentList(*mut HeapNode);

// SAFETY: the thread that has the value owns the list; its nodes are not tied to a thread.
unsafe impl Send for SentList {}

fn mail<A: GlobalAlloc + Sync>(alloc: &'static A, size: u32) -> u64 {
    let (to_left, from_right) = mpsc::sync_channel(16);
    let (to_right, from_left) = mpsc::sync_channel(16);
    std::thread::scope(|scope| {
        let left = scope.spawn(move || exchange_lists(alloc, size, &to_right, &from_right));
        let right = exchange_lists(alloc, size, &to_left, &from_left);
        right + left.join().unwrap_or(u64::MAX)
    })
}

fn exchange_lists<A: GlobalAlloc>(
    alloc: &A,
    size: u32,
    to: &mpsc::SyncSender<SentList>,
    from: &mpsc::Receiver<SentList>,
) -> u64 {
    let mut sum = 0;
    for _ in 0..size * 20 {
        let mut list = null_mut();
        for key in 0..1000 {
            let node = new(alloc, 32 + 16 * (key % 4) as usize, key);
            // SAFETY: the node was just created, and nothing else refers to it.
            unsafe { (*node).right = list };
            list = node;
        }
        // Both sides send before they receive, so the channel holds at most a few lists.
        if to.send(SentList(list)).is_err() {
            return 0;
        }
        let Ok(SentList(list)) = from.recv() else { return 0 };
        // SAFETY: the channel passed the ownership of the list; its nodes have no left links.
        sum += unsafe { free_list(alloc, list) };
    }
    sum
}

unsafe fn free_list<A: GlobalAlloc>(alloc: &A, mut list: *mut HeapNode) -> u64 {
    let mut sum = 0;
    while !list.is_null() {
        // SAFETY: the caller owns the list, which contains each node once.
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

    const ALL: [AllocationWorkload; 3] = [AllocationWorkload::Trees, AllocationWorkload::Map, AllocationWorkload::Mail];

    #[test]
    fn all_allocators_have_the_same_results() {
        for workload in ALL {
            assert_eq!(measure(workload, 1, 1).len(), 1);
        }
        assert_eq!(mail(&SYSTEM, 1), 2 * 20 * 999 * 500);
    }
}
