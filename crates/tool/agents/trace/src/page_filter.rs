//! The filter in front of the record: omits accesses that cannot miss.
//!
//! Programs alternate between two pages: the stack and a table, a loop and a function that it
//! calls. While they do, no TLB or cache with two or more ways misses, whatever its size, since no
//! third page intervenes. So only an access to a third page is recorded. Before it, the page used
//! last is recorded, unless it is the one recorded last. That keeps both pages in the order of
//! their use, so that LRU replacement works as with all accesses.

const PAGE_SHIFT: u32 = 12;

/// The two pages used last. Zero stands for none: no program uses page zero.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PageFilter {
    /// The page used last.
    pub(crate) last: u64,
    /// The other page.
    second: u64,
    /// The page recorded last.
    recorded: u64,
}

/// What to do for an access to another page than the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterResult {
    /// Nothing: it is to the page before that one.
    Skip,
    /// Record it, after a record of this address if the order requires that.
    Record(Option<u64>),
}

impl PageFilter {
    /// Notes an access to `page`, which is not the last one.
    #[inline(always)]
    pub(crate) fn change_page(&mut self, page: u64) -> FilterResult {
        let before = std::mem::replace(&mut self.last, page);
        let is_back = page == self.second;
        self.second = before;
        if is_back {
            return FilterResult::Skip;
        }
        let recorded = std::mem::replace(&mut self.recorded, page);
        FilterResult::Record((recorded != before).then_some(before << PAGE_SHIFT))
    }

    /// No page used yet.
    pub(crate) const NONE: Self = Self { last: 0, second: 0, recorded: 0 };

    /// Resets the filter, so that the next access is recorded.
    pub(crate) fn clear(&mut self) {
        *self = Self::NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The misses of a set of `ways` entries with LRU replacement.
    fn misses(ways: usize, pages: &[u64]) -> Vec<u64> {
        let mut set: Vec<u64> = Vec::new();
        let mut missed = Vec::new();
        for &page in pages {
            match set.iter().position(|&cached| cached == page) {
                Some(at) => drop(set.remove(at)),
                None => {
                    missed.push(page);
                    set.truncate(ways - 1);
                }
            }
            set.insert(0, page);
        }
        missed
    }

    #[test]
    fn omitted_accesses_change_no_miss() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for ways in 2..6 {
            let mut recent = PageFilter::NONE;
            let (mut all, mut recorded) = (Vec::new(), Vec::new());
            for _ in 0..20_000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let page = 1 + random % 8;
                all.push(page);
                if page == recent.last {
                    continue;
                }
                if let FilterResult::Record(order) = recent.change_page(page) {
                    recorded.extend(order.map(|address| address >> PAGE_SHIFT).into_iter().chain([page]));
                }
            }
            assert!(recorded.len() < all.len(), "some accesses are omitted");
            assert_eq!(misses(ways, &all), misses(ways, &recorded), "{ways} ways");
        }
    }

    #[test]
    fn two_alternating_pages_are_recorded_once() {
        let mut recent = PageFilter::NONE;
        let recorded = (0..100).filter(|round| recent.change_page(1 + round % 2) != FilterResult::Skip).count();
        assert_eq!(recorded, 2);
    }
}
