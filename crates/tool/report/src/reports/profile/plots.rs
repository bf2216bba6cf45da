//! The plots of a profile: the metric by page kind, memory over time and by permission, swapped-out
//! memory.

use crate::document::{Axis, Bar, BarRow, Bars, Chart, Curves, Legend, Plot, Series, SeriesForm};
use crate::quantity::{bytes, percent, seconds, share};
use crate::reports::colours::{PAGE_SIZES, colour_of};
use crate::summary::{KindSummary, counted, usual_outcome};
use crate::{Footprint, FootprintPoint, PermissionShare, Profile, Summary};
use fieldstone_stats::Interval;

/// Points beyond this cannot be seen apart on the page; the largest of each stretch is kept.
const MOST_POINTS: usize = 360;
/// Footprints that are drawn.
const MOST_FOOTPRINTS: usize = 6;
/// Permissions that are drawn.
const MOST_PERMISSIONS: usize = 8;

/// The metric by page kind: a bar from zero to the median, every run as a dot on it, and the 95 %
/// interval. `None` if nothing was measured.
pub(super) fn time(profile: &Profile, summary: &Summary) -> Option<Plot> {
    let largest = profile.samples.iter().map(|sample| sample.value).fold(0.0, f64::max);
    if largest <= 0.0 {
        return None;
    }
    let noun = summary.metric.noun();
    let description = summary.kinds.iter().map(|kind| {
        let value = kind.value_s.map_or_else(|| "not measured".to_owned(), |value| seconds(value.median));
        format!("{}: {value}, {}.", kind.name, kind.judgement())
    });
    let usual = usual_outcome(profile);
    let rows = summary.kinds.iter().map(|kind| {
        let samples = counted(profile, &kind.name, usual.as_deref());
        time_row(kind, samples.iter().map(|sample| sample.value).collect())
    });
    let axis = Axis::of_seconds(largest).with_room(0.2);
    Some(Plot {
        id: "plot-time".into(),
        title: format!("{noun} by page kind"),
        description: description.collect::<Vec<_>>().join(" "),
        caption: format!(
            "The {noun} of a run on each page kind. The bar ends at the median; the line below it is the {} of the \
             median, or the range of fewer than six runs. Each dot is a run, in order from top to bottom. Shorter is better.",
            Interval::LABEL
        ),
        legend: Vec::new(),
        chart: Some(Chart::Bars(Bars { axis, name_pixels: 190, row_pixels: 128, rows: rows.collect() })),
    })
}

fn time_row(kind: &KindSummary, dots: Vec<f64>) -> BarRow {
    let name = kind.name.clone();
    let Some(value) = kind.value_s else { return BarRow { name, label: kind.judgement(), ..BarRow::default() } };
    let change = kind.gain().map_or_else(String::new, |gain| {
        let sign = if gain > 0.0 { '−' } else { '+' };
        format!(" ({sign}{})", percent(gain.abs()))
    });
    BarRow {
        bars: vec![Bar { ends: (0.0, value.median), colour: Some(colour_of(&name)), opacity: 0.28 }],
        name,
        dots,
        mark: Some(value.median),
        interval: Some((value.low, value.high)),
        label: seconds(value.median) + &change,
        label_at: value.median,
        ..BarRow::default()
    }
}

/// When the longest watched run ended, in seconds.
fn end_s(footprints: &[Footprint]) -> f64 {
    footprints.iter().flat_map(|footprint| &footprint.points).map(|point| point.t_s).fold(0.0, f64::max)
}

/// Memory of each watched run over time, as stacked areas by page size. All have the same axes, so
/// that they can be compared.
pub(super) fn footprints(footprints: &[Footprint]) -> Vec<Plot> {
    let end_bytes = footprints.iter().filter_map(Footprint::peak).map(|peak| peak.resident_bytes).max().unwrap_or(0);
    let axes = (Axis::of_seconds(end_s(footprints)), Axis::of_bytes(end_bytes).with_room(0.06));
    let legend = page_sizes(footprints);
    let plot = |(at, of)| footprint(at + 1, of, axes, legend.clone());
    footprints.iter().take(MOST_FOOTPRINTS).enumerate().map(plot).collect()
}

fn footprint(number: usize, of: &Footprint, (x, y): (Axis, Axis), legend: Vec<Legend>) -> Plot {
    let points = thinned(&of.points, |point| point.resident_bytes);
    let peak = of.peak().filter(|_| points.len() > 1);
    let description = peak.map_or_else(String::new, |peak| {
        format!("Largest at {}: {} resident.", seconds(peak.t_s), bytes(peak.resident_bytes))
    });
    let caption = match peak {
        Some(peak) => format!("{}: {} at its largest", of.kind, bytes(peak.resident_bytes)),
        None => format!("{}: too short a run to be watched", of.kind),
    };
    let curves = Curves { x, y, labels: (4, 5), size: (740, 400), series: areas(&points) };
    Plot {
        id: format!("plot-footprint-{number}"),
        title: format!("Memory of {} over time, by page size", of.kind),
        description,
        caption,
        legend,
        chart: peak.map(|_| Chart::Curves(curves)),
    }
}

/// Each area reaches down to zero, so the whole comes first and its lower layers over it.
fn areas(points: &[FootprintPoint]) -> Vec<Series> {
    let area = |layers: usize| {
        let height = |point: &FootprintPoint| -> f64 {
            let by_size = [point.huge_1g_bytes, point.huge_2m_bytes, point.folio_bytes, point.small_bytes];
            by_size[..=layers].iter().map(|bytes| *bytes as f64).sum()
        };
        let points: Vec<(f64, f64)> = points.iter().map(|point| (point.t_s, height(point))).collect();
        let colour = PAGE_SIZES[PAGE_SIZES.len() - 1 - layers].1;
        let is_seen = points.iter().any(|(_, height)| *height > 0.0);
        is_seen.then(|| Series { colour, form: SeriesForm::Area, points, intervals: Vec::new() })
    };
    (0..PAGE_SIZES.len()).rev().filter_map(area).collect()
}

/// The page sizes that any run got.
fn page_sizes(footprints: &[Footprint]) -> Vec<Legend> {
    let points = || footprints.iter().flat_map(|footprint| &footprint.points);
    let got = [
        points().any(|point| point.small_bytes > 0),
        points().any(|point| point.folio_bytes > 0),
        points().any(|point| point.huge_2m_bytes > 0),
        points().any(|point| point.huge_1g_bytes > 0),
    ];
    let sizes = PAGE_SIZES.iter().zip(got).filter(|(_, got)| *got);
    sizes.map(|((name, colour), _)| colour.named(*name)).collect()
}

/// At most [`MOST_POINTS`] of `points`: of each stretch the one where `size` is largest, so that no
/// peak is lost.
pub(super) fn thinned(points: &[FootprintPoint], size: fn(&FootprintPoint) -> u64) -> Vec<FootprintPoint> {
    let stretch = points.len().div_ceil(MOST_POINTS).max(1);
    points.chunks(stretch).filter_map(|chunk| chunk.iter().max_by_key(|point| size(point)).copied()).collect()
}

/// Memory by permission: mapped as a pale bar, resident as a full one on it. `None` if nothing is
/// known.
pub(super) fn permissions(shares: &[PermissionShare]) -> Option<Plot> {
    let all: f64 = shares.iter().map(|share| share.bytes as f64).sum();
    let mut sorted: Vec<&PermissionShare> = shares.iter().filter(|share| share.bytes > 0).collect();
    sorted.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    sorted.truncate(MOST_PERMISSIONS);
    let largest = sorted.first()?;
    let axis = Axis::of_bytes(largest.bytes.max(largest.resident_bytes)).with_room(0.15);
    let words = sorted.iter().map(|of| format!("{}: {}.", of.permission, share(of.bytes as f64 / all)));
    let row = |of: &&PermissionShare| {
        let colour = Some(if of.permission == "rw-" { PAGE_SIZES[2].1 } else { PAGE_SIZES[0].1 });
        let (mapped, resident) = (of.bytes as f64, of.resident_bytes.min(of.bytes) as f64);
        BarRow {
            name: of.permission.clone(),
            bars: vec![
                Bar { ends: (0.0, mapped), colour, opacity: 0.35 },
                Bar { ends: (0.0, resident), colour, opacity: 1.0 },
            ],
            label: share(of.bytes as f64 / all),
            label_at: mapped,
            ..BarRow::default()
        }
    };
    Some(Plot {
        id: "plot-permissions".into(),
        title: "Mapped memory by permission".into(),
        description: words.collect::<Vec<_>>().join(" "),
        caption: "Mapped memory is pale, the resident part of it full.".into(),
        legend: Vec::new(),
        chart: Some(Chart::Bars(Bars {
            axis,
            name_pixels: 90,
            row_pixels: 64,
            rows: sorted.iter().map(row).collect(),
        })),
    })
}

/// Swapped-out memory over time, a line a page kind. `None` if no run was watched long enough.
pub(super) fn swap(footprints: &[Footprint]) -> Option<Plot> {
    if !footprints.iter().any(|footprint| footprint.points.len() > 1) {
        return None;
    }
    let most = footprints.iter().map(Footprint::swap_peak_bytes).max().unwrap_or(0);
    let words = footprints.iter().map(|of| format!("{}: at most {}.", of.kind, bytes(of.swap_peak_bytes())));
    let series = footprints.iter().map(|footprint| {
        let points = thinned(&footprint.points, |point| point.swap_bytes);
        let points = points.iter().map(|point| (point.t_s, point.swap_bytes as f64)).collect();
        Series { colour: colour_of(&footprint.kind), form: SeriesForm::Line, points, intervals: Vec::new() }
    });
    Some(Plot {
        id: "plot-swap".into(),
        title: "Swapped-out memory over time".into(),
        description: words.collect::<Vec<_>>().join(" "),
        caption: String::new(),
        legend: footprints.iter().map(|of| colour_of(&of.kind).named(&of.kind)).collect(),
        chart: Some(Chart::Curves(Curves {
            x: Axis::of_seconds(end_s(footprints)),
            y: Axis::of_bytes(most).with_room(0.06),
            labels: (8, if most == 0 { 2 } else { 4 }),
            size: (1520, if most == 0 { 200 } else { 340 }),
            series: series.collect(),
        })),
    })
}
