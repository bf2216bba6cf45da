//! Tests of the table: single steps, then threads that check each other.

use core::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::vec::Vec;

use super::*;

fn bits(table: &RegionTable, granule: usize) -> &PageBits {
    table.pages(granule).unwrap()
}

#[test]
fn free_granules_are_claimed_lowest_first() {
    static TABLE: RegionTable = RegionTable::new();
    TABLE.set_floor(10);
    assert_eq!(TABLE.claim_free(3, 1), Some(10));
    assert_eq!(TABLE.claim_free(1, 8), Some(16), "aligned");
    assert_eq!(TABLE.claim_free(3, 1), Some(13));
    assert_eq!(TABLE.claim_free(2, 1), Some(17), "16 is taken");
    assert_eq!(TABLE.high(), 19);
    TABLE.free(11);
    assert_eq!(TABLE.claim_free(2, 1), Some(19));
    assert_eq!(TABLE.claim_free(1, 1), Some(11), "a freed granule is found again");
}

#[test]
fn more_than_the_region_is_never_claimed() {
    static TABLE: RegionTable = RegionTable::new();
    assert_eq!(TABLE.claim_free(GRANULES + 1, 1), None);
    assert_eq!(TABLE.claim_at(GranuleState::Free, GRANULES - 1, 2), Err(GRANULES - 1));
    assert_eq!(TABLE.state(GRANULES - 1), GranuleState::Free);
    assert_eq!(TABLE.claim_free(GRANULES, 1), Some(0));
    assert_eq!(TABLE.claim_free(1, 1), None);
}

#[test]
fn a_reserve_is_claimed_within_its_bounds() {
    static TABLE: RegionTable = RegionTable::new();
    TABLE.set_states(4..12, GranuleState::Reserved);
    assert_eq!(TABLE.claim_from(GranuleState::Reserved, 4..12, 3), Some(4));
    assert_eq!(TABLE.claim_from(GranuleState::ReservedHuge, 4..12, 1), None, "in another state");
    assert_eq!(TABLE.claim_from(GranuleState::Reserved, 4..12, 6), None, "more than remain");
    assert_eq!(TABLE.claim_from(GranuleState::Reserved, 4..12, 5), Some(7));
    TABLE.set_state(12, GranuleState::Reserved);
    assert_eq!(TABLE.claim_from(GranuleState::Reserved, 4..12, 1), None);
}

#[test]
fn a_claim_that_fails_claims_nothing() {
    static TABLE: RegionTable = RegionTable::new();
    TABLE.set_state(3, GranuleState::Split);
    assert_eq!(TABLE.claim_at(GranuleState::Free, 0, 8), Err(3));
    for granule in (0..8).filter(|&granule| granule != 3) {
        assert_eq!(TABLE.state(granule), GranuleState::Free, "granule {granule}");
    }
    assert_eq!(TABLE.high(), 0);
}

#[test]
fn a_busy_granule_is_not_marked_again() {
    static TABLE: RegionTable = RegionTable::new();
    (0..4).for_each(|granule| TABLE.set_full(granule, bits(&TABLE, granule), GranuleState::Huge));
    TABLE.set_state(2, GranuleState::Split);
    assert_eq!(TABLE.mark_busy(0..4, GranuleState::Huge), 2, "up to the first that is not hugetlb");
    assert_eq!(TABLE.mark_busy(0..4, GranuleState::Huge), 0);
    TABLE.set_states(0..2, GranuleState::Huge);
    assert_eq!(TABLE.state(1), GranuleState::Huge);
}

#[test]
fn pages_of_a_split_granule_are_claimed_once() {
    static TABLE: RegionTable = RegionTable::new();
    let granule = TABLE.claim_free(1, 1).unwrap();
    let pages = bits(&TABLE, granule);
    TABLE.open_split(granule, pages, 0, 500, true);
    assert!(bits::all_set(&pages.spare, 500, 12) && !bits::all_set(&pages.spare, 499, 1));
    assert_eq!(TABLE.claim_pages(0..1, 13), None);
    assert_eq!(TABLE.claim_pages(0..1, 12), Some((granule, 500)));
    assert!(!TABLE.free_pages(granule, pages, 0, 500));
    assert_eq!(TABLE.claim_pages(0..1, 500), Some((granule, 0)), "the free run is known again");
    assert!(!TABLE.free_pages(granule, pages, 0, 500));
    assert!(!TABLE.claim_all_pages(granule, pages), "twelve pages are used");
    assert!(TABLE.free_pages(granule, pages, 500, 12));
    assert!(TABLE.claim_all_pages(granule, pages));
    assert_eq!(TABLE.claim_pages(0..1, 1), None, "a claimed granule has no free pages");
    assert!(!TABLE.claim_all_pages(granule, pages), "it is claimed only once");
}

#[test]
fn a_whole_granule_is_split_with_all_its_pages_used() {
    static TABLE: RegionTable = RegionTable::new();
    let granule = TABLE.claim_free(1, 1).unwrap();
    let pages = bits(&TABLE, granule);
    assert!(TABLE.split_whole(granule, pages) && TABLE.split_whole(granule, pages), "splitting twice is allowed");
    assert_eq!(TABLE.claim_pages(0..1, 1), None);
    TABLE.free_pages(granule, pages, 7, 2);
    assert_eq!(TABLE.claim_pages(0..1, 2), Some((granule, 7)));
    assert!(!TABLE.split_whole(granule + 1, pages), "a free granule cannot be split");
}

#[test]
fn a_split_hugetlb_granule_has_only_its_spare_pages_free() {
    static TABLE: RegionTable = RegionTable::new();
    let granule = TABLE.claim_free(1, 1).unwrap();
    let pages = bits(&TABLE, granule);
    TABLE.set_full(granule, pages, GranuleState::Huge);
    bits::set(&pages.spare, 300, PAGES - 300);
    assert_eq!(TABLE.claim_pages(0..1, 1), None, "pages of a hugetlb granule cannot be claimed");
    assert_eq!(TABLE.mark_busy(granule..granule + 1, GranuleState::Huge), 1);
    TABLE.split_hugetlb(granule, pages);
    assert!(bits::is_empty(&pages.spare));
    assert_eq!(TABLE.claim_pages(0..1, PAGES - 300), Some((granule, 300)));
    assert_eq!(TABLE.claim_pages(0..1, 1), None);
}

const THREADS: u16 = 4;
const STEPS: usize = 30_000;
/// More granules than the threads ever claim at a time.
const CHECKED: usize = 256;

/// The thread that owns each page; zero if none. Checks the threads below.
static OWNERS: [AtomicU16; CHECKED * PAGES] = [const { AtomicU16::new(0) }; CHECKED * PAGES];
static SHARED: RegionTable = RegionTable::new();

/// Pages of one granule that a thread owns.
#[derive(Clone, Copy)]
struct GranulePiece {
    granule: usize,
    first: usize,
    pages: usize,
}

impl GranulePiece {
    fn whole(granule: usize) -> Self {
        Self { granule, first: 0, pages: PAGES }
    }

    /// Changes the owner of every page; each has to change from `from`.
    fn change_owner(self, from: u16, to: u16) {
        let start = self.granule * PAGES + self.first;
        for (page, owner) in OWNERS[start..start + self.pages].iter().enumerate() {
            let before = owner.swap(to, SeqCst);
            assert_eq!(before, from, "page {page} of granule {} from {from} to {to}", self.granule);
        }
    }
}

struct TableThread {
    id: u16,
    random: u64,
    pieces: Vec<GranulePiece>,
}

impl TableThread {
    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random as usize % bound
    }

    fn take(&mut self, piece: GranulePiece) {
        piece.change_owner(0, self.id);
        self.pieces.push(piece);
    }

    fn claim(&mut self) {
        match self.below(4) {
            0 => {
                let (count, align) = (1 + self.below(4), 1 << self.below(3));
                let first = SHARED.claim_free(count, align).unwrap();
                assert!(first.is_multiple_of(align));
                (first..first + count).for_each(|granule| self.take(GranulePiece::whole(granule)));
            }
            1 => {
                let (granule, pages) = (SHARED.claim_free(1, 1).unwrap(), 1 + self.below(PAGES));
                self.take(GranulePiece { granule, first: 0, pages });
                SHARED.open_split(granule, bits(&SHARED, granule), 0, pages, true);
            }
            2 => self.claim_huge(),
            _ => {
                let pages = 1 + self.below(64);
                if let Some((granule, first)) = SHARED.claim_pages(0..SHARED.high(), pages) {
                    self.take(GranulePiece { granule, first, pages });
                }
            }
        }
    }

    /// Claims a hugetlb page with a spare end, and makes it Split at once.
    fn claim_huge(&mut self) {
        let (granule, pages) = (SHARED.claim_free(1, 1).unwrap(), 1 + self.below(PAGES));
        self.take(GranulePiece { granule, first: 0, pages });
        let table = bits(&SHARED, granule);
        SHARED.set_full(granule, table, GranuleState::Huge);
        bits::set(&table.spare, pages, PAGES - pages);
        assert_eq!(SHARED.mark_busy(granule..granule + 1, GranuleState::Huge), 1);
        SHARED.split_hugetlb(granule, table);
    }

    fn free(&mut self) {
        let index = self.below(self.pieces.len());
        let piece = self.pieces.swap_remove(index);
        piece.change_owner(self.id, 0);
        let whole = SHARED.state(piece.granule) == GranuleState::Whole;
        if whole && self.below(2) == 0 {
            return SHARED.free(piece.granule);
        }
        let table = bits(&SHARED, piece.granule);
        assert!(SHARED.split_whole(piece.granule, table));
        let empty = SHARED.free_pages(piece.granule, table, piece.first, piece.pages);
        if empty && SHARED.claim_all_pages(piece.granule, table) {
            GranulePiece::whole(piece.granule).change_owner(0, 0);
            SHARED.free(piece.granule);
        }
    }

    fn run(mut self) {
        for _ in 0..STEPS {
            if self.pieces.len() < 12 && self.below(2) == 0 || self.pieces.is_empty() {
                self.claim();
            } else {
                self.free();
            }
        }
        while !self.pieces.is_empty() {
            self.free();
        }
    }
}

#[test]
fn no_page_is_claimed_twice() {
    std::thread::scope(|scope| {
        for id in 1..=THREADS {
            let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(u64::from(id));
            scope.spawn(move || TableThread { id, random, pieces: Vec::new() }.run());
        }
    });
    assert!(SHARED.high() <= CHECKED);
    for granule in 0..SHARED.high() {
        let empty = || bits::is_empty(&bits(&SHARED, granule).used);
        assert!(SHARED.state(granule) == GranuleState::Free || empty(), "granule {granule} is still in use");
    }
}
