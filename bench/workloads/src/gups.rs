//! Random access (HPC Challenge): read, xor, write 8 bytes at a random place of a big table. The kernel and its check, over
//! whatever indexes words.
//!
//! Where we differ from HPCC: the stream is splitmix64 (HPCC's shift register doubles the last index at each step), the
//! table may have any size, and the check is exact and cheap instead of a second run: xor is its own inverse, so the xor of
//! the whole table must be the xor of its first contents and of all the values that were written in.

use std::ops::IndexMut;

use crate::random::{SplitMix64, scale};

/// The stream of the program `gups`. Its like, of other seeds, are for those who update a table more than once: the same
/// updates twice undo each other.
pub const SEED: u64 = 0x6775_7073;

/// `count` places below `words`, each with what is xored in there.
#[inline(always)]
pub fn updates(words: usize, count: u64, seed: u64) -> impl Iterator<Item = (usize, u64)> {
    let mut random = SplitMix64::new(seed);
    (0..count).map(move |_| {
        let draw = random.draw();
        (scale(draw, words), draw)
    })
}

/// The kernel, on a table of `words`; the xor of all values written in. Always inlined, so that a measurement can place it.
#[inline(always)]
pub fn update<T: IndexMut<usize, Output = u64> + ?Sized>(table: &mut T, words: usize, count: u64, seed: u64) -> u64 {
    updates(words, count, seed).fold(0, |xor, (place, draw)| {
        table[place] ^= draw;
        xor ^ draw
    })
}

/// What the xor of a table of `words` is before any update, word i being i.
#[must_use]
pub fn first_xor(words: usize) -> u64 {
    (0..words as u64).fold(0, |xor, i| xor ^ i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_xor_finds_a_lost_update() {
        let mut table: Vec<u64> = (0..1000).collect();
        let written = update(&mut table, 1000, 5000, SEED);
        let xor = |table: &[u64]| table.iter().fold(0, |xor, word| xor ^ word);
        assert_eq!(xor(&table), first_xor(1000) ^ written);
        table[7] ^= 1;
        assert_ne!(xor(&table), first_xor(1000) ^ written);
    }

    #[test]
    fn the_same_updates_twice_undo_each_other() {
        let mut table: Vec<u64> = (0..1000).collect();
        update(&mut table, 1000, 500, 1);
        update(&mut table, 1000, 500, 1);
        assert!(table.iter().copied().eq(0..1000));
    }
}
