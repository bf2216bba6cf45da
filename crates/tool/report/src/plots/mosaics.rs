//! Time against the share of the region on larger pages: measured, by the calibrated price, and by the line that was fitted.

use super::frame::{mesh, plane};
use super::{Axis, Canvas, Failure, INK, Plot};
use crate::Error;
use crate::quantity::{seconds, share};
use crate::translation::{Mixture, Mosaics, Range};
use plotters::prelude::*;

const PRICED: RGBColor = RGBColor(214, 120, 30);
const FITTED: RGBColor = RGBColor(38, 118, 190);
const MEASURED: RGBColor = RGBColor(148, 154, 163);

/// What the colours stand for.
pub(crate) const KEY: [(&str, RGBColor); 3] =
    [("measured", MEASURED), ("by the calibrated price", PRICED), ("fitted to the measured", FITTED)];

/// Half the width of an interval's ends, as a share of the region.
const END: f64 = 0.006;

/// The plot, or none of fewer than two mixtures.
pub(crate) fn mosaics(of: &Mosaics) -> Result<Option<String>, Error> {
    let is_drawn =
        |of: &&Mixture| (0.0..=1.0).contains(&of.share) && of.measured_s.finite().is_some() && of.fitted_s.is_finite();
    let mixtures: Vec<&Mixture> = of.mixtures.iter().filter(is_drawn).collect();
    if mixtures.len() < 2 {
        return Ok(None);
    }
    let words = |of: &&Mixture| format!("{} on larger pages: {}.", share(of.share), seconds(of.measured_s.likely));
    let description = mixtures.iter().map(words).collect::<Vec<_>>().join(" ");
    let plot = Plot {
        id: "plot-translation-mosaics",
        title: "Time against the share of the region on larger pages",
        description: &description,
        size: (1520, 420),
    };
    plot.svg(|canvas| draw(canvas, &mixtures)).map(Some)
}

fn draw(canvas: &Canvas<'_>, mixtures: &[&Mixture]) -> Result<(), Failure> {
    let tops = mixtures.iter().flat_map(|of| [Some(of.measured_s), of.priced_s].into_iter().flatten());
    let y = Axis::of_seconds(tops.map(|of| of.high.max(of.likely)).fold(0.0, f64::max)).with_room(0.06);
    let mut chart = plane(canvas, -0.04..1.04, y)?;
    mesh(&mut chart, y, (5, 4), &|at| share(*at))?;
    let line = mixtures.iter().map(|of| (of.share, y.place(of.fitted_s)));
    chart.draw_series(LineSeries::new(line, FITTED.stroke_width(4)))?;
    for of in mixtures {
        let priced = of.priced_s.map(|priced| (priced, of.share + 2.0 * END, PRICED));
        for (range, at, colour) in [Some((of.measured_s, of.share, MEASURED)), priced].into_iter().flatten() {
            chart
                .draw_series(interval(range, at, y).map(|path| PathElement::new(path, INK.mix(0.7).stroke_width(3))))?;
            chart.draw_series([Circle::new((at, y.place(range.likely)), 9, colour.filled())])?;
        }
    }
    Ok(())
}

/// From the least to the most, with an end to each.
fn interval(of: Range, at: f64, y: Axis) -> impl Iterator<Item = Vec<(f64, f64)>> {
    let (low, high) = (y.place(of.low), y.place(of.high));
    let end = move |value: f64| vec![(at - END, value), (at + END, value)];
    [vec![(at, low), (at, high)], end(low), end(high)].into_iter()
}
