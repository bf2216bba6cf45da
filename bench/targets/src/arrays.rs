//! The section `[arrays]`: `TreeArray<u64>` on the default pool against vectors on each kind of
//! pages and against other array types.
//!
//! Both sides are filled before timing, which makes their pages resident. The kernels are those of
//! the `peers` crate, and the results of both sides are compared. A case that does not fit in
//! memory is skipped.

use std::hint::black_box;
use std::time::{Duration, Instant};

use fieldstone_blocks::{MmapFrames, PageKind, Pool, TreeArray};
use fieldstone_peers::{self as arrays, crates, deque, vector};
use fieldstone_reproduce::nodes::{self, AllocationWorkload};
use fieldstone_stats::Estimate;
use fieldstone_sys::machine::machine;
use fieldstone_sys::warm::warm;

use crate::cell::GoalCell;
use crate::goals::{Goal, Limit};
use crate::huge_page_ratio;
use crate::kernel_comparison::{compare, cpu_seconds};
use crate::request::Request;

const SECTION: &str = "arrays";
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;
const WORD: usize = size_of::<u64>();
/// A stride of 4 KiB.
const STEP: usize = 512;
const MANY: usize = 100_000_000;
/// Elements or updates per run of a kernel, enough to be timed.
const WORK: usize = 1 << 24;

/// Not in goals.toml: the general allocator on blocks against mimalloc on the same pages.
const HEAP: &str = "heap_vs_mimalloc";
const HEAP_LIMIT: f64 = 1.3;
const HEAP_WORKLOADS: [AllocationWorkload; 3] =
    [AllocationWorkload::Trees, AllocationWorkload::Map, AllocationWorkload::Mail];
const HEAP_ROUNDS: usize = 31;

/// Measures the cells of one goal, one per size or peer.
type MeasureArrays = fn(&ArrayBench, &Goal) -> Vec<GoalCell>;

/// All goals of the section.
const CELLS: [(&str, MeasureArrays); 15] = [
    ("linear_large_vs_vec4k", |bench, goal| cells_for(&LARGE, |bytes| bench.linear(goal, bytes, VectorPages::Small))),
    ("linear_large_vs_vecthp", |bench, goal| cells_for(&LARGE, |bytes| bench.linear(goal, bytes, VectorPages::Huge))),
    ("linear_small_vs_vec4k", |bench, goal| {
        cells_for(&[4 * KIB, 4 * MIB], |bytes| bench.linear(goal, bytes, VectorPages::Small))
    }),
    ("strided_large_vs_vec4k", |bench, goal| cells_for(&LARGE, |bytes| bench.strided(goal, bytes, VectorPages::Small))),
    ("strided_large_vs_vecthp", |bench, goal| cells_for(&LARGE, |bytes| bench.strided(goal, bytes, VectorPages::Huge))),
    ("gups_4g_vs_vec4k", |bench, goal| vec![bench.gups(goal, VectorPages::Small, false)]),
    ("gups_4g_vs_vecthp", |bench, goal| vec![bench.gups(goal, VectorPages::Huge, false)]),
    ("gups_4g_batched_vs_vec4k", |bench, goal| vec![bench.gups(goal, VectorPages::Small, true)]),
    ("gups_4g_batched_vs_vecthp", |bench, goal| vec![bench.gups(goal, VectorPages::Huge, true)]),
    ("chase_small_vs_vec", |bench, goal| vec![bench.chase(goal)]),
    ("push_mean_vs_vec", |bench, goal| vec![bench.push_mean(goal)]),
    ("push_worst_cold_vs_vec", |bench, goal| vec![bench.push_worst(goal)]),
    ("get_vs_std_deque", |bench, goal| bench.deque(goal, true)),
    ("linear_vs_std_deque", |bench, goal| bench.deque(goal, false)),
    ("get_vs_best_crate", ArrayBench::crates),
];

const LARGE: [usize; 3] = [256 * MIB, GIB, 4 * GIB];

fn cells_for(sizes: &[usize], cell: impl Fn(usize) -> GoalCell) -> Vec<GoalCell> {
    sizes.iter().map(|&bytes| cell(bytes)).collect()
}

/// The pages of the vector in a comparison.
#[derive(Clone, Copy, PartialEq)]
enum VectorPages {
    Small,
    Huge,
}

/// Measures the cells of the section.
pub(crate) fn measure(request: &Request<'_>, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let Request { goals, limit, only, .. } = *request;
    println!(
        "# dependent reads, one line per page, 32 MiB: huge pages take {:.2} of the time on small pages (near 1: the host splits huge pages)",
        huge_page_ratio::huge_to_small()
    );
    // malloc chooses the pages of its memory. glibc's tunable makes it use those of our default
    // pool.
    let tuned = std::env::var("GLIBC_TUNABLES").is_ok_and(|tunables| tunables.contains("glibc.malloc.hugetlb=1"));
    println!(
        "# deques and crates: malloc's memory on {} pages",
        if tuned { "transparent huge" } else { "the system's default" }
    );
    let bench = ArrayBench { limit };
    for (name, measure) in CELLS.into_iter().filter(|(name, _)| name.contains(only)) {
        measure(&bench, &goals.get(SECTION, name)?).into_iter().for_each(&mut *show);
    }
    if HEAP.contains(only) {
        HEAP_WORKLOADS.into_iter().map(heap).for_each(show);
    }
    Ok(())
}

struct ArrayBench {
    limit: Duration,
}

impl VectorPages {
    const fn kind(self) -> PageKind {
        match self {
            Self::Small => PageKind::Small4k,
            Self::Huge => PageKind::Thp,
        }
    }

    /// A vector on these pages with the elements `value(0..len)`.
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

/// A message if `bytes` of memory are not available; else `None`.
fn memory_shortage(bytes: usize) -> Option<String> {
    let available = machine().memory_available_bytes;
    let wanted = bytes as u64 + (512 << 20);
    (wanted > available)
        .then(|| format!("{} MiB of memory are needed, {} MiB are available", wanted >> 20, available >> 20))
}

fn size_name(bytes: usize) -> String {
    match bytes {
        GIB.. => format!("{} GiB", bytes / GIB),
        MIB.. => format!("{} MiB", bytes / MIB),
        _ => format!("{} KiB", bytes / KIB),
    }
}

impl ArrayBench {
    fn linear(&self, goal: &Goal, bytes: usize, peer_pages: VectorPages) -> GoalCell {
        let case = size_name(bytes);
        if let Some(why) = memory_shortage(2 * bytes) {
            return GoalCell::skipped_case(goal.clone(), &case, &why);
        }
        let len = bytes / WORD;
        let (vector, tree) = (peer_pages.filled(len, |at| at as u64), filled_tree(len, |at| at as u64));
        assert_eq!(arrays::sum(&vector), arrays::sum_leaves(&tree), "both sides have the same elements");
        let times = WORK.div_ceil(len);
        let own = || repeat(times, || arrays::sum_leaves(black_box(&tree)));
        let other = || repeat(times, || arrays::sum(black_box(&vector)));
        compare(goal.clone(), &case, "", self.limit, own, other)
    }

    fn strided(&self, goal: &Goal, bytes: usize, peer_pages: VectorPages) -> GoalCell {
        let case = size_name(bytes);
        if let Some(why) = memory_shortage(2 * bytes) {
            return GoalCell::skipped_case(goal.clone(), &case, &why);
        }
        let len = bytes / WORD;
        let (vector, tree) = (peer_pages.filled(len, |at| at as u64), filled_tree(len, |at| at as u64));
        assert_eq!(
            arrays::stride(&vector, STEP),
            arrays::stride_tree(&tree, STEP),
            "both sides have the same elements"
        );
        let times = (WORK / 4).div_ceil(len / STEP);
        let own = || repeat(times, || arrays::stride_tree(black_box(&tree), STEP));
        let plain = || repeat(times, || arrays::stride(black_box(&vector), STEP));
        let prefetched = || repeat(times, || arrays::stride_prefetched(black_box(&vector), STEP));
        match peer_pages {
            VectorPages::Small => compare(goal.clone(), &case, "", self.limit, own, plain),
            VectorPages::Huge => compare(goal.clone(), &case, "with the same prefetch", self.limit, own, prefetched),
        }
    }

    fn gups(&self, goal: &Goal, peer_pages: VectorPages, batched: bool) -> GoalCell {
        let bytes = 4 * GIB;
        if let Some(why) = memory_shortage(2 * bytes) {
            return GoalCell::skipped_case(goal.clone(), "4 GiB", &why);
        }
        let len = bytes / WORD;
        let (mut vector, mut tree) = (peer_pages.filled(len, |at| at as u64), filled_tree(len, |at| at as u64));
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
                black_box(if batched && peer_pages == VectorPages::Huge {
                    arrays::gups_batched(&mut vector, updates, seed_other)
                } else {
                    arrays::gups(&mut vector, updates, seed_other)
                });
            })
        };
        let cell = compare(goal.clone(), "4 GiB", "", self.limit, own, other);
        assert!(seed_own == seed_other && tree == vector, "both sides did the same updates");
        cell
    }

    fn chase(&self, goal: &Goal) -> GoalCell {
        let next = arrays::cycle(32 * KIB / WORD, 1);
        let mut tree = TreeArray::new();
        tree.reserve_leaf().expect("a block of memory");
        tree.extend(next.iter().copied());
        let steps = WORK as u64;
        assert_eq!(arrays::chase(&next, steps), arrays::chase_tree(&tree, steps));
        let own = || repeat(1, || arrays::chase_tree(black_box(&tree), steps));
        let other = || repeat(1, || arrays::chase(black_box(&next), steps));
        compare(goal.clone(), "32 KiB", "", self.limit, own, other)
    }

    fn push_mean(&self, goal: &Goal) -> GoalCell {
        if let Some(why) = memory_shortage(2 * MANY * WORD) {
            return GoalCell::skipped_case(goal.clone(), "1e8", &why);
        }
        let mut vector = vector::prefaulted(MANY, PageKind::Thp);
        let mut tree = TreeArray::new();
        if let Err(error) = tree.reserve_prefault(MANY) {
            return GoalCell::skipped_case(goal.clone(), "1e8", &error.to_string());
        }
        let own = || {
            tree.clear();
            cpu_seconds(|| push_tree(&mut tree, MANY))
        };
        let other = || {
            vector.clear();
            cpu_seconds(|| push_vector(&mut vector, MANY))
        };
        let cell = compare(goal.clone(), "1e8", "", self.limit, own, other);
        assert!(tree == vector, "both sides pushed the same");
        cell
    }

    fn push_worst(&self, goal: &Goal) -> GoalCell {
        if let Some(why) = memory_shortage(3 * MANY * WORD) {
            return GoalCell::skipped_case(goal.clone(), "1e8", &why);
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
        compare(goal.clone(), "1e8", "longest push, wall time", self.limit, own, other)
    }

    fn deque(&self, goal: &Goal, random: bool) -> Vec<GoalCell> {
        if let Some(why) = memory_shortage(2 * MANY * WORD) {
            return vec![GoalCell::skipped_case(goal.clone(), "1e8", &why)];
        }
        let tree = filled_tree(MANY, |at| at as u64);
        let kinds = [(deque::DequeKind::Std, "std::deque"), (deque::DequeKind::Boost, "boost deque")];
        let cells = kinds.into_iter().map(|(kind, name)| {
            if !deque::is_there(kind) {
                let why = "not built: install a C++ compiler (and libboost-dev for Boost's), then `make build`";
                return GoalCell::skipped_case(goal.clone(), name, why);
            }
            let Some(peer) = deque::Deque::counting(kind, MANY as u64) else {
                return GoalCell::skipped_case(goal.clone(), name, "out of memory");
            };
            let gets = WORK as u64;
            if random {
                assert_eq!(arrays::random_get_tree(&tree, gets, 1), peer.random_get(gets, 1));
                let own = || repeat(1, || arrays::random_get_tree(black_box(&tree), gets, 1));
                let other = || repeat(1, || black_box(&peer).random_get(gets, 1));
                return compare(goal.clone(), name, "", self.limit, own, other);
            }
            assert_eq!(arrays::sum_leaves(&tree), peer.sum());
            let own = || repeat(1, || arrays::sum_leaves(black_box(&tree)));
            let other = || repeat(1, || black_box(&peer).sum());
            compare(goal.clone(), name, "", self.limit, own, other)
        });
        cells.collect()
    }

    /// One cell per crate; the goal applies to the fastest.
    fn crates(&self, goal: &Goal) -> Vec<GoalCell> {
        if let Some(why) = memory_shortage(3 * MANY * WORD) {
            return vec![GoalCell::skipped_case(goal.clone(), "1e8", &why)];
        }
        let tree = filled_tree(MANY, |at| at as u64);
        let gets = WORK as u64;
        let cells = crates::NAMES.into_iter().map(|name| {
            let peer = crates::filled(name, MANY, |at| at as u64);
            assert_eq!(arrays::random_get_tree(&tree, gets, 1), peer.get.run(gets, 1), "{name}");
            let own = || repeat(1, || arrays::random_get_tree(black_box(&tree), gets, 1));
            let other = || repeat(1, || black_box(&peer).get.run(gets, 1));
            compare(goal.clone(), name, "", self.limit, own, other)
        });
        cells.collect()
    }
}

/// Time of malloc and free on node-based workloads, relative to mimalloc.
fn heap(workload: AllocationWorkload) -> GoalCell {
    let goal = Goal { name: HEAP.to_owned(), what: "node-heavy programs".to_owned(), limit: Limit::AtMost(HEAP_LIMIT) };
    let rounds = nodes::measure(workload, 5, HEAP_ROUNDS);
    let ratios: Vec<f64> = rounds.iter().map(|round| round.to_mimalloc).collect();
    let mut cell = GoalCell::measured(goal, &format!("{workload:?}").to_lowercase(), Estimate::of_median(&ratios), "");
    cell.samples = vec![("ratio".to_owned(), ratios)];
    cell
}

/// CPU time of `times` runs of a kernel, in seconds.
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

/// The longest of `count` pushes, in seconds of wall time; each push is timed.
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
    use crate::goals::Goals;

    #[test]
    fn every_goal_is_measured() {
        let goals = Goals::read().unwrap();
        let required: BTreeSet<String> = goals.of(SECTION).map(|goal| goal.name).collect();
        let measured: BTreeSet<String> = CELLS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(measured, required);
    }
}
