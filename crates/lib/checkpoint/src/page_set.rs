//! A set of pages of a memory.

use std::ops::Range;

/// One bit for each page.
#[derive(Clone, Debug)]
pub(crate) struct PageSet {
    words: Vec<u64>,
}

impl PageSet {
    /// An empty set for a number of pages.
    pub(crate) fn new(pages: usize) -> Self {
        Self { words: vec![0; pages.div_ceil(64)] }
    }

    pub(crate) fn insert(&mut self, pages: Range<usize>) {
        for page in pages {
            self.words[page / 64] |= 1 << (page % 64);
        }
    }

    pub(crate) fn remove(&mut self, pages: Range<usize>) {
        for page in pages {
            self.words[page / 64] &= !(1 << (page % 64));
        }
    }

    /// Whether one of the pages is in the set.
    pub(crate) fn has_any(&self, pages: Range<usize>) -> bool {
        self.find(pages.start, true).is_some_and(|page| page < pages.end)
    }

    /// Adds the pages of another set.
    pub(crate) fn add(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Runs of adjacent pages, lowest first.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut next = 0;
        std::iter::from_fn(move || {
            let start = self.find(next, true)?;
            let end = self.find(start, false).unwrap_or(self.words.len() * 64);
            next = end;
            Some(start..end)
        })
    }

    /// The first page from `from` on that is in the set, or is not.
    fn find(&self, from: usize, is_in: bool) -> Option<usize> {
        let mut at = from;
        while at < self.words.len() * 64 {
            let word = if is_in { self.words[at / 64] } else { !self.words[at / 64] };
            let rest = word >> (at % 64);
            if rest != 0 {
                return Some(at + rest.trailing_zeros() as usize);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_those_of_a_list() {
        let mut set = PageSet::new(200);
        for run in [0..1, 3..5, 60..70, 127..128, 190..200] {
            set.insert(run);
        }
        assert_eq!(set.runs().collect::<Vec<_>>(), [0..1, 3..5, 60..70, 127..128, 190..200]);
        assert!(set.has_any(5..61) && !set.has_any(5..60));
        let mut other = PageSet::new(200);
        other.insert(5..60);
        set.add(&other);
        assert_eq!(set.runs().nth(1), Some(3..70));
        set.remove(4..60);
        assert_eq!(set.runs().take(3).collect::<Vec<_>>(), [0..1, 3..4, 60..70]);
        set.clear();
        assert_eq!(set.runs().next(), None);
        set.insert(0..192);
        assert_eq!((set.runs().next(), set.runs().count()), (Some(0..192), 1));
    }
}
