//! Compares whole simulators with a naive model: vectors in LRU order, one access at a time, no
//! filter, no hash, no tables by page size.

use fieldstone_translation::{
    Configuration, Counts, Mmu, PageSize, PlacedAccess, RegionPages, Scheme, SideCounts, Simulator, TlbArray, TlbLevel,
    WalkCaches, mosaic_is_huge,
};
use proptest::prelude::*;

/// Keys in LRU order, the most recent first.
#[derive(Clone)]
struct NaiveLru<K> {
    keys: Vec<K>,
    max: usize,
}

impl<K: PartialEq> NaiveLru<K> {
    fn new(max: u32) -> Self {
        Self { keys: Vec::new(), max: max as usize }
    }

    /// Returns whether the key was present, and makes it the most recent, if there is any space.
    fn touch(&mut self, key: K) -> bool {
        let old = self.keys.iter().position(|other| *other == key);
        if let Some(place) = old {
            self.keys.remove(place);
        }
        self.keys.insert(0, key);
        self.keys.truncate(self.max);
        old.is_some()
    }
}

/// A virtual address, with whether it is an offset in the region.
type Location = (bool, u64);

#[derive(Clone)]
struct NaiveArray {
    array: TlbArray,
    sets: Vec<NaiveLru<(PageSize, bool, u64)>>,
}

#[derive(Clone)]
struct NaivePath {
    pde: NaiveLru<Location>,
    pdpte: NaiveLru<Location>,
    pml4e: NaiveLru<Location>,
}

/// A guest physical address: of a page of the program, or of a page table by level.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Guest {
    Page(Location),
    Table(u32, Location),
}

struct NaiveCore {
    configuration: Configuration,
    /// TLB levels as lists of arrays. `instruction` does not include the shared one.
    data: Vec<Vec<NaiveArray>>,
    instruction: Vec<Vec<NaiveArray>>,
    path: NaivePath,
    lines: NaiveLru<(PageSize, Location)>,
    nested: NaiveLru<(u32, Location)>,
    host: [NaiveLru<(u32, Location)>; 3],
    range: NaiveLru<usize>,
    starts: Vec<u64>,
    counts: Counts,
}

fn build(levels: &[TlbLevel]) -> Vec<Vec<NaiveArray>> {
    let naive = |array: &TlbArray| NaiveArray {
        sets: vec![NaiveLru::new(array.set_ways()); (array.entries / array.set_ways()) as usize],
        array: array.clone(),
    };
    levels.iter().map(|level| level.arrays.iter().map(naive).collect()).collect()
}

fn above((region, address): Location, shift: u32) -> Location {
    (region, address >> shift)
}

impl NaiveCore {
    fn new(configuration: &Configuration, starts: &[u64]) -> Self {
        let caches = configuration.machine.walk_caches;
        let entries = match configuration.scheme {
            Scheme::RangeTlb { entries } => entries,
            _ => 0,
        };
        Self {
            data: build(&configuration.machine.data),
            instruction: build(&configuration.machine.instruction),
            path: NaivePath {
                pde: NaiveLru::new(caches.pde),
                pdpte: NaiveLru::new(caches.pdpte),
                pml4e: NaiveLru::new(caches.pml4e),
            },
            lines: NaiveLru::new(caches.pte_lines),
            nested: NaiveLru::new(caches.nested),
            host: [caches.pde, caches.pdpte, caches.pml4e].map(NaiveLru::new),
            range: NaiveLru::new(entries),
            starts: starts.to_vec(),
            counts: Counts::default(),
            configuration: configuration.clone(),
        }
    }

    fn size_at(&self, (region, address): Location) -> PageSize {
        match self.configuration.region_pages {
            _ if !region => self.configuration.other_pages,
            RegionPages::Uniform(size) => size,
            RegionPages::Mosaic { huge, share } if mosaic_is_huge(address >> huge.shift(), share) => huge,
            RegionPages::Mosaic { .. } => PageSize::Small4k,
        }
    }

    fn access(&mut self, access: PlacedAccess) {
        let place = (access.is_in_region(), access.address());
        let (fetch, shared) = (access.is_fetch(), self.configuration.machine.shared_last);
        let size = self.size_at(place);
        let in_tlb = self.configuration.nested.map_or(size, |host| size.min(host));
        let mut side = SideCounts { accesses: 1, ..SideCounts::default() };
        if self.configuration.scheme == Scheme::NoTranslation {
            side.untranslated = 1;
            return self.count(fetch, &side);
        }
        if self.configuration.scheme == Scheme::DirectSegment && place.0 {
            side.in_segment = 1;
            return self.count(fetch, &side);
        }
        let last_data = self.data.len() - 1;
        let levels = if fetch { self.instruction.len() + usize::from(shared) } else { self.data.len() };
        for level in 0..levels {
            let arrays = match fetch {
                true if level == self.instruction.len() => &mut self.data[last_data],
                true => &mut self.instruction[level],
                false => &mut self.data[level],
            };
            if touch_level(arrays, place, in_tlb) {
                side.hits[level] = 1;
                return self.count(fetch, &side);
            }
            let ranged = matches!(self.configuration.scheme, Scheme::RangeTlb { .. }) && place.0 && level == 0;
            if ranged && self.range.touch(self.starts.iter().filter(|&&start| start <= place.1).count()) {
                side.range_hits = 1;
                return self.count(fetch, &side);
            }
        }
        self.walk(place, size, &mut side);
        self.count(fetch, &side);
    }

    fn count(&mut self, fetch: bool, side: &SideCounts) {
        *(if fetch { &mut self.counts.instruction } else { &mut self.counts.data }) += side;
    }

    fn walk(&mut self, place: Location, size: PageSize, side: &mut SideCounts) {
        side.walks = 1;
        side.walks_by_size[size as usize] = 1;
        side.walks_in_region = u64::from(place.0);
        side.walks_pte_line_missed = u64::from(!self.lines.touch((size, above(place, size.shift() + 3))));
        // The tables read, by the address bits that the table above resolves; the last one first.
        let mut tables = vec![size.shift() + 9];
        let known = |tables: &mut Vec<u32>, cache: &mut NaiveLru<Location>, shift: u32| {
            let hit = cache.touch(above(place, shift));
            if !hit {
                tables.push(shift + 9);
            }
            hit
        };
        let path = &mut self.path;
        let _ = (size == PageSize::Small4k && known(&mut tables, &mut path.pde, 21))
            || (size <= PageSize::Large2m && known(&mut tables, &mut path.pdpte, 30))
            || known(&mut tables, &mut path.pml4e, 39);
        side.walk_memory_references = tables.len() as u64;
        if let Some(host) = self.configuration.nested {
            for shift in tables {
                side.walk_memory_references += self.host_walk(Guest::Table(shift, above(place, shift)), host);
            }
            side.walk_memory_references += self.host_walk(Guest::Page(place), host);
        }
    }

    /// The entries of the host's tables read to translate a guest physical address.
    fn host_walk(&mut self, guest: Guest, host: PageSize) -> u64 {
        // Tables of a level are contiguous; each level has its own range.
        let (kind, (region, address)) = match guest {
            Guest::Page(place) => (0, place),
            // The region begins at 2^57, and its tables in their level accordingly.
            Guest::Table(shift, (region, number)) => {
                (shift, (false, (number + (u64::from(region) << (57 - shift))) * 4096))
            }
        };
        if self.nested.touch((kind, (region, address >> host.shift()))) {
            return 0;
        }
        let mut read = 1;
        for (cache, shift) in self.host.iter_mut().zip([21, 30, 39]).skip(host as usize) {
            if cache.touch((kind, (region, address >> shift))) {
                break;
            }
            read += 1;
        }
        read
    }
}

fn touch_level(arrays: &mut [NaiveArray], (region, address): Location, size: PageSize) -> bool {
    for array in arrays {
        if let Some(held) = array.array.holds(size) {
            let page = address >> held.shift();
            // The region begins at 2^57, which matters if the number of sets is not a power of two.
            let number = page + (u64::from(region) << (57 - held.shift()));
            let count = array.sets.len() as u64;
            let mut sets = array.sets.iter_mut().zip(0..);
            return sets.any(|(set, at)| at == number % count && set.touch((held, region, page)));
        }
    }
    false
}

fn array(pages: &'static [PageSize], pieces: &'static [PageSize]) -> impl Strategy<Value = TlbArray> {
    (1_u32..9, 2_u32..7, any::<bool>()).prop_map(move |(sets, ways, full)| TlbArray {
        name: "array".to_owned(),
        entries: sets * ways * if full { 3 } else { 1 },
        ways: if full { 0 } else { ways },
        pages: pages.to_vec(),
        pieces: pieces.to_vec(),
    })
}

fn first_level() -> impl Strategy<Value = TlbLevel> {
    use PageSize::{Huge1g, Large2m, Small4k};
    prop_oneof![
        array(&[Small4k, Large2m, Huge1g], &[]).prop_map(|array| TlbLevel { arrays: vec![array] }),
        (array(&[Small4k], &[]), array(&[Large2m], &[Huge1g]))
            .prop_map(|(one, two)| TlbLevel { arrays: vec![one, two] }),
        (array(&[Small4k], &[]), array(&[Large2m], &[]), array(&[Huge1g], &[]))
            .prop_map(|(one, two, three)| TlbLevel { arrays: vec![one, two, three] }),
    ]
}

fn second_level() -> impl Strategy<Value = TlbLevel> {
    use PageSize::{Huge1g, Large2m, Small4k};
    prop_oneof![
        array(&[Small4k], &[]).prop_map(|array| TlbLevel { arrays: vec![array] }),
        array(&[Small4k, Large2m], &[Huge1g]).prop_map(|array| TlbLevel { arrays: vec![array] }),
        (array(&[Small4k, Large2m], &[]), array(&[Huge1g], &[]))
            .prop_map(|(one, two)| TlbLevel { arrays: vec![one, two] }),
    ]
}

fn machine() -> impl Strategy<Value = Mmu> {
    let caches = (0_u32..4, 0_u32..4, 0_u32..40, 0_u32..40, 0_u32..9);
    let levels = (first_level(), prop::collection::vec(second_level(), 0..3));
    (levels, first_level(), any::<bool>(), caches).prop_map(|((first, more), fetched, shared_last, caches)| Mmu {
        name: "random".to_owned(),
        source: "proptest".to_owned(),
        walkers: 1,
        l2_hit_cycles: 7,
        // The shared level lies behind a first level of fetches, and behind the first level of
        // loads and stores.
        shared_last: shared_last && !more.is_empty(),
        data: [vec![first], more].concat(),
        instruction: vec![fetched],
        walk_caches: WalkCaches {
            pml4e: caches.0,
            pdpte: caches.1,
            pde: caches.2,
            pte_lines: caches.3,
            nested: caches.4,
        },
    })
}

fn size() -> impl Strategy<Value = PageSize> {
    prop::sample::select(PageSize::ALL.to_vec())
}

fn configuration() -> impl Strategy<Value = Configuration> {
    let scheme = prop_oneof![
        6 => Just(Scheme::Paged),
        1 => Just(Scheme::DirectSegment),
        1 => (1_u32..5).prop_map(|entries| Scheme::RangeTlb { entries }),
        1 => Just(Scheme::NoTranslation),
    ];
    let large = prop::sample::select(vec![PageSize::Large2m, PageSize::Huge1g]);
    let pages = prop_oneof![
        size().prop_map(RegionPages::Uniform),
        (large, 0.0..1.0).prop_map(|(huge, share)| RegionPages::Mosaic { huge, share }),
    ];
    (machine(), scheme, pages, size(), prop::option::of(size())).prop_map(
        |(machine, scheme, region_pages, other_pages, nested)| Configuration {
            name: "random".to_owned(),
            machine,
            scheme,
            region_pages,
            other_pages,
            nested,
        },
    )
}

/// Addresses near one another and far apart, so that every structure has hits and misses.
fn accesses() -> impl Strategy<Value = Vec<PlacedAccess>> {
    let address = (0_u64..3, 0_u64..3, 0_u64..12, 0_u64..24, 0_u64..2)
        .prop_map(|(far, gib, chunk, page, byte)| (far << 39) + (gib << 30) + (chunk << 21) + (page << 12) + byte);
    let access = (address, any::<bool>(), prop::bool::weighted(0.3)).prop_map(|(address, region, fetch)| {
        let access = if region { PlacedAccess::in_region(address) } else { PlacedAccess::outside(address) };
        if fetch { access.fetch() } else { access }
    });
    prop::collection::vec(access, 1..600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_simulator_matches_the_naive_model(
        configurations in prop::collection::vec(configuration(), 1..3),
        trace in accesses(),
        batch in 1_usize..200,
        starts in prop::collection::vec(0_u64..1 << 40, 0..5),
    ) {
        let mut simulator = Simulator::new(&configurations).unwrap();
        simulator.set_ranges(&starts);
        trace.chunks(batch).for_each(|batch| simulator.run(batch));
        for (configuration, counts) in configurations.iter().zip(simulator.counts()) {
            let mut oracle = NaiveCore::new(configuration, &starts);
            trace.iter().for_each(|access| oracle.access(*access));
            prop_assert_eq!(*counts, oracle.counts);
            for side in [counts.data, counts.instruction] {
                let sum = side.hits.iter().sum::<u64>() + side.in_segment + side.range_hits + side.untranslated + side.walks;
                prop_assert_eq!(side.accesses, sum, "each access is counted once");
            }
        }
    }

    #[test]
    fn warming_keeps_counts_and_flushing_clears_state(configuration in configuration(), trace in accesses()) {
        let one = std::slice::from_ref(&configuration);
        let (mut warmed, mut twice) = (Simulator::new(one).unwrap(), Simulator::new(one).unwrap());
        twice.run(&trace);
        let first = twice.counts()[0];
        twice.run(&trace);
        warmed.warm(&trace);
        prop_assert_eq!(warmed.counts()[0], Counts::default());
        warmed.run(&trace);
        let mut sum = first;
        sum += &warmed.counts()[0];
        prop_assert_eq!(sum, twice.counts()[0], "a run after warming equals the second run");
        warmed.flush();
        warmed.run(&trace);
        prop_assert_eq!(warmed.counts()[0], twice.counts()[0], "a run after a flush equals the first run");
    }

    #[test]
    fn the_recorded_indices_are_those_of_walks(configurations in prop::collection::vec(configuration(), 2..4), trace in accesses()) {
        let mut simulator = Simulator::new(&configurations).unwrap();
        simulator.record_walks(Some(1));
        simulator.run(&trace);
        let counts = simulator.counts()[1];
        prop_assert_eq!(simulator.walk_indices().len() as u64, counts.data.walks + counts.instruction.walks);
        let mut alone = Simulator::new(&configurations[1..2]).unwrap();
        for (at, access) in trace.iter().enumerate() {
            let before = alone.counts()[0];
            alone.run(&[*access]);
            let walked = alone.counts()[0].data.walks + alone.counts()[0].instruction.walks
                - before.data.walks - before.instruction.walks;
            prop_assert_eq!(simulator.walk_indices().contains(&u32::try_from(at).unwrap()), walked == 1);
        }
    }

    #[test]
    fn skipped_same_page_accesses_count_as_hits(configuration in configuration(), trace in accesses()) {
        let one = std::slice::from_ref(&configuration);
        let (mut whole, mut filtered) = (Simulator::new(one).unwrap(), Simulator::new(one).unwrap());
        let mut last: [Option<PlacedAccess>; 2] = [None; 2];
        for access in trace.iter().flat_map(|access| [*access; 3]) {
            whole.run(&[access]);
            let before = &mut last[usize::from(access.is_fetch())];
            let same = |other: PlacedAccess| other.is_in_region() == access.is_in_region() && other.address() >> 12 == access.address() >> 12;
            if before.is_some_and(same) {
                filtered.count_skipped(access, 1);
            } else {
                filtered.run(&[access]);
            }
            *before = Some(access);
        }
        prop_assert_eq!(filtered.counts(), whole.counts());
    }
}
