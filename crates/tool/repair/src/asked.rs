//! What is asked for byte by byte: by a file of rules, and by the program itself (`remapper_isolate`).
//!
//! ```text
//!   rules: symbols ── where they are loaded ──┐
//!   the program's own table ── read outside ──┴──→ ranges ──→ pages: what shall lie apart, what is watched
//! ```
//! A library may come later, and with it a symbol or the table: as long as one is missing it is looked for, less and less often. What
//! is asked for is done whatever the detector thinks of those pages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fieldstone_remap::space::mappings;
use fieldstone_remap::{Memory, Process, Wanted, page_with};
use fieldstone_rewrite::page::LINE_BYTES;
use fieldstone_sharing::requests::{self, Action, At, Request};
use fieldstone_sharing::rules::{MOST_VIEWS, PAGE_BYTES};
use fieldstone_wire::isolation;

use super::around::with_memory;
use crate::error::Result;
use fieldstone_launch::clock::now_ns;
use fieldstone_symbols::objects::Objects;

/// The first look for what is missing comes after so long, each further one after twice as long, at most so long.
const FIRST_NS: u64 = 250_000_000;
const LONGEST_NS: u64 = 8_000_000_000;

/// What is asked for in one process.
#[derive(Debug)]
pub(super) struct Asked {
    pid: u32,
    memory: Memory,
    requests: Vec<Request>,
    /// Where each of them is, once that is known.
    places: Vec<Option<Range<u64>>>,
    /// Where the program's own table is, how often it had changed, and what it asked for.
    table: Option<u64>,
    changes: Option<u64>,
    own: Vec<Range<u64>>,
    /// Files that the program had mapped when they were looked through.
    files: BTreeSet<String>,
    /// When what is missing is looked for again, and how long after that.
    next_ns: u64,
    pause_ns: u64,
}

impl Asked {
    /// By these rules, and by process `pid` itself: whether that asks for anything is looked for a little later, since reading the symbols of all
    /// its files takes as long as it takes to see a line fight.
    pub(super) fn of(pid: u32, requests: Vec<Request>) -> Result<Self> {
        let next_ns = if requests.is_empty() { now_ns() + FIRST_NS } else { 0 };
        Ok(Self {
            pid,
            memory: Memory::open(pid)?,
            places: vec![None; requests.len()],
            requests,
            table: None,
            changes: None,
            own: Vec::new(),
            files: BTreeSet::new(),
            next_ns,
            pause_ns: FIRST_NS,
        })
    }

    /// Looks what is asked for now; whether that is something else than before. `process` is the one that is asked about, where
    /// pages of it are moved.
    pub(super) fn look(&mut self, now_ns: u64, process: Option<&Process>) -> bool {
        let mut changed = false;
        if now_ns >= self.next_ns && (self.table.is_none() || self.places.iter().any(Option::is_none)) {
            let files = files(self.pid);
            // Only a file that was not there before can have what is missing.
            if files != self.files {
                changed = self.find();
                self.files = files;
            }
            self.next_ns = now_ns + self.pause_ns;
            self.pause_ns = (self.pause_ns * 2).min(LONGEST_NS);
        }
        self.read_table(process) | changed
    }

    /// Rules whose place is not known.
    pub(super) fn missing(&self) -> impl Iterator<Item = &Request> {
        let all = self.requests.iter().zip(&self.places);
        all.filter(|(_, place)| place.is_none()).map(|(request, _)| request)
    }

    fn find(&mut self) -> bool {
        let mut changed = false;
        let mut objects = None;
        let mut address_of = |module: Option<&str>, name: &str| {
            let objects = objects.get_or_insert_with(|| Objects::open(self.pid).ok()).as_ref()?;
            objects.variable_range(module, name)
        };
        for (request, place) in self.requests.iter().zip(&mut self.places).filter(|(_, place)| place.is_none()) {
            *place = match &request.at {
                At::Address(address) => Some(*address..address.saturating_add(request.bytes)),
                At::Symbol { module, name, offset } => {
                    address_of(module.as_deref(), name).and_then(|range| part_of(&range, *offset, request.bytes))
                }
            };
            changed |= place.is_some();
        }
        if self.table.is_none() {
            self.table = address_of(None, isolation::SYMBOL).map(|range| range.start);
        }
        changed
    }

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
        self.own = entries.map(|(start, bytes)| start..start.saturating_add(bytes.min(requests::MOST_BYTES))).collect();
        // That of before the entries were read: what came since is read again.
        self.changes = Some(changes);
        true
    }

    /// The rules that watch an access to these bytes.
    pub(super) fn watching(&self, address: u64, bytes: u32) -> impl Iterator<Item = &Request> {
        let end = address.saturating_add(bytes.into());
        let meets = move |place: &Range<u64>| place.start < end && address < place.end;
        let known = self.requests.iter().zip(&self.places);
        known
            .filter(move |(request, place)| request.action.watches() && place.as_ref().is_some_and(meets))
            .map(|(request, _)| request)
    }

    /// What it comes to, page by page.
    pub(super) fn pages(&self) -> BTreeMap<u64, Wanted> {
        let ruled = self.requests.iter().zip(&self.places);
        let ruled = ruled.filter_map(|(request, place)| Some((request.action, place.clone()?)));
        let own = self.own.iter().map(|range| (Action::Isolate, range.clone()));
        // What shall lie apart in a page, and what is watched.
        let mut pages: BTreeMap<u64, [Vec<Range<u64>>; 2]> = BTreeMap::new();
        for (action, range) in ruled.chain(own) {
            for (page, part) in parts(&range) {
                let [apart, watched] = pages.entry(page).or_default();
                if action.watches() { watched.push(part) } else { apart.push(part) }
            }
        }
        let wanted = |(page, [apart, watched]): (u64, [Vec<Range<u64>>; 2])| {
            (page, Wanted { page, owners: together(apart), consolidated: false, watched })
        };
        pages.into_iter().map(wanted).collect()
    }
}

/// The files that a process has mapped.
fn files(pid: u32) -> BTreeSet<String> {
    let files = mappings(pid).unwrap_or_default().into_iter().filter(|mapping| mapping.is_file);
    files.map(|mapping| mapping.name).collect()
}

/// So many bytes of a variable, from an offset on. None where it has not so many; the size of some is not known.
fn part_of(variable: &Range<u64>, offset: u64, bytes: u64) -> Option<Range<u64>> {
    let start = variable.start.checked_add(offset)?;
    let end = start.checked_add(bytes)?;
    (variable.is_empty() || end <= variable.end).then_some(start..end)
}

/// The pages that a range has bytes of, and these.
fn parts(range: &Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let first = page_with(range.start);
    let pages = (first..range.end).step_by(usize::try_from(PAGE_BYTES).unwrap_or(usize::MAX));
    let range = range.clone();
    pages.map(move |page| (page, range.start.max(page)..range.end.min(page + PAGE_BYTES)))
}

/// Ranges that overlap become one owner's; and those that fit on no line with another share a view where there are too many.
fn together(mut ranges: Vec<Range<u64>>) -> Vec<Vec<Range<u64>>> {
    ranges.sort_by_key(|range| range.start);
    let mut apart: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match apart.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => apart.push(range),
        }
    }
    let mut views: Vec<Vec<Range<u64>>> = Vec::new();
    for range in apart {
        let line = |address: u64| address / LINE_BYTES;
        let meets = |other: &Range<u64>| line(other.end - 1) >= line(range.start);
        let free = views.iter().position(|view| view.last().is_none_or(|last| !meets(last)));
        match free.filter(|_| views.len() >= MOST_VIEWS as usize) {
            Some(view) => views[view].push(range),
            None if views.len() < MOST_VIEWS as usize => views.push(vec![range]),
            // More on one line than there are views: the last of them share one.
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
    fn each_range_has_a_view_as_long_as_there_are_some() {
        let each = words(&[0x1000, 0x1010]).into_iter().map(|word| vec![word]);
        assert_eq!(together(words(&[0x1010, 0x1000])), each.collect::<Vec<_>>());
        let many: Vec<u64> = (0..10).map(|index| 0x1000 + index * 64).collect();
        let views = together(words(&many));
        assert_eq!(views.len(), MOST_VIEWS as usize);
        assert_eq!(views[0], [0x1000..0x1008, 0x1200..0x1208, 0x1240..0x1248], "on lines of their own all the same");
    }

    #[test]
    fn what_overlaps_is_one_range() {
        let ranges = vec![0x1000..0x1010, 0x1008..0x1018, 0x1018..0x1020];
        let found: Vec<Range<u64>> = together(ranges).into_iter().flatten().collect();
        assert_eq!(found, [0x1000..0x1018, 0x1018..0x1020]);
    }

    #[test]
    fn what_goes_beyond_a_variable_is_no_part_of_it() {
        assert_eq!(part_of(&(0x1000..0x1010), 8, 8), Some(0x1008..0x1010));
        assert_eq!(part_of(&(0x1000..0x1010), 8, 9), None);
        assert_eq!(part_of(&(0x1000..0x1000), 8, 8), Some(0x1008..0x1010), "its size is not known");
        assert_eq!(part_of(&(0x1000..0x1000), u64::MAX, 8), None);
    }

    #[test]
    fn a_range_over_a_border_is_of_both_pages() {
        let found: Vec<_> = parts(&(0x1ff8..0x2010)).collect();
        assert_eq!(found, [(0x1000, 0x1ff8..0x2000), (0x2000, 0x2000..0x2010)]);
    }

    /// In one page, wherever the linker puts it.
    #[repr(align(32))]
    struct Together([u64; 4]);

    /// A variable of this very process.
    static WATCHED: Together = Together([1, 2, 3, 4]);

    #[test]
    fn rules_are_found_by_address_and_by_name() {
        let address = WATCHED.0.as_ptr().addr() as u64;
        let at = At::Address(address);
        let unknown = At::Symbol { module: None, name: "there is no such variable".to_owned(), offset: 0 };
        let requests = [(Action::Count, at), (Action::Log, unknown)];
        let requests = requests.map(|(action, at)| Request { action, at, bytes: 16 }).to_vec();
        let mut asked = Asked::of(std::process::id(), requests).unwrap();
        assert!(asked.look(1, None), "one was found");
        assert!(!asked.look(2, None), "nothing new");
        assert_eq!(asked.missing().count(), 1);
        assert_eq!(asked.watching(address + 12, 8).count(), 1);
        assert_eq!(asked.watching(address + 16, 8).count(), 0);
        let pages = asked.pages();
        let [(page, wanted)] = pages.iter().collect::<Vec<_>>()[..] else { panic!("{pages:?}") };
        assert_eq!((*page, wanted.owners.len()), (address / PAGE_BYTES * PAGE_BYTES, 0));
        assert_eq!(wanted.watched.first(), Some(&(address..address + 16)));
    }
}
