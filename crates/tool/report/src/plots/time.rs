//! The metric by page kind: a bar from zero to the median, which stands above its end, every run as a dot on it, and the 95 % interval
//! beneath. An interval ends at a run, so that its line would hide the dot.

use super::frame::{AXIS, Area, bar, beside, rows, whisker};
use super::{Axis, Canvas, Failure, INK, Plot, colour_of};
use crate::quantity::{percent, seconds};
use crate::summary::{KindSummary, counted, usual_outcome};
use crate::{Error, Profile, Summary};
use plotters::prelude::*;

const WIDTH: u32 = 1520;
const ROW: u32 = 128;
/// Where in its row each part has its middle, and half the height of the bar.
const LABEL: f64 = 0.22;
const BAR: f64 = 0.56;
const HALF: f64 = 0.2;
const INTERVAL: f64 = 0.86;
/// Room for the names of kinds.
const NAMES: u32 = 190;

/// The plot, or none if nothing was measured.
pub(crate) fn time(profile: &Profile, summary: &Summary) -> Result<Option<String>, Error> {
    let largest = profile.samples.iter().map(|sample| sample.value).fold(0.0, f64::max);
    if largest <= 0.0 {
        return Ok(None);
    }
    let count = u32::try_from(summary.kinds.len()).unwrap_or(u32::MAX).min(32);
    let noun = summary.metric.noun();
    let title = format!("{noun} by page kind");
    let description = summary.kinds.iter().map(|kind| {
        let value = kind.value_s.map_or_else(|| "not measured".to_owned(), |value| seconds(value.median));
        format!("{}: {value}, {}.", kind.name, kind.judgement())
    });
    let description = description.collect::<Vec<_>>().join(" ");
    let plot = Plot { id: "plot-time", title: &title, description: &description, size: (WIDTH, ROW * count + AXIS) };
    plot.svg(|canvas| draw(canvas, profile, summary, Axis::of_seconds(largest).with_room(0.2))).map(Some)
}

fn draw(canvas: &Canvas<'_>, profile: &Profile, summary: &Summary, axis: Axis) -> Result<(), Failure> {
    let names: Vec<String> = summary.kinds.iter().map(|kind| kind.name.clone()).collect();
    let plot = rows(canvas, &names, NAMES, axis)?;
    let usual = usual_outcome(profile);
    for (row, kind) in summary.kinds.iter().enumerate() {
        let dots: Vec<f64> =
            counted(profile, &kind.name, usual.as_deref()).iter().map(|s| axis.place(s.value)).collect();
        plot_kind(&plot, kind, &dots, row as f64, axis)?;
    }
    Ok(())
}

fn plot_kind(plot: &Area<'_>, kind: &KindSummary, dots: &[f64], row: f64, axis: Axis) -> Result<(), Failure> {
    let Some(value) = kind.value_s else {
        return beside(plot, (0.0, row + 0.5), kind.judgement(), 0.7);
    };
    let colour = colour_of(&kind.name);
    let (median, low, high) = (axis.place(value.median), axis.place(value.low), axis.place(value.high));
    let middle = row + BAR;
    bar(plot, (0.0, median), (middle, HALF), colour.mix(0.28))?;
    for (at, dot) in dots.iter().enumerate() {
        // Dots are spread over the bar's height in the order of their runs: drift shows as a slant.
        let height = middle + 0.8 * HALF * (2.0 * (at as f64 + 0.5) / dots.len() as f64 - 1.0);
        plot.draw(&Circle::new((*dot, height), 5, colour.mix(0.75).filled()))?;
    }
    plot.draw(&PathElement::new(vec![(median, middle - HALF), (median, middle + HALF)], INK.stroke_width(4)))?;
    whisker(plot, (low, high), row + INTERVAL)?;
    let change = kind.gain().map_or_else(String::new, |gain| {
        let sign = if gain > 0.0 { '−' } else { '+' };
        format!(" ({sign}{})", percent(gain.abs()))
    });
    beside(plot, (median, row + LABEL), seconds(value.median) + &change, 1.0)
}
