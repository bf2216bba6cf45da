//! The rows of a cell, each with the count that fills it.

use fieldstone_translation::{Mmu, PageSize, SideCounts, TreeCounts};

use crate::experiment::{MeasuredValue, Quantity, Row};

use super::PAPER_MACHINE;
use super::model::{ENTRIES, Sides, Trees, page_sizes};
use super::stream::Stream;

/// A count of an array on pages: its quantity, its name in rows, and its field.
type OfSide = (Quantity, &'static str, fn(&SideCounts) -> u64);

const OF_AN_ARRAY: [OfSide; 3] = [
    (Quantity::References, "entries read by page walks", |side| side.walk_memory_references),
    (Quantity::Walks, "page walks", |side| side.walks),
    (Quantity::Share, "missed in the first TLB", |side| side.accesses - side.hits[0]),
];

/// A row with its count.
pub(super) struct CountedRow<T> {
    pub(super) row: Row,
    count: Box<dyn Fn(&T) -> u64>,
}

impl<T> CountedRow<T> {
    fn new(row: Row, count: impl Fn(&T) -> u64 + 'static) -> Self {
        Self { row, count: Box::new(count) }
    }

    /// The value of the row: its count per access.
    pub(super) fn value(&self, counts: &T, accesses: usize) -> MeasuredValue {
        MeasuredValue::of(self.row.value_name(), (self.count)(counts) as f64 / accesses as f64)
    }
}

/// The rows of a contiguous array on a machine: all counts on the paper's machine, the reads of
/// walks on others.
pub(super) fn array_rows(machine: &Mmu, stream: Stream, column: &str) -> Vec<CountedRow<Sides>> {
    let is_paper = machine.name == PAPER_MACHINE;
    let counts = if is_paper { &OF_AN_ARRAY[..] } else { &OF_AN_ARRAY[..1] };
    let mut all = Vec::new();
    for &(shows, what, count) in counts {
        for size in page_sizes(machine) {
            let row = if is_paper {
                let row = Row::new(shows, table(stream), format!("array on {}: {what}", pages(size)));
                array_paper(stream, shows, size, column).map_or(row.clone(), |quotation| row.with_paper(quotation))
            } else {
                Row::new(shows, others(stream), format!("{}, {}", pages(size), machine.name))
            };
            all.push(CountedRow::new(row, move |sides: &Sides| of_size(sides, size).map_or(0, count)));
        }
    }
    all
}

fn of_size(sides: &[(PageSize, SideCounts)], size: PageSize) -> Option<&SideCounts> {
    sides.iter().find(|(of, _)| *of == size).map(|(_, side)| side)
}

/// The rows of trees.
pub(super) fn tree_rows(stream: Stream, column: &str) -> Vec<CountedRow<Trees>> {
    let row = |shows, name: String| Row::new(shows, table(stream), name);
    let read = |way: &str| row(Quantity::References, format!("tree, {way}: pointers read"));
    let instructions = |way: &str| row(Quantity::Instructions, format!("tree, {way}: instructions"));
    let references = |counts: &TreeCounts| counts.memory_references;
    let naive = read("naive");
    let naive = depth_paper(stream, column).map_or(naive.clone(), |quotation| naive.with_paper(quotation));
    let mut all = vec![
        CountedRow::new(naive, move |trees: &Trees| references(&trees.naive)),
        CountedRow::new(read("cursor"), move |trees: &Trees| references(&trees.cursor)),
    ];
    all.extend((0..ENTRIES.len()).map(|at| {
        let row = read(&format!("accelerator of {} entries", ENTRIES[at]));
        CountedRow::new(row, move |trees: &Trees| references(&trees.accelerators[at]))
    }));
    all.push(CountedRow::new(instructions("naive"), |trees: &Trees| trees.naive.instructions));
    all.push(CountedRow::new(instructions("cursor"), |trees: &Trees| trees.cursor.instructions));
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

/// The paper's numbers for its own sizes: strided scans of arrays larger than a page, and the size
/// above which huge pages miss.
fn array_paper(stream: Stream, shows: Quantity, size: PageSize, column: &str) -> Option<&'static str> {
    match (stream, shows, size, column) {
        (_, _, _, "256MB") | (Stream::Strided, _, _, "4KB") => None,
        (Stream::Strided, Quantity::Share, PageSize::Small4k, _) => Some("tree-walks/strided-misses"),
        (Stream::Gups, Quantity::Walks, PageSize::Huge1g, "32GB" | "64GB") => Some("tree-walks/huge-pages"),
        _ => None,
    }
}

/// The depths of the scanned trees in the paper.
fn depth_paper(stream: Stream, column: &str) -> Option<&'static str> {
    match (stream, column) {
        (Stream::Gups, _) | (_, "256MB") => None,
        (_, "4KB") => Some("tree-walks/depth-1"),
        (_, "4MB") => Some("tree-walks/depth-2"),
        _ => Some("tree-walks/depth-3"),
    }
}
