//! Bitmaps of 512 bits, one bit for each page of a granule. Any number of threads claim and free
//! runs of bits.

use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Bits in a map.
pub(crate) const PAGES: usize = 512;

/// The map: page `p` is bit `p % 64` of word `p / 64`.
pub(crate) type Words = [AtomicU64; PAGES / 64];

/// The bits of word `word` that belong to the run `first..first + count`.
fn mask(word: usize, first: usize, count: usize) -> u64 {
    let low = first.max(word * 64);
    let high = (first + count).min(word * 64 + 64);
    if low >= high {
        return 0;
    }
    let bits = high - low;
    let run = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    run << (low % 64)
}

/// Sets every word to `value`.
pub(crate) fn fill(words: &Words, value: u64) {
    words.iter().for_each(|word| word.store(value, SeqCst));
}

/// Sets the bits of the run.
pub(crate) fn set(words: &Words, first: usize, count: usize) {
    for (index, word) in words.iter().enumerate() {
        word.fetch_or(mask(index, first, count), SeqCst);
    }
}

/// Clears the bits of the run.
pub(crate) fn clear(words: &Words, first: usize, count: usize) {
    for (index, word) in words.iter().enumerate() {
        word.fetch_and(!mask(index, first, count), SeqCst);
    }
}

/// Clears every word and returns the old values.
pub(crate) fn take(words: &Words) -> [u64; PAGES / 64] {
    core::array::from_fn(|index| words[index].swap(0, SeqCst))
}

/// Clears the bits that are set in `others`.
pub(crate) fn clear_words(words: &Words, others: [u64; PAGES / 64]) {
    words.iter().zip(others).for_each(|(word, other)| {
        word.fetch_and(!other, SeqCst);
    });
}

/// Whether every bit of the run is set.
pub(crate) fn all_set(words: &Words, first: usize, count: usize) -> bool {
    words.iter().enumerate().all(|(index, word)| {
        let run = mask(index, first, count);
        word.load(SeqCst) & run == run
    })
}

/// The maximal runs of equal bits in `first..first + count`: first bit, length, whether the bits
/// are set.
pub(crate) fn runs(words: &Words, first: usize, count: usize) -> impl Iterator<Item = (usize, usize, bool)> {
    let is_set = |bit: usize| words[bit / 64].load(SeqCst) >> (bit % 64) & 1 == 1;
    let end = first + count;
    let mut at = first;
    core::iter::from_fn(move || {
        let (start, set) = (at, at < end && is_set(at));
        at = (start..end).find(|&bit| is_set(bit) != set).unwrap_or(end);
        (start < end).then_some((start, at - start, set))
    })
}

/// Whether no bit is set.
pub(crate) fn is_empty(words: &Words) -> bool {
    words.iter().all(|word| word.load(SeqCst) == 0)
}

/// Sets a run if all of it is clear. Otherwise returns false and restores the bits that it set.
pub(crate) fn claim_run(words: &Words, first: usize, count: usize) -> bool {
    for (index, word) in words.iter().enumerate() {
        let run = mask(index, first, count);
        if run == 0 {
            continue;
        }
        let before = word.fetch_or(run, SeqCst);
        if before & run != 0 {
            word.fetch_and(!(run & !before), SeqCst);
            for (earlier, word) in words.iter().enumerate().take(index) {
                word.fetch_and(!mask(earlier, first, count), SeqCst);
            }
            return false;
        }
    }
    true
}

/// Claims the first run of `count` clear bits and returns its first bit.
///
/// # Errors
/// The length of the longest clear run.
pub(crate) fn claim(words: &Words, count: usize) -> Result<usize, usize> {
    let mut longest = 0;
    let mut run = 0;
    let mut page = 0;
    while page < PAGES {
        if words[page / 64].load(SeqCst) >> (page % 64) & 1 == 1 {
            run = 0;
        } else {
            run += 1;
            longest = longest.max(run);
        }
        page += 1;
        if run == count {
            if claim_run(words, page - count, count) {
                return Ok(page - count);
            }
            run = 0;
        }
    }
    Err(if longest >= count { PAGES } else { longest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Words {
        [const { AtomicU64::new(0) }; PAGES / 64]
    }

    #[test]
    fn runs_are_claimed_lowest_first_and_across_words() {
        let map = words();
        assert_eq!(claim(&map, 60), Ok(0));
        assert_eq!(claim(&map, 70), Ok(60));
        assert!(all_set(&map, 0, 130));
        assert!(!all_set(&map, 0, 131));
        clear(&map, 60, 70);
        assert_eq!(claim(&map, 71), Ok(60), "the freed run and its free neighbour are one");
    }

    #[test]
    fn a_failed_claim_returns_the_longest_free_run() {
        let map = words();
        fill(&map, u64::MAX);
        clear(&map, 100, 30);
        clear(&map, 200, 64);
        assert_eq!(claim(&map, 65), Err(64));
        assert_eq!(claim(&map, 64), Ok(200));
        assert_eq!(claim(&map, 31), Err(30));
    }

    #[test]
    fn runs_alternate_and_cover_the_range() {
        let map = words();
        set(&map, 60, 10);
        assert_eq!(
            runs(&map, 50, 30).collect::<std::vec::Vec<_>>(),
            [(50, 10, false), (60, 10, true), (70, 10, false)]
        );
        assert_eq!(runs(&map, 61, 2).collect::<std::vec::Vec<_>>(), [(61, 2, true)]);
        assert_eq!(runs(&map, 61, 0).count(), 0);
        assert_eq!(runs(&map, 500, 12).collect::<std::vec::Vec<_>>(), [(500, 12, false)]);
    }

    #[test]
    fn a_failed_claim_changes_no_bit() {
        let map = words();
        set(&map, 300, 1);
        assert!(!claim_run(&map, 250, 100));
        clear(&map, 300, 1);
        assert!(is_empty(&map));
    }

    #[test]
    fn masks_agree_with_single_bits() {
        for (first, count) in [(0, 1), (0, 64), (1, 63), (63, 2), (5, 500), (511, 1), (0, 512)] {
            let map = words();
            set(&map, first, count);
            for page in 0..PAGES {
                let bit = map[page / 64].load(SeqCst) >> (page % 64) & 1;
                assert_eq!(bit == 1, (first..first + count).contains(&page), "page {page} of {first}+{count}");
            }
        }
    }
}
