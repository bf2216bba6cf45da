//! Plots as data: bars in rows, curves between two axes, and series over columns. Numbers are in
//! seconds, bytes, parts of 1 or things counted; an [`Axis`] chooses the unit in which they are
//! drawn.

use crate::quantity;

/// A plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Plot {
    /// Unique in its document.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// Its numbers in words, for a reader who cannot see it.
    pub description: String,
    /// How to read it; empty if the legend says it.
    pub caption: String,
    /// What its colours stand for.
    pub legend: Vec<Legend>,
    /// What is drawn; `None` if there is too little to draw, and only the caption stands.
    pub chart: Option<Chart>,
}

/// What a colour stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Legend {
    /// The colour, as CSS writes it.
    pub css: String,
    /// What it stands for.
    pub name: String,
}

/// A colour: red, green and blue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Colour(pub u8, pub u8, pub u8);

/// What is drawn.
#[derive(Debug, Clone, PartialEq)]
pub enum Chart {
    /// A row of bars for each name.
    Bars(Bars),
    /// Curves between two axes.
    Curves(Curves),
    /// Values in columns.
    Columns(Columns),
}

/// Rows of bars over one axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// The axis.
    pub axis: Axis,
    /// Width for the names, in pixels of the drawing.
    pub name_pixels: u32,
    /// Height of a row, likewise.
    pub row_pixels: u32,
    /// The rows, the first on top.
    pub rows: Vec<BarRow>,
}

/// A row of bars.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BarRow {
    /// The name to its left.
    pub name: String,
    /// Its bars, drawn one over the other.
    pub bars: Vec<Bar>,
    /// Single values, drawn as dots from top to bottom; with any, the row has its label above the
    /// bar and its interval below.
    pub dots: Vec<f64>,
    /// A value that is marked across the bar.
    pub mark: Option<f64>,
    /// An interval.
    pub interval: Option<(f64, f64)>,
    /// Whether the interval is drawn in the accent colour, across dark bars.
    pub is_interval_accented: bool,
    /// Words beside the bars.
    pub label: String,
    /// Where these begin.
    pub label_at: f64,
}

/// A bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Where it begins and ends.
    pub ends: (f64, f64),
    /// Its colour; `None` for the ink of the page.
    pub colour: Option<Colour>,
    /// How much of the colour is seen, from 0 to 1; 0 for an outline alone.
    pub opacity: f64,
}

/// Curves between two axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Curves {
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// About how many numbers stand at each axis.
    pub labels: (usize, usize),
    /// Width and height in pixels of the drawing, which is shown at half its size.
    pub size: (u32, u32),
    /// The curves, drawn one over the other.
    pub series: Vec<Series>,
}

/// A curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Its colour.
    pub colour: Colour,
    /// How it is drawn.
    pub form: SeriesForm,
    /// Its points: x and y.
    pub points: Vec<(f64, f64)>,
    /// The intervals of the points, where these are drawn.
    pub intervals: Vec<(f64, f64)>,
}

/// How a curve is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeriesForm {
    /// An area down to the axis.
    Area,
    /// A line.
    Line,
    /// A line with its points.
    LineAndPoints,
    /// Points with their intervals.
    Intervals,
}

/// Values in columns, a series for each name.
#[derive(Debug, Clone, PartialEq)]
pub struct Columns {
    /// The names of the columns.
    pub names: Vec<String>,
    /// The vertical axis.
    pub y: Axis,
    /// A value that is marked across all columns.
    pub reference: Option<f64>,
    /// The series.
    pub series: Vec<ColumnSeries>,
}

/// A value for each column.
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnSeries {
    /// Its colour.
    pub colour: Colour,
    /// Whether neighbours are joined by a line.
    pub is_joined: bool,
    /// Low, middle and high; `None` where there is no value.
    pub values: Vec<Option<[f64; 3]>>,
    /// Published values, drawn as rings.
    pub rings: Vec<Option<f64>>,
}

/// An axis in a unit that fits its end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis {
    /// What one unit is, in seconds, bytes, parts of 1 or things counted.
    scale: f64,
    unit: &'static str,
    /// Where the axis begins and ends, in units; on a logarithmic axis, the powers.
    pub(crate) start: f64,
    pub(crate) end: f64,
    steps: Steps,
}

/// How values follow each other on an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Steps {
    Linear,
    /// A step is a power of ten.
    Decades,
    /// A step is a doubling of pages, which are labelled by their bytes.
    PageDoublings,
}

/// Bytes of a base page.
const PAGE_BYTES: u64 = 4096;

impl Colour {
    /// As CSS writes it.
    pub fn css(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }

    /// A line of a legend with this colour.
    pub fn named(self, name: impl Into<String>) -> Legend {
        Legend { css: self.css(), name: name.into() }
    }
}

impl Axis {
    const fn linear(scale: f64, unit: &'static str, end: f64) -> Self {
        Self { scale, unit, start: 0.0, end, steps: Steps::Linear }
    }

    /// Seconds, from 0.
    pub fn of_seconds(end_s: f64) -> Self {
        // From a nanosecond to thirty years: plotters looks for steps without end where a double
        // has none left.
        let end_s = end_s.clamp(1e-9, 1e9);
        let (scale, unit) = quantity::second_unit(end_s);
        Self::linear(scale, unit, end_s / scale)
    }

    /// Bytes, from 0.
    pub fn of_bytes(end_bytes: u64) -> Self {
        // An axis of no length cannot be drawn; one of a MiB shows that there is nothing.
        let end_bytes = end_bytes.max(1 << 20);
        let (scale, unit) = quantity::byte_unit(end_bytes);
        Self::linear(scale, unit, end_bytes as f64 / scale)
    }

    /// Parts of 1, in percent.
    pub fn of_share(end: f64) -> Self {
        Self::linear(0.01, "%", end.clamp(1e-4, 10.0) / 0.01)
    }

    /// From no part to all of it, with some room to both sides.
    pub fn of_whole() -> Self {
        Self { start: -4.0, end: 104.0, ..Self::of_share(1.0) }
    }

    /// A plain number, such as a ratio or page walks for 1,000 accesses.
    pub fn of_rate(end: f64) -> Self {
        Self::linear(1.0, "", end.clamp(1e-3, 1e9))
    }

    /// Things counted.
    pub fn of_count(end: u64) -> Self {
        let (scale, unit) = match end {
            0..1_000 => (1.0, ""),
            1_000..1_000_000 => (1e3, "k"),
            1_000_000..1_000_000_000 => (1e6, "M"),
            _ => (1e9, "G"),
        };
        Self::linear(scale, unit, end.max(1) as f64 / scale)
    }

    /// Plain numbers by powers of ten, from that below `low`.
    pub fn of_decades(low: f64, high: f64) -> Self {
        let start = low.max(1.0).log10().floor();
        Self { start, steps: Steps::Decades, ..Self::linear(1.0, "", high.max(1.0).log10().max(start + 0.1)) }
    }

    /// Pages of 4 KiB by doublings; a number stands for its bytes.
    pub fn of_page_doublings(low: u64, high: u64) -> Self {
        let power = |pages: u64| (pages.max(1) as f64).log2();
        Self { start: power(low), steps: Steps::PageDoublings, ..Self::linear(1.0, "", power(high)) }
    }

    /// The same axis, longer by `part`: room for a label or for a line that touches the end.
    #[must_use]
    pub fn with_room(self, part: f64) -> Self {
        Self { end: self.end * (1.0 + part), ..self }
    }

    /// Where a value is drawn. What is off the axis is put at its end: plotters counts pixels
    /// without a limit.
    pub(crate) fn place(self, value: f64) -> f64 {
        let at = match self.steps {
            Steps::Linear => value / self.scale,
            Steps::Decades => value.max(f64::MIN_POSITIVE).log10(),
            Steps::PageDoublings => value.max(f64::MIN_POSITIVE).log2(),
        };
        at.clamp(self.start, self.end)
    }

    /// The number at a place; empty between two steps of a logarithmic axis.
    pub(crate) fn label(self, at: f64) -> String {
        let is_step = (at - at.round()).abs() < 1e-6;
        match self.steps {
            Steps::Linear => {
                // plotters steps by 1, 2 or 5 times a power of ten: six digits write each step
                // exactly.
                let text = format!("{at:.6}");
                match text.trim_end_matches('0').trim_end_matches('.') {
                    "0" | "-0" => "0".to_owned(),
                    number => format!("{number} {}", self.unit).trim_end().to_owned(),
                }
            }
            Steps::Decades if is_step => format!("{:.0}", 10_f64.powf(at)),
            Steps::PageDoublings if is_step => {
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a power of two below 2^52")]
                let pages = at.clamp(0.0, 50.0).exp2() as u64;
                quantity::bytes(pages * PAGE_BYTES)
            }
            Steps::Decades | Steps::PageDoublings => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_is_written_in_the_unit_of_its_end() {
        assert_eq!(Axis::of_seconds(0.25).label(50.0), "50 ms");
        assert_eq!(Axis::of_seconds(2.5).label(0.5), "0.5 s");
        assert_eq!(
            (Axis::of_share(0.47).label(20.0), Axis::of_rate(331.0).label(100.0)),
            ("20 %".into(), "100".into())
        );
        assert_eq!((Axis::of_count(3_000_000_000).label(2.0), Axis::of_count(0).end), ("2 G".into(), 1.0));
        assert_eq!(Axis::of_bytes(3 << 30).label(1.5), "1.5 GiB");
        assert_eq!((Axis::of_bytes(0).label(0.0), Axis::of_bytes(0).end), ("0".into(), 1.0));
    }

    #[test]
    fn a_logarithmic_axis_has_numbers_at_its_steps_only() {
        let (decades, doublings) = (Axis::of_decades(250.0, 9e4), Axis::of_page_doublings(16, 1 << 20));
        assert_eq!((decades.start, decades.label(3.0), decades.label(3.5)), (2.0, "1000".into(), String::new()));
        assert_eq!((doublings.label(4.0), doublings.label(20.0)), ("64 KiB".into(), "4 GiB".into()));
        assert_eq!((decades.place(1e9), doublings.place(0.0)), (decades.end, doublings.start));
    }
}
