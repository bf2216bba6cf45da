//! Figure 4.1: how the elements of linear regression's array lie on lines, in a binary of 64 bits and in one of 32.
//!
//! ```text
//!              tid  points  num_elems  SX SY SXX SYY SXY
//! 64 bit        8     8        4 + 4       5 x 8            64 bytes, behind two words of the allocator's
//! 32 bit        4     4        4           5 x 8            52 bytes: a long long is aligned to 4 there
//! ```
//! The loop reads `points` and `num_elems` and writes the sums. A line is shared falsely if the loops of two threads use it, since each
//! writes most of what it uses. Counted from the declaration; nothing is run.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::experiment::{Cell, Figure, Outcome, Row, Shows};

const TABLE: &str = "Figure 4.1: the array of linear regression, eight threads, on lines of 64 bytes";

const LINE_BYTES: u64 = 64;
const THREADS: u64 = 8;
const SUMS: u64 = 5;

/// What a compiler makes of the declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binary {
    Bits64,
    Bits32,
}

impl Binary {
    const fn word_bytes(self) -> u64 {
        match self {
            Self::Bits64 => 8,
            Self::Bits32 => 4,
        }
    }

    /// Where the loop's part of an element begins and ends: all but `tid`.
    const fn in_loop(self) -> Range<u64> {
        // `num_elems` is an int; the sums behind it begin at a word.
        let sums = 3 * self.word_bytes();
        self.word_bytes()..sums + SUMS * 8
    }

    const fn element_bytes(self) -> u64 {
        self.in_loop().end
    }

    /// What malloc keeps before a piece of memory: its size, and the size of the piece before.
    const fn metadata_bytes(self) -> u64 {
        2 * self.word_bytes()
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Bits64 => "64-bit",
            Self::Bits32 => "32-bit",
        }
    }

    const fn quotation(self) -> &'static str {
        match self {
            Self::Bits64 => "cachekata/element-64",
            Self::Bits32 => "cachekata/element-32",
        }
    }
}

/// Lines that hold a part of an array of `elements` elements that begins at byte `begin` of a line.
fn lines(binary: Binary, begin: u64, threads: u64) -> u64 {
    (begin + threads * binary.element_bytes()).div_ceil(LINE_BYTES) - begin / LINE_BYTES
}

/// Those of them that the loops of several threads use.
pub(super) fn shared_lines(binary: Binary, begin: u64, threads: u64) -> usize {
    let mut users = BTreeMap::<u64, u64>::new();
    for thread in 0..threads {
        let Range { start, end } = binary.in_loop();
        let element = begin + thread * binary.element_bytes();
        for line in (element + start) / LINE_BYTES..=(element + end - 1) / LINE_BYTES {
            *users.entry(line).or_default() += 1;
        }
    }
    users.values().filter(|count| **count > 1).count()
}

/// A cell for each kind of binary.
pub(super) fn cells() -> Vec<Cell> {
    [Binary::Bits64, Binary::Bits32].map(cell).into()
}

fn cell(binary: Binary) -> Cell {
    let [element, metadata, under, shared, aligned] = counts(binary);
    let row = |(name, _): &(&str, f64)| Row::showing(Shows::Count, TABLE, *name);
    let rows =
        vec![row(&element).with_paper(binary.quotation()), row(&metadata), row(&under), row(&shared), row(&aligned)];
    let figures = move || counts(binary).into_iter().map(|(name, count)| Figure::of(name, count)).collect();
    Cell {
        id: format!("cachekata/layout/{}", binary.name()),
        column: binary.name().to_owned(),
        memory_bytes: 0,
        rows,
        measure: Box::new(move |_| Ok(Outcome::Measured { figures: figures(), alternately: true })),
    }
}

fn counts(binary: Binary) -> [(&'static str, f64); 5] {
    let begin = binary.metadata_bytes();
    [
        ("bytes of an element", binary.element_bytes() as f64),
        ("bytes before the first, the allocator's", begin as f64),
        ("lines that hold elements", lines(binary, begin, THREADS) as f64),
        ("lines that several threads' loops use", shared_lines(binary, begin, THREADS) as f64),
        ("the same, if the array began with a line", shared_lines(binary, 0, THREADS) as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_drawing() {
        assert_eq!((Binary::Bits64.element_bytes(), Binary::Bits32.element_bytes()), (64, 52));
        // Each of the seven borders between elements lies within a line, at 16 bytes from its start.
        assert_eq!(counts(Binary::Bits64).map(|(_, count)| count), [64.0, 16.0, 9.0, 7.0, 0.0]);
        // By hand: loops use 12..60, 64..112, 116..164, 168..216, 220..268, 272..320, 324..372, 376..424, and 8 less.
        assert_eq!(counts(Binary::Bits32).map(|(_, count)| count), [52.0, 8.0, 7.0, 5.0, 6.0]);
    }

    /// Eight bytes of `tid` lie between the loops' parts, and hide one border.
    #[test]
    fn two_threads_share_a_line_but_at_two_starts() {
        let shared: Vec<usize> = (0..8).map(|word| shared_lines(Binary::Bits64, 8 * word, 2)).collect();
        assert_eq!(shared, [0, 1, 1, 1, 1, 1, 1, 0]);
    }
}
