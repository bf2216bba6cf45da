//! The share of the time in page walks, a row a configuration: the paper's figure, with intervals. Data is the full
//! part of a bar, instructions the pale one.

use super::frame::{AXIS, bar, beside, rows, whisker};
use super::{Axis, Canvas, Failure, Plot, colour_of};
use crate::quantity::{estimate, share};
use crate::translation::sites::shortened;
use crate::translation::summary::ConfigurationSummary;
use crate::{Error, Range, TranslationSummary};
use plotters::prelude::*;

/// Rows beyond this are left to the table.
const MOST: usize = 24;

/// The plot, or none if walks have no price, or one that can be anything: a bar would end at a guess.
pub(crate) fn shares(summary: &TranslationSummary) -> Result<Option<String>, Error> {
    let priced = summary.configurations.iter().filter_map(|of| Some((of, of.share()?)));
    let priced: Vec<(&ConfigurationSummary, Range)> = priced.take(MOST).collect();
    if priced.is_empty() || summary.is_unclear() {
        return Ok(None);
    }
    let words = priced.iter().map(|(of, all)| format!("{}: {}.", of.name, estimate(all, share)));
    let description = words.collect::<Vec<_>>().join(" ");
    let count = u32::try_from(priced.len()).unwrap_or(1);
    let plot = Plot {
        id: "plot-translation-shares",
        title: "Share of the time in page walks, by configuration",
        description: &description,
        size: (1520, 72 * count + AXIS),
    };
    let largest = priced.iter().map(|(_, all)| all.high.max(all.likely)).fold(0.0, f64::max);
    plot.svg(|canvas| draw(canvas, &priced, Axis::of_share(largest).with_room(0.3))).map(Some)
}

fn draw(canvas: &Canvas<'_>, priced: &[(&ConfigurationSummary, Range)], axis: Axis) -> Result<(), Failure> {
    let names: Vec<String> = priced.iter().map(|(of, _)| shortened(&of.name, 16)).collect();
    let plot = rows(canvas, &names, 260, axis)?;
    for (row, (of, all)) in priced.iter().enumerate() {
        let middle = row as f64 + 0.5;
        let data = axis.place(of.data_share.map_or(0.0, |data| data.likely));
        let colour = colour_of(&of.name);
        bar(&plot, (0.0, data), (middle, 0.3), colour.mix(0.85))?;
        bar(&plot, (data, axis.place(all.likely)), (middle, 0.3), colour.mix(0.4))?;
        whisker(&plot, (axis.place(all.low), axis.place(all.high)), middle)?;
        beside(&plot, (axis.place(all.high.max(all.likely)), middle), estimate(all, share), 1.0)?;
    }
    Ok(())
}
