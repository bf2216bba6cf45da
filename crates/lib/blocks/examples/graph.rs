//! Compares a growing graph in vectors, in tree arrays, in boxes from malloc, and in boxes on
//! blocks: time, memory, and the longest pause.
//!
//! `cargo run --release -p fieldstone-blocks --example graph [-- MILLIONS_OF_NODES]`
//!
//! Edges arrive one by one, eight per node. Sixteen times the graph is saved, as for a checkpoint
//! or a reader: vectors and boxes are cloned, tree arrays take a snapshot. At the end a
//! breadth-first search visits the graph and its last saved state; all kinds must reach the same
//! nodes. Each kind runs in its own process, so that memory is measured separately.

#![allow(unsafe_code, reason = "implements an allocator")]

use std::alloc::Layout;
use std::error::Error;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use allocator_api2::alloc::{AllocError, Allocator, Global};
use allocator_api2::boxed::Box as BoxIn;
use fieldstone_blocks::heap::{Heap, Large};
use fieldstone_blocks::{MmapFrames, PageKind, Pool, Snapshot, TreeArray};

const EDGES_PER_NODE: u32 = 8;
const SAVES: u32 = 16;
const NONE: u32 = u32::MAX;

/// The operations a graph needs of an array, and how its state is saved.
trait Array<T: Copy> {
    type Saved;
    fn empty() -> Self;
    fn push(&mut self, value: T);
    fn get(&self, index: u32) -> T;
    fn set(&mut self, index: u32, value: T);
    fn save(&mut self) -> Self::Saved;
    fn saved(saved: &Self::Saved, index: u32) -> T;
}

impl<T: Copy> Array<T> for Vec<T> {
    type Saved = Self;

    fn empty() -> Self {
        Self::new()
    }

    fn push(&mut self, value: T) {
        self.push(value);
    }

    fn get(&self, index: u32) -> T {
        self[index as usize]
    }

    fn set(&mut self, index: u32, value: T) {
        self[index as usize] = value;
    }

    fn save(&mut self) -> Self {
        self.clone()
    }

    fn saved(saved: &Self, index: u32) -> T {
        saved[index as usize]
    }
}

impl<T: Copy + Send + Sync> Array<T> for TreeArray<T> {
    type Saved = Snapshot<T>;

    fn empty() -> Self {
        // Smaller blocks than the default: writes to `heads` are scattered, and each copies a leaf
        // that a saved state shares.
        static POOL: LazyLock<Pool> = LazyLock::new(|| {
            let frames = MmapFrames::new(PageKind::Thp);
            Pool::with_block_bytes(frames, 64 << 10).expect("memory for the pool's tables")
        });
        Self::new_in(&POOL)
    }

    fn push(&mut self, value: T) {
        self.push(value);
    }

    fn get(&self, index: u32) -> T {
        self[index as usize]
    }

    fn set(&mut self, index: u32, value: T) {
        self[index as usize] = value;
    }

    fn save(&mut self) -> Snapshot<T> {
        self.snapshot()
    }

    fn saved(saved: &Snapshot<T>, index: u32) -> T {
        saved[index as usize]
    }
}

/// A graph that grows edge by edge.
trait Graph {
    type Saved;
    fn of(nodes: u32) -> Self;
    fn connect(&mut self, from: u32, to: u32);
    fn save(&mut self) -> Self::Saved;
    /// Removes a node's edges.
    fn clear(&mut self, node: u32);
    fn neighbours(&self, node: u32, each: impl FnMut(u32));
    fn saved_neighbours(saved: &Self::Saved, node: u32, each: impl FnMut(u32));
}

/// An edge in a linked list of its source node's edges.
#[derive(Clone, Copy)]
struct Edge {
    to: u32,
    next: u32,
}

/// Linked lists of edges by index, one per node.
struct Lists<Heads, Edges> {
    heads: Heads,
    edges: Edges,
    count: u32,
}

impl<Heads: Array<u32>, Edges: Array<Edge>> Graph for Lists<Heads, Edges> {
    type Saved = (Heads::Saved, Edges::Saved);

    fn of(nodes: u32) -> Self {
        let mut heads = Heads::empty();
        (0..nodes).for_each(|_| heads.push(NONE));
        Self { heads, edges: Edges::empty(), count: 0 }
    }

    fn connect(&mut self, from: u32, to: u32) {
        self.edges.push(Edge { to, next: self.heads.get(from) });
        self.heads.set(from, self.count);
        self.count += 1;
    }

    fn save(&mut self) -> Self::Saved {
        (self.heads.save(), self.edges.save())
    }

    fn clear(&mut self, node: u32) {
        self.heads.set(node, NONE);
    }

    fn neighbours(&self, node: u32, each: impl FnMut(u32)) {
        follow(self.heads.get(node), |at| self.edges.get(at), each);
    }

    fn saved_neighbours((heads, edges): &Self::Saved, node: u32, each: impl FnMut(u32)) {
        follow(Heads::saved(heads, node), |at| Edges::saved(edges, at), each);
    }
}

fn follow(mut at: u32, edge: impl Fn(u32) -> Edge, mut each: impl FnMut(u32)) {
    while at != NONE {
        let Edge { to, next } = edge(at);
        each(to);
        at = next;
    }
}

/// Linked lists of boxed edges.
struct Boxes<A: Allocator + Clone>(Vec<Link<A>>);

type Link<A> = Option<BoxIn<Boxed<A>, A>>;

#[derive(Clone)]
struct Boxed<A: Allocator + Clone> {
    to: u32,
    next: Link<A>,
}

impl<A: Allocator + Clone + Default> Graph for Boxes<A> {
    type Saved = Vec<Link<A>>;

    fn of(nodes: u32) -> Self {
        Self((0..nodes).map(|_| None).collect())
    }

    fn connect(&mut self, from: u32, to: u32) {
        let head = &mut self.0[from as usize];
        *head = Some(BoxIn::new_in(Boxed { to, next: head.take() }, A::default()));
    }

    fn save(&mut self) -> Self::Saved {
        self.0.clone()
    }

    fn clear(&mut self, node: u32) {
        self.0[node as usize] = None;
    }

    fn neighbours(&self, node: u32, each: impl FnMut(u32)) {
        Self::saved_neighbours(&self.0, node, each);
    }

    fn saved_neighbours(saved: &Self::Saved, node: u32, mut each: impl FnMut(u32)) {
        let mut link = &saved[node as usize];
        while let Some(edge) = link {
            each(edge.to);
            link = &edge.next;
        }
    }
}

/// A zero-sized allocator on the heap in blocks.
#[derive(Clone, Copy, Default)]
struct BlockAllocator;

static HEAP: LazyLock<Heap> = LazyLock::new(|| {
    let pool = Pool::with_block_bytes(MmapFrames::new(PageKind::Thp), 64 << 10).expect("memory for the pool's tables");
    Heap::new(&pool, Large::Runs).expect("memory for the heap's tables")
});

// SAFETY: the heap lives as long as the process, and its objects stay in place until they are
// freed.
unsafe impl Allocator for BlockAllocator {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let object = HEAP.alloc(layout).map_err(|_| AllocError)?;
        Ok(NonNull::slice_from_raw_parts(object, layout.size()))
    }

    unsafe fn deallocate(&self, object: NonNull<u8>, layout: Layout) {
        // SAFETY: the trait's caller vouches for the object and its layout.
        unsafe { HEAP.free(object, layout) };
    }
}

/// Breadth-first search from node 0. Returns the nodes reached and the sum of their distances.
/// `neighbours` appends a node's neighbours to a list.
fn search(nodes: u32, neighbours: impl Fn(u32, &mut Vec<u32>)) -> (u64, u64) {
    let mut seen = vec![false; nodes as usize];
    let (mut front, mut found, mut reached, mut distances) = (vec![0], Vec::new(), 1, 0);
    seen[0] = true;
    for distance in 1.. {
        let mut next = Vec::new();
        for &node in &front {
            neighbours(node, &mut found);
            next.extend(found.drain(..).filter(|&to| !std::mem::replace(&mut seen[to as usize], true)));
        }
        reached += next.len() as u64;
        distances += distance * next.len() as u64;
        if next.is_empty() {
            break;
        }
        front = next;
    }
    (reached, distances)
}

/// The search results, which must be equal for all kinds, and the costs of a run.
#[derive(Debug)]
struct GraphRun {
    found: [(u64, u64); 2],
    grow: Duration,
    search: Duration,
    longest_pause: Duration,
}

fn run<G: Graph>(nodes: u32) -> GraphRun {
    let start = Instant::now();
    let mut graph = G::of(nodes);
    let (mut saved, mut state) = (None, 1_u64);
    let (mut longest_pause, mut last) = (Duration::ZERO, start);
    let edges = nodes * EDGES_PER_NODE;
    for number in 0..edges {
        let mut node = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            u32::try_from((state >> 33) % u64::from(nodes)).unwrap_or(0)
        };
        graph.connect(node(), node());
        if (number + 1) % (edges / SAVES) == 0 {
            saved = Some(graph.save());
        }
        let now = Instant::now();
        longest_pause = longest_pause.max(now - last);
        last = now;
    }
    let grown = Instant::now();
    let now = search(nodes, |node, found| graph.neighbours(node, |to| found.push(to)));
    let then = saved.map_or((0, 0), |saved| {
        // Clear the graph, so that the search shows that the saved state is independent of it.
        (0..nodes).for_each(|node| graph.clear(node));
        search(nodes, |node, found| G::saved_neighbours(&saved, node, |to| found.push(to)))
    });
    GraphRun { found: [now, then], grow: grown - start, search: grown.elapsed(), longest_pause }
}

/// A representation of a graph: its name, and a function that runs it with a number of nodes.
type Representation = (&'static str, fn(u32) -> GraphRun);

const KINDS: [Representation; 4] = [
    ("vectors", run::<Lists<Vec<u32>, Vec<Edge>>>),
    ("arrays of blocks", run::<Lists<TreeArray<u32>, TreeArray<Edge>>>),
    ("boxes", run::<Boxes<Global>>),
    ("boxes in blocks", run::<Boxes<BlockAllocator>>),
];

/// The peak resident size of this process in MiB.
fn peak_mib() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? / 1024)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let millions: f64 = arguments.first().map_or(Ok(2.0), |given| given.parse())?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float to an integer saturates")]
    let nodes = ((millions * 1e6) as u32).clamp(100, NONE / EDGES_PER_NODE / 2);
    if let Some(kind) = arguments.get(1) {
        let (_, run) = KINDS.iter().find(|(name, _)| name == kind).ok_or_else(|| format!("no kind {kind}"))?;
        let GraphRun { found, grow, search, longest_pause } = run(nodes);
        println!(
            "{:6.2} s {:6.2} s {:8.2} ms {:6} MiB",
            grow.as_secs_f64(),
            search.as_secs_f64(),
            longest_pause.as_secs_f64() * 1e3,
            peak_mib()?
        );
        println!("{found:?}");
        return Ok(());
    }
    println!("{nodes} nodes, {} edges", nodes * EDGES_PER_NODE);
    println!("{:16} {:>8} {:>8} {:>11} {:>10}", "", "grow", "search", "worst pause", "peak");
    let mut found = Vec::new();
    for (kind, _) in KINDS {
        let output = Command::new(std::env::current_exe()?).args([&millions.to_string(), kind]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let (costs, result) = text.trim_end().split_once('\n').ok_or(format!("{kind}: {}", output.status))?;
        println!("{kind:16} {costs}");
        found.push(result.to_owned());
    }
    assert!(found.iter().all(|result| *result == found[0]), "all kinds find the same nodes: {found:?}");
    println!("found by all: {}", found[0]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_find_the_same() {
        let outcomes = KINDS.map(|(_, run)| run(20_000));
        assert!(outcomes.iter().all(|outcome| outcome.found == outcomes[0].found), "{outcomes:?}");
        let [now, then] = outcomes[0].found;
        assert_eq!(now, then, "the last state is kept after the last edge");
        assert!(now.0 > 19_000, "{outcomes:?}");
        assert!(HEAP.stats().held_bytes > 0, "the boxes were in the heap");
        assert!(peak_mib().is_ok_and(|mib| mib > 0));
    }
}
