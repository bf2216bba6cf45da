//! What address translation costs a program: a section of its profile.

mod plots;
#[cfg(test)]
mod tests;

use crate::document::{Block, CellLine, Column, Rest, RowLimit, Table, TableCell, TableRow, Unit, Value, row};
use crate::translation::Mosaics;
use crate::translation::sites::{SiteLine, called};
use crate::translation::sources::sources;
use crate::{Translation, TranslationSummary};
use fieldstone_stats::{Estimate, Interval};

/// Sites that a terminal shows; the others are one row.
const MOST_SITES: usize = 15;
/// Sites that a page shows, with the stacks of those that called them.
const MOST_SITES_ON_PAGE: usize = 100;
/// A terminal shows no site with a smaller part of the walks.
const LEAST_SHARE: f64 = 0.001;
/// Sites whose callers stand beneath them, and how many callers.
const FIRST_SITES: usize = 3;
const CALLERS: usize = 2;

/// The section on `traced`, whose meaning is `summary`.
pub(super) fn section(traced: &Translation, summary: &TranslationSummary) -> Block {
    let (verdict, command) = summary.verdict.parts();
    // The verdict is the conclusion where no measurement stands above it and no noise is in it.
    let is_conclusion = summary.measured.is_none() && summary.noisy.is_none();
    let blocks = vec![
        summary.measured.clone().map_or_else(|| Block::paragraph(None::<String>), Block::Strong),
        if is_conclusion { Block::Strong(verdict) } else { Block::Paragraph(verdict) },
        Block::command(command),
        Block::paragraph(summary.caveat.clone()),
        Block::paragraph(summary.region_sentence()),
        Block::paragraph(summary.noisy_sentence()),
        Block::section(
            "Of 1,000 accesses (instr. walks: of 1,000 instructions)",
            [modelled(summary).into(), Block::paragraph(traced.recorder_sentence().map(str::to_owned))],
        ),
        priced(summary),
        Block::section("Predicted and measured time, as a share of that on 4k", [predictions(summary).into()]),
        summary.mosaics.as_ref().map_or_else(|| Block::Detail(Vec::new()), |of| mosaics(of, traced)),
        Block::Detail(vec![
            Block::section("Misses against TLB reach", [plots::reach(&traced.reach).into()]),
            Block::section("Walks over the run", [plots::moments(traced).into()]),
        ]),
        Block::section(
            "Whose memory the walks on 4 KiB pages are for",
            [plots::sites(summary).into(), sites(summary).into(), Block::Detail(vec![callers(summary)])],
        ),
        Block::section("What came from where", [Block::facts(sources(traced, summary))]),
        Block::section("What the trace could not see", [Block::List(traced.unseen.clone())]),
    ];
    Block::section(format!("What translation costs (traced, modelled on {})", traced.processor.name), blocks)
}

/// What the models counted, a row a configuration.
fn modelled(summary: &TranslationSummary) -> Table {
    let columns = [
        Column::text("pages"),
        Column::number("L1 misses"),
        Column::number("walks").explained(
            "A walk looks a translation up in the page table, where no TLB has it; refs are its reads of memory. It is far if \
             the line of the table that it ends at was not used recently: that is the expensive kind.",
        ),
        Column::number("refs a walk"),
        Column::number("far walks"),
        Column::number("instr. walks"),
    ];
    let rate = |value: Option<f64>| value.map(|value| Unit::Rate.of(value));
    Table::new(columns).with_rows(summary.configurations.iter().map(|of| {
        row![
            &of.name,
            rate(of.misses_per_thousand),
            rate(of.walks_per_thousand),
            rate(of.references_a_walk),
            of.far_share.map(|share| Unit::Share.of(share)),
            rate(of.instruction_walks_per_thousand),
        ]
    }))
}

/// An estimate, marked where a noisy replay is behind it; of one that can be anything, only the
/// bounds.
fn estimate(summary: &TranslationSummary, range: Interval, unit: Unit) -> Value {
    Value::Estimate { range, unit, bounds_only: summary.is_unclear(), is_noisy: summary.noisy.is_some() }
}

/// Shares of time and predicted times, a row a configuration that has any.
fn priced(summary: &TranslationSummary) -> Block {
    let columns = [
        Column::text("pages"),
        Column::number("data"),
        Column::number("instructions"),
        Column::number("time to 4k").explained("Time is that of a run, as a share of one on 4 KiB pages."),
    ];
    let priced = summary.configurations.iter().filter(|of| of.share().is_some() || of.time.is_some());
    let cell = |range: Option<Interval>, unit| range.map(|range| estimate(summary, range, unit));
    let rows = priced.map(|of| {
        row![
            &of.name,
            cell(of.data_share, Unit::Share),
            cell(of.instruction_share, Unit::Share),
            cell(of.time, Unit::TimeShare),
        ]
    });
    let estimates = if summary.is_unclear() { "only its bounds are known" } else { "an estimate: likely (low–high)" };
    let table = Table::new(columns).with_rows(rows);
    Block::section(format!("Share of the time in walks, {estimates}"), [plots::shares(summary).into(), table.into()])
}

/// Predicted and measured times, a row a measured page kind.
fn predictions(summary: &TranslationSummary) -> Table {
    let columns = [
        Column::text("pages"),
        Column::text("model"),
        Column::number("predicted"),
        Column::number("measured"),
        Column::number(Interval::LABEL),
        Column::number("user mode").explained(
            "Walks take time in user mode: user mode is the measured time where only that differs, and apart is how far the \
             best guess is from it. Larger pages save the kernel page faults, too.",
        ),
        Column::number("apart"),
    ];
    let interval = |measured: &Estimate| Value::interval(measured, Unit::Ratio);
    Table::new(columns).with_rows(summary.predictions.iter().map(|of| {
        row![
            &of.kind,
            &of.configuration,
            estimate(summary, of.time, Unit::TimeShare),
            Unit::Ratio.of(of.measured.median),
            interval(&of.measured),
            of.user.map(|user| Unit::Ratio.of(user)),
            Some(Unit::Percent.of(of.error())).filter(|_| !summary.is_unclear()),
        ]
    }))
}

/// Mosaics, a row a mixture: walks and times of a run.
fn mosaics(of: &Mosaics, traced: &Translation) -> Block {
    let columns = [
        Column::text("pages"),
        Column::number("walks"),
        Column::number("measured, s"),
        Column::number("calibrated").explained(
            "Calibrated: from the measured time on 4 KiB pages by the calibrated price, which is no part of the fit.",
        ),
        Column::number("fit")
            .explained("Fit: by the line through all measured times. Left out: by the line through the others."),
        Column::number("left out"),
    ];
    let rows = of.mixtures.iter().map(|of| {
        row![
            &of.kind,
            Unit::Count.of(of.walks.min(1e18)),
            Unit::Ratio.estimate(of.measured_s),
            of.priced_s.map(|range| Unit::Ratio.estimate(range)),
            Unit::Ratio.of(of.fitted_s),
            Unit::Ratio.of(of.left_out_s),
        ]
    });
    Block::section(
        "Real runs on mosaics: seconds in user mode",
        [
            plots::mosaics(of).into(),
            Table::new(columns).with_rows(rows).into(),
            Block::List(of.sentences(traced.walk_cost.as_ref())),
        ],
    )
}

/// The sites and the memory of no site, by their share of the walks.
fn sites(summary: &TranslationSummary) -> Table {
    let mut lines: Vec<(&SiteLine, bool)> = summary.sites.iter().map(|line| (line, false)).collect();
    lines.extend(summary.rest.iter().map(|line| (line, true)));
    lines.sort_by(|(one, _), (other, _)| other.share.total_cmp(&one.share));
    let has_large = lines.iter().any(|(line, _)| line.share_large > 0.0);
    let kinds = SiteLine::kinds(lines.iter().map(|(line, _)| *line));
    let mut with_callers = FIRST_SITES;
    let rows = lines.iter().map(|&(line, is_nameless)| {
        let mut name = site_cell(&line.name, &line.place);
        if with_callers > 0 && !line.stack.is_empty() {
            with_callers -= 1;
            name.0.extend(line.callers(CALLERS).map(|frame| {
                let (name, place) = called(frame);
                CellLine::Caller { name: name.to_owned(), place: place.to_owned() }
            }));
        }
        let mut row = row![name, Unit::Share.of(line.share)];
        row.cells.extend(has_large.then(|| TableCell::from(Unit::Share.of(line.share_large))));
        let large_on = |kind: &&str| TableCell::from(line.large_on(kind).map(|share| Unit::RoughShare.of(share)));
        row.cells.extend(kinds.iter().map(large_on));
        row.cells.extend([
            TableCell::from(line.walks_per_thousand.map(|walks| Unit::Rate.of(walks))),
            line.bytes.map(Value::bytes).into(),
            line.allocations.map(Value::count).into(),
        ]);
        row.weighing(line.share).pinned_if(is_nameless)
    });
    let rows: Vec<TableRow> = rows.collect();
    let limit = RowLimit {
        terminal: MOST_SITES,
        page: MOST_SITES_ON_PAGE,
        least: Some(Unit::Share.of(LEAST_SHARE)),
        rest: Rest::Sum("site", "sites"),
    };
    Table::new(site_columns(has_large, &kinds)).with_rows(rows).with_limit(limit)
}

fn site_columns(has_large: bool, kinds: &[&str]) -> Vec<Column> {
    let mut columns = vec![Column::text("memory from"), Column::number("of walks")];
    columns.extend(has_large.then(|| {
        Column::number("left on 2M").omissible(2).explained(
            "Left on 2M are the walks for the same memory on 2 MiB pages, as a share of all those on 4 KiB pages.",
        )
    }));
    columns.extend(kinds.iter().enumerate().map(|(at, kind)| {
        let explanation = if at > 0 {
            ""
        } else {
            "Huge on a kind: the share of the memory that was on pages of at least that size when a watched run had most \
             memory. It is estimated from sixteen samples a stack, usually to within an eighth."
        };
        Column::number(format!("huge on {kind}")).omissible(1).explained(explanation)
    }));
    columns.extend([
        Column::number("a 1,000").omissible(4).explained("A 1,000: page walks on 4 KiB pages for each 1,000 accesses."),
        Column::number("requested").omissible(3).explained(
            "Requested: all bytes that the code allocated in the traced run, including freed memory; not its peak.",
        ),
        Column::number("allocs").omissible(5),
    ]);
    columns
}

/// The name of a site, and where it is.
pub(super) fn site_cell(name: &str, place: &str) -> TableCell {
    let place = Some(place).filter(|place| !place.is_empty()).map(|place| CellLine::Path(place.to_owned()));
    TableCell(std::iter::once(CellLine::Function(name.to_owned())).chain(place).collect())
}

/// The whole names of the sites with the stacks of their callers.
fn callers(summary: &TranslationSummary) -> Block {
    let called = summary.sites.iter().take(MOST_SITES_ON_PAGE).filter(|site| !site.stack.is_empty());
    let stack = |site: &SiteLine| Block::folded(site.name.clone(), [Block::List(site.stack.clone())]);
    Block::folded("Call stacks of the sites", called.map(stack))
}
