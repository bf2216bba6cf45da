//! A model of the two halves of the log: all sequences of writes that the rules of
//! [`log_order`](crate::log_order) permit, with a crash after each.
//!
//! A store with two pages of two lines, and halves for two records, makes a few commits. At each step it does any one
//! thing that the rules permit: it writes a record, writes a page to its place, syncs, writes a header, or makes a
//! commit visible. After each step it may crash: each line of a page that was not synced is that of any version that
//! was written there, and a record that is written is not whole. Then recovery applies the lines of the log to what
//! the places of the pages contain: the halves and epochs are those that [`Header`] returns to `recovery`. All
//! commits that were visible must be there, and the pages must be those of one commit.
//!
//! With one rule left out, the model finds a crash that loses something: so each of the rules is needed.
//!
//! What a line becomes does not depend on other lines. So it suffices to try, for each page, each version in all
//! lines, and not their mixtures.

use std::collections::HashSet;

use crate::header::Header;
use crate::log_order::{Order, Rule};

const PAGES: usize = 2;
const LINES: usize = 2;
/// Records of a half.
const HALF: usize = 2;
const COMMITS: u64 = 4;
/// What commits change: the lines of each page.
const CHANGES: [[[bool; LINES]; PAGES]; 2] = [[[true, false], [false, false]], [[false, true], [true, false]]];

/// The commit that has written each line of a page.
type Lines = [u64; LINES];

/// The contents of a place: what is durable, and what was written since the last sync.
type Place = (Lines, Option<Lines>);

/// A record: its epoch, its commit, and the lines that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Record {
    epoch: u64,
    sequence: u64,
    lines: [[bool; LINES]; PAGES],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    order: Order,
    /// The header: its epoch, and the last commit before it.
    header: (u64, u64),
    log: [[Option<Record>; HALF]; 2],
    places: [Place; PAGES],
    /// The pages after each commit, from that of the header on.
    versions: Vec<(u64, [Lines; PAGES])>,
    /// The epoch that is filled, the next place in its half, and the last commit before it.
    epoch: (u64, usize, u64),
    published: u64,
    has_crashed: bool,
}

fn header(epoch: u64) -> Header {
    Header { store: 1, epoch, sequence: 0, log_pages: 2, end: 10 }
}

/// Which half an epoch has.
fn half(epoch: u64) -> usize {
    usize::from(header(epoch).half(epoch) != header(epoch).half(0))
}

/// Replaces the lines that a record has.
fn apply(pages: &mut [Lines; PAGES], record: &Record) {
    for (page, is_changed) in pages.iter_mut().zip(record.lines) {
        page.iter_mut()
            .zip(is_changed)
            .filter(|(_, is_changed)| *is_changed)
            .for_each(|(line, _)| *line = record.sequence);
    }
}

impl State {
    fn new() -> Self {
        let pages = [[0; LINES]; PAGES];
        Self {
            order: Order::new(1, 0),
            header: (1, 0),
            log: [[None; HALF]; 2],
            places: pages.map(|page| (page, None)),
            versions: vec![(0, pages)],
            epoch: (1, 0, 0),
            published: 0,
            has_crashed: false,
        }
    }

    /// The pages after a commit.
    fn pages(&self, sequence: u64) -> [Lines; PAGES] {
        let version = self.versions.iter().find(|version| version.0 == sequence);
        version.map(|version| version.1).unwrap_or_else(|| panic!("no commit {sequence}"))
    }

    /// All states after one step, where `broken` is the rule that does not hold.
    fn steps(&self, broken: Option<Rule>) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |step: &mut dyn FnMut(&mut Self) -> Option<Rule>| {
            let mut next = self.clone();
            let rule = step(&mut next);
            if rule.is_none() || rule == broken {
                all.push(next);
            }
        };
        for lines in CHANGES {
            for is_turn in [false, true] {
                if let Some((place, record)) = self.next_record(lines, is_turn) {
                    add(&mut |next| next.write_record(place, record, broken));
                }
            }
        }
        // The contents of the last commit that is visible; or those of one that is not in the log.
        let sequence = self.published.min(self.order.last);
        let sequence = if broken == Some(Rule::PageAfterLog) { self.order.last + 1 } else { sequence };
        for page in 0..PAGES {
            let contents = self.versions.iter().find(|version| version.0 == sequence);
            add(&mut |next| {
                next.places[page].1 = Some(contents.map_or([sequence; LINES], |version| version.1[page]));
                next.order.page(page as u32, sequence)
            });
        }
        add(&mut |next| {
            next.places.iter_mut().for_each(|place| place.0 = place.1.take().unwrap_or(place.0));
            next.order.sync();
            None
        });
        if self.epoch.0 == self.header.0 + 1 {
            add(&mut |next| {
                next.header = (next.epoch.0, next.epoch.2);
                next.order.header(next.epoch.0, PAGES as u32)
            });
        }
        if self.published < COMMITS {
            add(&mut |next| {
                next.published += 1;
                next.order.publish(next.published)
            });
        }
        all
    }

    /// The record of the next commit, and its place, if there is room.
    fn next_record(&self, lines: [[bool; LINES]; PAGES], is_turn: bool) -> Option<((u64, usize), Record)> {
        let (epoch, place) = if is_turn { (self.epoch.0 + 1, 0) } else { (self.epoch.0, self.epoch.1) };
        let sequence = self.order.last + 1;
        // What was committed is visible before the writer goes on in the other half.
        let may_turn = !is_turn || (self.epoch.1 > 0 && self.published >= self.order.last);
        let is_possible = sequence <= COMMITS && place < HALF && may_turn;
        is_possible.then_some(((epoch, place), Record { epoch, sequence, lines }))
    }

    fn write_record(&mut self, (epoch, place): (u64, usize), record: Record, broken: Option<Rule>) -> Option<Rule> {
        let before = if epoch == self.epoch.0 { self.epoch.2 } else { self.order.last };
        self.epoch = (epoch, place + 1, before);
        let mut pages = self.pages(self.order.last);
        apply(&mut pages, &record);
        self.versions.push((record.sequence, pages));
        let mut written = record;
        if broken == Some(Rule::RecordIsComplete) {
            written.lines[0][0] = false;
        }
        self.log[half(epoch)][place] = Some(written);
        let changed = (0..PAGES).filter(|&page| record.lines[page] != [false; LINES]);
        self.order.log(epoch, record.sequence, changed.map(|page| page as u32))
    }

    /// What the disk may have after a crash.
    fn crashes(&self, broken: Option<Rule>) -> Vec<Self> {
        let mut places = vec![self.places.map(|place| (place.0, None))];
        for page in (0..PAGES).filter(|&page| self.places[page].1.is_some()) {
            for mut other in places.clone() {
                other[page] = (self.places[page].1.unwrap_or_default(), None);
                places.push(other);
            }
        }
        let mut logs = vec![self.log];
        for is_turn in [false, true] {
            // A record that is being written.
            if let Some((place, record)) = self.next_record(CHANGES[0], is_turn) {
                let rule = self.clone().write_record(place, record, broken);
                if rule.is_none() || rule == broken {
                    let mut log = self.log;
                    log[half(place.0)][place.1] = None;
                    logs.push(log);
                }
            }
        }
        logs.iter()
            .flat_map(|log| places.iter().map(|places| Self { log: *log, places: *places, ..self.clone() }))
            .collect()
    }

    /// Recovers, and compares what is there with what was committed.
    fn recover(&self) -> Result<Self, String> {
        let header = header(self.header.0);
        let mut sequence = self.header.1;
        let mut pages = self.places.map(|place| place.0);
        for epoch in header.epochs() {
            for record in self.log[half(epoch)].iter().map_while(Option::as_ref) {
                if record.epoch != epoch || record.sequence != sequence + 1 {
                    break;
                }
                sequence = record.sequence;
                apply(&mut pages, record);
            }
        }
        if sequence < self.published {
            return Err(format!("commit {} was visible, and {sequence} is the last one", self.published));
        }
        if pages != self.pages(sequence) {
            return Err(format!("after commit {sequence}, the pages are {pages:?}"));
        }
        let epoch = header.epoch_after_recovery();
        Ok(Self {
            order: Order::new(epoch, sequence),
            header: (epoch, sequence),
            log: self.log,
            places: pages.map(|page| (page, None)),
            versions: vec![(sequence, pages)],
            epoch: (epoch, 0, sequence),
            published: sequence,
            has_crashed: true,
        })
    }
}

/// Visits all states. The number of them, or what is wrong in one.
fn explore(broken: Option<Rule>) -> Result<usize, String> {
    let (mut seen, mut next) = (HashSet::from([State::new()]), vec![State::new()]);
    while let Some(state) = next.pop() {
        let mut found = state.steps(broken);
        for crashed in state.crashes(broken) {
            let recovered = crashed.recover().map_err(|what| format!("{what}: {crashed:?}"))?;
            // The recovery may crash after it has written pages.
            let again = State { places: recovered.places, ..crashed };
            again.recover().map_err(|what| format!("after a crash in the recovery, {what}: {again:?}"))?;
            if !state.has_crashed {
                found.push(recovered);
            }
        }
        for state in found {
            if !seen.contains(&state) {
                seen.insert(state.clone());
                next.push(state);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_permitted_sequence_of_writes_and_crashes_loses_a_commit() {
    let states = explore(None).unwrap();
    println!("{states} states");
    assert!(states > 1000, "{states} states");
}

#[test]
fn without_a_rule_a_crash_loses_something() {
    let rules = [
        Rule::LogAfterHeader,
        Rule::HeaderAfterSync,
        Rule::PublishAfterLog,
        Rule::PageAfterLog,
        Rule::RecordIsComplete,
    ];
    for rule in rules {
        let lost = explore(Some(rule)).expect_err("a store that breaks this rule loses something");
        println!("{rule:?}: {lost}");
    }
}
