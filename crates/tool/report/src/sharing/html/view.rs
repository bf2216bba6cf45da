//! What the template is given: every word, number and colour of the page, already written.

use crate::quantity::{address, moment, share};
use crate::sharing::groups::{self, Group};
use crate::sharing::threads::Threads;
use crate::sharing::uses::{self, Touch};
use crate::sharing::words::{notes, sampled};
use crate::sharing::{Found, Headline, Place, Sharing, others, tables};
use crate::shell;
use crate::tables::Table;
use fieldstone_sharing::LineUse;
use serde::Serialize;

/// Objects with all that is known; of the others the lines are listed.
const MOST_OBJECTS: usize = 50;
/// Lines of an object that are drawn.
const MOST_LINES: usize = 16;
/// Rows of a map's table, and of code.
const MOST_ROWS: usize = 64;
/// Lines that are listed, of findings and of others.
const MOST_LISTED: usize = 100;
/// Bytes in a row.
const ROW_BYTES: usize = 64;

/// The page, from top to bottom.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    command: String,
    facts: Vec<(&'static str, String)>,
    headline: Headline,
    objects: Vec<Object>,
    also: Table,
    also_more: Option<String>,
    others: Table,
    others_more: Option<String>,
    kinds: Vec<(&'static str, &'static str)>,
    threads: Table,
    unseen: Vec<String>,
    tool_version: String,
}

/// An object whose lines are shared falsely.
#[derive(Debug, Serialize)]
struct Object {
    name: String,
    cost: String,
    places: Vec<String>,
    lines: Vec<LineView>,
    more_lines: Table,
    code: Table,
    advice: Vec<String>,
    layout: Option<String>,
}

/// One of its lines.
#[derive(Debug, Serialize)]
struct LineView {
    address: String,
    verdict: &'static str,
    only_as_pair: bool,
    cost: String,
    most_given_back: String,
    refused: Option<String>,
    notes: Vec<String>,
    key: Vec<Key>,
    map: Vec<MapRow>,
    /// The map for those who hear the page.
    description: String,
    uses: Table,
}

#[derive(Debug, Serialize)]
struct Key {
    colour: &'static str,
    name: String,
}

/// Up to 64 bytes.
#[derive(Debug, Serialize)]
struct MapRow {
    ruler: Vec<usize>,
    bytes: Vec<Byte>,
}

/// A byte of the map.
#[derive(Debug, Serialize)]
struct Byte {
    letters: String,
    style: String,
    title: String,
}

impl Page {
    pub(super) fn of(sharing: &Sharing) -> Self {
        let groups = groups::of(sharing);
        let others_found = groups::heaviest_first(&sharing.others);
        let in_groups = groups.iter().flat_map(|group| group.lines.iter().copied());
        let all: Vec<&Found> = in_groups.chain(others_found.iter().copied()).collect();
        let threads = Threads::of(sharing, &all);
        let (shown, rest) = groups.split_at(groups.len().min(MOST_OBJECTS));
        let also: Vec<&Found> = rest.iter().flat_map(|group| group.lines.iter().copied()).collect();
        let (also, also_more) = also.split_at(also.len().min(MOST_LISTED));
        let (listed, others_more) = others_found.split_at(others_found.len().min(MOST_LISTED));
        Self {
            command: shell::join(&sharing.program.command),
            facts: facts(sharing),
            headline: Headline::of(sharing),
            objects: shown.iter().map(|group| Object::of(group, &threads)).collect(),
            also: tables::lines(also),
            also_more: others::more(also_more),
            others: tables::others(listed, &threads),
            others_more: others::more(others_more),
            kinds: others::kinds(&others_found),
            threads: tables::threads(&threads),
            unseen: sharing.unseen.clone(),
            tool_version: sharing.tool_version.clone(),
        }
    }
}

fn facts(sharing: &Sharing) -> Vec<(&'static str, String)> {
    let machine = &sharing.machine;
    let virtual_machine = if machine.virtual_machine { ", a virtual machine" } else { "" };
    let mut facts = vec![
        ("Looked at", moment(sharing.taken_at_unix_s)),
        ("Process", sharing.pid.map_or_else(String::new, |pid| pid.to_string())),
        ("Samples", sampled(sharing)),
        ("Processor", machine.cpu.clone()),
        ("Processors", format!("{}{virtual_machine}", machine.cpus)),
        ("Kernel", format!("{} {}", machine.kernel, machine.architecture)),
    ];
    facts.retain(|(_, fact)| !fact.trim().is_empty());
    facts
}

impl Object {
    fn of(group: &Group<'_>, threads: &Threads<'_>) -> Self {
        let (drawn, rest) = group.lines.split_at(group.lines.len().min(MOST_LINES));
        Self {
            name: group.name(),
            cost: groups::cost(&group.cost),
            places: group.places().iter().map(Place::words).collect(),
            lines: drawn.iter().map(|found| LineView::of(found, threads)).collect(),
            more_lines: tables::lines(rest),
            code: tables::code(&group.lines, threads, MOST_ROWS),
            advice: group.advice(),
            layout: group.redesign().map(|redesign| redesign.text.clone()),
        }
    }
}

impl LineView {
    fn of(found: &Found, threads: &Threads<'_>) -> Self {
        let line = &found.judged.line;
        let key = uses::rows(line).into_iter().map(|row| Key {
            colour: threads.colours(row.thread).0,
            name: format!("{} {}", threads.letter(row.thread), threads.name(row.thread)),
        });
        Self {
            address: address(line.address),
            verdict: found.judged.verdict.words(),
            only_as_pair: uses::only_as_pair(found),
            cost: groups::cost(&found.cost),
            most_given_back: share(found.cost.max_gain),
            refused: found.refused.clone(),
            notes: notes(found),
            key: key.collect(),
            map: map(line, threads),
            description: uses::in_words(found, threads),
            uses: tables::uses(found, threads, MOST_ROWS),
        }
    }
}

fn map(line: &LineUse, threads: &Threads<'_>) -> Vec<MapRow> {
    let rows = uses::rows(line);
    let byte = |byte: usize| {
        let users = rows.iter().map(|row| (row.thread, row.touches[byte]));
        Byte::of(byte, &users.filter(|(_, touch)| *touch != Touch::Not).collect::<Vec<_>>(), threads)
    };
    let bytes = uses::bytes(line);
    let row = |start: usize| {
        let end = (start + ROW_BYTES).min(bytes);
        MapRow { ruler: (start..end).step_by(8).collect(), bytes: (start..end).map(byte).collect() }
    };
    (0..bytes).step_by(ROW_BYTES).map(row).collect()
}

impl Byte {
    /// Of one user its colour, of several a stripe each. Full where it is written, a frame where it is only read.
    fn of(byte: usize, users: &[(u32, Touch)], threads: &Threads<'_>) -> Self {
        let letter = |&(thread, touch): &(u32, Touch)| touch.letter(threads.letter(thread));
        let letters: String = match users {
            [] => String::new(),
            [one] => letter(one).to_string(),
            several => several.len().to_string(),
        };
        let verb = |touch: &Touch| if *touch == Touch::Writes { "writes" } else { "reads" };
        let words: Vec<String> =
            users.iter().map(|(thread, touch)| format!("{} {}", threads.letter(*thread), verb(touch))).collect();
        let title = if words.is_empty() {
            format!("byte {byte}: nobody’s")
        } else {
            format!("byte {byte}: {}", words.join(", "))
        };
        Self { letters, style: style(users, threads), title }
    }
}

fn style(users: &[(u32, Touch)], threads: &Threads<'_>) -> String {
    match users {
        [] => String::new(),
        [(thread, Touch::Writes)] => {
            let (paper, ink) = threads.colours(*thread);
            format!("background:{paper};color:{ink}")
        }
        [(thread, _)] => format!("box-shadow:inset 0 0 0 2px {}", threads.colours(*thread).0),
        several => {
            let part = 100.0 / several.len() as f64;
            let stripe = |(at, (thread, _)): (usize, &(u32, Touch))| {
                format!("{} {:.1}% {:.1}%", threads.colours(*thread).0, part * at as f64, part * (at + 1) as f64)
            };
            let stripes: Vec<String> = several.iter().enumerate().map(stripe).collect();
            format!("background:linear-gradient({});color:#000", stripes.join(","))
        }
    }
}
