//! Rows of bars with their names to the left, over one axis.

use super::{ACCENT, Area, Canvas, Failure, INK, letters, rgb};
use crate::document::{BarRow, Bars};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: u32 = 1520;
/// Height of an axis with its numbers below the rows.
const AXIS: u32 = 56;
/// Rows beyond this are not drawn.
const MOST_ROWS: usize = 32;

/// Where in its row each part has its middle, and half the height of the bar, in parts of the row.
struct Places {
    label: f64,
    bar: f64,
    half: f64,
    interval: f64,
}

/// A row of bars with a label beside them.
const COMPACT: Places = Places { label: 0.5, bar: 0.5, half: 0.3, interval: 0.5 };
/// A row with dots on its bar: the ends of the interval would hide these, so that it is drawn
/// below.
const WITH_DOTS: Places = Places { label: 0.22, bar: 0.56, half: 0.2, interval: 0.86 };

/// Width and height of the drawing.
pub(super) fn size(bars: &Bars) -> (u32, u32) {
    let rows = u32::try_from(bars.rows.len().min(MOST_ROWS)).unwrap_or(1);
    (WIDTH, bars.row_pixels * rows + AXIS)
}

pub(super) fn draw(canvas: &Canvas<'_>, bars: &Bars) -> Result<(), Failure> {
    let rows = &bars.rows[..bars.rows.len().min(MOST_ROWS)];
    let axis = bars.axis;
    let mut chart = ChartBuilder::on(canvas)
        .set_label_area_size(LabelAreaPosition::Left, bars.name_pixels)
        .set_label_area_size(LabelAreaPosition::Bottom, AXIS)
        .margin_right(12)
        .build_cartesian_2d(axis.start..axis.end, rows.len() as f64..0.0)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_max_light_lines(0)
        .x_labels(6)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.35).stroke_width(2))
        .x_label_formatter(&|at| axis.label(*at))
        .x_label_style(letters(0.7))
        .draw()?;
    let area = chart.plotting_area();
    for (at, row) in rows.iter().enumerate() {
        let (left, height) = area.map_coordinate(&(axis.start, at as f64 + 0.5));
        let style = letters(1.0).pos(Pos::new(HPos::Right, VPos::Center));
        canvas.draw(&Text::new(row.name.clone(), (left - 18, height), style))?;
        draw_row(area, row, at as f64, bars)?;
    }
    Ok(())
}

fn draw_row(area: &Area<'_>, row: &BarRow, top: f64, Bars { axis, .. }: &Bars) -> Result<(), Failure> {
    let places = if row.dots.is_empty() { COMPACT } else { WITH_DOTS };
    let middle = top + places.bar;
    let (upper, lower) = (middle - places.half, middle + places.half);
    for bar in &row.bars {
        let ends = [(axis.place(bar.ends.0), upper), (axis.place(bar.ends.1), lower)];
        let colour = bar.colour.map_or(INK, rgb);
        let style = if bar.opacity > 0.0 { colour.mix(bar.opacity).filled() } else { colour.stroke_width(2) };
        area.draw(&Rectangle::new(ends, style))?;
    }
    let colour = row.bars.first().and_then(|bar| bar.colour).map_or(INK, rgb);
    for (at, dot) in row.dots.iter().enumerate() {
        // Dots are spread over the bar's height in the order of their runs: drift shows as a slant.
        let height = middle + 0.8 * places.half * (2.0 * (at as f64 + 0.5) / row.dots.len() as f64 - 1.0);
        area.draw(&Circle::new((axis.place(*dot), height), 5, colour.mix(0.75).filled()))?;
    }
    if let Some(mark) = row.mark.map(|mark| axis.place(mark)) {
        area.draw(&PathElement::new(vec![(mark, upper), (mark, lower)], INK.stroke_width(4)))?;
    }
    if let Some((low, high)) = row.interval {
        let style = if row.is_interval_accented { ACCENT.stroke_width(4) } else { INK.stroke_width(3) };
        interval(area, (axis.place(low), axis.place(high)), top + places.interval, style)?;
    }
    let style = letters(if row.bars.is_empty() { 0.7 } else { 1.0 }).pos(Pos::new(HPos::Left, VPos::Center));
    let at = EmptyElement::at((axis.place(row.label_at), top + places.label));
    area.draw(&(at + Text::new(row.label.clone(), (16, 0), style)))?;
    Ok(())
}

/// The line of an interval with its ends.
fn interval(area: &Area<'_>, (low, high): (f64, f64), middle: f64, style: ShapeStyle) -> Result<(), Failure> {
    area.draw(&PathElement::new(vec![(low, middle), (high, middle)], style))?;
    for at in [low, high] {
        area.draw(&PathElement::new(vec![(at, middle - 0.1), (at, middle + 0.1)], style))?;
    }
    Ok(())
}
