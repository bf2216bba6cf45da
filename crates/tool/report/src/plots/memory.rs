//! Memory over time as stacked areas, one a page size; and memory by permission, as bars.

use super::frame::{AXIS, bar, beside, mesh, plane, rows};
use super::{Axis, Canvas, Failure, Plot, SIZES};
use crate::quantity::{bytes, seconds, share};
use crate::{Error, Footprint, FootprintPoint, PermissionShare};
use plotters::prelude::*;

/// Points beyond this cannot be told apart on the page; the largest of each stretch is kept.
const MOST_POINTS: usize = 360;

/// Memory of one watched run over time. All runs share the axes, which end at `end_s` and `end_bytes`, so that their
/// plots can be compared. None if it was watched too shortly to draw.
pub(crate) fn footprint(
    id: &'static str,
    footprint: &Footprint,
    end_s: f64,
    end_bytes: u64,
) -> Result<Option<String>, Error> {
    let points = thinned(&footprint.points, |point| point.resident_bytes);
    let (Some(peak), true) = (footprint.peak(), points.len() > 1) else { return Ok(None) };
    let title = format!("Memory of {} over time, by page size", footprint.kind);
    let description = format!("Largest at {}: {} resident.", seconds(peak.t_s), bytes(peak.resident_bytes));
    let plot = Plot { id, title: &title, description: &description, size: (740, 400) };
    let (x, y) = (Axis::of_seconds(end_s), Axis::of_bytes(end_bytes).with_room(0.06));
    plot.svg(|canvas| draw_footprint(canvas, &points, x, y)).map(Some)
}

fn draw_footprint(canvas: &Canvas<'_>, points: &[FootprintPoint], x: Axis, y: Axis) -> Result<(), Failure> {
    let mut chart = plane(canvas, 0.0..x.end, y)?;
    // Each area reaches down to zero, so the whole is drawn first and its lower layers over it.
    for layers in (0..SIZES.len()).rev() {
        let height = |point: &FootprintPoint| {
            let by_size = [point.huge_1g_bytes, point.huge_2m_bytes, point.folio_bytes, point.small_bytes];
            y.place(by_size[..=layers].iter().map(|bytes| *bytes as f64).sum())
        };
        if points.iter().any(|point| height(point) > 0.0) {
            let line = points.iter().map(|point| (x.place(point.t_s), height(point)));
            chart.draw_series(AreaSeries::new(line, 0.0, SIZES[SIZES.len() - 1 - layers].1.filled()))?;
        }
    }
    mesh(&mut chart, y, (4, 5), &|value| x.label(*value))
}

/// At most [`MOST_POINTS`] of `points`: of each stretch the one where `size` is largest, so that no peak is lost.
pub(super) fn thinned(points: &[FootprintPoint], size: fn(&FootprintPoint) -> u64) -> Vec<FootprintPoint> {
    let stretch = points.len().div_ceil(MOST_POINTS).max(1);
    points.chunks(stretch).filter_map(|chunk| chunk.iter().max_by_key(|point| size(point)).copied()).collect()
}

/// Memory by permission: mapped as a pale bar, resident as a full one on it. None if nothing is known.
pub(crate) fn permissions(shares: &[PermissionShare]) -> Result<Option<String>, Error> {
    let all: f64 = shares.iter().map(|share| share.bytes as f64).sum();
    let mut sorted: Vec<&PermissionShare> = shares.iter().filter(|share| share.bytes > 0).collect();
    sorted.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    sorted.truncate(8);
    let Some(largest) = sorted.first() else { return Ok(None) };
    let axis = Axis::of_bytes(largest.bytes.max(largest.resident_bytes)).with_room(0.15);
    let words = sorted.iter().map(|of| format!("{}: {}.", of.permission, share(of.bytes as f64 / all)));
    let description = words.collect::<Vec<_>>().join(" ");
    let count = u32::try_from(sorted.len()).unwrap_or(8);
    let plot = Plot {
        id: "plot-permissions",
        title: "Mapped memory by permission",
        description: &description,
        size: (1520, 64 * count + AXIS),
    };
    plot.svg(|canvas| draw_permissions(canvas, &sorted, all, axis)).map(Some)
}

fn draw_permissions(canvas: &Canvas<'_>, shares: &[&PermissionShare], all: f64, axis: Axis) -> Result<(), Failure> {
    let names: Vec<String> = shares.iter().map(|of| of.permission.clone()).collect();
    let plot = rows(canvas, &names, 90, axis)?;
    for (row, of) in shares.iter().enumerate() {
        let middle = row as f64 + 0.5;
        let colour = if of.permission == "rw-" { SIZES[2].1 } else { SIZES[0].1 };
        let (mapped, resident) = (axis.place(of.bytes as f64), axis.place(of.resident_bytes.min(of.bytes) as f64));
        bar(&plot, (0.0, mapped), (middle, 0.28), colour.mix(0.35))?;
        bar(&plot, (0.0, resident), (middle, 0.28), colour.mix(1.0))?;
        beside(&plot, (mapped, middle), share(of.bytes as f64 / all), 1.0)?;
    }
    Ok(())
}
