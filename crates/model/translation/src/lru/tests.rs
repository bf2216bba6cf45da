//! Compares the tables with a naive model: vectors in LRU order.

use proptest::prelude::*;

use super::LruTable;
use super::list::LruList;
use super::sets::Sets;

/// Sets as vectors, the most recent key first.
struct NaiveSets {
    sets: Vec<Vec<u64>>,
    ways: usize,
}

impl NaiveSets {
    fn new(count: u32, ways: u32) -> Self {
        Self { sets: vec![Vec::new(); count as usize], ways: ways as usize }
    }

    fn touch(&mut self, page: u64, key: u64) -> bool {
        let number = usize::try_from(page).unwrap() % self.sets.len();
        let set = &mut self.sets[number];
        let old = set.iter().position(|&other| other == key);
        if let Some(place) = old {
            set.remove(place);
        }
        set.insert(0, key);
        set.truncate(self.ways);
        old.is_some()
    }
}

proptest! {
    #[test]
    fn sets_match_the_naive_model(count in 1_u32..20, ways in 1_u32..26, pages in prop::collection::vec(0_u64..300, 1..800)) {
        let (mut sets, mut naive) = (Sets::new(count, ways), NaiveSets::new(count, ways));
        for page in pages {
            prop_assert_eq!(sets.touch(page, page + 1), naive.touch(page, page + 1), "page {}", page);
        }
    }

    #[test]
    fn a_list_matches_one_naive_set(entries in 1_u32..100, pages in prop::collection::vec(0_u64..150, 1..800), clear_at in 0_usize..800) {
        let (mut list, mut naive) = (LruList::new(entries), NaiveSets::new(1, entries));
        for (at, page) in pages.into_iter().enumerate() {
            if at == clear_at {
                list.clear();
                naive = NaiveSets::new(1, entries);
            }
            prop_assert_eq!(list.touch(page + 1), naive.touch(0, page + 1), "page {}", page);
        }
    }
}

#[test]
fn long_fully_associative_tables_are_lists() {
    assert!(matches!(LruTable::full(72), LruTable::List(_)));
    assert!(matches!(LruTable::full(32), LruTable::Sets(_)));
    assert!(matches!(LruTable::new(3072, 24), LruTable::Sets(_)));
}

#[test]
fn the_longest_list_holds_its_maximum() {
    let mut list = LruList::new(LruTable::MAX_FULL);
    let pages = u64::from(LruTable::MAX_FULL);
    assert!((1..=pages).all(|key| !list.touch(key)));
    assert!((1..=pages).all(|key| list.touch(key)), "all keys are present");
    assert!(!list.touch(pages + 1) && !list.touch(1), "one more key evicts the oldest");
    assert!(list.touch(3), "the next one stays");
}
