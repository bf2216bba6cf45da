//! What the database contains, as numbers: the source of the objects and of the expected results.

use anyhow::{Result, ensure};
use fieldstone_peers::oo7::{BASE_COMPONENTS, Design, OUTGOING, PartFields};
use fieldstone_stats::random::SplitMix64;

/// The sizes of a database.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// The name of its column.
    pub(super) name: &'static str,
    /// Composite parts of the module.
    pub(super) composites: usize,
    /// Atomic parts of a composite part.
    pub(super) parts: usize,
    /// Bytes of a document.
    pub(super) document_bytes: usize,
    /// Bytes of the manual.
    pub(super) manual_bytes: usize,
}

/// The small configuration of OO7.
pub(super) const SMALL: Size =
    Size { name: "small", composites: 500, parts: 20, document_bytes: 2000, manual_bytes: 100_000 };
/// The medium configuration of OO7.
pub(super) const MEDIUM: Size =
    Size { name: "medium", composites: 500, parts: 200, document_bytes: 20_000, manual_bytes: 1_000_000 };
/// A database for quick runs, with as many assemblies.
pub(super) const QUICK: Size =
    Size { name: "small", composites: 50, parts: 4, document_bytes: 2000, manual_bytes: 100_000 };

/// Composite parts that an insertion adds and a deletion removes.
pub(super) const CHANGED_PARTS: usize = 10;
/// Dates of base assemblies.
const DATES: std::ops::Range<u32> = 1000..2000;
/// Dates of composite parts: older than each assembly.
const OLD_DATES: std::ops::Range<u32> = 0..1000;
/// Dates of every tenth composite part: later than those of each assembly.
const NEW_DATES: std::ops::Range<u32> = 2000..3000;

/// What the database contains. The object with the index n has the id n + 1.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) size: Size,
    /// The atomic parts, and the composite parts that the base assemblies have as private ones.
    pub(super) design: Design,
    /// Of each composite part.
    pub(super) composite_dates: Vec<u32>,
    /// Of each base assembly.
    pub(super) base_dates: Vec<u32>,
    /// The composite parts of each base assembly that others have as well.
    pub(super) shared: Vec<[usize; BASE_COMPONENTS]>,
    /// What an insertion adds.
    inserted: Design,
}

/// A composite part to be added.
#[derive(Debug)]
pub(super) struct NewPart<'a> {
    pub(super) id: u32,
    /// The id of its first atomic part; the others have the following ids.
    pub(super) first_id: u32,
    pub(super) build_date: u32,
    /// The atomic parts to which each of its atomic parts is connected, as places in the composite part.
    pub(super) connections: Vec<[usize; OUTGOING]>,
    pub(super) fields: &'a [PartFields],
    pub(super) document_bytes: usize,
}

impl Contents {
    /// The database of a size, always the same.
    pub(super) fn new(size: Size) -> Self {
        let mut random = SplitMix64::new(2);
        let design = Design::new(size.composites, size.parts);
        let bases = design.components.len();
        let composite_dates = (1..=size.composites).map(|id| composite_date(id, &mut random)).collect();
        let base_dates = (0..bases).map(|_| date_in(DATES, &mut random)).collect();
        let shared = (0..bases).map(|_| std::array::from_fn(|_| random.below(size.composites))).collect();
        let inserted = Design::new(CHANGED_PARTS, size.parts);
        Self { size, design, composite_dates, base_dates, shared, inserted }
    }

    /// The composite parts of the database.
    pub(super) fn composite_parts(&self) -> impl Iterator<Item = NewPart<'_>> {
        (0..self.size.composites).map(|index| self.new_part(&self.design, index, index, self.composite_dates[index]))
    }

    /// The composite parts that an insertion adds behind `composites` others.
    ///
    /// # Errors
    /// If the ids have more than 32 bits.
    pub(super) fn inserted_parts(&self, composites: u32) -> Result<Vec<NewPart<'_>>> {
        let (mut random, composites) = (SplitMix64::new(1), composites as usize);
        let last = (composites + CHANGED_PARTS) * self.size.parts;
        ensure!(u32::try_from(last).is_ok(), "cannot insert composite parts: their parts have no ids");
        let part = |index| {
            let date = composite_date(composites + index + 1, &mut random);
            self.new_part(&self.inserted, index, composites + index, date)
        };
        Ok((0..CHANGED_PARTS).map(part).collect())
    }

    /// The composite part with the index `from` of a design, which gets the index `index`.
    fn new_part<'a>(&self, design: &'a Design, from: usize, index: usize, build_date: u32) -> NewPart<'a> {
        let parts = self.size.parts;
        let first = from * parts;
        let connections = design.connections[first..][..parts].iter().map(|to| to.map(|to| to - first)).collect();
        NewPart {
            id: id_of(index),
            first_id: id_of(index * parts),
            build_date,
            connections,
            fields: &design.fields[first..][..parts],
            document_bytes: self.size.document_bytes,
        }
    }

    /// The number of base assemblies.
    pub(super) const fn bases(&self) -> usize {
        self.base_dates.len()
    }
}

/// The id of the object with an index.
pub(super) fn id_of(index: usize) -> u32 {
    u32::try_from(index + 1).unwrap_or(u32::MAX)
}

fn date_in(dates: std::ops::Range<u32>, random: &mut SplitMix64) -> u32 {
    dates.start + u32::try_from(random.below(dates.len())).unwrap_or(0)
}

/// The date of the composite part with an id.
fn composite_date(id: usize, random: &mut SplitMix64) -> u32 {
    date_in(if id.is_multiple_of(10) { NEW_DATES } else { OLD_DATES }, random)
}

/// The type of an object with a number.
pub(super) fn kind_of(number: u32) -> [u8; 10] {
    let mut kind = *b"type #0   ";
    kind[6] += (number % 10).to_le_bytes()[0];
    kind
}

/// A sentence that is repeated up to a length.
fn repeated(sentence: &str, bytes: usize) -> String {
    sentence.bytes().cycle().take(bytes).map(char::from).collect()
}

/// The text of the document of a composite part.
pub(super) fn document_text(id: u32, bytes: usize) -> String {
    repeated(&format!("I am the documentation for composite part #{id:08}.\n"), bytes)
}

/// The text of the manual of a module.
pub(super) fn manual_text(id: u32, bytes: usize) -> String {
    repeated(&format!("I am the manual for module #{id:08}.\n"), bytes)
}
