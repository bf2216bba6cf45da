//! The tables of what translation costs.

use super::{NONE, Table, spread};
use crate::diff::{ConfigurationDiff, PriceDiff};
use crate::quantity::{bytes, count, estimate, hundredths, percent, rate, ratio, seconds, share};
use crate::translation::sites::{SiteLine, shortened};
use crate::translation::summary::TranslationSummary;
use crate::translation::{Mosaics, Range};

/// Letters of a function's name in a table: what a template makes longer has its middle left out.
const NAME_LETTERS: usize = 72;
/// Letters of a place, which is known by its end.
const PLACE_LETTERS: usize = 48;

/// What the models counted, a line a configuration.
pub(crate) fn modelled(of: &TranslationSummary) -> Table {
    let cell = |value: Option<f64>, write: fn(f64) -> String| value.map_or_else(|| NONE.to_owned(), write);
    let rows = of.configurations.iter().map(|of| {
        vec![
            of.name.clone(),
            cell(of.misses_per_thousand, rate),
            cell(of.walks_per_thousand, rate),
            cell(of.references_a_walk, rate),
            cell(of.far_share, share),
            cell(of.instruction_walks_per_thousand, rate),
        ]
    });
    Table::new(&["pages", "L1 misses", "walks", "refs a walk", "far walks", "instr. walks"], 1, rows)
}

/// Shares of time and predicted times, a line a configuration that has any.
pub(crate) fn priced(of: &TranslationSummary) -> Table {
    let priced = of.configurations.iter().filter(|of| of.share().is_some() || of.time.is_some());
    let rows = priced.map(|of| {
        let cell = |range: Option<crate::Range>, write: fn(f64) -> String| {
            range.map_or_else(|| NONE.to_owned(), |of| estimate(&of, write))
        };
        vec![of.name.clone(), cell(of.data_share, share), cell(of.instruction_share, share), cell(of.time, hundredths)]
    });
    Table::new(&["pages", "data", "instructions", "time to 4k"], 1, rows)
}

/// Predicted and measured times side by side, a line a measured page kind.
pub(crate) fn predictions(of: &TranslationSummary) -> Table {
    let rows = of.predictions.iter().map(|of| {
        vec![
            of.kind.clone(),
            of.configuration.clone(),
            estimate(&of.time, hundredths),
            ratio(of.measured.median),
            spread(&of.measured),
            percent(of.error()),
        ]
    });
    Table::new(&["pages", "model", "predicted", "measured", "95 % interval", "apart"], 2, rows)
}

/// Mosaics, a line a mixture: walks and times of a run. The last two columns know nothing of the calibrated price.
pub(crate) fn mosaics(of: &Mosaics) -> Table {
    let rows = of.mixtures.iter().map(|of| {
        let range = |of: &Range| estimate(of, ratio);
        vec![
            of.kind.clone(),
            count(whole(of.walks)),
            range(&of.measured_s),
            of.priced_s.as_ref().map_or_else(|| NONE.to_owned(), range),
            ratio(of.fitted_s),
            ratio(of.left_out_s),
        ]
    });
    Table::new(&["pages", "walks", "measured, s", "calibrated", "fit", "left out"], 1, rows)
}

/// A count that was scaled.
fn whole(value: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what a u64 holds")]
    let count = value.clamp(0.0, 1e18) as u64;
    count
}

/// Prices of a walk in two traces.
pub(crate) fn price_changes(prices: &[PriceDiff]) -> Table {
    let cell = |value: Option<Range>| value.map_or_else(|| NONE.to_owned(), |of| estimate(&of, nanoseconds));
    let rows = prices.iter().map(|of| vec![of.name.to_owned(), cell(of.a_ns), cell(of.b_ns)]);
    Table::new(&["price of a walk", "A", "B"], 1, rows)
}

/// A price: `30.4 ns`.
pub(crate) fn nanoseconds(value_ns: f64) -> String {
    seconds(value_ns * 1e-9)
}

/// The first `most` sites, the others in one line, and the memory of no site. A name and its place are two lines of a cell.
pub(crate) fn sites(of: &TranslationSummary, most: usize) -> Table {
    let (shown, others) = of.sites.split_at(most.min(of.sites.len()));
    let others = (!others.is_empty()).then(|| together(others));
    let rows = shown.iter().chain(&others).chain(&of.rest).map(|line| {
        let cell = |value: Option<u64>, write: fn(u64) -> String| value.map_or_else(|| NONE.to_owned(), write);
        vec![
            site_cell(line),
            share(line.share),
            line.walks_per_thousand.map_or_else(|| NONE.to_owned(), rate),
            cell(line.bytes, bytes),
            cell(line.allocations, count),
            line.huge_share.map_or_else(|| NONE.to_owned(), share),
        ]
    });
    Table::new(&["memory from", "of walks", "a 1,000", "bytes", "allocs", "huge"], 1, rows)
}

fn site_cell(line: &SiteLine) -> String {
    let mut cell = shortened(&line.name, NAME_LETTERS);
    if !line.place.is_empty() {
        let letters = line.place.chars().count();
        let cut = letters.saturating_sub(PLACE_LETTERS);
        let end: String = line.place.chars().skip(cut).collect();
        cell += &format!("\n{}{end}", if cut > 0 { "…" } else { "" });
    }
    cell
}

/// Several sites in one line.
fn together(sites: &[SiteLine]) -> SiteLine {
    let sum = |field: fn(&SiteLine) -> u64| Some(sites.iter().map(field).fold(0, u64::saturating_add));
    SiteLine {
        name: if sites.len() == 1 {
            "1 more site".to_owned()
        } else {
            format!("{} more sites", count(sites.len() as u64))
        },
        place: String::new(),
        stack: Vec::new(),
        share: sites.iter().map(|site| site.share).sum(),
        share_large: sites.iter().map(|site| site.share_large).sum(),
        walks_per_thousand: sites.iter().map(|site| site.walks_per_thousand).sum(),
        bytes: sum(|site| site.bytes.unwrap_or(0)),
        allocations: sum(|site| site.allocations.unwrap_or(0)),
        huge_share: None,
    }
}

/// Walks in two traces, a line a configuration.
pub(crate) fn walk_changes(configurations: &[ConfigurationDiff]) -> Table {
    let cell = |value: Option<f64>, write: fn(f64) -> String| value.map_or_else(|| NONE.to_owned(), write);
    let rows = configurations.iter().map(|of| {
        vec![
            of.name.clone(),
            cell(of.a_walks_per_thousand, rate),
            cell(of.b_walks_per_thousand, rate),
            cell(of.ratio(), ratio),
        ]
    });
    Table::new(&["pages", "A", "B", "B / A"], 1, rows)
}
