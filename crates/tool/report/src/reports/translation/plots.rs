//! The plots of a trace: the share of the time in walks, misses against size, walks over the run
//! and by site, mosaics.

use crate::TranslationSummary;
use crate::document::{Axis, Bar, BarRow, Bars, Chart, Colour, Curves, Plot, Series, SeriesForm};
use crate::quantity::{bytes, estimate, rate, seconds, share};
use crate::reports::colours::{PAGE_SIZES, colour_of};
use crate::translation::sites::{SiteLine, shortened};
use crate::translation::summary::ConfigurationSummary;
use crate::translation::{Moment, Mosaics, Reach, ReportedMixture, Translation};
use fieldstone_stats::Interval;

/// Configurations beyond this are left to the table.
const MOST_CONFIGURATIONS: usize = 24;
/// Sites beyond this are left to the table.
const MOST_SITES: usize = 15;
/// Moments beyond this cannot be seen apart on the page; neighbours are added up.
const MOST_MOMENTS: usize = 360;
/// Bytes that an entry of a TLB reaches.
const PAGE_BYTES: u64 = 4096;

const PRICED: Colour = Colour(214, 120, 30);
const FITTED: Colour = Colour(38, 118, 190);
const MEASURED: Colour = Colour(148, 154, 163);
/// Between the measured and the priced point of a mixture, as a part of the region.
const SHIFT: f64 = 0.012;

/// A plot without a legend.
fn plot(id: &str, title: &str, description: String, caption: &str, chart: Chart) -> Plot {
    Plot {
        id: format!("plot-translation-{id}"),
        title: title.to_owned(),
        description,
        caption: caption.to_owned(),
        legend: Vec::new(),
        chart: Some(chart),
    }
}

fn joined(words: impl Iterator<Item = String>) -> String {
    words.collect::<Vec<_>>().join(" ")
}

/// The share of the time in page walks, a row a configuration, with intervals. `None` if walks have
/// no price, or one that can be anything: a bar would end at a guess.
pub(super) fn shares(summary: &TranslationSummary) -> Option<Plot> {
    let priced = summary.configurations.iter().filter_map(|of| Some((of, of.share()?)));
    let priced: Vec<(&ConfigurationSummary, Interval)> = priced.take(MOST_CONFIGURATIONS).collect();
    if priced.is_empty() || summary.is_unclear() {
        return None;
    }
    let words = priced.iter().map(|(of, all)| format!("{}: {}.", of.name, estimate(all, share)));
    let largest = priced.iter().map(|(_, all)| all.high.max(all.likely)).fold(0.0, f64::max);
    let row = |(of, all): &(&ConfigurationSummary, Interval)| {
        let (data, colour) = (of.data_share.map_or(0.0, |data| data.likely), Some(colour_of(&of.name)));
        BarRow {
            name: shortened(&of.name, 16),
            bars: vec![
                Bar { ends: (0.0, data), colour, opacity: 0.85 },
                Bar { ends: (data, all.likely), colour, opacity: 0.4 },
            ],
            interval: Some((all.low, all.high)),
            label: estimate(all, share),
            label_at: all.high.max(all.likely),
            ..BarRow::default()
        }
    };
    let bars = Bars {
        axis: Axis::of_share(largest).with_room(0.3),
        name_pixels: 260,
        row_pixels: 72,
        rows: priced.iter().map(row).collect(),
    };
    Some(plot(
        "shares",
        "Share of the time in page walks, by configuration",
        joined(words),
        "The bar is the best guess, full for data and pale for instructions; the line across it reaches from the least to the \
         most that it can be.",
        Chart::Bars(bars),
    ))
}

/// Misses against TLB reach: a fully associative TLB of 4 KiB pages. The steps are a program's
/// working sets. `None` for sizes less than a doubling apart.
pub(super) fn reach(curve: &[Reach]) -> Option<Plot> {
    let mut points: Vec<Reach> =
        curve.iter().copied().filter(|point| point.entries > 0 && point.misses_per_access.is_finite()).collect();
    points.sort_by_key(|point| point.entries);
    points.dedup_by_key(|point| point.entries);
    let (first, last) = (points.first()?, points.last()?);
    if last.entries / 2 < first.entries {
        return None;
    }
    let words = |point: &Reach| {
        let reached = bytes(point.entries.saturating_mul(PAGE_BYTES));
        format!("{} with {reached} in reach", rate(point.misses_per_access * 1000.0))
    };
    let description = format!("Misses for 1,000 accesses: {}, {}.", words(first), words(last));
    let most = points.iter().map(|point| point.misses_per_access * 1000.0).fold(0.0, f64::max);
    let curves = Curves {
        x: Axis::of_page_doublings(first.entries, last.entries),
        y: Axis::of_rate(most).with_room(0.06),
        labels: (10, 4),
        size: (1520, 420),
        series: vec![Series {
            colour: PAGE_SIZES[2].1,
            form: SeriesForm::LineAndPoints,
            points: points.iter().map(|point| (point.entries as f64, point.misses_per_access * 1000.0)).collect(),
            intervals: Vec::new(),
        }],
    };
    Some(plot(
        "reach",
        "Misses against TLB reach",
        description,
        "Misses for 1,000 accesses in one fully associative TLB of 4 KiB pages, by the memory that it reaches. A step down is a \
         working set that fits.",
        Chart::Curves(curves),
    ))
}

/// Page walks over the run, a line a configuration. `None` for fewer than two moments with counted
/// accesses.
pub(super) fn moments(traced: &Translation) -> Option<Plot> {
    let counted: Vec<&Moment> = traced.moments.iter().filter(|moment| moment.counted > 0).collect();
    let moments = merged(&counted);
    let last = moments.last().filter(|_| moments.len() > 1)?;
    let names: Vec<&str> = traced.configurations.iter().map(|of| of.name.as_str()).collect();
    let most = |at: usize| moments.iter().map(|moment| per_thousand(moment, at)).fold(0.0, f64::max);
    let words =
        names.iter().enumerate().map(|(at, name)| format!("{name}: at most {} for 1,000 accesses.", rate(most(at))));
    let series = |(at, name): (usize, &&str)| Series {
        colour: colour_of(name),
        form: SeriesForm::Line,
        points: moments.iter().map(|moment| (moment.accesses as f64, per_thousand(moment, at))).collect(),
        intervals: Vec::new(),
    };
    let curves = Curves {
        x: Axis::of_count(last.accesses),
        y: Axis::of_rate((0..names.len()).map(most).fold(0.0, f64::max)).with_room(0.06),
        labels: (6, 4),
        size: (1520, 420),
        // The baseline comes first in the trace, and is drawn last, over the others.
        series: names.iter().enumerate().rev().map(series).collect(),
    };
    let plot = plot(
        "moments",
        "Page walks over the run",
        joined(words),
        "Walks for data of 1,000 accesses, against the accesses made so far (M: a million, G: a thousand million).",
        Chart::Curves(curves),
    );
    Some(Plot { legend: names.iter().map(|name| colour_of(name).named(*name)).collect(), ..plot })
}

fn per_thousand(moment: &Moment, configuration: usize) -> f64 {
    let walks = moment.walks.get(configuration).copied().unwrap_or(0);
    walks as f64 / moment.counted.max(1) as f64 * 1000.0
}

/// At most [`MOST_MOMENTS`] moments: of each stretch the sum.
fn merged(moments: &[&Moment]) -> Vec<Moment> {
    let stretch = moments.len().div_ceil(MOST_MOMENTS).max(1);
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

/// Page walks by allocation site, a row a site: pale on 4 KiB pages, full what is left on 2 MiB
/// pages. `None` if no walk was for any memory.
pub(super) fn sites(summary: &TranslationSummary) -> Option<Plot> {
    let lines = summary.sites.iter().take(MOST_SITES).chain(&summary.rest);
    let lines: Vec<&SiteLine> = lines.filter(|line| line.share > 0.0).take(MOST_SITES + 5).collect();
    if lines.is_empty() {
        return None;
    }
    let words = lines.iter().map(|line| format!("{}: {}.", shortened(&line.name, 80), share(line.share)));
    let most = lines.iter().map(|line| line.share.max(line.share_large)).fold(0.0, f64::max);
    let row = |line: &&SiteLine| BarRow {
        name: shortened(&line.name, 40),
        bars: vec![
            Bar { ends: (0.0, line.share), colour: Some(PAGE_SIZES[0].1), opacity: 0.5 },
            Bar { ends: (0.0, line.share_large), colour: Some(PAGE_SIZES[2].1), opacity: 1.0 },
        ],
        label: share(line.share),
        label_at: line.share.max(line.share_large),
        ..BarRow::default()
    };
    let bars = Bars {
        axis: Axis::of_share(most).with_room(0.15),
        name_pixels: 600,
        row_pixels: 52,
        rows: lines.iter().map(row).collect(),
    };
    let has_large = lines.iter().any(|line| line.share_large > 0.0);
    let legend = [PAGE_SIZES[0].1.named("on 4 KiB pages"), PAGE_SIZES[2].1.named("left on 2 MiB pages")];
    let plot = plot(
        "sites",
        "Page walks by allocation site",
        joined(words),
        "Walks for data, as shares of all of them on 4 KiB pages, by the code that allocated the memory.",
        Chart::Bars(bars),
    );
    Some(Plot { legend: legend.into_iter().take(if has_large { 2 } else { 1 }).collect(), ..plot })
}

/// Time against the share of the region on larger pages: measured, by the calibrated price, and by
/// the line that was fitted. `None` for fewer than two mixtures.
pub(super) fn mosaics(of: &Mosaics) -> Option<Plot> {
    let is_drawn = |of: &&ReportedMixture| {
        (0.0..=1.0).contains(&of.share) && of.measured_s.finite().is_some() && of.fitted_s.is_finite()
    };
    let mixtures: Vec<&ReportedMixture> = of.mixtures.iter().filter(is_drawn).collect();
    if mixtures.len() < 2 {
        return None;
    }
    let words =
        |of: &&ReportedMixture| format!("{} on larger pages: {}.", share(of.share), seconds(of.measured_s.likely));
    let tops = mixtures.iter().flat_map(|of| [Some(of.measured_s), of.priced_s].into_iter().flatten());
    let y = Axis::of_seconds(tops.map(|of| of.high.max(of.likely)).fold(0.0, f64::max)).with_room(0.06);
    let fitted = Series {
        colour: FITTED,
        form: SeriesForm::Line,
        points: mixtures.iter().map(|of| (of.share, of.fitted_s)).collect(),
        intervals: Vec::new(),
    };
    let ranges = |colour, shift: f64, range: fn(&ReportedMixture) -> Option<Interval>| {
        let ranges: Vec<(f64, Interval)> =
            mixtures.iter().filter_map(|of| Some((of.share + shift, range(of)?))).collect();
        Series {
            colour,
            form: SeriesForm::Intervals,
            points: ranges.iter().map(|(at, range)| (*at, range.likely)).collect(),
            intervals: ranges.iter().map(|(_, range)| (range.low, range.high)).collect(),
        }
    };
    let measured = ranges(MEASURED, 0.0, |of| Some(of.measured_s));
    let priced = ranges(PRICED, SHIFT, |of| of.priced_s);
    let (x, series) = (Axis::of_whole(), vec![fitted, measured, priced]);
    let plot = plot(
        "mosaics",
        "Time against the share of the region on larger pages",
        joined(mixtures.iter().map(words)),
        "Seconds in user mode, by the share of the region on larger pages. The lines across reach from the least to the most.",
        Chart::Curves(Curves { x, y, labels: (5, 4), size: (1520, 420), series }),
    );
    let legend = [(MEASURED, "measured"), (PRICED, "by the calibrated price"), (FITTED, "fitted to the measured")];
    Some(Plot { legend: legend.into_iter().map(|(colour, name)| colour.named(name)).collect(), ..plot })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_added_up_and_nothing_is_lost() {
        let moments: Vec<Moment> =
            (1..=1000).map(|at| Moment { accesses: at * 10, counted: 5, walks: vec![at % 2, 3] }).collect();
        let merged = merged(&moments.iter().collect::<Vec<_>>());
        assert!(merged.len() <= MOST_MOMENTS && merged.last().unwrap().accesses == 10_000);
        assert_eq!(merged.iter().map(|moment| moment.counted).sum::<u64>(), 5000);
        assert_eq!(merged.iter().map(|moment| moment.walks[0]).sum::<u64>(), 500);
        assert_eq!(per_thousand(&merged[0], 1), 600.0);
        assert_eq!(per_thousand(&merged[0], 7), 0.0, "a configuration that the moments do not have");
    }
}
