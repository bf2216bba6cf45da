//! A graph that grows while it is saved and searched, once in vectors and once in blocks: memory, time, and the longest pause.
//!
//! `cargo run --release -p fieldstone-blocks --example graph [-- MILLIONS_OF_NODES]`
//!
//! Eight edges a node arrive one by one. Sixteen times on the way a state that is not to change is kept, as for a checkpoint or
//! for a reader: vectors are cloned for that, arrays of blocks give a snapshot. In the end a breadth-first search goes over what
//! has come, and over the last state that was kept; both kinds must find the same. Each kind runs in a process of its own, so that
//! the memory is its alone.

use std::error::Error;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fieldstone_blocks::{MmapFrames, PageKind, Pool, Snapshot, TreeArray};

const EDGES_PER_NODE: u32 = 8;
const SAVES: u32 = 16;
const NONE: u32 = u32::MAX;

/// What a graph asks of an array, and how a state of it is kept.
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
        // Smaller blocks than the default: heads are written all over, and each leaf that a state shares is copied then.
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

/// An edge in the list of its node's.
#[derive(Clone, Copy)]
struct Edge {
    to: u32,
    next: u32,
}

/// Lists of edges, each beginning at its node's head.
struct Graph<Heads, Edges> {
    heads: Heads,
    edges: Edges,
    count: u32,
}

impl<Heads: Array<u32>, Edges: Array<Edge>> Graph<Heads, Edges> {
    fn connect(&mut self, from: u32, to: u32) {
        self.edges.push(Edge { to, next: self.heads.get(from) });
        self.heads.set(from, self.count);
        self.count += 1;
    }
}

/// Breadth first from node 0: nodes reached, and the sum of their distances.
fn search(nodes: u32, head: impl Fn(u32) -> u32, edge: impl Fn(u32) -> Edge) -> (u64, u64) {
    let mut seen = vec![false; nodes as usize];
    let (mut front, mut reached, mut distances) = (vec![0], 1, 0);
    seen[0] = true;
    for distance in 1.. {
        let mut next = Vec::new();
        for &node in &front {
            let mut at = head(node);
            while at != NONE {
                let Edge { to, next: after } = edge(at);
                if !std::mem::replace(&mut seen[to as usize], true) {
                    next.push(to);
                }
                at = after;
            }
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

/// What a run finds, which must be the same on both, and what it costs.
#[derive(Debug)]
struct Outcome {
    found: [(u64, u64); 2],
    grow: Duration,
    search: Duration,
    longest_pause: Duration,
}

fn run<Heads: Array<u32>, Edges: Array<Edge>>(nodes: u32) -> Outcome {
    let start = Instant::now();
    let mut graph = Graph::<Heads, Edges> { heads: Heads::empty(), edges: Edges::empty(), count: 0 };
    let (mut saved, mut state) = (None, 1_u64);
    let (mut longest_pause, mut last) = (Duration::ZERO, start);
    (0..nodes).for_each(|_| graph.heads.push(NONE));
    let edges = nodes * EDGES_PER_NODE;
    for number in 0..edges {
        let mut node = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            u32::try_from((state >> 33) % u64::from(nodes)).unwrap_or(0)
        };
        graph.connect(node(), node());
        if (number + 1) % (edges / SAVES) == 0 {
            saved = Some((graph.heads.save(), graph.edges.save()));
        }
        let now = Instant::now();
        longest_pause = longest_pause.max(now - last);
        last = now;
    }
    let grown = Instant::now();
    let now = search(nodes, |node| graph.heads.get(node), |at| graph.edges.get(at));
    let then = saved.map_or((0, 0), |(heads, list)| {
        // Written over, so that the kept state shows that it is one.
        (0..nodes).for_each(|node| graph.heads.set(node, NONE));
        search(nodes, |node| Heads::saved(&heads, node), |at| Edges::saved(&list, at))
    });
    Outcome { found: [now, then], grow: grown - start, search: grown.elapsed(), longest_pause }
}

fn run_named(kind: &str, nodes: u32) -> Outcome {
    match kind {
        "vectors" => run::<Vec<u32>, Vec<Edge>>(nodes),
        _ => run::<TreeArray<u32>, TreeArray<Edge>>(nodes),
    }
}

/// The largest resident size that this process has had.
fn peak_mib() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? / 1024)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let millions: f64 = arguments.first().map_or(Ok(4.0), |given| given.parse())?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float to an integer saturates")]
    let nodes = ((millions * 1e6) as u32).clamp(100, NONE / EDGES_PER_NODE / 2);
    if let Some(kind) = arguments.get(1) {
        let Outcome { found, grow, search, longest_pause } = run_named(kind, nodes);
        println!(
            "{:.2} s, {:.2} s, {:.2} ms, {} MiB",
            grow.as_secs_f64(),
            search.as_secs_f64(),
            longest_pause.as_secs_f64() * 1e3,
            peak_mib()?
        );
        println!("{found:?}");
        return Ok(());
    }
    println!("{nodes} nodes, {} edges; grow, search, longest pause, peak memory", nodes * EDGES_PER_NODE);
    let mut found = Vec::new();
    for kind in ["vectors", "blocks"] {
        let output = Command::new(std::env::current_exe()?).args([&millions.to_string(), kind]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let (costs, result) = text.trim().split_once('\n').ok_or(format!("{kind}: {}", output.status))?;
        println!("{kind:8} {costs}");
        found.push(result.to_owned());
    }
    assert_eq!(found[0], found[1], "both find the same");
    println!("found by both: {}", found[0]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_and_blocks_find_the_same() {
        let (vectors, blocks) = (run_named("vectors", 20_000), run_named("blocks", 20_000));
        assert_eq!(vectors.found, blocks.found);
        assert_eq!(vectors.found[0], vectors.found[1], "the last state is kept after the last edge");
        assert!(vectors.found[0].0 > 19_000, "{vectors:?}");
        assert!(peak_mib().is_ok_and(|mib| mib > 0));
    }
}
