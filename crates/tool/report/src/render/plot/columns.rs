//! Values in columns: a series for each name with its intervals, published values as rings.

use super::{Area, Canvas, Failure, INK, letters, rgb};
use crate::document::{ColumnSeries, Columns};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width and height of the drawing.
pub(super) const SIZE: (u32, u32) = (1520, 640);

pub(super) fn draw(canvas: &Canvas<'_>, columns: &Columns) -> Result<(), Failure> {
    let (count, y) = (columns.names.len().max(1) as f64, columns.y);
    let mut chart = ChartBuilder::on(canvas)
        .set_label_area_size(LabelAreaPosition::Left, 110)
        .set_label_area_size(LabelAreaPosition::Bottom, 64)
        .margin(12)
        .build_cartesian_2d(0.0..count, y.start..y.end)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_max_light_lines(0)
        .y_labels(7)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.35).stroke_width(2))
        .y_label_formatter(&|at| y.label(*at))
        .y_label_style(letters(0.7))
        .draw()?;
    let area = chart.plotting_area();
    for (at, name) in columns.names.iter().enumerate() {
        let (middle, bottom) = area.map_coordinate(&(at as f64 + 0.5, y.start));
        let style = letters(1.0).pos(Pos::new(HPos::Center, VPos::Top));
        canvas.draw(&Text::new(name.clone(), (middle, bottom + 16), style))?;
    }
    if let Some(reference) = columns.reference.map(|value| y.place(value)) {
        area.draw(&PathElement::new(vec![(0.0, reference), (count, reference)], INK.mix(0.6).stroke_width(2)))?;
    }
    for (at, series) in columns.series.iter().enumerate() {
        // Side by side within a column, so that intervals do not hide each other.
        let shift = 0.5 + 0.5 * ((at as f64 + 0.5) / columns.series.len() as f64 - 0.5);
        draw_series(area, series, shift, &|value| y.place(value))?;
    }
    Ok(())
}

fn draw_series(area: &Area<'_>, series: &ColumnSeries, shift: f64, place: &dyn Fn(f64) -> f64) -> Result<(), Failure> {
    let colour = rgb(series.colour);
    for (at, ring) in series.rings.iter().enumerate() {
        if let Some(ring) = ring {
            area.draw(&Circle::new((at as f64 + shift, place(*ring)), 9, colour.stroke_width(3)))?;
        }
    }
    let mut before = None;
    for (at, value) in series.values.iter().enumerate() {
        let x = at as f64 + shift;
        let Some([low, middle, high]) = value.map(|value| value.map(place)) else {
            before = None;
            continue;
        };
        if let Some(before) = before {
            area.draw(&PathElement::new(vec![before, (x, middle)], colour.mix(0.45).stroke_width(3)))?;
        }
        area.draw(&PathElement::new(vec![(x, low), (x, high)], colour.stroke_width(4)))?;
        area.draw(&Circle::new((x, middle), 7, colour.filled()))?;
        before = series.is_joined.then_some((x, middle));
    }
    Ok(())
}
