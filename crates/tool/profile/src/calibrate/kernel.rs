//! Loads at the places of a list: a program's own addresses, or a pattern, done again in one plain array of words.
//!
//! ```text
//! addresses   0x7f20_0123_4568   0x5581_0040_0010   0x7f20_0003_0000      touched 2 MiB chunks, far apart
//!                    \                 |                 /
//! words       | chunk 0x5581_004.. | chunk 0x7f20_000.. | chunk 0x7f20_012.. |     the same chunks, side by side
//! ```
//! What is in one page, one page table or one cache line in the program is so here; only the distance between chunks is lost, and
//! with it what the upper levels of the page table cost. The loads are done in the list's order, in chains:
//!
//! ```text
//! places   3 9 4 7 1 8 2 ...     chains of 2, 1 loads     3 → 9   4   7 → 1   8   2 → ...
//! ```
//! The first of a chain waits for nothing: its address is known before, and a CPU does as many chains at once as it can. The address of
//! each other one is xored with the word that was loaded before it. All words are 0, which only the memory knows, so that it waits. A
//! list of pointers is one chain; a table that is read at random, a chain a load; a real program lies between the two.
//! The list itself is read in order, 4 bytes a load, on whatever pages it lies.

use std::io::{Error, ErrorKind, Result};

#[cfg(test)]
use fieldstone_stats::random::{SplitMix64, scale};

/// What is moved as one: a huge page.
pub(super) const CHUNK_BYTES: usize = 2 << 20;
const CHUNK_SHIFT: u32 = CHUNK_BYTES.trailing_zeros();
const WORDS_PER_CHUNK: usize = CHUNK_BYTES / size_of::<u64>();
const WORDS_PER_PAGE: usize = 4096 / size_of::<u64>();
const WORDS_PER_LINE: usize = 64 / size_of::<u64>();

/// Lengths of chains, round and round.
const LENGTHS: usize = 64;

/// How loads wait for each other: the lengths of the chains that they make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chains([usize; LENGTHS]);

impl Chains {
    /// No load waits for another.
    pub(super) const NONE: Self = Self([1; LENGTHS]);
    /// Each load waits for the one before.
    pub(super) const ONE: Self = Self([usize::MAX; LENGTHS]);

    /// Chains in which `share` (0 to 1) of all loads wait for another. Their lengths differ by one at most.
    #[must_use]
    pub(super) fn waiting(share: f64) -> Self {
        let mean = 1.0 / (1.0 - share.clamp(0.0, 1.0));
        if mean > 1e9 {
            return Self::ONE;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to some thousand millions")]
        let end = |chain: usize| (chain as f64 * mean).round() as usize;
        Self(std::array::from_fn(|chain| end(chain + 1) - end(chain)))
    }
}

/// So many loads that follow each other, in such chains: a phase of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Loads.
    pub(super) loads: usize,
    /// How they wait for each other.
    pub(super) chains: Chains,
}

/// Places in an array of words, in the order of their loads.
#[derive(Clone, Debug)]
pub(super) struct Places {
    places: Vec<u32>,
    words: usize,
}

impl Places {
    /// The places of `addresses`, once their chunks lie side by side, in address order.
    ///
    /// # Errors
    /// `InvalidInput` without any address and when the chunks have more than 2^32 words (32 GiB); `OutOfMemory`.
    pub(super) fn compacted(addresses: &[u64]) -> Result<Self> {
        let chunks = chunks(addresses)?;
        let words = word_count(chunks.len() as u64 * CHUNK_BYTES as u64)?;
        let mut last = (u64::MAX, 0);
        let place = |address: &u64| {
            let chunk = address >> CHUNK_SHIFT;
            if chunk != last.0 {
                last = (chunk, chunks.partition_point(|other| *other < chunk) * WORDS_PER_CHUNK);
            }
            #[expect(clippy::cast_possible_truncation, reason = "the word within a chunk")]
            let word = (address % CHUNK_BYTES as u64) as usize / size_of::<u64>();
            narrow(last.1 + word)
        };
        Ok(Self { places: list(addresses.len(), addresses.iter().map(place))?, words })
    }

    /// `count` places, each anywhere in `bytes`.
    #[cfg(test)]
    pub(super) fn random(bytes: u64, count: usize, seed: u64) -> Result<Self> {
        let words = word_count(bytes)?;
        let mut random = SplitMix64::new(seed);
        Ok(Self { places: list(count, (0..count).map(|_| narrow(scale(random.draw(), words))))?, words })
    }

    /// `count` places, a page of 4 KiB apart, round and round in `bytes`; each page's at another line, since lines a page apart
    /// share a set of the cache.
    ///
    /// # Errors
    /// As [`Self::compacted`].
    pub(super) fn page_by_page(bytes: u64, count: usize) -> Result<Self> {
        let words = word_count(bytes)?;
        let pages = words / WORDS_PER_PAGE;
        let place = |step: usize| {
            let page = step % pages;
            narrow(page * WORDS_PER_PAGE + page * WORDS_PER_LINE % WORDS_PER_PAGE)
        };
        Ok(Self { places: list(count, (0..count).map(place))?, words })
    }

    /// Words that the array must have: every place is below. Whole chunks.
    #[must_use]
    pub(super) const fn words(&self) -> usize {
        self.words
    }

    /// Number of loads.
    #[must_use]
    pub(super) const fn len(&self) -> usize {
        self.places.len()
    }

    /// All loads, stretch by stretch, what is left over like none; the sum of the last of each chain. `load` is given places below
    /// [`Self::words`] as long as it returns 0.
    #[inline(always)]
    pub(super) fn load(&self, stretches: &[Stretch], mut load: impl FnMut(usize) -> u64) -> u64 {
        let (mut rest, mut sum) = (&self.places[..], 0_u64);
        for stretch in stretches {
            let (own, after) = rest.split_at(stretch.loads.min(rest.len()));
            sum = sum.wrapping_add(load_in(stretch.chains, own, &mut load));
            rest = after;
        }
        sum.wrapping_add(load_in(Chains::NONE, rest, &mut load))
    }
}

/// The loads of a stretch.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "a zero")]
fn load_in(chains: Chains, places: &[u32], load: &mut impl FnMut(usize) -> u64) -> u64 {
    if chains == Chains::NONE {
        // With as little around a load as can be.
        return places.iter().fold(0, |sum, &place| sum.wrapping_add(load(place as usize)));
    }
    let (mut places, mut sum) = (places.iter(), 0_u64);
    for &length in chains.0.iter().cycle() {
        let Some(&first) = places.next() else { break };
        let rest = places.by_ref().take(length - 1);
        let last = rest.fold(load(first as usize), |zero, &place| load(place as usize ^ zero as usize));
        sum = sum.wrapping_add(last);
    }
    sum
}

/// The numbers of the chunks that are touched, in order, each once.
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
        // Random addresses would make as many entries as there are addresses.
        if chunks.len() == chunks.capacity() && chunks.len() >= 1 << 16 {
            chunks.sort_unstable();
            chunks.dedup();
        }
    }
    chunks.sort_unstable();
    chunks.dedup();
    Ok(chunks)
}

/// Words in the whole chunks of `bytes`, if a place can name them all.
#[expect(clippy::cast_possible_truncation, reason = "at most 2^32")]
fn word_count(bytes: u64) -> Result<usize> {
    let chunks = bytes / CHUNK_BYTES as u64;
    let words = chunks * WORDS_PER_CHUNK as u64;
    if chunks == 0 || words > 1 << 32 {
        let what =
            format!("{bytes} bytes cannot be replayed: it is 2 MiB to 32 GiB; take fewer addresses or another size");
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(words as usize)
}

/// A place, which is below 2^32 since [`word_count`] said so.
#[expect(clippy::cast_possible_truncation, reason = "below the number of words, which is at most 2^32")]
fn narrow(place: usize) -> u32 {
    debug_assert!(u32::try_from(place).is_ok(), "{place} is within 32 GiB");
    place as u32
}

/// The places that `source` gives, `count` of them, in a list of exactly that capacity.
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

    fn all(share: f64) -> [Stretch; 1] {
        [Stretch { loads: usize::MAX, chains: Chains::waiting(share) }]
    }

    /// How often each word is loaded, counted in the array itself, and the places in order.
    fn counted(places: &Places, share: f64) -> (Vec<u64>, Vec<usize>) {
        let (mut counts, mut order) = (vec![0_u64; places.words()], Vec::new());
        let load = |place: usize| {
            counts[place] += 1;
            order.push(place);
            0
        };
        assert_eq!(places.load(&all(share), load), 0);
        (counts, order)
    }

    #[test]
    fn chunks_lie_side_by_side_and_places_keep_their_order() {
        let far = 0x7f20_0000_0000;
        let addresses = [far + 5 * MIB + 4096, 0x1000, far + 5 * MIB + 4104, far, 0x1007, 0x1008];
        let places = Places::compacted(&addresses).unwrap();
        // Three chunks: the low one, the one at `far`, the one at 4 MiB behind it, in which 5 MiB is the middle.
        assert_eq!(places.words(), 3 * WORDS_PER_CHUNK);
        let (low, at_far, behind) = (0, WORDS_PER_CHUNK, 2 * WORDS_PER_CHUNK + WORDS_PER_CHUNK / 2);
        let expected = [behind + 512, low + 512, behind + 513, at_far, low + 512, low + 513];
        for share in [0.0, 0.3, 0.6, 1.0] {
            let (counts, order) = counted(&places, share);
            assert_eq!(order, expected);
            assert_eq!((counts[512], counts[513], counts.iter().sum::<u64>()), (2, 1, 6));
        }
    }

    #[test]
    fn many_scattered_addresses_are_compacted() {
        let mut random = SplitMix64::new(1);
        let addresses: Vec<u64> =
            (0..400_000).map(|_| (random.draw() % 700) * 64 * MIB + random.draw() % 4096).collect();
        let places = Places::compacted(&addresses).unwrap();
        assert_eq!(places.words(), 700 * WORDS_PER_CHUNK);
        for (address, place) in addresses.iter().zip(&places.places) {
            let chunk = usize::try_from(address / (64 * MIB)).unwrap();
            assert_eq!(*place as usize / WORDS_PER_CHUNK, chunk);
            assert_eq!(u64::from(*place) * 8 % CHUNK_BYTES as u64, (address % CHUNK_BYTES as u64) & !7);
        }
    }

    /// Whoever waits goes where the word before it says.
    #[test]
    fn as_many_loads_wait_as_are_asked_for() {
        let places = Places { places: vec![0; 100_000], words: WORDS_PER_CHUNK };
        let waiting = |share| {
            let mut waiting = 0;
            places.load(&all(share), |place| {
                waiting += place;
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
    fn each_stretch_waits_by_itself_and_what_is_left_not_at_all() {
        let places = Places { places: vec![0; 100], words: WORDS_PER_CHUNK };
        let stretch = |loads, share| Stretch { loads, chains: Chains::waiting(share) };
        let mut waited = Vec::new();
        places.load(&[stretch(10, 1.0), stretch(20, 0.0), stretch(40, 0.5)], |place| {
            waited.push(place);
            1
        });
        let of = |range: std::ops::Range<usize>| waited[range].iter().sum::<usize>();
        assert_eq!([of(0..10), of(10..30), of(30..70), of(70..100)], [9, 0, 20, 0]);
        assert_eq!(places.load(&[stretch(1000, 1.0)], |_| 0), 0, "a stretch may be longer than the list");
    }

    #[test]
    fn sums_are_those_of_the_words() {
        let places = Places::random(4 * MIB, 100_000, 3).unwrap();
        let words: Vec<u64> = (0..places.words() as u64).collect();
        let expected: u64 = places.places.iter().map(|place| u64::from(*place)).sum();
        assert_eq!(places.load(&all(0.0), |place| words[place]), expected);
        // Both ends are reached.
        assert!(places.places.iter().any(|place| *place < 1000) && places.places.iter().any(|place| *place > 523_288));
    }

    #[test]
    fn page_by_page_visits_each_page_in_turn_and_spreads_over_the_lines() {
        let places = Places::page_by_page(2 * MIB, 2 * 512).unwrap();
        let (_, order) = counted(&places, 1.0);
        assert!(order.iter().enumerate().all(|(step, place)| place / WORDS_PER_PAGE == step % 512));
        let lines: std::collections::BTreeSet<_> = order.iter().map(|place| place % WORDS_PER_PAGE).collect();
        assert_eq!(lines.len(), 64);
        assert_eq!(order[..512], order[512..], "the second round is the first");
    }

    #[test]
    fn what_cannot_be_replayed_is_refused() {
        let why = |result: Result<Places>| result.unwrap_err().to_string();
        assert!(why(Places::compacted(&[])).contains("no address"));
        assert!(why(Places::random(MIB, 1, 1)).contains("2 MiB to 32 GiB"));
        assert!(why(Places::page_by_page(33 << 30, 1)).contains("2 MiB to 32 GiB"));
        assert!(Places::random(32 << 30, 10, 1).is_ok());
        let scattered: Vec<u64> = (0..16_385).map(|chunk| chunk * CHUNK_BYTES as u64).collect();
        assert!(why(Places::compacted(&scattered)).contains("2 MiB to 32 GiB"));
    }
}
