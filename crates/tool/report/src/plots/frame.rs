//! The two frames that plots stand in: rows with names to their left, and a curve between two axes.

use super::{Axis, Canvas, Failure, INK, letters};
use plotters::chart::ChartContext;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::ops::Range;

type Plane = Cartesian2d<RangedCoordf64, RangedCoordf64>;
/// The part of the plot inside its axes.
pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Plane>;
/// A plot with its axes.
pub(super) type Chart<'c, 'a> = ChartContext<'c, SVGBackend<'a>, Plane>;

/// Room for an axis with its numbers below rows.
pub(super) const AXIS: u32 = 56;

/// A row for each of `names`, 1 high, the first on top, over an axis; the names have `room` to the left.
pub(super) fn rows<'a>(canvas: &Canvas<'a>, names: &[String], room: u32, axis: Axis) -> Result<Area<'a>, Failure> {
    let mut chart = ChartBuilder::on(canvas)
        .set_label_area_size(LabelAreaPosition::Left, room)
        .set_label_area_size(LabelAreaPosition::Bottom, AXIS)
        .margin_right(12)
        .build_cartesian_2d(0.0..axis.end, names.len() as f64..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_max_light_lines(0)
        .x_labels(6)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.35).stroke_width(2))
        .x_label_formatter(&|value| axis.label(*value))
        .x_label_style(letters(0.7))
        .draw()?;
    let plot = chart.plotting_area();
    for (row, name) in names.iter().enumerate() {
        let (left, height) = plot.map_coordinate(&(0.0, row as f64 + 0.5));
        let style = letters(1.0).pos(Pos::new(HPos::Right, VPos::Center));
        canvas.draw(&Text::new(name.clone(), (left - 18, height), style))?;
    }
    Ok(plot.clone())
}

/// `text` to the right of a row's bar that ends at `at`.
pub(super) fn beside(plot: &Area<'_>, (at, middle): (f64, f64), text: String, strength: f64) -> Result<(), Failure> {
    let style = letters(strength).pos(Pos::new(HPos::Left, VPos::Center));
    plot.draw(&(EmptyElement::at((at, middle)) + Text::new(text, (16, 0), style)))?;
    Ok(())
}

/// A bar of a row, from `ends.0` to `ends.1` and `half` of a row high to each side.
pub(super) fn bar(
    plot: &Area<'_>,
    ends: (f64, f64),
    (middle, half): (f64, f64),
    colour: RGBAColor,
) -> Result<(), Failure> {
    plot.draw(&Rectangle::new([(ends.0, middle - half), (ends.1, middle + half)], colour.filled()))?;
    Ok(())
}

/// The line of an interval across a row's bar.
pub(super) fn whisker(plot: &Area<'_>, (low, high): (f64, f64), middle: f64) -> Result<(), Failure> {
    plot.draw(&PathElement::new(vec![(low, middle), (high, middle)], INK.stroke_width(3)))?;
    for at in [low, high] {
        plot.draw(&PathElement::new(vec![(at, middle - 0.1), (at, middle + 0.1)], INK.stroke_width(3)))?;
    }
    Ok(())
}

/// A frame for curves, empty.
pub(super) fn plane<'c, 'a>(canvas: &'c Canvas<'a>, x: Range<f64>, y: Axis) -> Result<Chart<'c, 'a>, Failure> {
    Ok(ChartBuilder::on(canvas)
        .set_label_area_size(LabelAreaPosition::Left, 124)
        .set_label_area_size(LabelAreaPosition::Bottom, 52)
        .margin_top(14)
        .margin_right(44)
        .build_cartesian_2d(x, 0.0..y.end)?)
}

/// The axes of [`plane`] and the lines at its numbers, over what is drawn already. About `labels` numbers stand at x
/// and at y; `x_label` writes one at x.
pub(super) fn mesh(
    chart: &mut Chart<'_, '_>,
    y: Axis,
    labels: (usize, usize),
    x_label: &dyn Fn(&f64) -> String,
) -> Result<(), Failure> {
    chart
        .configure_mesh()
        .disable_x_mesh()
        .y_max_light_lines(0)
        .x_labels(labels.0)
        .y_labels(labels.1)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.35).stroke_width(2))
        .x_label_formatter(x_label)
        .y_label_formatter(&|value| y.label(*value))
        .label_style(letters(0.7))
        .draw()?;
    Ok(())
}
