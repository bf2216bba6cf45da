//! Random access (HPC Challenge): read, xor and write 8 bytes at a random place of a big table. The
//! kernel and its check work on any type that indexes words.
//!
//! Differences from HPCC: the stream is splitmix64 (HPCC's shift register doubles the last index at
//! each step). The table may have any size. The check is exact and cheap, without a second run: xor
//! is its own inverse, so the xor of the whole table must equal the xor of its initial contents and
//! all values written.

use std::ops::IndexMut;

use crate::random::{SplitMix64, scale};

/// The seed of the program `gups`. To update a table several times, use other seeds: the same
/// updates twice cancel out.
pub const SEED: u64 = 0x6775_7073;

/// `count` indices below `words`, each with the value to xor.
#[inline(always)]
pub fn updates(words: usize, count: u64, seed: u64) -> impl Iterator<Item = (usize, u64)> {
    let mut random = SplitMix64::new(seed);
    (0..count).map(move |_| {
        let draw = random.draw();
        (scale(draw, words), draw)
    })
}

/// The kernel, on a table of `words` words. Returns the xor of all values written. Always inlined,
/// so that a measurement can place it.
#[inline(always)]
pub fn update<T: IndexMut<usize, Output = u64> + ?Sized>(table: &mut T, words: usize, count: u64, seed: u64) -> u64 {
    updates(words, count, seed).fold(0, |xor, (place, draw)| {
        table[place] ^= draw;
        xor ^ draw
    })
}

/// The xor of a table of `words` words before any update, with word i equal to i.
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
    fn the_same_updates_twice_cancel_out() {
        let mut table: Vec<u64> = (0..1000).collect();
        update(&mut table, 1000, 500, 1);
        update(&mut table, 1000, 500, 1);
        assert!(table.iter().copied().eq(0..1000));
    }
}
