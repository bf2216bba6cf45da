//! The metric by page kind: a bar from zero to the median, the 95 % interval on it, and every run as a dot.

use super::{Axis, Canvas, Failure, INK, Plot, colour_of, letters};
use crate::quantity::{percent, seconds};
use crate::summary::{KindSummary, counted, usual_outcome};
use crate::{Error, Profile, Summary};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: u32 = 1520;
const ROW: u32 = 96;
const AXIS: u32 = 56;
/// Room for the names of kinds.
const NAMES: u32 = 190;

/// The plot, or none if nothing was measured.
pub(crate) fn time(profile: &Profile, summary: &Summary) -> Result<Option<String>, Error> {
    let largest = profile.samples.iter().map(|sample| sample.value).fold(0.0, f64::max);
    if largest <= 0.0 {
        return Ok(None);
    }
    let rows = u32::try_from(summary.kinds.len()).unwrap_or(u32::MAX).min(32);
    let noun = summary.metric.noun();
    let title = format!("{noun} by page kind");
    let description = summary.kinds.iter().map(|kind| {
        let value = kind.value_s.map_or_else(|| "not measured".to_owned(), |value| seconds(value.median));
        format!("{}: {value}, {}.", kind.name, kind.judgement())
    });
    let description = description.collect::<Vec<_>>().join(" ");
    let plot = Plot { id: "plot-time", title: &title, description: &description, size: (WIDTH, ROW * rows + AXIS) };
    plot.svg(|canvas| draw(canvas, profile, summary, Axis::of_seconds(largest).with_room(0.2))).map(Some)
}

fn draw(canvas: &Canvas<'_>, profile: &Profile, summary: &Summary, axis: Axis) -> Result<(), Failure> {
    let rows = summary.kinds.len() as f64;
    let mut chart = ChartBuilder::on(canvas)
        .set_label_area_size(LabelAreaPosition::Left, NAMES)
        .set_label_area_size(LabelAreaPosition::Bottom, AXIS)
        .margin_right(12)
        .build_cartesian_2d(0.0..axis.end, rows..0.0)?;
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
    let usual = usual_outcome(profile);
    for (row, kind) in summary.kinds.iter().enumerate() {
        let middle = row as f64 + 0.5;
        let plot = chart.plotting_area();
        let (left, height) = plot.map_coordinate(&(0.0, middle));
        let name = letters(1.0).pos(Pos::new(HPos::Right, VPos::Center));
        canvas.draw(&Text::new(kind.name.clone(), (left - 18, height), name))?;
        let dots: Vec<f64> =
            counted(profile, &kind.name, usual.as_deref()).iter().map(|s| axis.place(s.value)).collect();
        plot_kind(plot, kind, &dots, middle, axis)?;
    }
    Ok(())
}

/// The part of the plot inside its axes.
type Area<'a> = DrawingArea<SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn plot_kind(plot: &Area<'_>, kind: &KindSummary, dots: &[f64], middle: f64, axis: Axis) -> Result<(), Failure> {
    let words = letters(0.7).pos(Pos::new(HPos::Left, VPos::Center));
    let beside = |plot: &Area<'_>, at: f64, text: String, style: TextStyle<'static>| -> Result<(), Failure> {
        let text = Text::new(text, (16, 0), style);
        plot.draw(&(EmptyElement::at((at, middle)) + text))?;
        Ok(())
    };
    let Some(value) = kind.value_s else {
        return beside(plot, 0.0, kind.judgement(), words);
    };
    let colour = colour_of(&kind.name);
    let (median, low, high) = (axis.place(value.median), axis.place(value.low), axis.place(value.high));
    plot.draw(&Rectangle::new([(0.0, middle - 0.3), (median, middle + 0.3)], colour.mix(0.28).filled()))?;
    for (at, dot) in dots.iter().enumerate() {
        // Dots are spread over the bar's height in the order of their runs: drift shows as a slant.
        let height = middle - 0.24 + 0.48 * (at as f64 + 0.5) / dots.len() as f64;
        plot.draw(&Circle::new((*dot, height), 5, colour.mix(0.75).filled()))?;
    }
    plot.draw(&PathElement::new(vec![(low, middle), (high, middle)], INK.stroke_width(3)))?;
    for (at, half, width) in [(low, 0.10, 3), (high, 0.10, 3), (median, 0.3, 4)] {
        plot.draw(&PathElement::new(vec![(at, middle - half), (at, middle + half)], INK.stroke_width(width)))?;
    }
    let end = dots.iter().copied().fold(high, f64::max);
    let change = kind.gain().map_or_else(String::new, |gain| {
        let sign = if gain > 0.0 { '−' } else { '+' };
        format!(" ({sign}{})", percent(gain.abs()))
    });
    beside(plot, end, seconds(value.median) + &change, letters(1.0).pos(Pos::new(HPos::Left, VPos::Center)))
}
