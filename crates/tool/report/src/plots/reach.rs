//! Misses against TLB reach: a fully associative TLB of 4 KiB pages, by what it reaches. The steps are a program's working sets.

use super::frame::{mesh, plane};
use super::{Axis, Canvas, Failure, Plot, SIZES};
use crate::Error;
use crate::quantity::{bytes, rate};
use crate::translation::Reach;
use plotters::prelude::*;

/// Bytes that an entry reaches.
const PAGE_BYTES: u64 = 4096;

/// The plot, or none of sizes less than a doubling apart.
pub(crate) fn reach(curve: &[Reach]) -> Result<Option<String>, Error> {
    let mut points: Vec<Reach> =
        curve.iter().copied().filter(|point| point.entries > 0 && point.misses_per_access.is_finite()).collect();
    points.sort_by_key(|point| point.entries);
    points.dedup_by_key(|point| point.entries);
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Ok(None) };
    if last.entries / 2 < first.entries {
        return Ok(None);
    }
    let words = |point: &Reach| {
        let reached = bytes(point.entries.saturating_mul(PAGE_BYTES));
        format!("{} with {reached} in reach", rate(point.misses_per_access * 1000.0))
    };
    let description = format!("Misses a 1,000 accesses: {}, {}.", words(first), words(last));
    let plot = Plot {
        id: "plot-translation-reach",
        title: "Misses against TLB reach",
        description: &description,
        size: (1520, 420),
    };
    plot.svg(|canvas| draw(canvas, &points)).map(Some)
}

fn draw(canvas: &Canvas<'_>, points: &[Reach]) -> Result<(), Failure> {
    let most = points.iter().map(|point| point.misses_per_access * 1000.0).fold(0.0, f64::max);
    let y = Axis::of_rate(most).with_room(0.06);
    // A doubling is one step to the right.
    let steps = |point: &Reach| (point.entries as f64).log2();
    let x = steps(&points[0])..steps(&points[points.len() - 1]);
    let mut chart = plane(canvas, x, y)?;
    mesh(&mut chart, y, (10, 4), &|at| doublings(*at))?;
    let line = points.iter().map(|point| (steps(point), y.place(point.misses_per_access * 1000.0)));
    let colour = SIZES[2].1;
    chart.draw_series(LineSeries::new(line.clone(), colour.stroke_width(4)))?;
    chart.draw_series(line.map(|at| Circle::new(at, 6, colour.filled())))?;
    Ok(())
}

/// The reach of 2^`at` entries; nothing between two doublings.
fn doublings(at: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a power of two below 2^52")]
    let entries = at.clamp(0.0, 50.0).exp2() as u64;
    if (at - at.round()).abs() < 1e-6 { bytes(entries * PAGE_BYTES) } else { String::new() }
}
