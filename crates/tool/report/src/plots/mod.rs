//! Plots as SVG, to stand inside the page.
//!
//! Drawn at twice their size, because the backend knows whole pixels only, and shown at half by the `viewBox`. Ink is
//! `currentColor`, so that a plot follows the page into its dark mode; the other colours (Okabe and Ito's, told apart
//! by colour-blind readers too) are middle tones that stand on light and dark. Each plot carries a title and a
//! description for those who hear the page.

mod frame;
mod memory;
mod moments;
mod mosaics;
mod reach;
mod shares;
mod sites;
mod swap;
mod time;

pub(crate) use memory::{footprint, permissions};
pub(crate) use moments::moments;
pub(crate) use mosaics::{KEY as MOSAIC_KEY, mosaics};
pub(crate) use reach::reach;
pub(crate) use shares::shares;
pub(crate) use sites::sites;
pub(crate) use swap::swap;
pub(crate) use time::time;

use crate::Error;
use crate::quantity;
use crate::translation::canonical;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::fmt::Write as _;

/// A drawing area over the whole plot.
type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What plotters says when it fails; writing to a string never does.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Stands for the page's text colour until the plot is finished.
const INK: RGBColor = RGBColor(1, 2, 3);
const INK_WRITTEN: &str = "#010203";

/// Height of letters as plotters counts it; its SVG is written with 1/1.24 of that, in drawn pixels: 12.5 on the page.
const LETTER: u32 = 31;

/// Colours of the four page sizes, small to large.
pub(crate) const SIZES: [(&str, RGBColor); 4] = [
    ("4 KiB pages", RGBColor(148, 154, 163)),
    ("folios", RGBColor(86, 180, 233)),
    ("2 MiB pages", RGBColor(38, 118, 190)),
    ("1 GiB pages", RGBColor(0, 158, 115)),
];

/// The colour of a page kind, or of a configuration that was modelled: the same for the same page size.
pub(crate) fn colour_of(kind: &str) -> RGBColor {
    match &*canonical(kind) {
        "4k" => SIZES[0].1,
        folio if folio.starts_with("folio") => SIZES[1].1,
        "thp" | "2m" => SIZES[2].1,
        "hugetlb-1g" | "1g" => SIZES[3].1,
        range if range.contains("range") => RGBColor(204, 121, 167),
        mosaic if mosaic.contains("mosaic") || mosaic.contains('%') => RGBColor(160, 125, 60),
        "none" => RGBColor(86, 180, 233),
        _ => RGBColor(214, 120, 30),
    }
}

/// A colour as the page's style sheet writes it.
pub(crate) fn css(colour: RGBColor) -> String {
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

/// What a plot is called and says, for those who hear it, and how large it is drawn.
struct Plot<'a> {
    /// Unique on the page.
    id: &'static str,
    title: &'a str,
    description: &'a str,
    size: (u32, u32),
}

impl Plot<'_> {
    /// Draws by `draw` and makes the result fit for the page.
    fn svg(&self, draw: impl FnOnce(&Canvas<'_>) -> Result<(), Failure>) -> Result<String, Error> {
        let mut svg = String::new();
        {
            let canvas = SVGBackend::with_string(&mut svg, self.size).into_drawing_area();
            let fail = |reason: Failure| Error::Plot { plot: self.id, reason: reason.to_string() };
            draw(&canvas).map_err(fail)?;
            canvas.present().map_err(|reason| fail(Box::new(reason)))?;
        }
        Ok(self.dress(&svg))
    }

    /// Replaces the opening tag by one with a title and without a fixed size or a name space (an address that is
    /// never fetched, but is not needed inside HTML), and the ink by the page's.
    fn dress(&self, svg: &str) -> String {
        let inside = svg.split_once('>').map_or("", |(_, inside)| inside);
        let (width, height) = self.size;
        let mut dressed = String::with_capacity(svg.len() + 512);
        // Writing to a String cannot fail.
        let _ = write!(
            dressed,
            "<svg role=\"img\" aria-labelledby=\"{0}-title {0}-description\" viewBox=\"0 0 {width} {height}\">\
             <title id=\"{0}-title\">{1}</title><desc id=\"{0}-description\">{2}</desc>",
            self.id,
            escape(self.title),
            escape(self.description)
        );
        dressed += &inside.replace(INK_WRITTEN, "currentColor");
        dressed
    }
}

/// Letters of the plot's size in its ink, of which `strength` (0 to 1) is seen.
fn letters(strength: f64) -> TextStyle<'static> {
    ("sans-serif", LETTER).into_font().color(&INK.mix(strength))
}

/// An axis in a unit that fits its end.
#[derive(Clone, Copy)]
struct Axis {
    /// What one unit is, in seconds, bytes, parts of a whole or things counted.
    scale: f64,
    unit: &'static str,
    /// Where the axis ends, in units.
    end: f64,
}

impl Axis {
    fn of_seconds(end_s: f64) -> Self {
        // From a nanosecond to thirty years: plotters looks for steps without end where a double has none left.
        let end_s = end_s.clamp(1e-9, 1e9);
        let (scale, unit) = quantity::second_unit(end_s);
        Self { scale, unit, end: end_s / scale }
    }

    fn of_bytes(end_bytes: u64) -> Self {
        // An axis of no length cannot be drawn; one of a MiB shows that there is nothing.
        let end_bytes = end_bytes.max(1 << 20);
        let (scale, unit) = quantity::byte_unit(end_bytes);
        Self { scale, unit, end: end_bytes as f64 / scale }
    }

    /// Parts of a whole, in percent.
    fn of_share(end: f64) -> Self {
        Self { scale: 0.01, unit: "%", end: end.clamp(1e-4, 10.0) / 0.01 }
    }

    /// A rate, such as walks a thousand accesses.
    fn of_rate(end: f64) -> Self {
        Self { scale: 1.0, unit: "", end: end.clamp(1e-3, 1e9) }
    }

    /// Things counted.
    fn of_count(end: u64) -> Self {
        let (scale, unit) = match end {
            0..1_000 => (1.0, ""),
            1_000..1_000_000 => (1e3, "k"),
            1_000_000..1_000_000_000 => (1e6, "M"),
            _ => (1e9, "G"),
        };
        Self { scale, unit, end: end.max(1) as f64 / scale }
    }

    /// The same axis, longer by `part`: room for a label or for a line that touches the end.
    fn with_room(self, part: f64) -> Self {
        Self { end: self.end * (1.0 + part), ..self }
    }

    /// Where a value lies on the axis. What lies off it is put at its end: plotters counts pixels without a limit.
    fn place(self, value: f64) -> f64 {
        (value / self.scale).clamp(0.0, self.end)
    }

    fn label(self, value: f64) -> String {
        // plotters steps by 1, 2 or 5 times a power of ten: six digits write each step exactly.
        let text = format!("{value:.6}");
        match text.trim_end_matches('0').trim_end_matches('.') {
            "0" | "-0" => "0".to_owned(),
            number => format!("{number} {}", self.unit).trim_end().to_owned(),
        }
    }
}

/// Text inside SVG and HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
#[path = "plots_tests.rs"]
mod tests;
