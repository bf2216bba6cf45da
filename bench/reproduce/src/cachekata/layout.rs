//! Figure 4.1: the elements of linear regression's array on cache lines, in 64-bit and 32-bit
//! binaries.
//!
//! ```text
//!              tid  points  num_elems  SX SY SXX SYY SXY
//! 64 bit        8     8        4 + 4       5 x 8            64 bytes, after two words of the allocator
//! 32 bit        4     4        4           5 x 8            52 bytes: a long long is aligned to 4
//! ```
//! The loop reads `points` and `num_elems` and writes the sums. A line has false sharing if the
//! loops of two threads use it, because each loop writes most of its bytes. The numbers are
//! computed from the declaration; nothing is run.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::experiment::{Cell, MeasuredValue, Quantity, Row, SampleOutcome};

const TABLE: &str = "Figure 4.1: the array of linear regression, eight threads, on lines of 64 bytes";

const LINE_BYTES: u64 = 64;
const THREADS: u64 = 8;
const SUMS: u64 = 5;

/// The layout of the declaration in a binary.
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

    /// The bytes of an element that the loop uses: all except `tid`.
    const fn in_loop(self) -> Range<u64> {
        // `num_elems` is an int; the sums after it begin at a word.
        let sums = 3 * self.word_bytes();
        self.word_bytes()..sums + SUMS * 8
    }

    const fn element_bytes(self) -> u64 {
        self.in_loop().end
    }

    /// Bytes of malloc's metadata before an allocation: its size, and the size of the one before.
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

/// Number of lines of an array of `threads` elements that begins at byte `begin` of a line.
fn lines(binary: Binary, begin: u64, threads: u64) -> u64 {
    (begin + threads * binary.element_bytes()).div_ceil(LINE_BYTES) - begin / LINE_BYTES
}

/// Number of those lines that the loops of several threads use.
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

/// A cell for each binary.
pub(super) fn cells() -> Vec<Cell> {
    [Binary::Bits64, Binary::Bits32].map(cell).into()
}

fn cell(binary: Binary) -> Cell {
    let [element, metadata, under, shared, aligned] = counts(binary);
    let row = |(name, _): &(&str, f64)| Row::new(Quantity::Count, TABLE, *name);
    let rows =
        vec![row(&element).with_paper(binary.quotation()), row(&metadata), row(&under), row(&shared), row(&aligned)];
    let figures = move || counts(binary).into_iter().map(|(name, count)| MeasuredValue::of(name, count)).collect();
    let id = format!("cachekata/layout/{}", binary.name());
    Cell::new(id, binary.name(), 0, rows, move |_| Ok(SampleOutcome::measured(figures())))
}

fn counts(binary: Binary) -> [(&'static str, f64); 5] {
    let begin = binary.metadata_bytes();
    [
        ("bytes of an element", binary.element_bytes() as f64),
        ("bytes of the allocator before the first", begin as f64),
        ("lines that hold elements", lines(binary, begin, THREADS) as f64),
        ("lines used by the loops of several threads", shared_lines(binary, begin, THREADS) as f64),
        ("the same, for an array at the start of a line", shared_lines(binary, 0, THREADS) as f64),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_the_drawing() {
        assert_eq!((Binary::Bits64.element_bytes(), Binary::Bits32.element_bytes()), (64, 52));
        // Each of the seven borders between elements is at byte 16 of a line.
        assert_eq!(counts(Binary::Bits64).map(|(_, count)| count), [64.0, 16.0, 9.0, 7.0, 0.0]);
        // By hand: loops use 12..60, 64..112, 116..164, 168..216, 220..268, 272..320, 324..372,
        // 376..424, and 8 less.
        assert_eq!(counts(Binary::Bits32).map(|(_, count)| count), [52.0, 8.0, 7.0, 5.0, 6.0]);
    }

    /// The eight bytes of `tid` separate the bytes of two loops, so one start more shares no line.
    #[test]
    fn two_threads_share_a_line_except_at_two_starts() {
        let shared: Vec<usize> = (0..8).map(|word| shared_lines(Binary::Bits64, 8 * word, 2)).collect();
        assert_eq!(shared, [0, 1, 1, 1, 1, 1, 1, 0]);
    }
}
