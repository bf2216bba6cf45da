//! The cell `bump_vs_compare`: `Bump`, whose limit check is a guard page, against the same
//! allocator with a comparison, and against `bumpalo` without a goal.
//!
//! ```text
//! 4 MiB, touched before   | object | object | ... | full: the slow path returns an error, and the heap is cleared
//! ```
//! A run fills a heap several times, and each time calls the slow path once: by a fault on one
//! side, by a branch on the other. 4 MiB is the default allocation area of GHC. Each kernel is
//! compiled at four code addresses, which take turns, because the alignment of a small loop changes
//! its time by more than the check.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use fieldstone_guard::Bump;
use fieldstone_peers::bump::{ComparingBump, ObjectHeap, bumpalo_heap, list_cells, tree_leaves};
use fieldstone_reproduce::{Layout, kernel};

use crate::cell::GoalCell;
use crate::goals::Goal;
use crate::kernel_comparison::{compare, cpu_seconds, print_ratio};

const BYTES: usize = 4 << 20;
/// Heaps that one run fills.
const FILLS: u64 = 16;
/// Copies of a kernel in the macro [`kernel!`].
const COPIES: usize = fieldstone_reproduce::layout::PADDINGS;

/// Measures each object size, and the mixed workload.
pub(super) fn measure(goal: &Goal, limit: Duration, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    macro_rules! case {
        ($name:expr, $work:ident $(::<$words:literal>)?) => {{
            let (mut guarded, mut compared, mut other) = (
                FillKernels::new(Bump::builder(BYTES).build()?, $work::<$($words,)? _>),
                FillKernels::new(ComparingBump::new(BYTES)?, $work::<$($words,)? _>),
                FillKernels::new(bumpalo_heap(BYTES), $work::<$($words,)? _>),
            );
            anyhow::ensure!(guarded.done == compared.done, "{}: both sides fill a heap with the same objects", $name);
            let note = "an allocation, with one call of the slow path for each 4 MiB";
            show(compare(goal.clone(), $name, note, limit, || guarded.run(), || compared.run()));
            print_ratio(&format!("{} {}: bumpalo / compare", goal.name, $name), || other.run(), || compared.run());
        }};
    }
    case!("16 B", list_cells::<0>);
    case!("32 B", list_cells::<2>);
    case!("64 B", list_cells::<6>);
    case!("256 B", list_cells::<30>);
    case!("lists and trees", tree_leaves);
    Ok(())
}

/// The copies of a kernel that fills a heap.
struct FillKernels {
    copies: [Box<dyn FnMut() -> u64>; COPIES],
    /// What one run of a copy returns.
    done: u64,
    /// The number of runs.
    runs: usize,
}

impl FillKernels {
    /// Kernels that fill `heap` by `work`. Each runs once, which touches the heap.
    fn new<H: ObjectHeap + 'static>(heap: H, work: impl Fn(&H) -> u64 + Copy + 'static) -> Self {
        let heap = Rc::new(RefCell::new(heap));
        let mut copies = std::array::from_fn(|padding| {
            let (layout, heap) = (Layout { padding, ..Layout::of_seed(0) }, Rc::clone(&heap));
            kernel!(layout, move || {
                let mut heap = heap.borrow_mut();
                let mut done = 0;
                // One call in a loop: the compiler inlines it.
                for _ in 0..FILLS {
                    done += work(&heap);
                    heap.clear();
                }
                done
            })
        });
        let done = copies.iter_mut().map(|copy| copy()).max().unwrap_or(0);
        Self { copies, done, runs: 0 }
    }

    /// Seconds per unit of work by the next copy. Both runs of two rounds use the same copy, so
    /// that each has both orders.
    fn run(&mut self) -> f64 {
        let copy = &mut self.copies[self.runs / 2 % COPIES];
        self.runs += 1;
        let mut done = 0;
        let seconds = cpu_seconds(|| done = copy());
        seconds / done as f64
    }
}
