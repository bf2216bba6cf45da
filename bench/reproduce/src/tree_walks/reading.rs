//! The rows of a cell, each with the count that fills it.

use fieldstone_translation::{Machine, PageSize, Side, TreeCounts};

use crate::experiment::{Figure, Row, Shows};

use super::PAPER_MACHINE;
use super::model::{ENTRIES, Sides, Trees, page_sizes};
use super::stream::Stream;

/// Something that is counted of an array on pages: as what it is shown, what rows call it, where it is.
type OfSide = (Shows, &'static str, fn(&Side) -> u64);

const OF_AN_ARRAY: [OfSide; 3] = [
    (Shows::References, "entries read by page walks", |side| side.walk_memory_references),
    (Shows::Walks, "page walks", |side| side.walks),
    (Shows::Share, "missed in the first TLB", |side| side.accesses - side.hits[0]),
];

/// A row, and which of the counts it shows.
pub(super) struct Reading<T> {
    pub(super) row: Row,
    count: Box<dyn Fn(&T) -> u64>,
}

impl<T> Reading<T> {
    fn new(row: Row, count: impl Fn(&T) -> u64 + 'static) -> Self {
        Self { row, count: Box::new(count) }
    }

    /// The number that fills the row: the count of one of a number of accesses.
    pub(super) fn figure(&self, counted: &T, accesses: usize) -> Figure {
        Figure::of(self.row.figure(), (self.count)(counted) as f64 / accesses as f64)
    }
}

/// The rows of a contiguous array on a machine: all that is counted on the paper's, what walks read on the others.
pub(super) fn array_readings(machine: &Machine, stream: Stream, column: &str) -> Vec<Reading<Sides>> {
    let is_paper = machine.name == PAPER_MACHINE;
    let counts = if is_paper { &OF_AN_ARRAY[..] } else { &OF_AN_ARRAY[..1] };
    let mut all = Vec::new();
    for &(shows, what, count) in counts {
        for size in page_sizes(machine) {
            let row = if is_paper {
                let row = Row::showing(shows, table(stream), format!("array on {}: {what}", pages(size)));
                array_paper(stream, shows, size, column).map_or(row.clone(), |quotation| row.with_paper(quotation))
            } else {
                Row::showing(shows, others(stream), format!("{}, {}", pages(size), machine.name))
            };
            all.push(Reading::new(row, move |sides: &Sides| of_size(sides, size).map_or(0, count)));
        }
    }
    all
}

fn of_size(sides: &[(PageSize, Side)], size: PageSize) -> Option<&Side> {
    sides.iter().find(|(of, _)| *of == size).map(|(_, side)| side)
}

/// The rows of trees.
pub(super) fn tree_readings(stream: Stream, column: &str) -> Vec<Reading<Trees>> {
    let row = |shows, name: String| Row::showing(shows, table(stream), name);
    let read = |way: &str| row(Shows::References, format!("tree, {way}: pointers read"));
    let instructions = |way: &str| row(Shows::Instructions, format!("tree, {way}: instructions"));
    let references = |counts: &TreeCounts| counts.memory_references;
    let naive = read("naive");
    let naive = depth_paper(stream, column).map_or(naive.clone(), |quotation| naive.with_paper(quotation));
    let mut all = vec![
        Reading::new(naive, move |trees: &Trees| references(&trees.naive)),
        Reading::new(read("cursor"), move |trees: &Trees| references(&trees.cursor)),
    ];
    all.extend((0..ENTRIES.len()).map(|at| {
        let row = read(&format!("accelerator of {} entries", ENTRIES[at]));
        Reading::new(row, move |trees: &Trees| references(&trees.accelerators[at]))
    }));
    all.push(Reading::new(instructions("naive"), |trees: &Trees| trees.naive.instructions));
    all.push(Reading::new(instructions("cursor"), |trees: &Trees| trees.cursor.instructions));
    all
}

const fn table(stream: Stream) -> &'static str {
    match stream {
        Stream::Linear => "Linear scan, i7-7700",
        Stream::Strided => "Strided scan, every 1024th element, i7-7700",
        Stream::Gups => "GUPS, i7-7700",
    }
}

const fn others(stream: Stream) -> &'static str {
    match stream {
        Stream::Linear => "Linear scan: entries read by page walks on other processors",
        Stream::Strided => "Strided scan: entries read by page walks on other processors",
        Stream::Gups => "GUPS: entries read by page walks on other processors",
    }
}

const fn pages(size: PageSize) -> &'static str {
    match size {
        PageSize::Small4k => "4 KiB pages",
        PageSize::Large2m => "2 MiB pages",
        PageSize::Huge1g => "1 GiB pages",
    }
}

/// What the paper says of its arrays, by its own sizes: of strided ones that are larger than a page, and where huge pages end to help.
fn array_paper(stream: Stream, shows: Shows, size: PageSize, column: &str) -> Option<&'static str> {
    match (stream, shows, size, column) {
        (_, _, _, "256MB") | (Stream::Strided, _, _, "4KB") => None,
        (Stream::Strided, Shows::Share, PageSize::Small4k, _) => Some("tree-walks/strided-misses"),
        (Stream::Gups, Shows::Walks, PageSize::Huge1g, "32GB" | "64GB") => Some("tree-walks/huge-pages"),
        _ => None,
    }
}

/// How deep the paper says that its scanned trees are.
fn depth_paper(stream: Stream, column: &str) -> Option<&'static str> {
    match (stream, column) {
        (Stream::Gups, _) | (_, "256MB") => None,
        (_, "4KB") => Some("tree-walks/depth-1"),
        (_, "4MB") => Some("tree-walks/depth-2"),
        _ => Some("tree-walks/depth-3"),
    }
}
