//! The difference of two profiles.

use super::translation;
use crate::diff::{ConfigurationDiff, PriceDiff, SiteDiff};
use crate::document::{
    Block, CellLine, Column, Document, Rest, RowLimit, Table, TableCell, TableRow, Unit, Value, row,
};
use crate::render::csv::{Records, full};
use crate::reports::profile::estimate_fields;
use crate::{Diff, KindDiff};
use fieldstone_stats::{Estimate, Interval};

/// Sites that a terminal shows; the others are one row.
const MOST_SITES: usize = 10;

const FIELDS: &str = "kind,change,a_s,b_s,ratio,ratio_low,ratio_high,ratio_confidence,before_s,after_s";
const WALK_FIELDS: &str = "configuration,a_walks_per_1000,b_walks_per_1000,walks_ratio,price,a_walk_ns,b_walk_ns";
const SITE_FIELDS: &str = "site,site_place,a_walks_share,b_walks_share";

/// The report on `diff` of the profiles in the files `before` and `after`.
pub fn document(diff: &Diff, [before, after]: [&str; 2]) -> Document {
    let obstacles = diff.not_comparable.iter().cloned().map(Block::Strong);
    let blocks = obstacles.chain([
        Block::facts([("BEFORE", before.to_owned()), ("AFTER", after.to_owned())]),
        Block::section(format!("{}, AFTER against BEFORE", diff.metric.noun()), [kinds(diff).into()]),
        Block::section("Walks for 1,000 accesses, modelled", [walks(&diff.configurations).into()]),
        Block::section("Price of a walk, estimated: likely (low–high)", [prices(&diff.prices).into()]),
        Block::section("Share of the walks on 4 KiB pages, most change first", [sites(&diff.sites).into()]),
        Block::section("Warnings", [Block::List(diff.warnings.clone())]),
    ]);
    let blocks = blocks.collect();
    Document { kind: "diff".into(), subject: "Two profiles compared".into(), blocks, ..Document::default() }
}

fn kinds(diff: &Diff) -> Table {
    let columns = [
        Column::text("pages"),
        Column::text("change"),
        Column::number("BEFORE"),
        Column::number("AFTER"),
        Column::number("AFTER / BEFORE"),
        Column::number(Interval::LABEL),
    ];
    let median = |estimate: Option<Estimate>| estimate.map(|value| Unit::Seconds.of(value.median));
    Table::new(columns).with_rows(diff.kinds.iter().map(|kind| {
        row![
            &kind.name,
            kind.change.to_string(),
            median(kind.before_s),
            median(kind.after_s),
            kind.ratio.map(|ratio| Unit::Ratio.of(ratio.median)),
            kind.ratio.and_then(|ratio| Value::interval(&ratio, Unit::Ratio)),
        ]
    }))
}

fn walks(configurations: &[ConfigurationDiff]) -> Table {
    let columns =
        [Column::text("pages"), Column::number("BEFORE"), Column::number("AFTER"), Column::number("AFTER / BEFORE")];
    let rate = |walks: Option<f64>| walks.map(|walks| Unit::Rate.of(walks));
    Table::new(columns).with_rows(configurations.iter().map(|of| {
        let ratio = of.ratio().map(|ratio| Unit::Ratio.of(ratio));
        row![&of.name, rate(of.a_walks_per_thousand), rate(of.b_walks_per_thousand), ratio]
    }))
}

fn prices(prices: &[PriceDiff]) -> Table {
    let columns = [Column::text("price of a walk"), Column::number("BEFORE"), Column::number("AFTER")];
    let ns = |range: Option<Interval>| range.map(|range| Unit::Nanoseconds.estimate(range));
    Table::new(columns).with_rows(prices.iter().map(|of| row![of.name, ns(of.a_ns), ns(of.b_ns)]))
}

/// A name and its place are two lines of a cell. Where only one side has the site, the change says
/// so.
fn sites(sites: &[SiteDiff]) -> Table {
    let columns =
        [Column::text("memory from"), Column::number("BEFORE"), Column::number("AFTER"), Column::number("change")];
    let share = |share: Option<f64>| share.map(|share| Unit::Share.of(share));
    let rows = sites.iter().map(|of| -> TableRow {
        let change = Unit::Percent.of(of.change());
        let change = match (of.a_share, of.b_share) {
            (Some(_), None) => CellLine::Worded("only BEFORE".into(), change),
            (None, Some(_)) => CellLine::Worded("only AFTER".into(), change),
            _ => CellLine::Value(change),
        };
        row![translation::site_cell(&of.name, &of.place), share(of.a_share), share(of.b_share), TableCell::from(change)]
    });
    let limit = RowLimit { terminal: MOST_SITES, page: 100, least: None, rest: Rest::Sum("site", "sites") };
    Table::new(columns).with_rows(rows).with_limit(limit)
}

/// The difference as records: one for each page kind; then one for each modelled configuration, for
/// each way to know what a walk costs, and for each site, most change first.
pub fn records(diff: &Diff) -> Vec<Records> {
    let kind = |kind: &KindDiff| {
        let median = |estimate: Option<Estimate>| full(estimate.map(|value| value.median));
        let mut fields = vec![kind.name.clone(), kind.change.to_string(), median(kind.a_s), median(kind.b_s)];
        fields.extend(estimate_fields(kind.ratio.as_ref()));
        fields.extend([median(kind.before_s), median(kind.after_s)]);
        fields
    };
    let walks = |of: &ConfigurationDiff| {
        let walks = [full(of.a_walks_per_thousand), full(of.b_walks_per_thousand), full(of.ratio())];
        [vec![of.name.clone()], walks.to_vec(), vec![String::new(); 3]].concat()
    };
    let price = |of: &PriceDiff| {
        let likely = |range: Option<Interval>| full(range.map(|of| of.likely));
        [vec![String::new(); 4], vec![of.name.to_owned(), likely(of.a_ns), likely(of.b_ns)]].concat()
    };
    let modelled = diff.configurations.iter().map(walks).chain(diff.prices.iter().map(price));
    let site = |of: &SiteDiff| vec![of.name.clone(), of.place.clone(), full(of.a_share), full(of.b_share)];
    vec![
        Records::new(FIELDS).with(diff.kinds.iter().map(kind)),
        Records::new(WALK_FIELDS).with(modelled),
        Records::new(SITE_FIELDS).with(diff.sites.iter().map(site)),
    ]
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
