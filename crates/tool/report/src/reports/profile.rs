//! A profile: which page kinds are faster, what a run costs, which memory it had, and what
//! translation costs where it was traced.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `plots` | the plots |
//! | `records` | the fields of CSV |
//! | `paper` | the published numbers beside the measured ones |

mod paper;
#[cfg(test)]
mod plot_tests;
mod plots;
mod records;
#[cfg(test)]
mod tests;

pub(super) use records::estimate_fields;
pub use records::records;

use super::run::pages_got;
use super::{machine, translation};
use crate::document::{Block, Column, Document, Plot, Section, Table, TableCell, TableRow, Unit, Value, row};
use crate::quantity::{bytes, moment, percent, share};
use crate::{Advice, Footprint, FootprintPoint, Metric, PermissionShare, Profile, RegionStats, Summary, shell};
use fieldstone_stats::Interval;
use std::cmp::Reverse;

/// The report on `profile`, whose meaning is `summary`.
pub fn document(profile: &Profile, summary: &Summary) -> Document {
    let (advice, command) = summary.advice.parts();
    let (findings, notes): (Vec<&Advice>, Vec<&Advice>) = summary.notes.iter().partition(|note| note.is_finding());
    let findings = findings.into_iter().map(ToString::to_string).collect();
    let notes = profile.warnings.iter().cloned().chain(notes.into_iter().map(ToString::to_string));
    let traced = profile.translation.as_ref().zip(summary.translation.as_ref());
    let blocks = vec![
        Block::facts(facts(profile, summary)),
        faster(profile, summary),
        Block::section("What a run costs", [costs(summary).into()]),
        memory(profile),
        traced.map_or_else(|| Block::Detail(Vec::new()), |(traced, of)| translation::section(traced, of)),
        Block::section("Findings (exit code 1)", [Block::List(findings)]),
        Block::section("Notes", [Block::List(notes.collect())]),
        Block::Detail(permissions(profile).into_iter().chain([swap(&profile.footprints), samples(profile)]).collect()),
    ];
    Document {
        kind: "profile".into(),
        subject: "What virtual memory costs".into(),
        title: shell::join(&profile.program.command),
        is_command: true,
        lead: Section {
            heading: "Advice".into(),
            is_folded: false,
            blocks: vec![Block::Paragraph(advice), Block::command(command)],
        },
        blocks,
        tool_version: profile.tool_version.clone(),
    }
}

/// Where, when and how it was measured.
fn facts(profile: &Profile, summary: &Summary) -> impl Iterator<Item = (&'static str, String)> {
    let runs = summary.baseline_runs();
    let noise = summary.noise.map_or_else(String::new, |noise| {
        format!("; two neighbouring runs on {} usually differ by {}", summary.baseline, percent(noise))
    });
    let plural = if runs == 1 { "" } else { "s" };
    let runs = format!("{runs} run{plural} on {}, page kinds in alternating order{noise}", summary.baseline);
    [("Measured", moment(profile.taken_at_unix_s))]
        .into_iter()
        .chain(machine::facts(&profile.machine))
        .chain([("Runs", runs), ("Load", profile.program.load.clone().unwrap_or_default())])
}

/// The metric, the ratio to the baseline and the verdict of each kind.
fn faster(profile: &Profile, summary: &Summary) -> Block {
    let requests = profile.program.requests.filter(|requests| *requests > 0);
    let columns = [
        Column::text("pages"),
        Column::text("verdict"),
        Column::number("runs"),
        Column::number(summary.metric.noun()),
        Column::number(format!("to {}", summary.baseline)),
        Column::number(Interval::LABEL),
    ];
    let rows = summary.kinds.iter().map(|kind| {
        let value = kind.value_s.map(|value| value.median);
        let mut row = row![
            &kind.name,
            kind.judgement(),
            kind.runs.to_string(),
            value.map(|value| Unit::Seconds.of(value)),
            kind.ratio.map(|ratio| Unit::Ratio.of(ratio.median)),
            kind.ratio.and_then(|ratio| Value::interval(&ratio, Unit::Ratio)),
        ];
        let a_request = |requests: u64| TableCell::from(value.map(|value| Unit::Seconds.of(value / requests as f64)));
        row.cells.extend(requests.map(a_request));
        row
    });
    let columns = columns.into_iter().chain(requests.map(|_| Column::number("a request")));
    let caption = format!(
        "Each run is compared with the run on {} of the same round; the interval is that of the median of these ratios.",
        profile.baseline
    );
    let table = Table::new(columns).with_rows(rows).with_caption(caption);
    Block::section("Which pages are faster", [plots::time(profile, summary).into(), table.into()])
}

/// What a run costs besides the metric, for the kinds that were measured; resident memory is that
/// of [`crate::Resident`].
fn costs(summary: &Summary) -> Table {
    let columns = [
        Column::text("pages"),
        Column::number("user"),
        Column::number("kernel"),
        Column::number("faults"),
        Column::number("from disk"),
        Column::number("max resident"),
        Column::number(format!("to {}", summary.baseline)),
    ];
    let rows = summary.kinds.iter().filter_map(|kind| {
        let (cost, resident) = (kind.cost?, kind.resident.as_ref());
        Some(row![
            &kind.name,
            Unit::Seconds.of(cost.user_s),
            Unit::Seconds.of(cost.system_s),
            Value::count(cost.minor_faults),
            Value::count(cost.major_faults),
            resident.map(|resident| Value::bytes(resident.peak_bytes)),
            resident.and_then(crate::Resident::words),
        ])
    });
    Table::new(columns).with_rows(rows).with_caption(
        "Medians over the runs. Faults are first touches: the kernel finds, clears and maps a page. Kernel time is that, and \
         system calls. Max resident is the peak of any run.",
    )
}

/// Memory over time and at its largest, a line a watched run.
fn memory(profile: &Profile) -> Block {
    let primary = match profile.program.primary.as_str() {
        "" => String::new(),
        primary => format!(" The process is {primary}."),
    };
    let words = format!(
        "One run of each kind, not measured, was watched: the memory that it really had, by the size of the pages that the \
         kernel really gave.{primary}"
    );
    if profile.footprints.is_empty() {
        return Block::Detail(Vec::new());
    }
    Block::section(
        "Memory at its largest, in one watched run of each kind",
        [
            Block::Detail(vec![Block::Paragraph(words), Block::Plots(plots::footprints(&profile.footprints))]),
            footprints(profile).into(),
            Block::Detail(vec![regions(profile).into()]),
        ],
    )
}

fn footprints(profile: &Profile) -> Table {
    type FootprintBytes = (&'static str, fn(&FootprintPoint) -> u64);
    let peaks: Vec<_> =
        profile.footprints.iter().filter_map(|footprint| Some((footprint, *footprint.peak()?))).collect();
    let sizes: [FootprintBytes; 4] = [
        ("in 4 KiB", |peak| peak.small_bytes),
        ("in folios", |peak| peak.folio_bytes),
        ("in 2 MiB", |peak| peak.huge_2m_bytes),
        ("in 1 GiB", |peak| peak.huge_1g_bytes),
    ];
    // A column for each page size that any kind got.
    let sizes: Vec<FootprintBytes> =
        sizes.into_iter().filter(|size| peaks.iter().any(|(_, peak)| size.1(peak) > 0)).collect();
    let sized = sizes.iter().map(|size| Column::number(size.0));
    let columns = [Column::text("pages"), Column::number("resident")].into_iter().chain(sized).chain([
        Column::number("swapped").explained("Swapped: the most at any time."),
        Column::number("rw-").explained("rw-: the part of mapped memory that is readable and writable."),
    ]);
    Table::new(columns).with_rows(peaks.iter().map(|(footprint, peak)| {
        let mut row = row![&footprint.kind, Value::bytes(peak.resident_bytes)];
        row.cells.extend(sizes.iter().map(|size| TableCell::from(Value::bytes(size.1(peak)))));
        let read_write = footprint.read_write_share().map(|share| Unit::Share.of(share));
        row.cells.extend([TableCell::from(Value::bytes(footprint.swap_peak_bytes())), read_write.into()]);
        row
    }))
}

/// What the region of each watched run held, and its resident pages. A column for each thing
/// that happened at all.
fn regions(profile: &Profile) -> Table {
    type CountOf = fn(&RegionStats) -> Option<u64>;
    let regions: Vec<_> =
        profile.footprints.iter().filter_map(|footprint| Some((&footprint.kind, footprint.region.as_ref()?))).collect();
    let optional: [(&str, &str, CountOf); 4] = [
        ("in place", "", |region| Some(region.private_rw_in_place_bytes).filter(|bytes| *bytes > 0)),
        ("pool empty", "Pool empty: memory that found no huge page left.", |region| {
            Some(region.fell_back_bytes).filter(|bytes| *bytes > 0)
        }),
        ("moved back", "Moved back: memory whose use needs ordinary pages.", |region| {
            Some(region.demoted_bytes).filter(|bytes| *bytes > 0)
        }),
        ("contiguous", "Contiguous: half of the memory is in physical runs at least this long.", |region| {
            Some(region.contiguity?.median_run_bytes)
        }),
    ];
    let optional: Vec<_> =
        optional.into_iter().filter(|of| regions.iter().any(|(_, region)| of.2(region).is_some())).collect();
    let columns = [
        Column::text("requested"),
        Column::text("resident pages"),
        Column::number("peak"),
        Column::number("rw inside")
            .explained("rw inside: the part of the private read-write memory inside the region."),
    ];
    let columns = columns
        .into_iter()
        .chain(optional.iter().map(|(heading, words, _)| Column::number(*heading).explained(*words)));
    let rows = regions.iter().map(|(kind, region)| {
        let inside = region.inside_share().map(|share| Unit::Share.of(share));
        let mut row = row![*kind, pages_got(region), Value::bytes(region.mapped_peak_bytes), inside];
        row.cells.extend(optional.iter().map(|of| TableCell::from(of.2(region).map(Value::bytes))));
        row
    });
    let mut sources: Vec<&str> = regions.iter().map(|(_, region)| region.pages_source.as_str()).collect();
    sources.sort_unstable();
    sources.dedup();
    let caption = format!(
        "Region of the primary process. The resident pages are read from the kernel’s tables ({}).",
        sources.join(", ")
    );
    Table::new(columns).with_rows(rows).with_caption(caption)
}

/// Permissions on the baseline, where the kernel placed the memory by itself; or on the first kind
/// that has them.
fn permissions(profile: &Profile) -> Option<Block> {
    let has = |footprint: &&Footprint| !footprint.permissions.is_empty();
    let of = profile.footprint(&profile.baseline).filter(has).or_else(|| profile.footprints.iter().find(has))?;
    let read_write = of.read_write_share().map_or_else(String::new, share);
    let published: Vec<String> =
        paper::READ_WRITE_TABLE.iter().map(|(workload, share)| format!("{workload} {share}")).collect();
    let reported = format!(
        "Basu et al. (Efficient Virtual Memory for Big Memory Servers) report that {} Their table: {}. Here: {read_write}.",
        paper::READ_WRITE,
        published.join(", ")
    );
    Some(Block::section(
        "Memory by permission",
        [
            Block::Paragraph(format!(
                "{read_write} of the memory mapped here (on {} pages) is readable and writable. The larger that part, the less \
                 the program needs separate permissions for small pages.",
                of.kind
            )),
            plots::permissions(&of.permissions).into(),
            permission_table(&of.permissions).into(),
            Block::Paragraph(reported),
        ],
    ))
}

/// Memory by permission, largest first.
fn permission_table(shares: &[PermissionShare]) -> Table {
    let all: f64 = shares.iter().map(|share| share.bytes as f64).sum();
    let mut sorted: Vec<_> = shares.iter().collect();
    sorted.sort_by_key(|share| Reverse(share.bytes));
    let columns =
        [Column::text("permission"), Column::number("mapped"), Column::number("part"), Column::number("resident")];
    let rows = sorted.into_iter().map(|of| {
        let part = Unit::Share.of(of.bytes as f64 / all.max(1.0));
        row![&of.permission, Value::bytes(of.bytes), part, Value::bytes(of.resident_bytes)]
    });
    Table::new(columns).with_rows(rows).with_caption("Mapped and resident memory of the process, by permission.")
}

fn swap(footprints: &[Footprint]) -> Block {
    let most = footprints.iter().max_by_key(|footprint| footprint.swap_peak_bytes());
    let sentence = match most.map(|footprint| (footprint, footprint.swap_peak_bytes())) {
        None => "No run was watched.".to_owned(),
        Some((_, 0)) => "Nothing was swapped out in any watched run.".to_owned(),
        Some((footprint, swapped)) => format!("At most {} was swapped out, on {}.", bytes(swapped), footprint.kind),
    };
    let plot: Option<Plot> = plots::swap(footprints);
    Block::section("Swap", [Block::Paragraph(sentence), plot.into()])
}

/// Every measured run, in the order in which they ran. The wall-clock time has a column only where
/// it is not the metric.
fn samples(profile: &Profile) -> Block {
    let mut samples: Vec<_> = profile.samples.iter().collect();
    samples.sort_by_key(|sample| sample.position);
    let has_wall = profile.metric != Metric::Time;
    let text = ["pages", "ended with"].map(Column::text);
    let metric = ["place", "round", profile.metric.noun()].map(Column::number);
    let wall = has_wall.then(|| Column::number("wall"));
    let costs = ["user", "kernel", "faults", "from disk", "resident"].map(Column::number);
    let rows = samples.into_iter().map(|sample| -> TableRow {
        let mut row = row![
            &sample.kind,
            &sample.outcome,
            sample.position.to_string(),
            sample.round.to_string(),
            Unit::Seconds.of(sample.value),
        ];
        row.cells.extend(has_wall.then(|| TableCell::from(Unit::Seconds.of(sample.wall_s))));
        row.cells.extend(
            row![
                Unit::Seconds.of(sample.user_s),
                Unit::Seconds.of(sample.system_s),
                Value::count(sample.minor_faults),
                Value::count(sample.major_faults),
                Value::bytes(sample.max_resident_bytes),
            ]
            .cells,
        );
        row
    });
    let table = Table::new(text.into_iter().chain(metric).chain(wall).chain(costs)).with_rows(rows);
    Block::folded("Every run", [table.with_caption("In the order in which they ran.").into()])
}
