//! The tables of what translation costs.

use super::{NONE, Table, spread};
use crate::diff::{ConfigurationDiff, PriceDiff};
use crate::quantity::{
    bounds, bytes, count, estimate, hundredths, nanoseconds, percent, rate, ratio, rough_share, share,
};
use crate::translation::names::plain;
use crate::translation::sites::{SiteLine, called, shortened, shortened_path};
use crate::translation::summary::{NOISY_MARK, TranslationSummary};
use crate::translation::{Mosaics, Range};
use std::ops::RangeInclusive;

/// Letters of a function's name in a table: what a template makes longer has its middle left out.
const NAME_LETTERS: usize = 72;
/// Letters of a place, which is known by its end.
const PLACE_LETTERS: usize = 48;
/// Letters that a name has on the narrowest terminal.
const LEAST_LETTERS: usize = 12;
/// With fewer letters for names, columns of numbers are left out: the more the longer names are.
const ROOMY_LETTERS: RangeInclusive<usize> = 26..=44;
/// What has a smaller part of the walks is left out where there is little room.
const LEAST_SHARE: f64 = 0.001;
/// Sites whose callers stand beneath them, and how many callers.
const FIRST_SITES: usize = 3;
const CALLERS: usize = 2;

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

/// An estimate, marked where a noisy replay is behind it; of one that can be anything, only the bounds.
fn told(of: &TranslationSummary, range: &Range, write: fn(f64) -> String) -> String {
    let words = if of.is_unclear() { bounds(range, write) } else { estimate(range, write) };
    if of.noisy.is_some() { format!("{words} {NOISY_MARK}") } else { words }
}

/// Shares of time and predicted times, a line a configuration that has any.
pub(crate) fn priced(of: &TranslationSummary) -> Table {
    let priced = of.configurations.iter().filter(|of| of.share().is_some() || of.time.is_some());
    let cell = |range: Option<Range>, write: fn(f64) -> String| {
        range.map_or_else(|| NONE.to_owned(), |range| told(of, &range, write))
    };
    let rows = priced.map(|of| {
        vec![of.name.clone(), cell(of.data_share, share), cell(of.instruction_share, share), cell(of.time, hundredths)]
    });
    Table::new(&["pages", "data", "instructions", "time to 4k"], 1, rows)
}

/// Predicted and measured times side by side, a line a measured page kind.
pub(crate) fn predictions(of: &TranslationSummary) -> Table {
    let rows = of.predictions.iter().map(|prediction| {
        vec![
            prediction.kind.clone(),
            prediction.configuration.clone(),
            told(of, &prediction.time, hundredths),
            ratio(prediction.measured.median),
            spread(&prediction.measured),
            prediction.user.map_or_else(|| NONE.to_owned(), ratio),
            if of.is_unclear() { NONE.to_owned() } else { percent(prediction.error()) },
        ]
    });
    Table::new(&["pages", "model", "predicted", "measured", "95 % interval", "user mode", "apart"], 2, rows)
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

/// The first `most` sites and the memory of no site, by their share, and the other sites in one line. A name and its place are two
/// lines of a cell.
///
/// On a terminal of `columns`, a place is on one line, however narrow that is; those with a small share are left to the last line,
/// and the first ones have their callers beneath them. Columns that there is no room for beside the names are left out.
pub(crate) fn sites(of: &TranslationSummary, most: usize, columns: Option<u16>) -> Table {
    let large = |line: &&SiteLine| columns.is_none() || line.share >= LEAST_SHARE;
    let (shown, mut others): (Vec<_>, Vec<_>) = of.sites.iter().partition(large);
    others.extend(shown.iter().skip(most));
    let mut lines: Vec<&SiteLine> = shown.into_iter().take(most).chain(of.rest.iter().filter(large)).collect();
    lines.sort_by(|one, other| other.share.total_cmp(&one.share));
    let others = (!others.is_empty()).then(|| together(&others));
    lines.extend(&others);
    let mut numbers = site_numbers(&lines);
    let letters = columns.map(|columns| fit(usize::from(columns), longest(&lines), &mut numbers));
    let mut with_callers = FIRST_SITES;
    let rows = lines.iter().enumerate().map(|(row, line)| {
        let mut name = site_cell(line, letters);
        if let Some(letters) = letters.filter(|_| with_callers > 0 && !line.stack.is_empty()) {
            with_callers -= 1;
            name.extend(line.callers(CALLERS).map(|caller| format!("\n{}", caller_words(caller, letters))));
        }
        std::iter::once(name).chain(numbers.iter().map(|column| column.cells[row].clone())).collect()
    });
    let heading: Vec<&str> =
        std::iter::once("memory from").chain(numbers.iter().map(|column| column.heading.as_str())).collect();
    Table::new(&heading, 1, rows)
}

/// A column of numbers.
struct Numbers {
    heading: String,
    cells: Vec<String>,
    /// Where there is no room for all, the one with the highest goes first.
    rank: u8,
}

/// What is known of the sites, but for what is known of none.
fn site_numbers(lines: &[&SiteLine]) -> Vec<Numbers> {
    let column = |rank, heading: &str, cell: &dyn Fn(&SiteLine) -> Option<String>| Numbers {
        heading: heading.to_owned(),
        cells: lines.iter().map(|line| cell(line).unwrap_or_else(|| NONE.to_owned())).collect(),
        rank,
    };
    let mut numbers = vec![column(0, "of walks", &|line| Some(share(line.share)))];
    if lines.iter().any(|line| line.share_large > 0.0) {
        numbers.push(column(2, "left on 2M", &|line| Some(share(line.share_large))));
    }
    for kind in SiteLine::kinds(lines.iter().copied()) {
        numbers.push(column(1, &format!("huge on {kind}"), &|line| line.large_on(kind).map(rough_share)));
    }
    numbers.push(column(4, "a 1,000", &|line| line.walks_per_thousand.map(rate)));
    numbers.push(column(3, "asked for", &|line| line.bytes.map(bytes)));
    numbers.push(column(5, "allocs", &|line| line.allocations.map(count)));
    numbers
}

/// Letters of the longest name of a site.
fn longest(lines: &[&SiteLine]) -> usize {
    lines.iter().map(|line| plain(&line.name).chars().count()).max().unwrap_or(0)
}

/// Leaves out columns until there is room for names of up to `longest` letters; the letters of it. Each column ends in a gap of two and
/// a rule of one, as does that of the names; one begins the line.
fn fit(columns: usize, longest: usize, numbers: &mut Vec<Numbers>) -> usize {
    let wanted = longest.clamp(*ROOMY_LETTERS.start(), *ROOMY_LETTERS.end());
    loop {
        let letters = |column: &Numbers| {
            let cells = column.cells.iter().map(|cell| cell.chars().count());
            cells.chain([column.heading.chars().count()]).max().unwrap_or(0) + 3
        };
        let left = columns.saturating_sub(numbers.iter().map(letters).sum::<usize>() + 4);
        let last = (0..numbers.len()).max_by_key(|&at| numbers[at].rank).filter(|&at| numbers[at].rank > 0);
        match last {
            Some(last) if left < wanted => drop(numbers.remove(last)),
            _ => return left.max(LEAST_LETTERS),
        }
    }
}

fn site_cell(line: &SiteLine, letters: Option<usize>) -> String {
    // The page has the room for a whole name.
    let name = letters.map_or_else(|| line.name.clone(), |_| plain(&line.name));
    let mut cell = shortened(&name, letters.unwrap_or(NAME_LETTERS).min(NAME_LETTERS));
    if !line.place.is_empty() {
        cell += &format!("\n{}", shortened_path(&line.place, letters.unwrap_or(PLACE_LETTERS)));
    }
    cell
}

/// `  by main (src/main.c:7)`; without the place where there is no room for its file's name.
fn caller_words(caller: &str, letters: usize) -> String {
    let (name, place) = called(caller);
    let words = format!("  by {}", shortened(&plain(name), letters.saturating_sub(5)));
    let room = letters.saturating_sub(words.chars().count() + 3);
    let file = place.rfind('/').map_or(place, |at| &place[at..]).chars().count() + 1;
    if place.is_empty() || room < file { words } else { format!("{words} ({})", shortened_path(place, room)) }
}

/// Several sites in one line.
fn together(sites: &[&SiteLine]) -> SiteLine {
    let sum = |field: fn(&SiteLine) -> u64| Some(sites.iter().map(|site| field(site)).fold(0, u64::saturating_add));
    SiteLine {
        name: match sites {
            [_] => "1 more site".to_owned(),
            _ if sites.iter().all(|site| site.share < LEAST_SHARE) => {
                format!("{} more sites, each under {}", count(sites.len() as u64), share(LEAST_SHARE))
            }
            _ => format!("{} more sites", count(sites.len() as u64)),
        },
        place: String::new(),
        stack: Vec::new(),
        share: sites.iter().map(|site| site.share).sum(),
        share_large: sites.iter().map(|site| site.share_large).sum(),
        walks_per_thousand: sites.iter().map(|site| site.walks_per_thousand).sum(),
        bytes: sum(|site| site.bytes.unwrap_or(0)),
        allocations: sum(|site| site.allocations.unwrap_or(0)),
        pages: Vec::new(),
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
