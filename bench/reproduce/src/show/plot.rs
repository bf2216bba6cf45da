//! A table as a plot: columns from left to right, a line for each row with its intervals, the paper's numbers as rings.
//!
//! Drawn as the plots of `fieldstone-report` are: at twice the size, ink as `currentColor`, Okabe and Ito's colours first.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{number, paper_number};
use crate::experiment::Shows;
use crate::summary::{Line, Table};

const SIZE: (u32, u32) = (1520, 640);
/// Stands for the page's text colour until the plot is finished.
pub(super) const INK: RGBColor = RGBColor(1, 2, 3);
const INK_WRITTEN: &str = "#010203";
const LETTER: u32 = 31;

const COLOURS: [RGBColor; 14] = [
    RGBColor(38, 118, 190),
    RGBColor(214, 120, 30),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(190, 160, 20),
    RGBColor(148, 154, 163),
    RGBColor(170, 68, 68),
    RGBColor(110, 90, 190),
    RGBColor(90, 150, 40),
    RGBColor(150, 100, 60),
    RGBColor(20, 140, 160),
    RGBColor(230, 90, 140),
    RGBColor(120, 120, 60),
];

/// The lines of a table that are plotted together: those that show what its first ratio (or share, walks, references) shows, and have a
/// number.
pub(super) fn lines(table: &Table) -> Vec<&Line> {
    let is_plotted = |line: &&Line| scale(line.shows).is_some();
    let Some(shows) = table.lines.iter().find(is_plotted).map(|line| line.shows) else { return Vec::new() };
    let has_number = |line: &&Line| line.entries.iter().flatten().any(|entry| entry.ours.is_some());
    table.lines.iter().filter(|line| scale(line.shows) == scale(shows)).filter(has_number).collect()
}

/// What stands on one axis; none for what is not plotted.
fn scale(shows: Shows) -> Option<Shows> {
    match shows {
        Shows::Share | Shows::Estimate => Some(Shows::Share),
        Shows::Ratio | Shows::Walks | Shows::References => Some(shows),
        _ => None,
    }
}

/// The colour of the line at a place, as a style sheet writes it.
pub(super) fn colour(at: usize) -> String {
    let RGBColor(red, green, blue) = COLOURS[at % COLOURS.len()];
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// The plot of a table, or none if there is nothing to plot.
pub(super) fn plot(table: &Table) -> Result<Option<String>> {
    let lines = lines(table);
    let Some(first) = lines.first() else { return Ok(None) };
    let entries = || lines.iter().flat_map(|line| line.entries.iter().flatten());
    let ours = entries().filter_map(|entry| entry.ours.map(|of| of.high));
    let papers = entries().filter_map(|entry| paper_number(first.shows, entry));
    // What models count may be little; a ratio or a share has 1 in its plot.
    let least = if matches!(first.shows, Shows::Walks | Shows::References) { 0.0 } else { 1.0 };
    let top = ours.chain(papers).filter(|value| value.is_finite()).fold(least, f64::max).clamp(1e-3, 1e6) * 1.06;
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(&canvas, table, &lines, first.shows, top).map_err(|error| anyhow!("{}: {error}", table.heading))?;
        canvas.present()?;
    }
    Ok(Some(dress(&svg, table.heading, SIZE)))
}

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn draw(canvas: &Canvas<'_>, table: &Table, lines: &[&Line], shows: Shows, top: f64) -> Result<(), Failure> {
    let columns = table.columns.len() as f64;
    let mut chart = ChartBuilder::on(canvas)
        .set_label_area_size(LabelAreaPosition::Left, 110)
        .set_label_area_size(LabelAreaPosition::Bottom, 64)
        .margin(12)
        .build_cartesian_2d(0.0..columns, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_max_light_lines(0)
        .y_labels(7)
        .bold_line_style(INK.mix(0.12))
        .axis_style(INK.mix(0.35).stroke_width(2))
        .y_label_formatter(&|value| if shows == Shows::Ratio { format!("{value:.1}") } else { number(shows, *value) })
        .y_label_style(letters(0.7))
        .draw()?;
    let area = chart.plotting_area();
    for (at, column) in table.columns.iter().enumerate() {
        let (middle, bottom) = area.map_coordinate(&(at as f64 + 0.5, 0.0));
        let style = letters(1.0).pos(Pos::new(HPos::Center, VPos::Top));
        canvas.draw(&Text::new(column.clone(), (middle, bottom + 16), style))?;
    }
    if shows == Shows::Ratio {
        area.draw(&PathElement::new(vec![(0.0, 1.0), (columns, 1.0)], INK.mix(0.6).stroke_width(2)))?;
    }
    for (at, line) in lines.iter().enumerate() {
        // Side by side within a column, so that intervals do not hide each other.
        let shift = 0.5 + 0.5 * ((at as f64 + 0.5) / lines.len() as f64 - 0.5);
        draw_line(area, line, COLOURS[at % COLOURS.len()], shift, top, is_ordered(table))?;
    }
    Ok(())
}

/// Whether the columns are quantities: only those have something between them.
fn is_ordered(table: &Table) -> bool {
    table.columns.iter().all(|column| column.starts_with(|letter: char| letter.is_ascii_digit()))
}

fn draw_line(
    area: &Area<'_>,
    line: &Line,
    colour: RGBColor,
    shift: f64,
    top: f64,
    joined: bool,
) -> Result<(), Failure> {
    let mut before = None;
    for (at, entry) in line.entries.iter().enumerate() {
        let x = at as f64 + shift;
        let Some(entry) = entry else { continue };
        if let Some(paper) = paper_number(line.shows, entry) {
            area.draw(&Circle::new((x, paper.clamp(0.0, top)), 9, colour.stroke_width(3)))?;
        }
        let Some(ours) = entry.ours else {
            before = None;
            continue;
        };
        let [low, middle, high] = [ours.low, ours.median, ours.high].map(|value| value.clamp(0.0, top));
        if let Some(before) = before {
            area.draw(&PathElement::new(vec![before, (x, middle)], colour.mix(0.45).stroke_width(3)))?;
        }
        area.draw(&PathElement::new(vec![(x, low), (x, high)], colour.stroke_width(4)))?;
        area.draw(&Circle::new((x, middle), 7, colour.filled()))?;
        before = joined.then_some((x, middle));
    }
    Ok(())
}

pub(super) fn letters(strength: f64) -> TextStyle<'static> {
    ("sans-serif", LETTER).into_font().color(&INK.mix(strength))
}

/// The opening tag with a title and without a fixed size or a name space, the ink that of the page.
pub(super) fn dress(svg: &str, title: &str, (width, height): (u32, u32)) -> String {
    let inside = svg.split_once('>').map_or("", |(_, inside)| inside);
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<svg role=\"img\" viewBox=\"0 0 {width} {height}\"><title>{title}</title>{}",
        inside.replace(INK_WRITTEN, "currentColor")
    )
}
