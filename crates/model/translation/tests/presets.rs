//! Tests each preset at its boundaries, with results computed by hand.
//!
//! `pages_in_order_twice`: a number of pages in order, twice. A table of E entries in S sets hits
//! in the whole second round with E pages. With E + S pages every set has one page more than its
//! ways, and under LRU nothing hits. `pages_of_one_set_cyclically`: pages of one set, in ten
//! rounds. W ways hold W pages; W + 1 pages always miss.

use fieldstone_translation::{Configuration, Mmu, PageSize, PlacedAccess, SideCounts, Simulator};

use PageSize::{Huge1g, Large2m, Small4k};

fn run(preset: &str, size: PageSize, pages: &[u64], rounds: usize, fetch: bool) -> SideCounts {
    let machine = Mmu::preset(preset).expect("a preset");
    let paged = Configuration::paged(&machine, size);
    let mut simulator = Simulator::new(&[paged]).expect("pages that the machine has");
    for _ in 0..rounds {
        for page in pages {
            let access = PlacedAccess::in_region(page * size.bytes() + 64);
            simulator.run(&[if fetch { access.fetch() } else { access }]);
        }
    }
    let counts = simulator.counts()[0];
    if fetch { counts.instruction } else { counts.data }
}

/// Hits of the first and second level, and walks.
fn outcome(side: &SideCounts) -> [u64; 3] {
    assert_eq!(side.hits[2], 0);
    [side.hits[0], side.hits[1], side.walks]
}

#[test]
fn pages_in_order_twice() {
    let rows: &[(&str, PageSize, u64, [u64; 3])] = &[
        // L1 64 in 16 sets: 64 fit, 80 do not. L2 512 in 128 sets: 512 fit, 640 do not.
        ("sandy-bridge", Small4k, 64, [64, 0, 64]),
        ("sandy-bridge", Small4k, 80, [0, 80, 80]),
        ("sandy-bridge", Small4k, 512, [0, 512, 512]),
        ("sandy-bridge", Small4k, 640, [0, 0, 1280]),
        // 2 MiB: 32 in 8 sets, no second level. 1 GiB: 4, fully associative, no second level.
        ("sandy-bridge", Large2m, 32, [32, 0, 32]),
        ("sandy-bridge", Large2m, 40, [0, 0, 80]),
        ("sandy-bridge", Huge1g, 4, [4, 0, 4]),
        ("sandy-bridge", Huge1g, 5, [0, 0, 10]),
        ("nehalem", Small4k, 64, [64, 0, 64]),
        ("nehalem", Small4k, 80, [0, 80, 80]),
        ("nehalem", Small4k, 512, [0, 512, 512]),
        ("nehalem", Small4k, 640, [0, 0, 1280]),
        ("nehalem", Large2m, 32, [32, 0, 32]),
        ("nehalem", Large2m, 40, [0, 0, 80]),
        // L2 1536 in 128 sets: 1664 are too many.
        ("skylake", Small4k, 64, [64, 0, 64]),
        ("skylake", Small4k, 80, [0, 80, 80]),
        ("skylake", Small4k, 1536, [0, 1536, 1536]),
        ("skylake", Small4k, 1664, [0, 0, 3328]),
        ("skylake", Large2m, 32, [32, 0, 32]),
        ("skylake", Large2m, 40, [0, 40, 40]),
        ("skylake", Large2m, 1536, [0, 1536, 1536]),
        ("skylake", Large2m, 1664, [0, 0, 3328]),
        // 1 GiB: 4; in the second level 16 in 4 sets.
        ("skylake", Huge1g, 4, [4, 0, 4]),
        ("skylake", Huge1g, 5, [0, 5, 5]),
        ("skylake", Huge1g, 16, [0, 16, 16]),
        ("skylake", Huge1g, 20, [0, 0, 40]),
        // L1 96 in 16 sets; L2 2048 in 128 sets.
        ("golden-cove", Small4k, 96, [96, 0, 96]),
        ("golden-cove", Small4k, 112, [0, 112, 112]),
        ("golden-cove", Small4k, 2048, [0, 2048, 2048]),
        ("golden-cove", Small4k, 2176, [0, 0, 4352]),
        ("golden-cove", Large2m, 32, [32, 0, 32]),
        ("golden-cove", Large2m, 40, [0, 40, 40]),
        ("golden-cove", Huge1g, 8, [8, 0, 8]),
        ("golden-cove", Huge1g, 9, [0, 9, 9]),
        // L1 64, one set; L2 2048 in 128 sets.
        ("zen3", Small4k, 64, [64, 0, 64]),
        ("zen3", Small4k, 65, [0, 65, 65]),
        ("zen3", Large2m, 2048, [0, 2048, 2048]),
        ("zen3", Large2m, 2176, [0, 0, 4352]),
        ("zen3", Huge1g, 64, [64, 0, 64]),
        // L1 72, one set: 73 are too many. L2 3072 in 128 sets.
        ("zen4", Small4k, 72, [72, 0, 72]),
        ("zen4", Small4k, 73, [0, 73, 73]),
        ("zen4", Small4k, 3072, [0, 3072, 3072]),
        ("zen4", Small4k, 3200, [0, 0, 6400]),
        ("zen4", Large2m, 72, [72, 0, 72]),
        ("zen4", Large2m, 3072, [0, 3072, 3072]),
        ("zen4", Large2m, 3200, [0, 0, 6400]),
        // L2 holds 1 GiB as pages of 2 MiB; the first ones have numbers 0, 512, 1024 …, all of set
        // 0 with 24 ways.
        ("zen4", Huge1g, 72, [72, 0, 72]),
        ("zen4", Huge1g, 73, [0, 0, 146]),
        // L1 48, one set; L2 2048 in 256 sets.
        ("neoverse-v2", Small4k, 48, [48, 0, 48]),
        ("neoverse-v2", Small4k, 49, [0, 49, 49]),
        ("neoverse-v2", Small4k, 2048, [0, 2048, 2048]),
        ("neoverse-v2", Small4k, 2304, [0, 0, 4608]),
        ("neoverse-v2", Huge1g, 49, [0, 49, 49]),
    ];
    for (preset, size, count, expected) in rows {
        let pages: Vec<u64> = (0..*count).collect();
        assert_eq!(outcome(&run(preset, *size, &pages, 2, false)), *expected, "{count} pages of {size} on {preset}");
    }
}

/// `same` pages, `stride` apart, and `others` in the sets after the first one.
fn in_one_set(stride: u64, same: u64, others: u64) -> Vec<u64> {
    (0..same).map(|page| page * stride).chain((1..=others).map(|page| page + stride * 64)).collect()
}

#[test]
fn pages_of_one_set_cyclically() {
    let rows: &[(&str, u64, u64, u64, [u64; 3])] = &[
        // L1 has 16 sets of 4: four stay, 9 rounds of 4 hit. Five miss there, and have five sets in
        // L2: 9 rounds of 5.
        ("sandy-bridge", 16, 4, 0, [36, 0, 4]),
        ("sandy-bridge", 16, 5, 0, [0, 45, 5]),
        // L2 has 128 sets of 4: five miss in both.
        ("sandy-bridge", 128, 5, 0, [0, 0, 50]),
        ("nehalem", 16, 4, 0, [36, 0, 4]),
        ("nehalem", 16, 5, 0, [0, 45, 5]),
        ("nehalem", 128, 5, 0, [0, 0, 50]),
        // 128 sets of 12: twelve stay, 9 rounds of 12 hit; thirteen miss.
        ("skylake", 16, 4, 0, [36, 0, 4]),
        ("skylake", 16, 5, 0, [0, 45, 5]),
        ("skylake", 128, 12, 0, [0, 108, 12]),
        ("skylake", 128, 13, 0, [0, 0, 130]),
        // 16 sets of 6, 128 of 16.
        ("golden-cove", 16, 6, 0, [54, 0, 6]),
        ("golden-cove", 16, 7, 0, [0, 63, 7]),
        ("golden-cove", 128, 16, 0, [0, 144, 16]),
        ("golden-cove", 128, 17, 0, [0, 0, 170]),
        // 16 pages of one set of L2 stay, 17 do not, while other pages fill L1's 64 entries.
        ("zen3", 128, 16, 49, [0, 585, 65]),
        ("zen3", 128, 17, 48, [0, 432, 218]),
        // L1 holds any 72. With 73, 24 of them of one set of L2: 9 rounds of 73 hit there. With 25
        // of one set these walk in all ten rounds, the other 48 once, and hit nine times.
        ("zen4", 128, 24, 0, [216, 0, 24]),
        ("zen4", 128, 24, 49, [0, 657, 73]),
        ("zen4", 128, 25, 48, [0, 432, 298]),
        // L1 holds any 48; 256 sets of 8: 9 rounds of 49; 9 pages ten times and 40 once, 9 rounds
        // of 40.
        ("neoverse-v2", 256, 8, 41, [0, 441, 49]),
        ("neoverse-v2", 256, 9, 40, [0, 360, 130]),
    ];
    for (preset, stride, same, others, expected) in rows {
        let pages = in_one_set(*stride, *same, *others);
        let side = run(preset, Small4k, &pages, 10, false);
        assert_eq!(outcome(&side), *expected, "{same} pages, {stride} apart, and {others}, on {preset}");
    }
}

#[test]
fn fetches_have_their_own_tlbs() {
    let fetched = |preset, count: u64| outcome(&run(preset, Small4k, &(0..count).collect::<Vec<_>>(), 2, true));
    // 128 in 32 sets, then the shared 512.
    assert_eq!(fetched("sandy-bridge", 128), [128, 0, 128]);
    assert_eq!(fetched("sandy-bridge", 160), [0, 160, 160]);
    // 64 fully associative, then 512 in 64 sets for instructions only: 576 are too many.
    assert_eq!(fetched("zen3", 512), [0, 512, 512]);
    assert_eq!(fetched("zen4", 64), [64, 0, 64]);
    assert_eq!(fetched("zen4", 512), [0, 512, 512]);
    assert_eq!(fetched("zen4", 576), [0, 0, 1152]);
}

#[test]
fn a_shared_second_level_is_filled_by_loads_and_fetches() {
    let page = PlacedAccess::in_region(0x5000);
    let walks_after_a_load = |preset| {
        let machine = Mmu::preset(preset).unwrap();
        let mut simulator = Simulator::new(&[Configuration::paged(&machine, Small4k)]).unwrap();
        simulator.run(&[page, page.fetch()]);
        let fetches = simulator.counts()[0].instruction;
        (fetches.hits[1], fetches.walks)
    };
    assert_eq!(walks_after_a_load("golden-cove"), (1, 0));
    assert_eq!(walks_after_a_load("zen4"), (0, 1));
}

#[test]
fn reach_is_entries_times_page_size() {
    let reach = |preset, size| Mmu::preset(preset).unwrap().reach_bytes(size);
    assert_eq!(reach("sandy-bridge", Small4k), 2 << 20, "512 x 4 KiB");
    assert_eq!(reach("sandy-bridge", Large2m), 64 << 20, "32 x 2 MiB");
    assert_eq!(reach("zen4", Large2m), 6 << 30, "3072 x 2 MiB");
    assert_eq!(reach("zen4", Huge1g), 72 << 30, "72 x 1 GiB in L1; 2 MiB pieces in L2 reach less");
}
