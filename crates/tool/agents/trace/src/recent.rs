//! The filter in front of the record.
//!
//! Programs go back and forth between two pages: the stack and a table, a loop and the function it calls. As long as they
//! do, no structure with two ways or more can miss, whatever its size, since nothing else comes in between. So only an
//! access to a third page is recorded; before it, the page touched last, if it is not the one recorded last: that puts the two
//! in the order in which they were used, and least-recently-used replacement goes on as if nothing had been left out.

const PAGE_SHIFT: u32 = 12;

/// The two pages used last. Zero stands for none: no program has anything there.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Recent {
    /// The page used last.
    pub(crate) last: u64,
    /// The other page.
    second: u64,
    /// The page recorded last.
    recorded: u64,
}

/// What an access to another page than the one before it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Nothing: it is back on the page before that one.
    Back,
    /// A record, with one for this address before it where the order needs that.
    On(Option<u64>),
}

impl Recent {
    /// Notes an access to `page`, which is not the last one.
    #[inline(always)]
    pub(crate) fn turn_to(&mut self, page: u64) -> Turn {
        let before = std::mem::replace(&mut self.last, page);
        let is_back = page == self.second;
        self.second = before;
        if is_back {
            return Turn::Back;
        }
        let recorded = std::mem::replace(&mut self.recorded, page);
        Turn::On((recorded != before).then_some(before << PAGE_SHIFT))
    }

    /// Nothing used yet.
    pub(crate) const NONE: Self = Self { last: 0, second: 0, recorded: 0 };

    /// Forgets, so that the next access is recorded whatever it is.
    pub(crate) fn clear(&mut self) {
        *self = Self::NONE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Least recently used, in one set of `ways`: the misses of each access.
    fn misses(ways: usize, pages: &[u64]) -> Vec<u64> {
        let mut set: Vec<u64> = Vec::new();
        let mut missed = Vec::new();
        for &page in pages {
            match set.iter().position(|&held| held == page) {
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
    fn what_is_left_out_changes_no_miss() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for ways in 2..6 {
            let mut recent = Recent::NONE;
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
                if let Turn::On(order) = recent.turn_to(page) {
                    recorded.extend(order.map(|address| address >> PAGE_SHIFT).into_iter().chain([page]));
                }
            }
            assert!(recorded.len() < all.len(), "something is left out");
            assert_eq!(misses(ways, &all), misses(ways, &recorded), "{ways} ways");
        }
    }

    #[test]
    fn two_pages_in_turn_are_recorded_once() {
        let mut recent = Recent::NONE;
        let recorded = (0..100).filter(|turn| recent.turn_to(1 + turn % 2) != Turn::Back).count();
        assert_eq!(recorded, 2);
    }
}
