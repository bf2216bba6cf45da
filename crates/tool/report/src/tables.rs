//! The tables of a report as plain cells, so that the terminal and the page show the same ones.

pub(crate) mod translation;

use crate::quantity::{bytes, count, interval, ratio, seconds, share};
use crate::stats::Estimate;
use crate::{Diff, FootprintPoint, Metric, PermissionShare, ProcessStats, Profile, RegionStats, Resident, Summary};
use serde::Serialize;

/// What stands where there is no number.
const NONE: &str = "–";

/// A heading and rows of as many cells.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Table {
    pub(crate) heading: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    /// How many columns, from the left, are text; the others are numbers and stand to the right.
    pub(crate) text_columns: usize,
}

impl Table {
    fn new(heading: &[&str], text_columns: usize, rows: impl Iterator<Item = Vec<String>>) -> Self {
        Self { heading: heading.iter().map(|cell| (*cell).to_owned()).collect(), rows: rows.collect(), text_columns }
    }
}

/// The metric, the ratio to the baseline and the verdict of each kind.
pub(crate) fn comparison(profile: &Profile, summary: &Summary) -> Table {
    let noun = summary.metric.noun();
    let against = format!("to {}", summary.baseline);
    let mut heading = vec!["pages", "verdict", "runs", noun, &against, "95 % interval"];
    let requests = profile.program.requests.filter(|requests| *requests > 0);
    heading.extend(requests.map(|_| "a request"));
    let rows = summary.kinds.iter().map(|kind| {
        let value = kind.value_s.map(|value| value.median);
        let mut row = vec![
            kind.name.clone(),
            kind.judgement(),
            kind.runs.to_string(),
            value.map_or_else(|| NONE.to_owned(), seconds),
            kind.ratio.map_or_else(|| NONE.to_owned(), |estimate| ratio(estimate.median)),
            kind.ratio.map_or_else(|| NONE.to_owned(), |estimate| spread(&estimate)),
        ];
        row.extend(
            requests.map(|requests| value.map_or_else(|| NONE.to_owned(), |value| seconds(value / requests as f64))),
        );
        row
    });
    Table::new(&heading, 2, rows)
}

/// What a run costs besides the metric, for the kinds that were measured; resident memory is that of [`crate::Resident`].
pub(crate) fn costs(summary: &Summary) -> Table {
    let against = format!("to {}", summary.baseline);
    let rows = summary.kinds.iter().filter_map(|kind| {
        let cost = kind.cost?;
        Some(vec![
            kind.name.clone(),
            seconds(cost.user_s),
            seconds(cost.system_s),
            count(cost.minor_faults),
            count(cost.major_faults),
            kind.resident.as_ref().map_or_else(|| NONE.to_owned(), |resident| bytes(resident.peak_bytes)),
            kind.resident.as_ref().and_then(Resident::words).unwrap_or_else(|| NONE.to_owned()),
        ])
    });
    Table::new(&["pages", "user", "kernel", "faults", "from disk", "max resident", &against], 1, rows)
}

/// Memory at its largest, a line a watched run.
pub(crate) fn footprints(profile: &Profile) -> Table {
    type Size = (&'static str, fn(&FootprintPoint) -> u64);
    let peaks: Vec<_> =
        profile.footprints.iter().filter_map(|footprint| Some((footprint, *footprint.peak()?))).collect();
    // A column for each page size that any kind got.
    let sizes: [Size; 4] = [
        ("in 4 KiB", |peak| peak.small_bytes),
        ("in folios", |peak| peak.folio_bytes),
        ("in 2 MiB", |peak| peak.huge_2m_bytes),
        ("in 1 GiB", |peak| peak.huge_1g_bytes),
    ];
    let sizes = sizes.map(|size| Some(size).filter(|size| peaks.iter().any(|(_, peak)| size.1(peak) > 0)));
    let sizes: Vec<_> = sizes.into_iter().flatten().collect();
    let mut heading = vec!["pages", "resident"];
    heading.extend(sizes.iter().map(|size| size.0));
    heading.extend(["swapped", "rw-"]);
    let rows = peaks.iter().map(|(footprint, peak)| {
        let mut row = vec![footprint.kind.clone(), bytes(peak.resident_bytes)];
        row.extend(sizes.iter().map(|size| bytes(size.1(peak))));
        row.push(bytes(footprint.swap_peak_bytes()));
        row.push(footprint.read_write_share().map_or_else(|| NONE.to_owned(), share));
        row
    });
    Table::new(&heading, 1, rows)
}

/// Every measured run, in the order in which they ran. The wall-clock time stands apart only where it is not the metric.
pub(crate) fn samples(profile: &Profile) -> Table {
    let mut samples: Vec<_> = profile.samples.iter().collect();
    samples.sort_by_key(|sample| sample.position);
    let has_wall = profile.metric != Metric::Time;
    let mut heading = vec!["pages", "ended with", "place", "round", profile.metric.noun()];
    heading.extend(has_wall.then_some("wall"));
    heading.extend(["user", "kernel", "faults", "from disk", "resident"]);
    let rows = samples.into_iter().map(|sample| {
        let mut row = vec![
            sample.kind.clone(),
            sample.outcome.clone(),
            sample.position.to_string(),
            sample.round.to_string(),
            seconds(sample.value),
        ];
        row.extend(has_wall.then(|| seconds(sample.wall_s)));
        row.extend([
            seconds(sample.user_s),
            seconds(sample.system_s),
            count(sample.minor_faults),
            count(sample.major_faults),
            bytes(sample.max_resident_bytes),
        ]);
        row
    });
    Table::new(&heading, 2, rows)
}

/// Memory by permission, largest first.
pub(crate) fn permissions(shares: &[PermissionShare]) -> Table {
    let all: f64 = shares.iter().map(|share| share.bytes as f64).sum();
    let mut sorted: Vec<_> = shares.iter().collect();
    sorted.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    let rows = sorted.into_iter().map(|of| {
        let part = share(of.bytes as f64 / all.max(1.0));
        vec![of.permission.clone(), bytes(of.bytes), part, bytes(of.resident_bytes)]
    });
    Table::new(&["permission", "mapped", "part", "resident"], 1, rows)
}

/// What the region of each watched run held, and the pages it really got. A column for each thing that happened at all.
pub(crate) fn regions(profile: &Profile) -> Table {
    type Column = (&'static str, fn(&RegionStats) -> Option<u64>);
    let regions: Vec<_> =
        profile.footprints.iter().filter_map(|footprint| Some((&footprint.kind, footprint.region.as_ref()?))).collect();
    let columns: [Column; 4] = [
        ("in place", |region| Some(region.private_rw_in_place_bytes).filter(|bytes| *bytes > 0)),
        ("pool empty", |region| Some(region.fell_back_bytes).filter(|bytes| *bytes > 0)),
        ("moved back", |region| Some(region.demoted_bytes).filter(|bytes| *bytes > 0)),
        ("contiguous", |region| Some(region.contiguity?.median_run_bytes)),
    ];
    let columns = columns.map(|column| regions.iter().any(|(_, region)| column.1(region).is_some()).then_some(column));
    let columns: Vec<_> = columns.into_iter().flatten().collect();
    let mut heading = vec!["asked for", "really got", "peak", "rw inside"];
    heading.extend(columns.iter().map(|column| column.0));
    let rows = regions.iter().map(|(kind, region)| {
        let mut row = vec![
            (*kind).clone(),
            pages_got(region),
            bytes(region.mapped_peak_bytes),
            region.inside_share().map_or_else(|| NONE.to_owned(), share),
        ];
        row.extend(columns.iter().map(|column| column.1(region).map_or_else(|| NONE.to_owned(), bytes)));
        row
    });
    Table::new(&heading, 2, rows)
}

/// The processes of a run and what their regions served.
pub(crate) fn processes(processes: &[ProcessStats]) -> Table {
    let rows = processes.iter().map(|process| {
        let region = &process.region;
        vec![
            format!("{}{}", process.name, if process.primary { " *" } else { "" }),
            pages_got(region),
            process.pid.to_string(),
            bytes(region.served_bytes),
            bytes(region.mapped_peak_bytes),
            region.inside_share().map_or_else(|| NONE.to_owned(), share),
            region.share_of(region.private_rw_in_place_bytes).map_or_else(|| NONE.to_owned(), share),
        ]
    });
    Table::new(&["process", "pages really got", "pid", "served", "peak", "inside", "in place"], 2, rows)
}

/// What stayed outside a region, and why.
pub(crate) fn outside(region: &RegionStats) -> Table {
    let mut reasons: Vec<_> = region.outside.iter().collect();
    reasons.sort_by_key(|outside| std::cmp::Reverse((outside.resident_bytes, outside.bytes)));
    let rows = reasons.into_iter().map(|outside| {
        let bytes = [outside.bytes, outside.resident_bytes].map(bytes);
        [vec![outside.reason.clone(), count(outside.calls)], bytes.to_vec()].concat()
    });
    Table::new(&["reason", "calls", "asked for", "resident"], 1, rows)
}

/// A difference, a line a page kind.
pub(crate) fn changes(diff: &Diff) -> Table {
    let median = |estimate: Option<Estimate>| estimate.map_or_else(|| NONE.to_owned(), |value| seconds(value.median));
    let rows = diff.kinds.iter().map(|kind| {
        vec![
            kind.name.clone(),
            kind.change.to_string(),
            median(kind.a_s),
            median(kind.b_s),
            kind.ratio.map_or_else(|| NONE.to_owned(), |estimate| ratio(estimate.median)),
            kind.ratio.map_or_else(|| NONE.to_owned(), |estimate| spread(&estimate)),
        ]
    });
    Table::new(&["pages", "B is", "A", "B", "B / A", "95 % interval"], 2, rows)
}

/// `thp 1.95 GiB, 4k 53 MiB`.
fn pages_got(region: &RegionStats) -> String {
    let got = region.pages.iter().filter(|pages| pages.bytes > 0);
    let got = got.map(|pages| format!("{} {}", pages.kind, bytes(pages.bytes))).collect::<Vec<_>>().join(", ");
    if got.is_empty() { NONE.to_owned() } else { got }
}

/// `0.590 – 0.612`, and that it is no interval where it is none. A single value has neither.
fn spread(estimate: &Estimate) -> String {
    if estimate.n < 2 {
        return NONE.to_owned();
    }
    let ends = interval(estimate.low, estimate.high, ratio);
    if estimate.is_interval() { ends } else { format!("range {ends}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_has_no_range() {
        let of = |values: &[f64]| spread(&Estimate::of_median(values).unwrap());
        assert_eq!((of(&[0.899]), of(&[0.8, 0.9])), ("–".to_owned(), "range 0.800 – 0.900".to_owned()));
    }
}
