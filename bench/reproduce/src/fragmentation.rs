//! How often contiguous memory can be had in a physically addressed system, where blocks always can.

pub mod buddy;
pub mod history;
pub mod kernel;

use anyhow::Result;
use fieldstone_blocks::{CHUNK_BYTES, MmapFrames, PageKind, Pool};

use crate::experiment::{Cell, Experiment, Figure, Needs, Outcome, Row, Scale, Shows};
use buddy::{Buddy, FRAME_BYTES};
use history::{BLOCK_ORDER, History, Scatter};
use kernel::FreePieces;

/// What is asked for: a block, the frame of a function that the blog met, a middling array.
const REQUESTS: [(&str, u64); 3] = [("64 KiB", 64 << 10), ("618 KB", 618_000), ("16 MB", 16_000_000)];

/// How often each is asked for in a life; a hundredth of what is in use is replaced in between.
const TRIES: u32 = 20;

/// Occupancies.
const PERCENTS: [u32; 7] = [10, 25, 50, 70, 90, 95, 99];

/// The blog's open question.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "fragmentation",
        title: "Contiguous allocations in a physical memory that has lived",
        source: "Zagieboylo's blog, \"PARSEC Benchmarks\" (618 KB frames: \"proving this is future work\")",
        about: "A simulated physical memory of 4 KiB frames under the kernel's own algorithm (buddies) was once \
                full, was freed at random down to the occupancy, and has had each frame in use replaced once. A \
                share is how often a request could be served: contiguously, if any free run anywhere is long enough \
                (no allocator that does not move memory does better), with the share of the free memory that \
                requests of this size could use; by buddies, with sizes rounded up to a power of two; in blocks, \
                from as many blocks as it takes. Nothing is moved: physical addresses are in the programs' hands. \
                Blocks of 64 KiB are of a system that hands out nothing else. Intervals are over lives, that is \
                seeds. The last table is this machine's kernel at this moment: the share of its free memory that \
                lies in pieces large enough.",
        needs: Needs { minutes: 2, memory_bytes: 128 << 20, disk_bytes: 0 },
        cells,
    }
}

fn cells(scale: Scale) -> Vec<Cell> {
    let gib = if scale == Scale::Quick { 1 } else { 8 };
    let lives =
        [Scatter::Frames, Scatter::Mixed].map(|scatter| PERCENTS.map(|percent| life_cell(gib, percent, scatter)));
    lives.into_iter().flatten().chain([kernel_cell()]).collect()
}

const FRAMES: &str = "Memory taken and freed in frames of 4 KiB: requests served, by memory in use";
const MIXED: &str = "Memory taken and freed in pieces of 4 KiB to 1 MiB: requests served, by memory in use";
const KERNEL: &str = "This machine's kernel: share of free memory";

fn life_cell(gib: u64, percent: u32, scatter: Scatter) -> Cell {
    let table = if scatter == Scatter::Mixed { MIXED } else { FRAMES };
    Cell {
        id: format!("fragmentation/{}-{gib}G/{percent}", scatter.name()),
        column: format!("{percent} %"),
        // 13 bytes a frame, 8 for a piece that is held, its vector's doubling; and the same for the memory in blocks.
        memory_bytes: (gib << 30) / FRAME_BYTES * 48,
        rows: rows().map(|(name, ..)| Row::showing(Shows::Share, table, name)).collect(),
        measure: Box::new(move |trial| Ok(measure_life(gib << 30, percent, scatter, trial.layout.seed))),
    }
}

/// How a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By any free run that is long enough.
    Contiguous,
    /// Not one request: the part of the free memory that lies in runs for it.
    Usable,
    /// By the buddy allocator, contiguously.
    Buddy,
    /// By as many frames as it takes.
    Frames,
    /// By as many blocks of 64 KiB as it takes, of a memory that is used in nothing else.
    Blocks,
}

/// Every row: its name, how it is served, and the bytes that are asked for.
fn rows() -> impl Iterator<Item = (String, Way, u64)> {
    let ways = [
        (Way::Contiguous, "contiguous"),
        (Way::Usable, "contiguous: free memory that serves"),
        (Way::Buddy, "by buddies"),
        (Way::Frames, "in blocks of 4 KiB"),
        (Way::Blocks, "in blocks of 64 KiB"),
    ];
    ways.into_iter().flat_map(|(way, words)| REQUESTS.map(|(name, bytes)| (format!("{name}, {words}"), way, bytes)))
}

fn measure_life(bytes: u64, percent: u32, scatter: Scatter, seed: u64) -> Outcome {
    let mut life = History::live(bytes, percent, scatter, seed);
    let mut blocks = History::live(bytes, percent, Scatter::Blocks, seed);
    let mut shares: Vec<(String, f64)> = rows().map(|(row, ..)| (row, 0.0)).collect();
    for _ in 0..TRIES {
        let runs: Vec<u32> = life.memory.free_runs().collect();
        for ((_, share), (_, way, bytes)) in shares.iter_mut().zip(rows()) {
            *share += match way {
                Way::Contiguous => one_if(usable_frames(&runs, bytes) > 0),
                Way::Usable => usable_frames(&runs, bytes) as f64 / f64::from(life.memory.free_frames().max(1)),
                Way::Buddy => one_if(life.memory.serves(order_of(bytes))),
                Way::Frames => one_if(serves_in_pieces(&mut life.memory, 0, bytes)),
                Way::Blocks => one_if(serves_in_pieces(&mut blocks.memory, BLOCK_ORDER, bytes)),
            };
        }
        life.churn(1);
        blocks.churn(1);
    }
    let figures = shares.into_iter().map(|(row, share)| figure(row, share / f64::from(TRIES))).collect();
    Outcome::Measured { figures, alternately: true }
}

const fn one_if(is_served: bool) -> f64 {
    if is_served { 1.0 } else { 0.0 }
}

/// Frames of free runs that contiguous pieces of `bytes` fill, if nothing else takes any.
fn usable_frames(runs: &[u32], bytes: u64) -> u64 {
    let frames = bytes.div_ceil(FRAME_BYTES);
    runs.iter().map(|&run| u64::from(run) / frames * frames).sum()
}

/// The order whose pieces hold `bytes`.
fn order_of(bytes: u64) -> u8 {
    u8::try_from(bytes.div_ceil(FRAME_BYTES).next_power_of_two().trailing_zeros()).unwrap_or(u8::MAX)
}

/// Takes `bytes` in pieces of an order, and gives them back; whether there were enough.
fn serves_in_pieces(memory: &mut Buddy, order: u8, bytes: u64) -> bool {
    let wanted = bytes.div_ceil(FRAME_BYTES << order);
    let taken: Vec<u32> = (0..wanted).map_while(|_| memory.take(order)).collect();
    let is_served = taken.len() as u64 == wanted;
    taken.into_iter().for_each(|first| memory.give(first, order));
    is_served
}

fn figure(row: impl Into<String>, value: f64) -> Figure {
    Figure::of(row, value)
}

/// The bytes that are asked of the kernel for transparent huge pages.
const LIVE_BYTES: u64 = 64 << 20;
const LIVE_ROW: &str = "2 MiB, as transparent huge pages got for 64 MiB";

fn kernel_cell() -> Cell {
    let pieces = REQUESTS.map(|(name, _)| piece_row(name)).into_iter();
    Cell {
        id: "fragmentation/kernel/now".into(),
        memory_bytes: LIVE_BYTES,
        column: "now".into(),
        rows: pieces.chain([LIVE_ROW.into()]).map(|name| Row::showing(Shows::Share, KERNEL, name)).collect(),
        measure: Box::new(|_| measure_kernel()),
    }
}

fn piece_row(name: &str) -> String {
    format!("{name}, free memory in pieces so large")
}

fn measure_kernel() -> Result<Outcome> {
    let free = match FreePieces::read() {
        Ok(free) => free,
        Err(error) => return Ok(Outcome::Skipped { reason: format!("no /proc/buddyinfo: {error}") }),
    };
    let mut figures: Vec<Figure> = REQUESTS
        .iter()
        .map(|(name, bytes)| figure(piece_row(name), free.share_from(usize::from(order_of(*bytes)))))
        .collect();
    figures.push(figure(LIVE_ROW, huge_share()?));
    Ok(Outcome::Measured { figures, alternately: true })
}

/// The part of [`LIVE_BYTES`] that the kernel really gives as huge pages.
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
        let Outcome::Measured { figures, .. } = measure_life(256 << 20, percent, scatter, seed) else { unreachable!() };
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
                .filter(|(_, way, _)| matches!(way, Way::Frames | Way::Blocks))
                .all(|(row, ..)| share(&full, &row) > 0.99)
        );
        assert!(share(&full, "16 MB, contiguous") < 0.01 && share(&full, "618 KB, contiguous") < 0.01);
        let empty = shares(0, Scatter::Frames, 1);
        // 256 MiB hold 16 pieces of 16 MB, which are 95.4 % of them.
        assert!(empty.iter().all(|(row, share)| *share > 0.95 || panic!("{row}: {share}")));
    }

    #[test]
    fn the_buddy_allocator_never_does_better_than_any_free_run() {
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
        let usable = share(&found, "64 KiB, contiguous: free memory that serves");
        assert!(usable < 0.1 && (usable > 0.0 || share(&found, "64 KiB, contiguous") < 0.01), "{usable}");
    }

    #[test]
    fn a_life_repeats_itself() {
        assert_eq!(shares(50, Scatter::Mixed, 3), shares(50, Scatter::Mixed, 3));
    }

    #[test]
    fn memory_that_is_full_has_no_blocks_either() {
        let full = shares(100, Scatter::Frames, 1);
        assert!(full.iter().all(|(row, share)| *share < 0.01 || panic!("{row}: {share}")));
    }

    #[test]
    fn orders_round_up() {
        assert_eq!([1, 4096, 4097, 64 << 10, 618_000, 16_000_000].map(order_of), [0, 0, 1, 4, 8, 12]);
    }
}
