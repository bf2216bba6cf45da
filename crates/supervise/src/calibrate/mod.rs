//! What a page walk costs on this machine, in nanoseconds, without any counter.
//!
//! ```text
//!   4 KiB pages   |---- load ----|-- walk --|     the same loads, in the same order, at the same places of an array of the
//!   2 MiB pages   |---- load ----|                same size; one after the other, again and again, first this one, then that
//!                                 \________/
//!                          the difference a load, divided by the walks a load
//! ```
//! A walk has no one cost. Scattered loads that wait for each other pay all of it; independent ones overlap their walks; page by
//! page, walks find their entries in a line of the cache that the one before has read. So there is a point for each of these
//! patterns and for each of some footprints, and [`replay`] bounds the cost for the addresses of one program.
//!
//! Walks a load are the caller's to tell (a model's count); [`by_construction`] has what the patterns have by design. What is left
//! on 2 MiB pages counts as theirs: beyond their own reach the difference is what 4 KiB pages cost *more*.
//!
//! Both arrays are resident, and lie on the pages that they are for, by the kernel's word (`array`). The time is the thread's CPU
//! time. The first pair is not counted. Source: the pairing is that of `profile`; the interval is that of [`fieldstone_report::stats`].

mod array;
mod difference;
mod replay;

use std::time::{SystemTime, UNIX_EPOCH};

use fieldstone_sys::limits::limits;
use fieldstone_sys::machine::machine;
use fieldstone_workloads::replay::{CHUNK_BYTES, Places};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use array::refused;
use difference::{Order, Sides};

pub use difference::Difference;
pub use replay::{Replayed, replay};

/// In what way loads follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// At random places, each after the one before it: a chase.
    Dependent,
    /// At random places, as many at once as the CPU can.
    Independent,
    /// A page after the other.
    Sequential,
}

impl Pattern {
    /// Every pattern.
    pub const ALL: [Self; 3] = [Self::Dependent, Self::Independent, Self::Sequential];
}

/// The cost of a walk in one pattern over one footprint.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// How the loads follow each other.
    pub pattern: Pattern,
    /// The array's size.
    pub footprint_bytes: u64,
    /// Walks a load on 4 KiB pages.
    pub walks: f64,
    /// Nanoseconds a load on 4 KiB pages.
    pub ns_4k: f64,
    /// Nanoseconds a load on 2 MiB pages.
    pub ns_2m: f64,
    /// Nanoseconds a walk: the interval's lower end.
    pub low: f64,
    /// Nanoseconds a walk: the median.
    pub likely: f64,
    /// Nanoseconds a walk: the interval's upper end.
    pub high: f64,
}

/// What was measured on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The CPU's name.
    pub cpu: String,
    /// Seconds since 1970.
    pub taken_at: u64,
    /// Pattern by pattern, the smallest footprint first.
    pub points: Vec<Point>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// The largest footprint, where memory allows it: both arrays together take at most half of what is available.
    pub footprint_bytes: u64,
    /// Loads of one run.
    pub loads: usize,
    /// Pairs of runs for each point, beside the first; six make a 95 % interval.
    pub pairs: usize,
}

impl Default for Effort {
    /// A minute or so.
    fn default() -> Self {
        Self { footprint_bytes: 4 << 30, loads: 1 << 21, pairs: 11 }
    }
}

const SMALLEST_BYTES: u64 = 64 << 20;
const SEED: u64 = 0x0063_616c_6962;

/// Measures the patterns. `walks` tells the walks a load for a pattern over a footprint; where it is not above 0, there is no point.
/// `between` is told the pairs that are done and all there will be, before each pair; its error ends the measurement.
///
/// # Errors
/// [`crate::Error::PageKind`] when the pages are not to be had, [`crate::Error::System`] without memory, and what `between` says.
pub fn calibrate(
    effort: &Effort,
    walks: impl Fn(Pattern, u64) -> f64,
    mut between: impl FnMut(usize, usize) -> Result<()>,
) -> Result<Calibration> {
    let footprints = footprints(effort.footprint_bytes.min(room_bytes() / 4));
    let each = effort.pairs + 1;
    let all = footprints.len() * Pattern::ALL.len() * each;
    let mut points = Vec::new();
    for (index, footprint_bytes) in footprints.into_iter().enumerate() {
        let random = Places::random(footprint_bytes, effort.loads, SEED).map_err(refused)?;
        let in_order = Places::page_by_page(footprint_bytes, effort.loads).map_err(refused)?;
        let sides = Sides::new(random.words().max(in_order.words()))?;
        for (turn, pattern) in Pattern::ALL.into_iter().enumerate() {
            let walks = walks(pattern, footprint_bytes);
            if walks <= 0.0 {
                continue;
            }
            let (places, order) = match pattern {
                Pattern::Dependent => (&random, Order::Dependent),
                Pattern::Independent => (&random, Order::Independent),
                Pattern::Sequential => (&in_order, Order::Independent),
            };
            let before = (index * Pattern::ALL.len() + turn) * each;
            let found = sides.compare(places, order, effort.pairs, |done| between(before + done, all))?;
            points.push(point(pattern, footprint_bytes, walks, &found));
        }
    }
    points.sort_by_key(|point| (point.pattern as u8, point.footprint_bytes));
    let taken_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Ok(Calibration { cpu: machine().cpu, taken_at, points })
}

fn point(pattern: Pattern, footprint_bytes: u64, walks: f64, found: &Difference) -> Point {
    let Difference { ns_4k, ns_2m, low, median, high } = *found;
    Point {
        pattern,
        footprint_bytes,
        walks,
        ns_4k,
        ns_2m,
        low: low / walks,
        likely: median / walks,
        high: high / walks,
    }
}

/// Walks a load by the patterns' design, where all levels together translate `reach_bytes` on 4 KiB pages: a random load finds its
/// page there by chance, and who goes page by page round something larger never comes back in time.
pub fn by_construction(reach_bytes: u64) -> impl Fn(Pattern, u64) -> f64 {
    move |pattern, footprint_bytes| match pattern {
        Pattern::Dependent | Pattern::Independent => (1.0 - reach_bytes as f64 / footprint_bytes as f64).max(0.0),
        Pattern::Sequential => f64::from(u8::from(footprint_bytes > reach_bytes)),
    }
}

/// 64 MiB, four times as much, and so on, to `most` at most. The smallest is always there.
fn footprints(most: u64) -> Vec<u64> {
    let growing = std::iter::successors(Some(SMALLEST_BYTES), |bytes| bytes.checked_mul(4));
    growing.take_while(|bytes| *bytes <= most.max(SMALLEST_BYTES)).collect()
}

/// Memory that can be had without pushing anything out.
fn room_bytes() -> u64 {
    let left = limits().cgroup.and_then(|group| Some(group.limit_bytes?.saturating_sub(group.usage_bytes?)));
    machine().memory_available_bytes.min(left.unwrap_or(u64::MAX))
}

/// Bytes of an array of `words`, in whole chunks.
const fn array_bytes(words: usize) -> usize {
    (words * size_of::<u64>()).next_multiple_of(CHUNK_BYTES)
}

#[cfg(test)]
mod tests;
