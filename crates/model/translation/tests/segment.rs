//! The direct segment in simulated MMUs: what it does, and what it does not do (the slides on Basu
//! et al., "Los direct-segments NO…").

use fieldstone_translation::{
    Configuration, Counts, DirectSegment, Mmu, PageSize, PlacedAccess, PrimaryRegion, Scheme, Simulator,
};

fn machine() -> Mmu {
    Mmu::preset("sandy-bridge").expect("a preset")
}

fn counts(configuration: Configuration, trace: &[PlacedAccess]) -> Counts {
    let mut simulator = Simulator::new(&[configuration]).expect("a configuration that can be simulated");
    simulator.run(trace);
    simulator.counts()[0]
}

/// Ten thousand accesses: three of four at random in the region, the others outside over more pages
/// than any TLB holds.
fn trace() -> Vec<PlacedAccess> {
    let mut random = 1_u64;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let access = |step: u64, random: u64| match step % 4 {
        0 => PlacedAccess::outside(0x7000_0000_0000 + random % 2000 * 4096),
        _ => PlacedAccess::in_region(random % (1 << 30)),
    };
    (0..10_000).map(|step| access(step, next())).collect()
}

#[test]
fn nothing_in_the_segment_ever_walks() {
    let side = counts(Configuration::direct_segment(&machine()), &trace()).data;
    assert_eq!((side.accesses, side.in_segment), (10_000, 7_500));
    assert_eq!((side.walks_in_region, side.walks_for(PageSize::Large2m)), (0, 0));
    let paged = counts(Configuration::paged(&machine(), PageSize::Small4k), &trace()).data;
    assert!(paged.walks_in_region > 7_000, "262,144 pages and 512 entries: {}", paged.walks_in_region);
    assert!(paged.share_in_region() > 0.7);
}

#[test]
fn a_segment_does_not_replace_paging() {
    let outside: Vec<PlacedAccess> = trace().into_iter().filter(|access| !access.is_in_region()).collect();
    let paged = counts(Configuration::paged(&machine(), PageSize::Small4k), &outside).data;
    let with_segment = counts(Configuration::direct_segment(&machine()), &outside).data;
    assert!(paged.walks > 1_000);
    assert_eq!(with_segment, paged, "outside the segment nothing changes");
}

#[test]
fn a_segment_does_not_work_on_top_of_paging() {
    let outside: Vec<PlacedAccess> = trace().into_iter().filter(|access| !access.is_in_region()).collect();
    let alone = counts(Configuration::direct_segment(&machine()), &outside).data;
    let mixed = counts(Configuration::direct_segment(&machine()), &trace()).data;
    assert_eq!((mixed.walks, mixed.hits), (alone.walks, alone.hits), "accesses in the segment evict no TLB entry");
    assert_eq!(mixed.walk_memory_references, alone.walk_memory_references);
    let segment = DirectSegment::new(PrimaryRegion::BASE, 1 << 30, 0);
    assert_eq!(segment.translate(PrimaryRegion::BASE + 0x1234), Some(0x1234), "the result is a physical address");
}

#[test]
fn a_segment_does_not_export_two_dimensional_addresses() {
    // An address stays one number: arithmetic crosses BASE and LIMIT, and each side is translated
    // its own way.
    let segment = DirectSegment::new(0x1000_0000, 0x1000, 0x9_0000_0000);
    let translated: Vec<bool> =
        (0x0fff_fffe..0x1000_0002).map(|address| segment.translate(address).is_some()).collect();
    assert_eq!(translated, [false, false, true, true]);
}

#[test]
fn the_segment_follows_the_region() {
    let mut region = PrimaryRegion::new();
    region.add(0x5555_0000_0000, 1 << 20);
    region.add(0x7f00_0000_0000, 1 << 20);
    for (address, piece) in [(0x5555_0000_0040, 0), (0x7f00_0000_0040, 1 << 20)] {
        let access = region.place(address, false);
        let physical = region.segment().translate(PrimaryRegion::BASE + access.address());
        assert_eq!(physical, Some(piece + 0x40));
    }
    region.remove(0x7f00_0000_0000, 1 << 20);
    assert_eq!(region.segment().bytes(), 1 << 20);
    assert!(!region.place(0x7f00_0000_0040, false).is_in_region());
}

#[test]
fn without_translation_nothing_is_translated() {
    let side = counts(Configuration::no_translation(&machine()), &trace()).data;
    assert_eq!((side.untranslated, side.walks, side.hits), (10_000, 0, [0; 3]));
}

#[test]
fn one_range_misses_once_and_then_equals_a_segment() {
    let side = counts(Configuration::range_tlb(&machine(), 4), &trace()).data;
    assert_eq!(side.walks_in_region, 1);
    let mut many = Simulator::new(&[Configuration::range_tlb(&machine(), 4)]).unwrap();
    // Five ranges of 640 pages in turn, a new page each time: with four entries every range misses,
    // with five none would.
    many.set_ranges(&[0, 640, 1280, 1920, 2560].map(|page| page * 4096));
    let pages: Vec<PlacedAccess> =
        (0..3200).map(|step| PlacedAccess::in_region((step % 5 * 640 + step / 5) * 4096)).collect();
    many.run(&pages);
    assert_eq!((many.counts()[0].data.walks, many.counts()[0].data.range_hits), (3200, 0));
    many.set_ranges(&[0, 640, 1280, 1920].map(|page| page * 4096));
    many.run(&pages);
    assert_eq!((many.counts()[0].data.walks, many.counts()[0].data.range_hits), (3204, 3196));
}

#[test]
fn invalid_configurations_are_refused() {
    let nehalem = Mmu::preset("nehalem").unwrap();
    let refused = |configuration: Configuration| Simulator::new(&[configuration]).unwrap_err().to_string();
    let huge = refused(Configuration::paged(&nehalem, PageSize::Huge1g));
    assert!(huge.contains("no TLB for pages of 1G") && huge.contains("smaller pages"), "{huge}");
    assert!(refused(Configuration::mosaic(&nehalem, 1.5)).contains("use 0 to 1"));
    let ranges = Configuration { scheme: Scheme::RangeTlb { entries: 0 }, ..Configuration::mosaic(&nehalem, 0.5) };
    assert!(refused(ranges).contains("0 range TLB entries"));
}
