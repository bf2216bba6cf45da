//! Byte ranges to isolate or to watch, requested by a file of rules or by the program
//! (`remapper_isolate`).
//!
//! ```text
//!   rules ─→ symbols of loaded files ─┐
//!   the program's table ──────────────┴─→ byte ranges ─→ per page: isolated and watched ranges
//! ```
//! A library with a symbol or the table can be loaded at any time. So a missing one is searched
//! again, at intervals that double. A request has priority over the verdicts of the detector.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fieldstone_remap::space::mappings;
use fieldstone_remap::{PageRequest, Process, page_with};
use fieldstone_rewrite::page::LINE_BYTES;
use fieldstone_sharing::requests::{self, Action, RequestTarget, RuleRequest};
use fieldstone_sharing::rules::{MOST_VIEWS, PAGE_BYTES};
use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::smaps::Mapping;
use fieldstone_wire::isolation;

use crate::error::Result;
use crate::sampled_code::with_memory;
use crate::tuning::{FIRST_SYMBOL_SEARCH_NS, MAX_SYMBOL_SEARCH_NS};
use fieldstone_launch::clock::now_ns;
use fieldstone_symbols::objects::Objects;

/// The requests for one process.
#[derive(Debug)]
pub(crate) struct PageRequests {
    pid: u32,
    memory: ProcessMemory,
    rules: Vec<RuleRequest>,
    /// The bytes of each rule; `None` while its symbol is missing.
    ranges: Vec<Option<Range<u64>>>,
    /// The address of the program's table; `None` while its symbol is missing.
    table: Option<u64>,
    /// The table's count of changes when it was read last.
    changes: Option<u64>,
    /// The bytes that the table isolates.
    table_ranges: Vec<Range<u64>>,
    /// Files that were mapped at the last search.
    files: BTreeSet<String>,
    /// Time of the next search for missing symbols.
    next_ns: u64,
    interval_ns: u64,
}

impl PageRequests {
    /// The requests of these rules and of process `pid`. Without rules the first search is delayed:
    /// it reads the symbols of all files, which takes as long as the detection of a contended line.
    ///
    /// # Errors
    /// Where the memory of the process cannot be read.
    pub(crate) fn new(pid: u32, rules: Vec<RuleRequest>) -> Result<Self> {
        let next_ns = if rules.is_empty() { now_ns() + FIRST_SYMBOL_SEARCH_NS } else { 0 };
        Ok(Self {
            pid,
            memory: ProcessMemory::open(pid)?,
            ranges: vec![None; rules.len()],
            rules,
            table: None,
            changes: None,
            table_ranges: Vec::new(),
            files: BTreeSet::new(),
            next_ns,
            interval_ns: FIRST_SYMBOL_SEARCH_NS,
        })
    }

    /// Reads the program's table and searches missing symbols if that is due; returns whether the
    /// requests have changed. `process` is the process while pages are moved.
    pub(crate) fn update(&mut self, now_ns: u64, process: Option<&Process>) -> bool {
        let mut changed = false;
        if now_ns >= self.next_ns && (self.table.is_none() || self.ranges.iter().any(Option::is_none)) {
            let files = files(self.pid);
            // Only a new file can have a missing symbol.
            if files != self.files {
                changed = self.find_symbols();
                self.files = files;
            }
            self.next_ns = now_ns + self.interval_ns;
            self.interval_ns = (self.interval_ns * 2).min(MAX_SYMBOL_SEARCH_NS);
        }
        self.read_table(process) | changed
    }

    /// Rules whose symbol is missing.
    pub(crate) fn missing(&self) -> impl Iterator<Item = &RuleRequest> {
        let all = self.rules.iter().zip(&self.ranges);
        all.filter(|(_, range)| range.is_none()).map(|(rule, _)| rule)
    }

    /// Searches missing symbols; returns whether the range of a rule was found.
    fn find_symbols(&mut self) -> bool {
        let mut changed = false;
        let mut objects = None;
        let mut address_of = |module: Option<&str>, name: &str| {
            let objects = objects.get_or_insert_with(|| Objects::open(self.pid).ok()).as_ref()?;
            objects.variable_range(module, name)
        };
        for (rule, range) in self.rules.iter().zip(&mut self.ranges).filter(|(_, range)| range.is_none()) {
            *range = match &rule.at {
                RequestTarget::Address(address) => Some(*address..address.saturating_add(rule.bytes)),
                RequestTarget::Symbol { module, name, offset } => {
                    address_of(module.as_deref(), name).and_then(|variable| part_of(&variable, *offset, rule.bytes))
                }
            };
            changed |= range.is_some();
        }
        if self.table.is_none() {
            self.table = address_of(None, isolation::SYMBOL).map(|range| range.start);
        }
        changed
    }

    /// Reads the program's table; returns whether it has changed.
    fn read_table(&mut self, process: Option<&Process>) -> bool {
        let Some(table) = self.table else { return false };
        let mut changes = [0; 8];
        let read = |at, into: &mut [u8]| {
            let bytes = into.len();
            with_memory(process, &self.memory, |memory| memory.read(at, into)) == bytes
        };
        if !read(table + isolation::CHANGES_OFFSET, &mut changes) {
            return false;
        }
        let changes = u64::from_le_bytes(changes);
        if self.changes == Some(changes) {
            return false;
        }
        let mut bytes = vec![0; isolation::BYTES];
        if !read(table, &mut bytes) {
            return false;
        }
        let Some((_, entries)) = isolation::read(&bytes) else { return false };
        let ranges = entries.map(|(start, bytes)| start..start.saturating_add(bytes.min(requests::MOST_BYTES)));
        self.table_ranges = ranges.collect();
        // The count before the entries were read: a change since then is read next time.
        self.changes = Some(changes);
        true
    }

    /// The rules that watch an access to these bytes.
    pub(crate) fn rules_watching(&self, address: u64, bytes: u32) -> impl Iterator<Item = &RuleRequest> {
        let end = address.saturating_add(bytes.into());
        let overlaps = move |range: &Range<u64>| range.start < end && address < range.end;
        let known = self.rules.iter().zip(&self.ranges);
        known
            .filter(move |(rule, range)| rule.action.watches() && range.as_ref().is_some_and(overlaps))
            .map(|(rule, _)| rule)
    }

    /// The requests by page.
    pub(crate) fn pages(&self) -> BTreeMap<u64, PageRequest> {
        let by_rules = self.rules.iter().zip(&self.ranges);
        let by_rules = by_rules.filter_map(|(rule, range)| Some((rule.action, range.clone()?)));
        let by_program = self.table_ranges.iter().map(|range| (Action::Isolate, range.clone()));
        // The isolated and the watched ranges of each page.
        let mut pages: BTreeMap<u64, [Vec<Range<u64>>; 2]> = BTreeMap::new();
        for (action, range) in by_rules.chain(by_program) {
            for (page, part) in split_by_page(&range) {
                let [isolated, watched] = pages.entry(page).or_default();
                if action.watches() { watched.push(part) } else { isolated.push(part) }
            }
        }
        let wanted = |(page, [isolated, watched]): (u64, [Vec<Range<u64>>; 2])| {
            (page, PageRequest { page, owners: assign_views(isolated), consolidated: false, watched })
        };
        pages.into_iter().map(wanted).collect()
    }
}

/// The files that a process has mapped.
fn files(pid: u32) -> BTreeSet<String> {
    let files = mappings(pid).unwrap_or_default().into_iter().filter(Mapping::is_file);
    files.map(|mapping| mapping.name).collect()
}

/// `bytes` bytes of a variable from `offset` on. `None` if the variable is smaller. An empty range
/// is a variable of unknown size.
fn part_of(variable: &Range<u64>, offset: u64, bytes: u64) -> Option<Range<u64>> {
    let start = variable.start.checked_add(offset)?;
    let end = start.checked_add(bytes)?;
    (variable.is_empty() || end <= variable.end).then_some(start..end)
}

/// The parts of a range, each with the address of its page.
fn split_by_page(range: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let first = page_with(range.start);
    let pages = (first..range.end).step_by(usize::try_from(PAGE_BYTES).unwrap_or(usize::MAX));
    let range = range.clone();
    pages.map(move |page| (page, range.start.max(page)..range.end.min(page + PAGE_BYTES)))
}

/// Distributes ranges to views, one range per view while there are views. Overlapping ranges are
/// merged. Further ranges share a view in which they are on lines of their own.
fn assign_views(mut ranges: Vec<Range<u64>>) -> Vec<Vec<Range<u64>>> {
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    let mut views: Vec<Vec<Range<u64>>> = Vec::new();
    for range in merged {
        let line = |address: u64| address / LINE_BYTES;
        let shares_line = |other: &Range<u64>| line(other.end - 1) >= line(range.start);
        let free = views.iter().position(|view| view.last().is_none_or(|last| !shares_line(last)));
        match free.filter(|_| views.len() >= MOST_VIEWS as usize) {
            Some(view) => views[view].push(range),
            None if views.len() < MOST_VIEWS as usize => views.push(vec![range]),
            // One line has more ranges than there are views: the last ones share a view.
            None => views.last_mut().into_iter().for_each(|view| view.push(range.clone())),
        }
    }
    views
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(starts: &[u64]) -> Vec<Range<u64>> {
        starts.iter().map(|&start| start..start + 8).collect()
    }

    #[test]
    fn each_range_has_its_own_view_while_there_are_views() {
        let each = words(&[0x1000, 0x1010]).into_iter().map(|word| vec![word]);
        assert_eq!(assign_views(words(&[0x1010, 0x1000])), each.collect::<Vec<_>>());
        let many: Vec<u64> = (0..10).map(|index| 0x1000 + index * 64).collect();
        let views = assign_views(words(&many));
        assert_eq!(views.len(), MOST_VIEWS as usize);
        assert_eq!(views[0], [0x1000..0x1008, 0x1200..0x1208, 0x1240..0x1248], "each on a line of its own");
    }

    #[test]
    fn overlapping_ranges_are_merged() {
        let ranges = vec![0x1000..0x1010, 0x1008..0x1018, 0x1018..0x1020];
        let found: Vec<Range<u64>> = assign_views(ranges).into_iter().flatten().collect();
        assert_eq!(found, [0x1000..0x1018, 0x1018..0x1020]);
    }

    #[test]
    fn a_range_beyond_the_end_of_a_variable_is_rejected() {
        assert_eq!(part_of(&(0x1000..0x1010), 8, 8), Some(0x1008..0x1010));
        assert_eq!(part_of(&(0x1000..0x1010), 8, 9), None);
        assert_eq!(part_of(&(0x1000..0x1000), 8, 8), Some(0x1008..0x1010), "the size is unknown");
        assert_eq!(part_of(&(0x1000..0x1000), u64::MAX, 8), None);
    }

    #[test]
    fn a_range_across_a_page_boundary_is_split() {
        let found: Vec<_> = split_by_page(&(0x1ff8..0x2010)).collect();
        assert_eq!(found, [(0x1000, 0x1ff8..0x2000), (0x2000, 0x2000..0x2010)]);
    }

    /// Words in one page: the alignment equals the size.
    #[repr(align(32))]
    struct OnePage([u64; 4]);

    /// A variable of this process.
    static WATCHED: OnePage = OnePage([1, 2, 3, 4]);

    #[test]
    fn rules_are_found_by_address_and_by_name() {
        let address = WATCHED.0.as_ptr().addr() as u64;
        let at = RequestTarget::Address(address);
        let unknown = RequestTarget::Symbol { module: None, name: "there is no such variable".to_owned(), offset: 0 };
        let rules = [(Action::Count, at), (Action::Log, unknown)];
        let rules = rules.map(|(action, at)| RuleRequest { action, at, bytes: 16, source: String::new() }).to_vec();
        let mut requests = PageRequests::new(std::process::id(), rules).unwrap();
        assert!(requests.update(1, None), "one range was found");
        assert!(!requests.update(2, None), "nothing has changed");
        assert_eq!(requests.missing().count(), 1);
        assert_eq!(requests.rules_watching(address + 12, 8).count(), 1);
        assert_eq!(requests.rules_watching(address + 16, 8).count(), 0);
        let pages = requests.pages();
        let [(page, wanted)] = pages.iter().collect::<Vec<_>>()[..] else { panic!("{pages:?}") };
        assert_eq!((*page, wanted.owners.len()), (address / PAGE_BYTES * PAGE_BYTES, 0));
        assert_eq!(wanted.watched.first(), Some(&(address..address + 16)));
    }
}
