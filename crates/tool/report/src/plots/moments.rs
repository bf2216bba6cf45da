//! Page walks over the run, a line a configuration.

use super::frame::{mesh, plane};
use super::{Axis, Canvas, Failure, Plot, colour_of};
use crate::Error;
use crate::quantity::rate;
use crate::translation::{Moment, Translation};
use plotters::prelude::*;

/// Moments beyond this cannot be told apart on the page; neighbours are added up.
const MOST: usize = 360;

/// The plot, or none of fewer than two moments with counted accesses.
pub(crate) fn moments(traced: &Translation) -> Result<Option<String>, Error> {
    let counted: Vec<&Moment> = traced.moments.iter().filter(|moment| moment.counted > 0).collect();
    let moments = merged(&counted);
    let (Some(last), true) = (moments.last(), moments.len() > 1) else { return Ok(None) };
    let most = |at: usize| moments.iter().map(|moment| per_thousand(moment, at)).fold(0.0, f64::max);
    let names = || traced.configurations.iter().map(|of| of.name.as_str()).enumerate();
    let words = names().map(|(at, name)| format!("{name}: at most {} a 1,000 accesses.", rate(most(at))));
    let description = words.collect::<Vec<_>>().join(" ");
    let plot = Plot {
        id: "plot-translation-moments",
        title: "Page walks over the run",
        description: &description,
        size: (1520, 420),
    };
    let y = Axis::of_rate(names().map(|(at, _)| most(at)).fold(0.0, f64::max)).with_room(0.06);
    let x = Axis::of_count(last.accesses);
    let names: Vec<&str> = names().map(|(_, name)| name).collect();
    plot.svg(|canvas| draw(canvas, &moments, &names, (x, y))).map(Some)
}

fn draw(canvas: &Canvas<'_>, moments: &[Moment], names: &[&str], (x, y): (Axis, Axis)) -> Result<(), Failure> {
    let mut chart = plane(canvas, 0.0..x.end, y)?;
    mesh(&mut chart, y, (6, 4), &|value| x.label(*value))?;
    // The baseline comes first in the trace, and is drawn last, over the others.
    for (at, name) in names.iter().enumerate().rev() {
        let line = moments.iter().map(|moment| (x.place(moment.accesses as f64), y.place(per_thousand(moment, at))));
        chart.draw_series(LineSeries::new(line, colour_of(name).stroke_width(4)))?;
    }
    Ok(())
}

fn per_thousand(moment: &Moment, configuration: usize) -> f64 {
    let walks = moment.walks.get(configuration).copied().unwrap_or(0);
    walks as f64 / moment.counted.max(1) as f64 * 1000.0
}

/// At most [`MOST`] moments: of each stretch the sum.
fn merged(moments: &[&Moment]) -> Vec<Moment> {
    let stretch = moments.len().div_ceil(MOST).max(1);
    let sum = |chunk: &[&Moment]| {
        let mut whole = Moment { accesses: chunk.last().map_or(0, |last| last.accesses), ..Moment::default() };
        for moment in chunk {
            whole.counted = whole.counted.saturating_add(moment.counted);
            whole.walks.resize(whole.walks.len().max(moment.walks.len()), 0);
            for (sum, walks) in whole.walks.iter_mut().zip(&moment.walks) {
                *sum = sum.saturating_add(*walks);
            }
        }
        whole
    };
    moments.chunks(stretch).map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_added_up_and_nothing_is_lost() {
        let moments: Vec<Moment> =
            (1..=1000).map(|at| Moment { accesses: at * 10, counted: 5, walks: vec![at % 2, 3] }).collect();
        let merged = merged(&moments.iter().collect::<Vec<_>>());
        assert!(merged.len() <= MOST && merged.last().unwrap().accesses == 10_000);
        assert_eq!(merged.iter().map(|moment| moment.counted).sum::<u64>(), 5000);
        assert_eq!(merged.iter().map(|moment| moment.walks[0]).sum::<u64>(), 500);
        assert_eq!(per_thousand(&merged[0], 1), 600.0);
        assert_eq!(per_thousand(&merged[0], 7), 0.0, "a configuration that the moments do not have");
    }
}
