//! Page walks by allocation site, a row a site: pale on 4 KiB pages, full what is left on 2 MiB pages.

use super::frame::{AXIS, bar, beside, rows};
use super::{Axis, Canvas, Failure, Plot, SIZES};
use crate::quantity::share;
use crate::translation::sites::{SiteLine, shortened};
use crate::{Error, TranslationSummary};
use plotters::prelude::*;

/// Rows beyond this are left to the table.
const MOST: usize = 15;

/// The plot, or none if no walk was for any memory.
pub(crate) fn sites(summary: &TranslationSummary) -> Result<Option<String>, Error> {
    let lines: Vec<&SiteLine> = summary.sites.iter().take(MOST).chain(&summary.rest).collect();
    let lines: Vec<&SiteLine> = lines.into_iter().filter(|line| line.share > 0.0).take(MOST + 5).collect();
    if lines.is_empty() {
        return Ok(None);
    }
    let words = lines.iter().map(|line| format!("{}: {}.", shortened(&line.name, 80), share(line.share)));
    let description = words.collect::<Vec<_>>().join(" ");
    let count = u32::try_from(lines.len()).unwrap_or(1);
    let plot = Plot {
        id: "plot-translation-sites",
        title: "Page walks by allocation site",
        description: &description,
        size: (1520, 52 * count + AXIS),
    };
    let most = lines.iter().map(|line| line.share.max(line.share_large)).fold(0.0, f64::max);
    plot.svg(|canvas| draw(canvas, &lines, Axis::of_share(most).with_room(0.15))).map(Some)
}

fn draw(canvas: &Canvas<'_>, lines: &[&SiteLine], axis: Axis) -> Result<(), Failure> {
    let names: Vec<String> = lines.iter().map(|line| shortened(&line.name, 40)).collect();
    let plot = rows(canvas, &names, 600, axis)?;
    for (row, line) in lines.iter().enumerate() {
        let middle = row as f64 + 0.5;
        let (small, large) = (axis.place(line.share), axis.place(line.share_large));
        bar(&plot, (0.0, small), (middle, 0.3), SIZES[0].1.mix(0.5))?;
        bar(&plot, (0.0, large), (middle, 0.3), SIZES[2].1.mix(1.0))?;
        beside(&plot, (small.max(large), middle), share(line.share), 1.0)?;
    }
    Ok(())
}
