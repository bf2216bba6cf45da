//! The primary region: offsets, growth and shrinking, and a comparison with a page-by-page model.

use std::collections::{HashMap, HashSet};

use fieldstone_translation::{PlacedAccess, PrimaryRegion};
use proptest::prelude::*;

const PAGE: u64 = 4096;

#[test]
fn mappings_are_placed_side_by_side() {
    let mut region = PrimaryRegion::new();
    region.add(0x10_0000, 3 * PAGE);
    region.add(0x7f00_0000_0000, 2 * PAGE);
    assert_eq!(region.offset_of(0x10_0001), Some(1));
    assert_eq!(region.offset_of(0x7f00_0000_0000), Some(3 * PAGE));
    assert_eq!(region.offset_of(0x7f00_0000_0000 + 2 * PAGE), None);
    assert_eq!(region.offset_of(0xf_ffff), None);
    assert_eq!((region.bytes(), region.extent(), region.largest_extent()), (5 * PAGE, 5 * PAGE, 5 * PAGE));
    assert_eq!(region.range_starts(), [0, 3 * PAGE]);
}

#[test]
fn a_heap_that_grows_is_one_range() {
    let mut region = PrimaryRegion::new();
    for step in 0..10 {
        region.add(0x5000_0000 + step * PAGE, PAGE);
    }
    assert_eq!(region.range_starts(), [0]);
    assert_eq!(region.offset_of(0x5000_0000 + 9 * PAGE + 7), Some(9 * PAGE + 7));
}

#[test]
fn freed_offsets_are_reused_lowest_first_and_the_segment_shrinks() {
    let mut region = PrimaryRegion::new();
    region.add(0x10_0000, 4 * PAGE);
    region.add(0x20_0000, 4 * PAGE);
    region.add(0x30_0000, 4 * PAGE);
    let segment = region.segment();
    assert_eq!((segment.base, segment.bytes()), (PrimaryRegion::BASE, 12 * PAGE));
    assert_eq!(segment.translate(PrimaryRegion::BASE + 5 * PAGE), Some(5 * PAGE));

    region.remove(0x10_0000, 4 * PAGE);
    assert_eq!(region.segment(), segment, "a hole at the front shrinks nothing");
    region.add(0x40_0000, 2 * PAGE);
    assert_eq!(region.offset_of(0x40_0000), Some(0));
    region.add(0x50_0000, 3 * PAGE);
    assert_eq!(region.offset_of(0x50_0000), Some(12 * PAGE), "two free pages do not suffice for three");
    region.remove(0x50_0000, 3 * PAGE);
    region.remove(0x30_0000, 4 * PAGE);
    assert_eq!(region.segment().bytes(), 8 * PAGE, "free offsets at the end shrink the region");
    assert_eq!(region.largest_extent(), 15 * PAGE);
}

#[test]
fn remapped_memory_keeps_its_offset() {
    let mut region = PrimaryRegion::new();
    region.add(0x10_0000, 4 * PAGE);
    region.add(0x20_0000, 2 * PAGE);
    region.relocate(0x10_0000 + PAGE, 0x20_0000, 2 * PAGE);
    assert_eq!(region.offset_of(0x20_0000), Some(PAGE));
    assert_eq!(region.offset_of(0x10_0000 + PAGE), None);
    assert_eq!(region.offset_of(0x10_0000 + 3 * PAGE), Some(3 * PAGE));
    assert_eq!((region.bytes(), region.extent()), (4 * PAGE, 4 * PAGE), "the replaced memory is removed");
}

#[test]
fn changes_are_visible_at_once_and_pages_stay_whole() {
    let mut region = PrimaryRegion::new();
    assert_eq!(region.offset_of(0x1234), None);
    region.add(0x1234, 1);
    assert_eq!(region.offset_of(0x1234), Some(0x234));
    region.remove(0x1000, 0);
    assert_eq!(region.offset_of(0x1fff), Some(0xfff), "nothing was removed");
    region.remove(0x1fff, 2);
    assert_eq!(region.offset_of(0x1000), None);
}

#[test]
fn accesses_are_placed() {
    let mut region = PrimaryRegion::new();
    region.add(0x10_0000, PAGE);
    assert_eq!(region.place(0x10_0010, false), PlacedAccess::in_region(0x10));
    assert_eq!(region.place(0x40_0000, true), PlacedAccess::outside(0x40_0000).fetch());
}

#[derive(Debug, Clone)]
enum RegionEvent {
    Add(u64, u64),
    Remove(u64, u64),
    Relocate(u64, u64, u64),
}

fn event() -> impl Strategy<Value = RegionEvent> {
    let (page, pages) = (0_u64..60, 0_u64..12);
    prop_oneof![
        (page.clone(), pages.clone()).prop_map(|(start, pages)| RegionEvent::Add(start, pages)),
        (page.clone(), pages.clone()).prop_map(|(start, pages)| RegionEvent::Remove(start, pages)),
        // Ranges that do not overlap: mremap refuses the others.
        (page, 100_u64..160, pages).prop_map(|(from, to, pages)| RegionEvent::Relocate(from, to, pages)),
    ]
}

/// The content of each page. Content gets a new number when it is mapped.
#[derive(Default)]
struct NaiveRegion {
    contents: HashMap<u64, u64>,
    mapped: u64,
}

impl NaiveRegion {
    fn apply(&mut self, event: &RegionEvent) {
        match *event {
            RegionEvent::Add(start, pages) => {
                for page in start..start + pages {
                    self.mapped += 1;
                    self.contents.insert(page, self.mapped);
                }
            }
            RegionEvent::Remove(start, pages) => {
                (start..start + pages).for_each(|page| _ = self.contents.remove(&page))
            }
            RegionEvent::Relocate(from, to, pages) => {
                for page in 0..pages {
                    self.contents.remove(&(to + page));
                    if let Some(content) = self.contents.remove(&(from + page)) {
                        self.contents.insert(to + page, content);
                    }
                }
            }
        }
    }
}

fn apply(region: &mut PrimaryRegion, event: &RegionEvent) {
    match *event {
        RegionEvent::Add(start, pages) => region.add(start * PAGE, pages * PAGE),
        RegionEvent::Remove(start, pages) => region.remove(start * PAGE, pages * PAGE),
        RegionEvent::Relocate(from, to, pages) => region.relocate(from * PAGE, to * PAGE, pages * PAGE),
    }
}

proptest! {
    #[test]
    fn every_page_has_its_own_offset_and_keeps_it(events in prop::collection::vec(event(), 1..60)) {
        let (mut region, mut naive) = (PrimaryRegion::new(), NaiveRegion::default());
        let mut places: HashMap<u64, u64> = HashMap::new();
        for event in &events {
            apply(&mut region, event);
            naive.apply(event);
            places.retain(|content, _| naive.contents.values().any(|other| other == content));
            let mut taken = HashSet::new();
            for page in 0..180 {
                let offset = region.offset_of(page * PAGE + 5);
                prop_assert_eq!(offset.is_some(), naive.contents.contains_key(&page), "page {} after {:?}", page, event);
                let Some(offset) = offset else { continue };
                prop_assert_eq!(offset % PAGE, 5);
                prop_assert!(offset < region.extent() && taken.insert(offset), "page {} shares its offset", page);
                let content = naive.contents[&page];
                prop_assert_eq!(*places.entry(content).or_insert(offset), offset, "page {} changed its offset", page);
            }
            prop_assert_eq!(region.bytes(), naive.contents.len() as u64 * PAGE);
            prop_assert_eq!(taken.iter().max().map_or(0, |last| last - 5 + PAGE), region.extent());
        }
    }
}
