//! The section `[arrays]`: `TreeArray<u64>` on the default pool against a vector on each kind of pages and against other people's arrays.
//!
//! Both sides are filled, which touches their pages, before anything is timed; the kernels are those of the `peers` crate, and both
//! sides' results are compared. A cell whose two sides do not fit in memory is skipped by name.

use std::hint::black_box;
use std::time::{Duration, Instant};

use fieldstone_blocks::{MmapFrames, PageKind, Pool, TreeArray};
use fieldstone_peers::{self as arrays, crates, deque, vector};
use fieldstone_reproduce::nodes::{self, Workload};
use fieldstone_stats::Estimate;
use fieldstone_sys::machine::machine;
use fieldstone_sys::warm::warm;

use crate::cell::Cell;
use crate::duel::{cpu_seconds, duel};
use crate::goals::{Goal, Goals, Limit};
use crate::reach;

const SECTION: &str = "arrays";
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
const WORD: usize = size_of::<u64>();
/// A stride of 4 KiB.
const STEP: usize = 512;
const MANY: usize = 100_000_000;
/// Elements or updates that make a kernel's run long enough to be timed.
const WORK: usize = 1 << 24;

/// Not in goals.toml: the general allocator on blocks, against mimalloc on the same pages.
const HEAP: &str = "heap_vs_mimalloc";
const HEAP_LIMIT: f64 = 1.3;
const HEAP_WORKLOADS: [Workload; 3] = [Workload::Trees, Workload::Map, Workload::Mail];
const HEAP_ROUNDS: usize = 31;

/// Measures the cells of one goal, one for each size or peer.
type Measure = fn(&Stage, &Goal) -> Vec<Cell>;

/// Every goal of the section.
const CELLS: [(&str, Measure); 15] = [
    ("linear_large_vs_vec4k", |stage, goal| each(&LARGE, |bytes| stage.linear(goal, bytes, Vector::Small))),
    ("linear_large_vs_vecthp", |stage, goal| each(&LARGE, |bytes| stage.linear(goal, bytes, Vector::Huge))),
    ("linear_small_vs_vec4k", |stage, goal| {
        each(&[4 * KIB, 4 * MIB], |bytes| stage.linear(goal, bytes, Vector::Small))
    }),
    ("strided_large_vs_vec4k", |stage, goal| each(&LARGE, |bytes| stage.strided(goal, bytes, Vector::Small))),
    ("strided_large_vs_vecthp", |stage, goal| each(&LARGE, |bytes| stage.strided(goal, bytes, Vector::Huge))),
    ("gups_4g_vs_vec4k", |stage, goal| vec![stage.gups(goal, Vector::Small, false)]),
    ("gups_4g_vs_vecthp", |stage, goal| vec![stage.gups(goal, Vector::Huge, false)]),
    ("gups_4g_batched_vs_vec4k", |stage, goal| vec![stage.gups(goal, Vector::Small, true)]),
    ("gups_4g_batched_vs_vecthp", |stage, goal| vec![stage.gups(goal, Vector::Huge, true)]),
    ("chase_small_vs_vec", |stage, goal| vec![stage.chase(goal)]),
    ("push_mean_vs_vec", |stage, goal| vec![stage.push_mean(goal)]),
    ("push_worst_cold_vs_vec", |stage, goal| vec![stage.push_worst(goal)]),
    ("get_vs_std_deque", |stage, goal| stage.deque(goal, true)),
    ("linear_vs_std_deque", |stage, goal| stage.deque(goal, false)),
    ("get_vs_best_crate", Stage::crates),
];

const LARGE: [usize; 3] = [256 * MIB, GIB, 4 * GIB];

fn each(sizes: &[usize], cell: impl Fn(usize) -> Cell) -> Vec<Cell> {
    sizes.iter().map(|&bytes| cell(bytes)).collect()
}

/// Where the vector of a comparison lies.
#[derive(Clone, Copy, PartialEq)]
enum Vector {
    Small,
    Huge,
}

/// Measures the section's cells.
pub(crate) fn measure(goals: &Goals, limit: Duration, only: &str, show: &mut dyn FnMut(Cell)) -> anyhow::Result<()> {
    println!(
        "# dependent reads, a line a page, 32 MiB: on huge pages {:.2} of the time on small ones (near 1: the host splits huge pages)",
        reach::huge_by_small()
    );
    // What comes from malloc has the pages that malloc asks for: glibc's tunable makes them those of our default pool.
    let tuned = std::env::var("GLIBC_TUNABLES").is_ok_and(|tunables| tunables.contains("glibc.malloc.hugetlb=1"));
    println!(
        "# deques and crates: malloc's memory on {} pages",
        if tuned { "transparent huge" } else { "the system's default" }
    );
    let stage = Stage { limit };
    for (name, measure) in CELLS.into_iter().filter(|(name, _)| name.contains(only)) {
        measure(&stage, &goals.get(SECTION, name)?).into_iter().for_each(&mut *show);
    }
    if HEAP.contains(only) {
        HEAP_WORKLOADS.into_iter().map(heap).for_each(show);
    }
    Ok(())
}

struct Stage {
    limit: Duration,
}

impl Vector {
    const fn kind(self) -> PageKind {
        match self {
            Self::Small => PageKind::Small4k,
            Self::Huge => PageKind::Thp,
        }
    }

    /// A vector on these pages, with the elements `value(0..len)`.
    fn filled(self, len: usize, value: impl Fn(usize) -> u64) -> Vec<u64> {
        let mut filled = vector::with_capacity(len, self.kind());
        filled.extend((0..len).map(value));
        filled
    }
}

fn filled_tree(len: usize, value: impl Fn(usize) -> u64) -> TreeArray<u64> {
    let mut tree = TreeArray::with_capacity(len);
    tree.extend((0..len).map(value));
    tree
}

/// Why a cell is skipped whose sides take so many bytes in all, if it is.
fn too_large(bytes: usize) -> Option<String> {
    let available = machine().memory_available_bytes;
    let wanted = bytes as u64 + (512 << 20);
    (wanted > available)
        .then(|| format!("{} MiB of memory are needed, {} MiB are there", wanted >> 20, available >> 20))
}

fn size_name(bytes: usize) -> String {
    match bytes {
        GIB.. => format!("{} GiB", bytes / GIB),
        MIB.. => format!("{} MiB", bytes / MIB),
        _ => format!("{} KiB", bytes / KIB),
    }
}

impl Stage {
    fn linear(&self, goal: &Goal, bytes: usize, against: Vector) -> Cell {
        let part = size_name(bytes);
        if let Some(why) = too_large(2 * bytes) {
            return Cell::skipped_part(goal.clone(), &part, &why);
        }
        let len = bytes / WORD;
        let (vector, tree) = (against.filled(len, |at| at as u64), filled_tree(len, |at| at as u64));
        assert_eq!(arrays::sum(&vector), arrays::sum_leaves(&tree), "both sides have the same elements");
        let times = WORK.div_ceil(len);
        let own = || repeat(times, || arrays::sum_leaves(black_box(&tree)));
        let other = || repeat(times, || arrays::sum(black_box(&vector)));
        duel(goal.clone(), &part, "", self.limit, own, other)
    }

    fn strided(&self, goal: &Goal, bytes: usize, against: Vector) -> Cell {
        let part = size_name(bytes);
        if let Some(why) = too_large(2 * bytes) {
            return Cell::skipped_part(goal.clone(), &part, &why);
        }
        let len = bytes / WORD;
        let (vector, tree) = (against.filled(len, |at| at as u64), filled_tree(len, |at| at as u64));
        assert_eq!(
            arrays::stride(&vector, STEP),
            arrays::stride_tree(&tree, STEP),
            "both sides have the same elements"
        );
        let times = (WORK / 4).div_ceil(len / STEP);
        let own = || repeat(times, || arrays::stride_tree(black_box(&tree), STEP));
        let plain = || repeat(times, || arrays::stride(black_box(&vector), STEP));
        let prefetched = || repeat(times, || arrays::stride_prefetched(black_box(&vector), STEP));
        match against {
            Vector::Small => duel(goal.clone(), &part, "", self.limit, own, plain),
            Vector::Huge => duel(goal.clone(), &part, "with the same prefetch", self.limit, own, prefetched),
        }
    }

    fn gups(&self, goal: &Goal, against: Vector, batched: bool) -> Cell {
        let bytes = 4 * GIB;
        if let Some(why) = too_large(2 * bytes) {
            return Cell::skipped_part(goal.clone(), "4 GiB", &why);
        }
        let len = bytes / WORD;
        let (mut vector, mut tree) = (against.filled(len, |at| at as u64), filled_tree(len, |at| at as u64));
        let updates = WORK as u64;
        let (mut seed_own, mut seed_other) = (0, 0);
        let own = || {
            seed_own += updates;
            cpu_seconds(|| {
                black_box(if batched {
                    arrays::gups_tree_batched(&mut tree, updates, seed_own)
                } else {
                    arrays::gups_tree(&mut tree, updates, seed_own)
                });
            })
        };
        let other = || {
            seed_other += updates;
            cpu_seconds(|| {
                black_box(if batched && against == Vector::Huge {
                    arrays::gups_batched(&mut vector, updates, seed_other)
                } else {
                    arrays::gups(&mut vector, updates, seed_other)
                });
            })
        };
        let cell = duel(goal.clone(), "4 GiB", "", self.limit, own, other);
        assert!(seed_own == seed_other && tree == vector, "both sides did the same updates");
        cell
    }

    fn chase(&self, goal: &Goal) -> Cell {
        let next = arrays::cycle(32 * KIB / WORD, 1);
        let mut tree = TreeArray::new();
        tree.reserve_leaf().expect("a block of memory");
        tree.extend(next.iter().copied());
        let steps = WORK as u64;
        assert_eq!(arrays::chase(&next, steps), arrays::chase_tree(&tree, steps));
        let own = || repeat(1, || arrays::chase_tree(black_box(&tree), steps));
        let other = || repeat(1, || arrays::chase(black_box(&next), steps));
        duel(goal.clone(), "32 KiB", "", self.limit, own, other)
    }

    fn push_mean(&self, goal: &Goal) -> Cell {
        if let Some(why) = too_large(2 * MANY * WORD) {
            return Cell::skipped_part(goal.clone(), "1e8", &why);
        }
        let mut vector = vector::prefaulted(MANY, PageKind::Thp);
        let mut tree = TreeArray::new();
        if let Err(error) = tree.reserve_prefault(MANY) {
            return Cell::skipped_part(goal.clone(), "1e8", &error.to_string());
        }
        let own = || {
            tree.clear();
            cpu_seconds(|| push_tree(&mut tree, MANY))
        };
        let other = || {
            vector.clear();
            cpu_seconds(|| push_vector(&mut vector, MANY))
        };
        let cell = duel(goal.clone(), "1e8", "", self.limit, own, other);
        assert!(tree == vector, "both sides pushed the same");
        cell
    }

    fn push_worst(&self, goal: &Goal) -> Cell {
        if let Some(why) = too_large(3 * MANY * WORD) {
            return Cell::skipped_part(goal.clone(), "1e8", &why);
        }
        let own = || {
            warm((2 * MANY * WORD) as u64);
            let pool = Pool::new(MmapFrames::new(PageKind::Thp)).expect("the pool's tables");
            let mut tree = TreeArray::new_in(&pool);
            longest(MANY, |value| tree.push(value))
        };
        let other = || {
            warm((2 * MANY * WORD) as u64);
            let mut vector = Vec::new();
            longest(MANY, |value| vector.push(value))
        };
        duel(goal.clone(), "1e8", "longest push, wall time", self.limit, own, other)
    }

    fn deque(&self, goal: &Goal, random: bool) -> Vec<Cell> {
        if let Some(why) = too_large(2 * MANY * WORD) {
            return vec![Cell::skipped_part(goal.clone(), "1e8", &why)];
        }
        let tree = filled_tree(MANY, |at| at as u64);
        let kinds = [(deque::Kind::Std, "std::deque"), (deque::Kind::Boost, "boost deque")];
        let against = kinds.into_iter().map(|(kind, name)| {
            if !deque::is_there(kind) {
                let why = "not built: install a C++ compiler (and libboost-dev for Boost's), then `make build`";
                return Cell::skipped_part(goal.clone(), name, why);
            }
            let Some(peer) = deque::Deque::counting(kind, MANY as u64) else {
                return Cell::skipped_part(goal.clone(), name, "the deque found no memory");
            };
            let gets = WORK as u64;
            if random {
                assert_eq!(arrays::random_get_tree(&tree, gets, 1), peer.random_get(gets, 1));
                let own = || repeat(1, || arrays::random_get_tree(black_box(&tree), gets, 1));
                let other = || repeat(1, || black_box(&peer).random_get(gets, 1));
                return duel(goal.clone(), name, "", self.limit, own, other);
            }
            assert_eq!(arrays::sum_leaves(&tree), peer.sum());
            let own = || repeat(1, || arrays::sum_leaves(black_box(&tree)));
            let other = || repeat(1, || black_box(&peer).sum());
            duel(goal.clone(), name, "", self.limit, own, other)
        });
        against.collect()
    }

    /// Against each crate; the goal is the fastest, and each is told.
    fn crates(&self, goal: &Goal) -> Vec<Cell> {
        if let Some(why) = too_large(3 * MANY * WORD) {
            return vec![Cell::skipped_part(goal.clone(), "1e8", &why)];
        }
        let tree = filled_tree(MANY, |at| at as u64);
        let gets = WORK as u64;
        let against = crates::NAMES.into_iter().map(|name| {
            let peer = crates::filled(name, MANY, |at| at as u64);
            assert_eq!(arrays::random_get_tree(&tree, gets, 1), peer.get.run(gets, 1), "{name}");
            let own = || repeat(1, || arrays::random_get_tree(black_box(&tree), gets, 1));
            let other = || repeat(1, || black_box(&peer).get.run(gets, 1));
            duel(goal.clone(), name, "", self.limit, own, other)
        });
        against.collect()
    }
}

/// Throughput of malloc and free on nodes.
fn heap(workload: Workload) -> Cell {
    let goal = Goal { name: HEAP.to_owned(), what: "node-heavy programs".to_owned(), limit: Limit::AtMost(HEAP_LIMIT) };
    let rounds = nodes::measure(workload, 5, HEAP_ROUNDS);
    let ratios: Vec<f64> = rounds.iter().map(|round| round.to_mimalloc).collect();
    let mut cell = Cell::measured(goal, &format!("{workload:?}").to_lowercase(), Estimate::of_median(&ratios), "");
    cell.samples = vec![("ratio".to_owned(), ratios)];
    cell
}

/// The time on the processor of so many runs of a kernel.
fn repeat(times: usize, mut kernel: impl FnMut() -> u64) -> f64 {
    cpu_seconds(|| {
        for _ in 0..times {
            black_box(kernel());
        }
    })
}

#[inline(never)]
fn push_tree(tree: &mut TreeArray<u64>, count: usize) {
    for value in 0..count as u64 {
        tree.push(value);
    }
}

#[inline(never)]
fn push_vector(vector: &mut Vec<u64>, count: usize) {
    for value in 0..count as u64 {
        vector.push(value);
    }
}

/// The longest of so many pushes, in seconds of wall time; each is timed and none is left out.
fn longest(count: usize, mut push: impl FnMut(u64)) -> f64 {
    let mut longest = Duration::ZERO;
    let mut last = Instant::now();
    for value in 0..count as u64 {
        push(value);
        let now = Instant::now();
        longest = longest.max(now - last);
        last = now;
    }
    longest.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_goal_is_measured() {
        let goals = Goals::read().unwrap();
        let asked: BTreeSet<String> = goals.of(SECTION).map(|goal| goal.name).collect();
        let measured: BTreeSet<String> = CELLS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(measured, asked);
    }
}
