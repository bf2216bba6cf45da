//! Swapped-out memory over time, a line a page kind.

use super::memory::thinned;
use super::{Axis, Canvas, Failure, INK, Plot, colour_of, letters};
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
    let mut chart = ChartBuilder::on(canvas)
        .set_label_area_size(LabelAreaPosition::Left, 124)
        .set_label_area_size(LabelAreaPosition::Bottom, 52)
        .margin_top(14)
        .margin_right(44)
        .build_cartesian_2d(0.0..x.end, 0.0..y.end)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .y_max_light_lines(0)
        .x_labels(8)
        .y_labels(if y.end > 1.1 { 4 } else { 2 })
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.35).stroke_width(2))
        .x_label_formatter(&|value| x.label(*value))
        .y_label_formatter(&|value| y.label(*value))
        .label_style(letters(0.7))
        .draw()?;
    for footprint in footprints {
        let points = thinned(&footprint.points, |point| point.swap_bytes);
        let line = points.iter().map(|point| (x.place(point.t_s), y.place(point.swap_bytes as f64)));
        chart.draw_series(LineSeries::new(line, colour_of(&footprint.kind).stroke_width(4)))?;
    }
    Ok(())
}
