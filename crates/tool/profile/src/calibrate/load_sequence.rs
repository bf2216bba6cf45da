//! A sequence of loads from one array of words: a program's own addresses, or a pattern.
//!
//! ```text
//! addresses   0x7f20_0123_4568   0x5581_0040_0010   0x7f20_0003_0000      2 MiB chunks, far apart
//!                    \                 |                 /
//! words       | chunk 0x5581_004.. | chunk 0x7f20_000.. | chunk 0x7f20_012.. |   the same chunks, adjacent
//!
//! indices  3 9 4 7 1 8 2 ...     chains of 2, 1 loads     3 → 9   4   7 → 1   8   2 → ...
//! ```
//! Compaction keeps what is in one page, one page table or one cache line together. It loses the
//! distance between chunks, and thus the cost of the upper levels of the page table.
//!
//! The loads keep their order and form chains. The first load of a chain has a known address, so a
//! processor runs several chains in parallel. The address of each later load is xored with the word
//! loaded before it. All words are 0, but the processor must wait for that value. A list of
//! pointers is one chain, and random reads of a table are chains of one load.
//!
//! Cost: the index of each load is itself read in order, 4 bytes per load.

use std::io::{Error, ErrorKind, Result};

#[cfg(test)]
use fieldstone_stats::random::{SplitMix64, scale};

/// Bytes that compaction moves together: a huge page.
pub(super) const CHUNK_BYTES: usize = 2 << 20;
const CHUNK_SHIFT: u32 = CHUNK_BYTES.trailing_zeros();
const WORDS_PER_CHUNK: usize = CHUNK_BYTES / size_of::<u64>();
const WORDS_PER_PAGE: usize = 4096 / size_of::<u64>();
const WORDS_PER_LINE: usize = 64 / size_of::<u64>();

/// Number of chain lengths, which repeat.
const CHAIN_LENGTHS: usize = 64;

/// How loads depend on each other: the lengths of their chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chains([usize; CHAIN_LENGTHS]);

impl Chains {
    /// No load depends on another.
    pub(super) const NONE: Self = Self([1; CHAIN_LENGTHS]);
    /// Each load depends on the one before.
    pub(super) const ONE: Self = Self([usize::MAX; CHAIN_LENGTHS]);

    /// Chains in which `share` (0 to 1) of all loads depend on another. Their lengths differ by at
    /// most 1.
    #[must_use]
    pub(super) fn waiting(share: f64) -> Self {
        let mean = 1.0 / (1.0 - share.clamp(0.0, 1.0));
        if mean > 1e9 {
            return Self::ONE;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 64e9")]
        let end = |chain: usize| (chain as f64 * mean).round() as usize;
        Self(std::array::from_fn(|chain| end(chain + 1) - end(chain)))
    }
}

/// Consecutive loads with the same chains: a phase of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoadPhase {
    /// Number of loads.
    pub(super) loads: usize,
    /// The dependences between them.
    pub(super) chains: Chains,
}

/// Indices into an array of words, in the order of the loads.
#[derive(Clone, Debug)]
pub(super) struct LoadSequence {
    indices: Vec<u32>,
    words: usize,
}

impl LoadSequence {
    /// The indices of `addresses` after their chunks are made adjacent, in address order.
    ///
    /// # Errors
    /// `InvalidInput` without an address or with more than 2^32 words (32 GiB) in all chunks;
    /// `OutOfMemory`.
    pub(super) fn compacted(addresses: &[u64]) -> Result<Self> {
        let chunks = chunks(addresses)?;
        let words = word_count(chunks.len() as u64 * CHUNK_BYTES as u64)?;
        let mut last = (u64::MAX, 0);
        let index = |address: &u64| {
            let chunk = address >> CHUNK_SHIFT;
            if chunk != last.0 {
                last = (chunk, chunks.partition_point(|other| *other < chunk) * WORDS_PER_CHUNK);
            }
            #[expect(clippy::cast_possible_truncation, reason = "the word within a chunk")]
            let word = (address % CHUNK_BYTES as u64) as usize / size_of::<u64>();
            narrow(last.1 + word)
        };
        Ok(Self { indices: list(addresses.len(), addresses.iter().map(index))?, words })
    }

    /// `count` random indices in an array of `bytes`.
    #[cfg(test)]
    pub(super) fn random(bytes: u64, count: usize, seed: u64) -> Result<Self> {
        let words = word_count(bytes)?;
        let mut random = SplitMix64::new(seed);
        Ok(Self { indices: list(count, (0..count).map(|_| narrow(scale(random.draw(), words))))?, words })
    }

    /// `count` indices, 4 KiB apart, repeating over an array of `bytes`. Each page uses another
    /// cache line, because lines 4 KiB apart share a cache set.
    ///
    /// # Errors
    /// As [`Self::compacted`].
    pub(super) fn page_by_page(bytes: u64, count: usize) -> Result<Self> {
        let words = word_count(bytes)?;
        let pages = words / WORDS_PER_PAGE;
        let index = |step: usize| {
            let page = step % pages;
            narrow(page * WORDS_PER_PAGE + page * WORDS_PER_LINE % WORDS_PER_PAGE)
        };
        Ok(Self { indices: list(count, (0..count).map(index))?, words })
    }

    /// Minimum words of the array, in whole chunks; all indices are smaller.
    #[must_use]
    pub(super) const fn words(&self) -> usize {
        self.words
    }

    /// Number of loads.
    #[must_use]
    pub(super) const fn len(&self) -> usize {
        self.indices.len()
    }

    /// Does all loads by `load`, phase by phase, and returns the sum of the last value of each
    /// chain. Loads beyond the phases are independent. Each index is below [`Self::words`],
    /// provided that `load` returns 0.
    #[inline(always)]
    pub(super) fn load(&self, phases: &[LoadPhase], mut load: impl FnMut(usize) -> u64) -> u64 {
        let (mut rest, mut sum) = (&self.indices[..], 0_u64);
        for phase in phases {
            let (own, after) = rest.split_at(phase.loads.min(rest.len()));
            sum = sum.wrapping_add(load_in(phase.chains, own, &mut load));
            rest = after;
        }
        sum.wrapping_add(load_in(Chains::NONE, rest, &mut load))
    }
}

/// Does the loads of one phase.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a zero")]
fn load_in(chains: Chains, indices: &[u32], load: &mut impl FnMut(usize) -> u64) -> u64 {
    if chains == Chains::NONE {
        // The shortest possible loop.
        return indices.iter().fold(0, |sum, &index| sum.wrapping_add(load(index as usize)));
    }
    let (mut indices, mut sum) = (indices.iter(), 0_u64);
    for &length in chains.0.iter().cycle() {
        let Some(&first) = indices.next() else { break };
        let rest = indices.by_ref().take(length - 1);
        let last = rest.fold(load(first as usize), |zero, &index| load(index as usize ^ zero as usize));
        sum = sum.wrapping_add(last);
    }
    sum
}

/// The sorted numbers of the chunks that contain `addresses`.
fn chunks(addresses: &[u64]) -> Result<Vec<u64>> {
    if addresses.is_empty() {
        return Err(Error::new(ErrorKind::InvalidInput, "there is no address to replay: record for longer"));
    }
    let mut chunks: Vec<u64> = Vec::new();
    let mut last = u64::MAX;
    for chunk in addresses.iter().map(|address| address >> CHUNK_SHIFT) {
        if chunk != last {
            chunks.push(chunk);
            last = chunk;
        }
        // Deduplicates early: random addresses would need one entry each.
        if chunks.len() == chunks.capacity() && chunks.len() >= 1 << 16 {
            chunks.sort_unstable();
            chunks.dedup();
        }
    }
    chunks.sort_unstable();
    chunks.dedup();
    Ok(chunks)
}

/// The number of words in the whole chunks of `bytes`, at most 2^32.
#[expect(clippy::cast_possible_truncation, reason = "at most 2^32")]
fn word_count(bytes: u64) -> Result<usize> {
    let chunks = bytes / CHUNK_BYTES as u64;
    let words = chunks * WORDS_PER_CHUNK as u64;
    if chunks == 0 || words > 1 << 32 {
        let what = format!(
            "{bytes} bytes cannot be replayed: the limits are 2 MiB and 32 GiB; replay fewer addresses or another size"
        );
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(words as usize)
}

/// Narrows an index, which [`word_count`] bounds by 2^32.
#[expect(clippy::cast_possible_truncation, reason = "below the number of words, which is at most 2^32")]
fn narrow(index: usize) -> u32 {
    debug_assert!(u32::try_from(index).is_ok(), "{index} is within 32 GiB");
    index as u32
}

/// Collects `count` indices from `source` in a list of exactly that capacity.
fn list(count: usize, source: impl Iterator<Item = u32>) -> Result<Vec<u32>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|error| Error::new(ErrorKind::OutOfMemory, error))?;
    list.extend(source.take(count));
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn all(share: f64) -> [LoadPhase; 1] {
        [LoadPhase { loads: usize::MAX, chains: Chains::waiting(share) }]
    }

    /// The number of loads of each word, and the indices in order.
    fn counted(indices: &LoadSequence, share: f64) -> (Vec<u64>, Vec<usize>) {
        let (mut counts, mut order) = (vec![0_u64; indices.words()], Vec::new());
        let load = |index: usize| {
            counts[index] += 1;
            order.push(index);
            0
        };
        assert_eq!(indices.load(&all(share), load), 0);
        (counts, order)
    }

    #[test]
    fn chunks_become_adjacent_and_loads_keep_their_order() {
        let far = 0x7f20_0000_0000;
        let addresses = [far + 5 * MIB + 4096, 0x1000, far + 5 * MIB + 4104, far, 0x1007, 0x1008];
        let indices = LoadSequence::compacted(&addresses).unwrap();
        // Three chunks: the low one, the one at `far`, and the one 4 MiB above it, with 5 MiB in
        // its middle.
        assert_eq!(indices.words(), 3 * WORDS_PER_CHUNK);
        let (low, at_far, behind) = (0, WORDS_PER_CHUNK, 2 * WORDS_PER_CHUNK + WORDS_PER_CHUNK / 2);
        let expected = [behind + 512, low + 512, behind + 513, at_far, low + 512, low + 513];
        for share in [0.0, 0.3, 0.6, 1.0] {
            let (counts, order) = counted(&indices, share);
            assert_eq!(order, expected);
            assert_eq!((counts[512], counts[513], counts.iter().sum::<u64>()), (2, 1, 6));
        }
    }

    #[test]
    fn many_scattered_addresses_are_compacted() {
        let mut random = SplitMix64::new(1);
        let addresses: Vec<u64> =
            (0..400_000).map(|_| (random.draw() % 700) * 64 * MIB + random.draw() % 4096).collect();
        let indices = LoadSequence::compacted(&addresses).unwrap();
        assert_eq!(indices.words(), 700 * WORDS_PER_CHUNK);
        for (address, index) in addresses.iter().zip(&indices.indices) {
            let chunk = usize::try_from(address / (64 * MIB)).unwrap();
            assert_eq!(*index as usize / WORDS_PER_CHUNK, chunk);
            assert_eq!(u64::from(*index) * 8 % CHUNK_BYTES as u64, (address % CHUNK_BYTES as u64) & !7);
        }
    }

    /// A dependent load uses the index xor 1, the value of the word before it.
    #[test]
    fn the_requested_share_of_loads_is_dependent() {
        let indices = LoadSequence { indices: vec![0; 100_000], words: WORDS_PER_CHUNK };
        let waiting = |share| {
            let mut waiting = 0;
            indices.load(&all(share), |index| {
                waiting += index;
                1
            });
            waiting as f64 / 100_000.0
        };
        for share in [0.0, 0.1, 0.42, 0.5, 0.7, 0.98, 0.999, 1.0] {
            assert!((waiting(share) - share).abs() < 0.003, "{share}: {}", waiting(share));
        }
        assert_eq!(Chains::waiting(0.0), Chains::NONE);
        assert_eq!(Chains::waiting(0.6).0[..4], [3, 2, 3, 2]);
        assert_eq!(Chains::waiting(1.0), Chains::ONE);
    }

    #[test]
    fn each_phase_has_its_own_chains_and_further_loads_have_none() {
        let indices = LoadSequence { indices: vec![0; 100], words: WORDS_PER_CHUNK };
        let phase = |loads, share| LoadPhase { loads, chains: Chains::waiting(share) };
        let mut waited = Vec::new();
        indices.load(&[phase(10, 1.0), phase(20, 0.0), phase(40, 0.5)], |index| {
            waited.push(index);
            1
        });
        let of = |range: std::ops::Range<usize>| waited[range].iter().sum::<usize>();
        assert_eq!([of(0..10), of(10..30), of(30..70), of(70..100)], [9, 0, 20, 0]);
        assert_eq!(indices.load(&[phase(1000, 1.0)], |_| 0), 0, "a phase may be longer than the sequence");
    }

    #[test]
    fn the_sum_is_that_of_the_loaded_words() {
        let indices = LoadSequence::random(4 * MIB, 100_000, 3).unwrap();
        let words: Vec<u64> = (0..indices.words() as u64).collect();
        let expected: u64 = indices.indices.iter().map(|index| u64::from(*index)).sum();
        assert_eq!(indices.load(&all(0.0), |index| words[index]), expected);
        // The indices cover both ends.
        assert!(
            indices.indices.iter().any(|index| *index < 1000) && indices.indices.iter().any(|index| *index > 523_288)
        );
    }

    #[test]
    fn page_by_page_visits_each_page_in_order_and_spreads_over_the_lines() {
        let indices = LoadSequence::page_by_page(2 * MIB, 2 * 512).unwrap();
        let (_, order) = counted(&indices, 1.0);
        assert!(order.iter().enumerate().all(|(step, index)| index / WORDS_PER_PAGE == step % 512));
        let lines: std::collections::BTreeSet<_> = order.iter().map(|index| index % WORDS_PER_PAGE).collect();
        assert_eq!(lines.len(), 64);
        assert_eq!(order[..512], order[512..], "the second round repeats the first");
    }

    #[test]
    fn sequences_that_cannot_be_replayed_are_rejected() {
        let why = |result: Result<LoadSequence>| result.unwrap_err().to_string();
        assert!(why(LoadSequence::compacted(&[])).contains("no address"));
        assert!(why(LoadSequence::random(MIB, 1, 1)).contains("2 MiB and 32 GiB"));
        assert!(why(LoadSequence::page_by_page(33 << 30, 1)).contains("2 MiB and 32 GiB"));
        assert!(LoadSequence::random(32 << 30, 10, 1).is_ok());
        let scattered: Vec<u64> = (0..16_385).map(|chunk| chunk * CHUNK_BYTES as u64).collect();
        assert!(why(LoadSequence::compacted(&scattered)).contains("2 MiB and 32 GiB"));
    }
}
