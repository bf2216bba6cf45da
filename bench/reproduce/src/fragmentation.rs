//! The availability of contiguous memory in a physically addressed system, in which blocks are
//! always available.
//!
//! ```text
//! buddy     a simulated physical memory with the allocator of the kernel
//! history   its random allocations and frees up to an occupancy
//! kernel    free memory of this machine's kernel, by size
//! ```

pub mod buddy;
pub mod history;
pub mod kernel;

use anyhow::Result;
use fieldstone_blocks::{CHUNK_BYTES, MmapFrames, PageKind, Pool};

use crate::experiment::{Cell, Experiment, MeasuredValue, Needs, Quantity, Row, SampleOutcome, Scale};
use buddy::{Buddy, FRAME_BYTES};
use history::{BLOCK_ORDER, History, Scatter};
use kernel::FreePieces;

/// The requests: a block, the stack frame in the blog, an array of medium size.
const REQUESTS: [(&str, u64); 3] = [("64 KiB", 64 << 10), ("618 KB", 618_000), ("16 MB", 16_000_000)];

/// Number of attempts per request and history. One percent of the memory in use is replaced between
/// two attempts.
const TRIES: u32 = 20;

/// Memory in use, in percent.
const PERCENTS: [u32; 7] = [10, 25, 50, 70, 90, 95, 99];

/// The open question of the blog.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "fragmentation",
        title: "Contiguous allocations in a fragmented physical memory",
        source: "Zagieboylo's blog, \"PARSEC Benchmarks\" (618 KB frames: \"proving this is future work\")",
        about: "A simulated physical memory of 4 KiB frames uses the buddy allocator of the kernel. It was full once, was \
                freed at random down to the occupancy, and each frame in use was replaced once. A share is the number of \
                successful requests. Contiguous: a free run anywhere is long enough, which no allocator that does not move \
                memory can exceed; its second row is the share of the free memory that requests of this size can use. By \
                buddies: with sizes rounded up to a power of two. In blocks: from as many blocks as needed. Nothing is \
                moved, because programs hold physical addresses. Blocks of 64 KiB are from a system that allocates nothing \
                else. Intervals are over seeds. The last table is the kernel of this machine at the time of the run: the \
                share of its free memory in pieces that are large enough.",
        needs: Needs { minutes: 2, memory_bytes: 128 << 20, disk_bytes: 0 },
        cells,
    }
}

fn cells(scale: Scale) -> Vec<Cell> {
    let gib = if scale == Scale::Quick { 1 } else { 8 };
    let histories =
        [Scatter::Frames, Scatter::Mixed].map(|scatter| PERCENTS.map(|percent| history_cell(gib, percent, scatter)));
    histories.into_iter().flatten().chain([kernel_cell()]).collect()
}

const FRAMES: &str = "Memory allocated and freed in frames of 4 KiB: successful requests, by memory in use";
const MIXED: &str = "Memory allocated and freed in pieces of 4 KiB to 1 MiB: successful requests, by memory in use";
const KERNEL: &str = "This machine's kernel: share of free memory";

fn history_cell(gib: u64, percent: u32, scatter: Scatter) -> Cell {
    let table = if scatter == Scatter::Mixed { MIXED } else { FRAMES };
    let id = format!("fragmentation/{}-{gib}G/{percent}", scatter.name());
    // 13 bytes per frame and 8 per allocated piece, in a vector that doubles; twice, for both
    // memories.
    let memory_bytes = (gib << 30) / FRAME_BYTES * 48;
    let rows = rows().map(|(name, ..)| Row::new(Quantity::Share, table, name)).collect();
    Cell::new(id, format!("{percent} %"), memory_bytes, rows, move |trial| {
        Ok(measure_history(gib << 30, percent, scatter, trial.layout.seed))
    })
}

/// How a request is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    /// In any free run that is long enough.
    Contiguous,
    /// Not a request: the share of the free memory in runs that are long enough.
    Usable,
    /// By the buddy allocator, contiguously.
    Buddy,
    /// In as many frames as needed.
    Frames,
    /// In as many blocks of 64 KiB as needed, from a memory that has no other pieces.
    Blocks,
}

/// All rows: the name, the allocation, and the requested bytes.
fn rows() -> impl Iterator<Item = (String, RequestKind, u64)> {
    let ways = [
        (RequestKind::Contiguous, "contiguous"),
        (RequestKind::Usable, "contiguous: share of the free memory that fits"),
        (RequestKind::Buddy, "by buddies"),
        (RequestKind::Frames, "in blocks of 4 KiB"),
        (RequestKind::Blocks, "in blocks of 64 KiB"),
    ];
    ways.into_iter().flat_map(|(way, words)| REQUESTS.map(|(name, bytes)| (format!("{name}, {words}"), way, bytes)))
}

fn measure_history(bytes: u64, percent: u32, scatter: Scatter, seed: u64) -> SampleOutcome {
    let mut history = History::simulate(bytes, percent, scatter, seed);
    let mut blocks = History::simulate(bytes, percent, Scatter::Blocks, seed);
    let mut shares: Vec<(String, f64)> = rows().map(|(row, ..)| (row, 0.0)).collect();
    for _ in 0..TRIES {
        let runs: Vec<u32> = history.memory.free_runs().collect();
        for ((_, share), (_, way, bytes)) in shares.iter_mut().zip(rows()) {
            *share += match way {
                RequestKind::Contiguous => one_if(usable_frames(&runs, bytes) > 0),
                RequestKind::Usable => {
                    usable_frames(&runs, bytes) as f64 / f64::from(history.memory.free_frames().max(1))
                }
                RequestKind::Buddy => one_if(history.memory.serves(order_of(bytes))),
                RequestKind::Frames => one_if(serves_in_pieces(&mut history.memory, 0, bytes)),
                RequestKind::Blocks => one_if(serves_in_pieces(&mut blocks.memory, BLOCK_ORDER, bytes)),
            };
        }
        history.churn(1);
        blocks.churn(1);
    }
    let figures = shares.into_iter().map(|(row, share)| figure(row, share / f64::from(TRIES))).collect();
    SampleOutcome::measured(figures)
}

const fn one_if(is_served: bool) -> f64 {
    if is_served { 1.0 } else { 0.0 }
}

/// Number of frames in free runs that contiguous pieces of `bytes` can fill.
fn usable_frames(runs: &[u32], bytes: u64) -> u64 {
    let frames = bytes.div_ceil(FRAME_BYTES);
    runs.iter().map(|&run| u64::from(run) / frames * frames).sum()
}

/// The smallest order whose pieces have at least `bytes`.
fn order_of(bytes: u64) -> u8 {
    u8::try_from(bytes.div_ceil(FRAME_BYTES).next_power_of_two().trailing_zeros()).unwrap_or(u8::MAX)
}

/// Allocates `bytes` in pieces of an order and releases them. Returns whether there were enough.
fn serves_in_pieces(memory: &mut Buddy, order: u8, bytes: u64) -> bool {
    let wanted = bytes.div_ceil(FRAME_BYTES << order);
    let taken: Vec<u32> = (0..wanted).map_while(|_| memory.take(order)).collect();
    let is_served = taken.len() as u64 == wanted;
    taken.into_iter().for_each(|first| memory.release(first, order));
    is_served
}

fn figure(row: impl Into<String>, value: f64) -> MeasuredValue {
    MeasuredValue::of(row, value)
}

/// The bytes that are requested from the kernel as transparent huge pages.
const LIVE_BYTES: u64 = 64 << 20;
const LIVE_ROW: &str = "2 MiB, as transparent huge pages for 64 MiB";

fn kernel_cell() -> Cell {
    let pieces = REQUESTS.map(|(name, _)| piece_row(name)).into_iter();
    let rows = pieces.chain([LIVE_ROW.into()]).map(|name| Row::new(Quantity::Share, KERNEL, name)).collect();
    Cell::new("fragmentation/kernel/now", "now", LIVE_BYTES, rows, |_| measure_kernel())
}

fn piece_row(name: &str) -> String {
    format!("{name}, free memory in pieces of this size")
}

fn measure_kernel() -> Result<SampleOutcome> {
    let free = match FreePieces::read() {
        Ok(free) => free,
        Err(error) => return Ok(SampleOutcome::Skipped { reason: format!("no /proc/buddyinfo: {error}") }),
    };
    let mut figures: Vec<MeasuredValue> = REQUESTS
        .iter()
        .map(|(name, bytes)| figure(piece_row(name), free.share_from(usize::from(order_of(*bytes)))))
        .collect();
    figures.push(figure(LIVE_ROW, huge_share()?));
    Ok(SampleOutcome::measured(figures))
}

/// The share of [`LIVE_BYTES`] that the kernel places on huge pages.
fn huge_share() -> Result<f64> {
    let pool = Pool::with_block_bytes(MmapFrames::new(PageKind::Thp), CHUNK_BYTES)?;
    pool.reserve_prefault(usize::try_from(LIVE_BYTES)?)?;
    let placed = pool.placement()?;
    Ok(placed.huge_bytes as f64 / placed.resident_bytes.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(percent: u32, scatter: Scatter, seed: u64) -> Vec<(String, f64)> {
        let SampleOutcome::Measured { figures, .. } = measure_history(256 << 20, percent, scatter, seed) else {
            unreachable!()
        };
        figures.into_iter().map(|figure| (figure.row, figure.value)).collect()
    }

    fn share(shares: &[(String, f64)], row: &str) -> f64 {
        shares.iter().find(|(name, _)| name == row).unwrap().1
    }

    #[test]
    fn blocks_are_always_available_and_large_runs_are_not() {
        let full = shares(90, Scatter::Frames, 1);
        assert!(
            rows()
                .filter(|(_, way, _)| matches!(way, RequestKind::Frames | RequestKind::Blocks))
                .all(|(row, ..)| share(&full, &row) > 0.99)
        );
        assert!(share(&full, "16 MB, contiguous") < 0.01 && share(&full, "618 KB, contiguous") < 0.01);
        let empty = shares(0, Scatter::Frames, 1);
        // 16 pieces of 16 MB fit in 256 MiB and fill 95.4 % of them.
        assert!(empty.iter().all(|(row, share)| *share > 0.95 || panic!("{row}: {share}")));
    }

    #[test]
    fn the_buddy_allocator_never_exceeds_the_free_runs() {
        for (percent, scatter) in [(30, Scatter::Mixed), (60, Scatter::Frames), (75, Scatter::Mixed)] {
            let found = shares(percent, scatter, 7);
            for (name, _) in REQUESTS {
                let buddy = share(&found, &format!("{name}, by buddies"));
                assert!(buddy <= share(&found, &format!("{name}, contiguous")) + 1e-9, "{name} at {percent} %");
            }
        }
    }

    #[test]
    fn what_is_usable_is_counted_in_whole_requests() {
        assert_eq!(usable_frames(&[15, 16, 47, 100], 64 << 10), 16 + 32 + 96);
        let found = shares(70, Scatter::Frames, 2);
        let usable = share(&found, "64 KiB, contiguous: share of the free memory that fits");
        assert!(usable < 0.1 && (usable > 0.0 || share(&found, "64 KiB, contiguous") < 0.01), "{usable}");
    }

    #[test]
    fn a_history_is_reproducible() {
        assert_eq!(shares(50, Scatter::Mixed, 3), shares(50, Scatter::Mixed, 3));
    }

    #[test]
    fn a_full_memory_has_no_blocks() {
        let full = shares(100, Scatter::Frames, 1);
        assert!(full.iter().all(|(row, share)| *share < 0.01 || panic!("{row}: {share}")));
    }

    #[test]
    fn orders_round_up() {
        assert_eq!([1, 4096, 4097, 64 << 10, 618_000, 16_000_000].map(order_of), [0, 0, 1, 4, 8, 12]);
    }
}
