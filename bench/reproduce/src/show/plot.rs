//! The plot of a table: its numbers in columns beside the paper's; its columns as curves over time; or,
//! of numbers in ADD instructions, Figure 2 of Appel and Li.
//!
//! ```text
//! Sun 3/60 SunOS 4.0   ■■■■■■■■■■■□□     black: pages protected in a batch (the first column)
//! this machine         ■■■■■■■□□□        white: what protecting one at a time adds (the second)
//! ```
//! The axis of that figure is logarithmic, since the machines are decades apart; so a bar's length
//! does not add up, its ends count. Machines that were measured here have the interval of their
//! black bar.

use fieldstone_report::document::{
    Axis, Bar, BarRow, Bars, Chart, Colour, ColumnSeries, Columns, Curves, Legend, Plot, Series, SeriesForm,
};
use fieldstone_stats::{Estimate, Interval};

use super::{has_paper, paper_number};
use crate::experiment::Quantity;
use crate::summary::{Entry, Line, ResultTable};

/// Okabe and Ito's first, then others that can be seen apart.
const COLOURS: [Colour; 14] = [
    Colour(38, 118, 190),
    Colour(214, 120, 30),
    Colour(0, 158, 115),
    Colour(204, 121, 167),
    Colour(86, 180, 233),
    Colour(190, 160, 20),
    Colour(148, 154, 163),
    Colour(170, 68, 68),
    Colour(110, 90, 190),
    Colour(90, 150, 40),
    Colour(150, 100, 60),
    Colour(20, 140, 160),
    Colour(230, 90, 140),
    Colour(120, 120, 60),
];
/// An outline, as CSS writes it.
const OUTLINE: &str = "transparent; border: 1px solid currentColor";

/// The plot of `table`; `None` if there is nothing to plot.
pub(super) fn plot(table: &ResultTable) -> Option<Plot> {
    let plotted = if table.has_curves() { curves(table) } else { bars(table).or_else(|| columns(table)) };
    let (chart, legend) = plotted?;
    let is_sum = plotted_lines(table).first().is_some_and(|line| line.shows == Quantity::Sum);
    let caption = match chart {
        Chart::Columns(_) if is_sum => "A dot is the number of all samples together.",
        Chart::Curves(_) => "A curve is the median over the samples, the pale one below it their lowest value.",
        Chart::Columns(_) => "A dot is the median, the bar through it the interval, a ring the paper’s number.",
        _ => "",
    };
    Some(Plot {
        id: format!(
            "plot-{}",
            table.heading.to_lowercase().replace(|letter: char| !letter.is_ascii_alphanumeric(), "-")
        ),
        title: table.heading.to_owned(),
        description: if table.has_curves() {
            "The numbers are in the output formats CSV and JSON.".to_owned()
        } else {
            format!("The numbers are in the table “{}”.", table.heading)
        },
        caption: caption.to_owned(),
        legend,
        chart: Some(chart),
    })
}

/// Bars, if lines of the table are in ADD instructions.
fn bars(table: &ResultTable) -> Option<(Chart, Vec<Legend>)> {
    let lines: Vec<&Line> =
        table.lines.iter().filter(|line| line.shows == Quantity::Adds && value(line, 0).is_some()).collect();
    let low = lines.iter().filter_map(|line| value(line, 0)).reduce(f64::min)?;
    let high = lines.iter().filter_map(|line| whole(line)).fold(low, f64::max);
    let rows = lines.iter().filter_map(|line| {
        let (black, end) = (value(line, 0)?, whole(line)?);
        let bar = |ends, opacity| Bar { ends, colour: None, opacity };
        Some(BarRow {
            name: line.row.clone(),
            bars: vec![bar((0.0, black), 1.0), bar((black, end), 0.0)],
            interval: entry(line, 0).and_then(|entry| entry.ours).map(|ours| (ours.low, ours.high)),
            is_interval_accented: true,
            ..BarRow::default()
        })
    });
    let axis = Axis::of_decades(low / 2.0, high * 1.3);
    let bars = Bars { axis, name_pixels: 600, row_pixels: 40, rows: rows.collect() };
    let css = ["currentColor", OUTLINE, "#d6781e"].map(str::to_owned);
    let names = table.columns.iter().take(2).cloned().chain([format!("{} of the black bar", Interval::LABEL)]);
    Some((Chart::Bars(bars), css.into_iter().zip(names).map(|(css, name)| Legend { css, name }).collect()))
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

/// The columns as curves over time. The lowest values are drawn below the medians.
fn curves(table: &ResultTable) -> Option<(Chart, Vec<Legend>)> {
    let points = |column: usize, of: fn(&Estimate) -> f64| -> Vec<(f64, f64)> {
        let at = |line: &Line| Some((line.at_s?, of(&entry(line, column)?.ours?)));
        let mut points: Vec<_> = table.lines.iter().filter_map(at).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points
    };
    let columns = 0..table.columns.len();
    let curve = |colour, points| Series { colour, form: SeriesForm::Line, points, intervals: Vec::new() };
    let lows = columns.clone().map(|column| curve(pale(colour(column)), points(column, |ours| ours.low)));
    let medians = columns.map(|column| curve(colour(column), points(column, |ours| ours.median)));
    let series: Vec<Series> = lows.chain(medians).filter(|series| !series.points.is_empty()).collect();
    let ends = |end: (f64, f64), point: &(f64, f64)| (end.0.max(point.0), end.1.max(point.1));
    let end = series.iter().flat_map(|series| &series.points).fold((0.0, 0.0), ends);
    let legend = table.columns.iter().enumerate().map(|(at, name)| colour(at).named(name.clone())).collect();
    let chart = Curves {
        x: Axis::of_seconds(end.0),
        y: Axis::of_share(end.1).with_room(0.06),
        labels: (10, 7),
        size: (1520, 640),
        series,
    };
    (!chart.series.is_empty()).then_some((Chart::Curves(chart), legend))
}

/// The colour of a series.
const fn colour(at: usize) -> Colour {
    COLOURS[at % COLOURS.len()]
}

/// The same colour between itself and a middle grey.
fn pale(Colour(red, green, blue): Colour) -> Colour {
    let mixed = |part: u8| u8::midpoint(part, 190);
    Colour(mixed(red), mixed(green), mixed(blue))
}

/// The numbers in the table's columns, with the paper's as rings.
fn columns(table: &ResultTable) -> Option<(Chart, Vec<Legend>)> {
    let lines = plotted_lines(table);
    let first = lines.first()?;
    let entries = || lines.iter().flat_map(|line| line.entries.iter().flatten());
    let ours = entries().filter_map(|entry| entry.ours.map(|of| of.high));
    let papers = entries().filter_map(|entry| paper_number(first.shows, entry));
    // What models count may be little; a ratio or a share has 1 in its plot.
    let least = if matches!(first.shows, Quantity::Walks | Quantity::References) { 0.0 } else { 1.0 };
    let top = ours.chain(papers).filter(|value| value.is_finite()).fold(least, f64::max).clamp(1e-3, 1e6);
    let axis = if scale(first.shows) == Some(Quantity::Share) { Axis::of_share(top) } else { Axis::of_rate(top) };
    let series = lines.iter().enumerate().map(|(at, line)| ColumnSeries {
        colour: colour(at),
        is_joined: is_ordered(table),
        values: line.entries.iter().map(|entry| entry.as_ref()?.ours.map(|of| [of.low, of.median, of.high])).collect(),
        rings: line.entries.iter().map(|entry| paper_number(line.shows, entry.as_ref()?)).collect(),
    });
    let chart = Chart::Columns(Columns {
        names: table.columns.clone(),
        y: axis.with_room(0.06),
        reference: (first.shows == Quantity::Ratio).then_some(1.0),
        series: series.collect(),
    });
    let ring = Legend { css: format!("{OUTLINE}; border-radius: 50%"), name: "the paper".to_owned() };
    let ring = lines.iter().any(|line| has_paper(line)).then_some(ring);
    let legend = lines.iter().enumerate().map(|(at, line)| colour(at).named(line.row.clone()));
    Some((chart, legend.chain(ring).collect()))
}

/// The lines of a table that are plotted together: those that show what its first ratio (or share,
/// walks, references) shows, and have a number.
fn plotted_lines(table: &ResultTable) -> Vec<&Line> {
    let is_plotted = |line: &&Line| scale(line.shows).is_some();
    let Some(shows) = table.lines.iter().find(is_plotted).map(|line| line.shows) else { return Vec::new() };
    let has_number = |line: &&Line| line.entries.iter().flatten().any(|entry| entry.ours.is_some());
    table.lines.iter().filter(|line| scale(line.shows) == scale(shows)).filter(has_number).collect()
}

/// What stands on one axis; `None` for what is not plotted.
fn scale(shows: Quantity) -> Option<Quantity> {
    match shows {
        Quantity::Share | Quantity::Estimate => Some(Quantity::Share),
        Quantity::Ratio | Quantity::Walks | Quantity::References | Quantity::Sum => Some(shows),
        _ => None,
    }
}

/// Whether the columns are quantities: only those have something between them.
fn is_ordered(table: &ResultTable) -> bool {
    table.columns.iter().all(|column| column.starts_with(|letter: char| letter.is_ascii_digit()))
}
