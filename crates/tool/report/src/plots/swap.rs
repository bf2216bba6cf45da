//! Swapped-out memory over time, a line a page kind.

use super::frame::{mesh, plane};
use super::memory::thinned;
use super::{Axis, Canvas, Failure, Plot, colour_of};
use crate::quantity::bytes;
use crate::{Error, Footprint};
use plotters::prelude::*;

/// The plot, or none if no run was watched long enough. All axes end at `end_s`.
pub(crate) fn swap(footprints: &[Footprint], end_s: f64) -> Result<Option<String>, Error> {
    if !footprints.iter().any(|footprint| footprint.points.len() > 1) {
        return Ok(None);
    }
    let most = footprints.iter().map(Footprint::swap_peak_bytes).max().unwrap_or(0);
    let words = footprints.iter().map(|of| format!("{}: at most {}.", of.kind, bytes(of.swap_peak_bytes())));
    let description = words.collect::<Vec<_>>().join(" ");
    let plot = Plot {
        id: "plot-swap",
        title: "Swapped-out memory over time",
        description: &description,
        size: (1520, if most == 0 { 200 } else { 340 }),
    };
    let (x, y) = (Axis::of_seconds(end_s), Axis::of_bytes(most).with_room(0.06));
    plot.svg(|canvas| draw(canvas, footprints, x, y)).map(Some)
}

fn draw(canvas: &Canvas<'_>, footprints: &[Footprint], x: Axis, y: Axis) -> Result<(), Failure> {
    let y_labels = if y.end > 1.1 { 4 } else { 2 };
    let mut chart = plane(canvas, 0.0..x.end, y)?;
    mesh(&mut chart, y, (8, y_labels), &|value| x.label(*value))?;
    for footprint in footprints {
        let points = thinned(&footprint.points, |point| point.swap_bytes);
        let line = points.iter().map(|point| (x.place(point.t_s), y.place(point.swap_bytes as f64)));
        chart.draw_series(LineSeries::new(line, colour_of(&footprint.kind).stroke_width(4)))?;
    }
    Ok(())
}
