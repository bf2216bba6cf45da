//! Plots as SVG, to stand inside a page.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `bars` | rows of bars |
//! | `curves` | curves between two axes |
//! | `columns` | values in columns, with intervals |
//!
//! They are drawn at twice their size, because the backend knows whole pixels only, and shown at
//! half by the `viewBox`. Ink is `currentColor`, so that a plot follows the page into its dark
//! mode. The other colours are middle tones that stand on light and dark. Each plot has a title and
//! a description for a reader who cannot see it.

mod bars;
mod columns;
mod curves;

use crate::Error;
use crate::document::{Chart, Colour, Plot};
use crate::shell::printable;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::fmt::Write as _;

/// A drawing area over the whole plot.
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plane = Cartesian2d<RangedCoordf64, RangedCoordf64>;
/// The part of the plot inside its axes.
type Area<'a> = DrawingArea<SVGBackend<'a>, Plane>;
/// The error of plotters; writing to a string causes none.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Stands for the page's text colour until the plot is finished.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_WRITTEN: &str = "#010203";
/// The colour of an interval across bars in ink.
const ACCENT: RGBColor = RGBColor(214, 120, 30);

/// Height of letters as plotters counts it; its SVG is written with 1/1.24 of that, in drawn
/// pixels: 12.5 on the page.
const LETTER: u32 = 31;

/// The plot as an `svg` element; empty if there is nothing to draw.
///
/// # Errors
/// [`Error::Plot`] where plotters cannot draw it.
pub(crate) fn svg(plot: &Plot) -> Result<String, Error> {
    let Some(chart) = &plot.chart else { return Ok(String::new()) };
    let size = match chart {
        Chart::Bars(bars) => bars::size(bars),
        Chart::Curves(curves) => curves.size,
        Chart::Columns(_) => columns::SIZE,
    };
    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        let fail = |reason: Failure| Error::Plot { plot: plot.id.clone(), reason: reason.to_string() };
        match chart {
            Chart::Bars(bars) => bars::draw(&canvas, bars),
            Chart::Curves(curves) => curves::draw(&canvas, curves),
            Chart::Columns(columns) => columns::draw(&canvas, columns),
        }
        .map_err(fail)?;
        canvas.present().map_err(|reason| fail(Box::new(reason)))?;
    }
    Ok(finished(&svg, plot, size))
}

/// Replaces the opening tag by one with a title and without a fixed size or a name space (an
/// address that is never fetched, but is not needed inside HTML), and the ink by the page's.
fn finished(svg: &str, plot: &Plot, (width, height): (u32, u32)) -> String {
    let inside = svg.split_once('>').map_or("", |(_, inside)| inside);
    let mut finished = String::with_capacity(svg.len() + 512);
    // Writing to a String cannot fail.
    let _ = write!(
        finished,
        "<svg role=\"img\" aria-labelledby=\"{0}-title {0}-description\" viewBox=\"0 0 {width} {height}\">\
         <title id=\"{0}-title\">{1}</title><desc id=\"{0}-description\">{2}</desc>",
        escape(&plot.id),
        escape(&plot.title),
        escape(&plot.description)
    );
    finished += &inside.replace(INK_WRITTEN, "currentColor");
    let has_control = finished.contains(|letter: char| letter.is_control() && letter != '\n');
    if has_control { printable(&finished) } else { finished }
}

/// Letters of the plot's size in its ink, of which `strength` (0 to 1) is seen.
fn letters(strength: f64) -> TextStyle<'static> {
    ("sans-serif", LETTER).into_font().color(&INK.mix(strength))
}

/// A colour as plotters takes it.
fn rgb(Colour(red, green, blue): Colour) -> RGBColor {
    RGBColor(red, green, blue)
}

/// Text inside SVG and HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
