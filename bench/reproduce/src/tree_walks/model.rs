//! A stream of accesses through the models, and the counts.

use anyhow::Result;
use fieldstone_translation::{
    Configuration, Mmu, PageSize, PlacedAccess, SideCounts, Simulator, TreeCounts, TreeModel, TreeShape,
};

use crate::paper_tree::PAPER_BLOCK_BYTES;

use super::stream::Stream;

/// Number of counted accesses.
const COUNTED: usize = 1 << 21;
/// Number of accesses before them, which fill tables and caches.
const WARM: usize = 1 << 20;
/// Maximum length of a lap as a warm-up, that of the strided scan of 64 GB. It fills the entries of
/// large pages.
const MOST_WARM: usize = 1 << 24;
/// Accesses per call of the models.
const BATCH: usize = 4096;

/// Entries of the accelerators, as in the PDE cache of the paper's processor and in its second TLB.
pub(super) const ENTRIES: [u32; 2] = [32, 1536];

/// A stream over an array, and its counted accesses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) stream: Stream,
    pub(super) array_bytes: u64,
    /// Number of first accesses, which are not counted.
    pub(super) warm: usize,
    /// Number of counted accesses.
    pub(super) counted: usize,
}

/// The counts by page size, the smallest first.
pub(super) type Sides = Vec<(PageSize, SideCounts)>;

/// The counts of the methods to walk a tree.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trees {
    pub(super) naive: TreeCounts,
    pub(super) cursor: TreeCounts,
    /// Accelerators with [`ENTRIES`].
    pub(super) accelerators: [TreeCounts; 2],
}

impl Run {
    pub(super) fn of(stream: Stream, array_bytes: u64) -> Self {
        let lap = stream.lap(array_bytes).filter(|&lap| lap <= MOST_WARM).unwrap_or(WARM);
        Self { stream, array_bytes, warm: lap.max(WARM), counted: COUNTED }
    }
}

/// The page sizes of a machine.
pub(super) fn page_sizes(machine: &Mmu) -> Vec<PageSize> {
    PageSize::ALL.into_iter().filter(|&size| machine.has_pages(size)).collect()
}

/// Counts of a contiguous array on pages of each size. It begins at the start of a page.
pub(super) fn array(run: &Run, machine: &Mmu) -> Result<Sides> {
    let sizes = page_sizes(machine);
    let configurations: Vec<Configuration> = sizes.iter().map(|&size| Configuration::paged(machine, size)).collect();
    let mut simulator = Simulator::new(&configurations)?;
    let mut accesses = run.stream.offsets(run.array_bytes).map(PlacedAccess::in_region);
    in_batches(accesses.by_ref().take(run.warm), |batch| simulator.warm(batch));
    in_batches(accesses.take(run.counted), |batch| simulator.run(batch));
    Ok(sizes.into_iter().zip(simulator.counts().iter().map(|counts| counts.data)).collect())
}

/// Counts of an array as a tree of the paper's blocks.
pub(super) fn trees(run: &Run) -> Trees {
    let shape = TreeShape { block_bytes: PAPER_BLOCK_BYTES as u64, array_bytes: run.array_bytes };
    let mut models = ENTRIES.map(|entries| TreeModel::new(shape, entries));
    for (at, offset) in run.stream.offsets(run.array_bytes).take(run.warm + run.counted).enumerate() {
        for model in &mut models {
            if at == run.warm {
                model.start_counting();
            }
            model.access(0, offset);
        }
    }
    let [first, _] = &models;
    Trees { naive: first.naive(), cursor: first.cursor(), accelerators: models.each_ref().map(TreeModel::accelerator) }
}

fn in_batches(accesses: impl Iterator<Item = PlacedAccess>, mut take: impl FnMut(&[PlacedAccess])) {
    let mut batch = Vec::with_capacity(BATCH);
    for access in accesses {
        batch.push(access);
        if batch.len() == BATCH {
            take(&batch);
            batch.clear();
        }
    }
    take(&batch);
}
