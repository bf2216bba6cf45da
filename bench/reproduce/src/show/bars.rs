//! Figure 2 of Appel and Li: how many ADD instructions take the time of an operation, machine by machine.
//!
//! ```text
//! Sun 3/60 SunOS 4.0   ■■■■■■■■■■■□□     black: pages protected in a batch (the first column)
//! this machine         ■■■■■■■□□□        white: what protecting one at a time adds (the second)
//! ```
//! The axis is logarithmic, since half a century of machines is on it; so a bar's length does not add up, its ends count. Machines
//! that were measured here have the interval of their black bar.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::plot::{INK, dress, letters};
use crate::experiment::Shows;
use crate::summary::{Entry, Line, Table};

const WIDTH: u32 = 1520;
const NAMES: u32 = 600;
const LINE: u32 = 40;
const AXIS: u32 = 64;

/// The bars of a table whose lines show ADDs, or none.
pub(super) fn bars(table: &Table) -> Result<Option<String>> {
    let lines: Vec<&Line> =
        table.lines.iter().filter(|line| line.shows == Shows::Adds && value(line, 0).is_some()).collect();
    let ends = || lines.iter().filter_map(|line| whole(line));
    if lines.is_empty() {
        return Ok(None);
    }
    let low = lines.iter().filter_map(|line| value(line, 0)).fold(f64::INFINITY, f64::min);
    let range = decade(low / 2.0)..ends().fold(low, f64::max) * 1.3;
    let size = (WIDTH, LINE * u32::try_from(lines.len())? + AXIS + 24);
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        draw(&canvas, &lines, range).map_err(|error| anyhow!("{}: {error}", table.heading))?;
        canvas.present()?;
    }
    Ok(Some(dress(&svg, table.heading, size)))
}

/// What the two colours are, as a key.
pub(super) fn key(table: &Table) -> Vec<(String, String)> {
    let colours = ["currentColor", "transparent; border: 1px solid currentColor", "#d6781e"].map(str::to_owned);
    let names = table.columns.iter().take(2).cloned().chain(["95 % interval of the black bar".to_owned()]);
    colours.into_iter().zip(names).collect()
}

/// The power of ten below.
fn decade(value: f64) -> f64 {
    10_f64.powf(value.max(1.0).log10().floor())
}

/// The number in a column: measured, or computed.
fn value(line: &Line, column: usize) -> Option<f64> {
    let entry = entry(line, column)?;
    entry.ours.map_or(entry.value, |ours| Some(ours.median))
}

fn entry(line: &Line, column: usize) -> Option<&Entry> {
    line.entries.get(column)?.as_ref()
}

/// Where the white bar ends; at the black one's end where one at a time cost no more.
fn whole(line: &Line) -> Option<f64> {
    Some(value(line, 0)? + value(line, 1).unwrap_or(0.0).max(0.0))
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn draw(
    canvas: &DrawingArea<SVGBackend<'_>, Shift>,
    lines: &[&Line],
    range: std::ops::Range<f64>,
) -> Result<(), Failure> {
    let (left, count) = (range.start, lines.len() as f64);
    let mut chart = ChartBuilder::on(canvas)
        .set_label_area_size(LabelAreaPosition::Left, NAMES)
        .set_label_area_size(LabelAreaPosition::Bottom, AXIS)
        .margin(12)
        .margin_right(48)
        .build_cartesian_2d(range.log_scale(), 0.0..count)?;
    chart
        .configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_max_light_lines(0)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.35).stroke_width(2))
        .x_label_formatter(&|adds| format!("{adds:.0}"))
        .x_label_style(letters(0.7))
        .draw()?;
    let area = chart.plotting_area();
    for (at, line) in lines.iter().enumerate() {
        let middle = count - at as f64 - 0.5;
        let (x, y) = area.map_coordinate(&(left, middle));
        let style = letters(1.0).pos(Pos::new(HPos::Right, VPos::Center));
        canvas.draw(&Text::new(line.row.clone(), (x - 16, y), style))?;
        let (Some(black), Some(end)) = (value(line, 0), whole(line)) else { continue };
        let (low, high) = (middle - 0.3, middle + 0.3);
        area.draw(&Rectangle::new([(left, low), (black, high)], INK.filled()))?;
        area.draw(&Rectangle::new([(black, low), (end, high)], INK.stroke_width(2)))?;
        if let Some(ours) = entry(line, 0).and_then(|entry| entry.ours) {
            let accent = RGBColor(214, 120, 30).stroke_width(4);
            area.draw(&PathElement::new(vec![(ours.low.max(left), middle), (ours.high, middle)], accent))?;
        }
    }
    Ok(())
}
