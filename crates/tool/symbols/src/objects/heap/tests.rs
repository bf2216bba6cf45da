//! Lookups in artificial heaps, valid and invalid ones.

use fieldstone_rewrite::MemoryImage;
use fieldstone_sys::smaps::parse;

use super::*;

const HEAP: u64 = 0x5555_0000_0000;
const ARENA: u64 = 0x7fff_f000_0000;

/// Memory that a test fills word by word.
struct FakeMemory(MemoryImage);

impl FakeMemory {
    fn new(start: u64, bytes: u64) -> Self {
        Self(MemoryImage { start, bytes: vec![0; usize::try_from(bytes).unwrap()] })
    }

    fn set(&mut self, address: u64, word: u64) {
        let at = usize::try_from(address - self.0.start).unwrap();
        self.0.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    fn end(&self) -> u64 {
        self.0.start + self.0.bytes.len() as u64
    }

    /// Writes chunks from `at` on, each with a size and whether it is free, and a last one up to
    /// `end`. Returns the starts of the chunks.
    fn chunks(&mut self, mut at: u64, chunks: &[(u64, bool)], end: u64, flags: u64) -> Vec<u64> {
        let (mut starts, mut before_free, mut before) = (Vec::new(), false, 0);
        for &(bytes, free) in chunks.iter().chain([&(0, false)]) {
            let bytes = if bytes == 0 { end - at } else { bytes };
            if before_free {
                self.set(at, before);
            }
            self.set(at + 8, bytes | flags | u64::from(!before_free));
            starts.push(at);
            (at, before_free, before) = (at + bytes, free, bytes);
        }
        starts
    }
}

fn maps(start: u64, end: u64, name: &str) -> Maps {
    Maps(parse(format!("{start:x}-{end:x} rw-p 00000000 00:00 0 {name}\n").as_bytes()).unwrap())
}

/// Random sizes: many small ones, a few large ones; no two adjacent chunks are free.
fn sizes(count: usize, mut seed: u64) -> Vec<(u64, bool)> {
    let mut before_free = false;
    let mut next = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    let size = move |_| {
        let bytes = if next() % 10 == 0 { 4096 + next() % 100_000 } else { 32 + next() % 500 } / 16 * 16;
        before_free = !before_free && next() % 4 == 0;
        (bytes, before_free)
    };
    (0..count).map(size).collect()
}

/// The expected result for an address.
fn expected(starts: &[u64], chunks: &[(u64, bool)], address: u64) -> Option<HeapLookup> {
    let index = starts.partition_point(|start| start + SHARED <= address).checked_sub(1)?;
    let start = starts[index];
    let end = starts.get(index + 1).copied()?;
    let user = start + HEADER..end + SHARED;
    Some(match chunks.get(index) {
        Some((_, true)) => HeapLookup::Free(start + HEADER..end),
        Some(_) if user.contains(&address) => HeapLookup::Block(user),
        _ => HeapLookup::Unknown("it is a header of malloc"),
    })
}

#[test]
fn every_address_of_a_heap_has_its_block() {
    for (from, name, flags, start) in [(HEAP, "[heap]", 0, HEAP), (ARENA + 0x8d0, "", 4, ARENA)] {
        let chunks = sizes(3000, start);
        let bytes = chunks.iter().map(|(bytes, _)| bytes).sum::<u64>();
        let mut memory = FakeMemory::new(start, (bytes + 0x20_0000).next_multiple_of(4096));
        let end = memory.end();
        if flags != 0 {
            for (at, word) in [(0, ARENA + 0x30), (16, end - start), (24, end - start), (32, 4096)] {
                memory.set(start + at, word);
            }
        }
        let starts = memory.chunks(from, &chunks, end, flags);
        let maps = maps(start, end, name);
        let mut heap = MallocHeaps::default();
        // Upwards and downwards, so that walks start at marks and behind them.
        let ahead: Vec<u64> = (starts[0] + 8..starts[chunks.len()]).step_by(29_999).collect();
        for &address in ahead.iter().chain(ahead.iter().rev()) {
            assert_eq!(
                Some(heap.in_arena(&memory.0, &maps, address)),
                expected(&starts, &chunks, address),
                "{address:#x}"
            );
        }
        let top = starts[chunks.len()];
        assert_eq!(heap.in_arena(&memory.0, &maps, top + 5000), HeapLookup::Free(top + HEADER..end));
        assert!(heap.marks.values().any(|marks| marks.len() > 10), "{:?}", heap.marks);
    }
}

#[test]
fn chunks_are_found_between_other_memory() {
    let mut memory = FakeMemory::new(HEAP, 0x4_0000);
    // As in a static program: words that are no chunk, and one that looks like a chunk without
    // followers.
    memory.set(HEAP + 8, 0x77);
    memory.set(HEAP + 0x118, 0x501);
    let first = memory.chunks(HEAP + 0x1230, &[(0x40, false), (0x60, true), (0x80, false)], HEAP + 0x1_0000, 0);
    // A fence of two chunks of 16 bytes before memory of other code; behind it chunks follow again.
    memory.set(first[3] + 8, (HEAP + 0xffe0 - first[3]) | 1);
    for fence in [HEAP + 0xffe0, HEAP + 0xfff0] {
        memory.set(fence + 8, 0x11);
    }
    let second = memory.chunks(HEAP + 0x1_8000, &[(0x30, false), (0x50, false)], HEAP + 0x4_0000, 0);
    let maps = maps(HEAP, HEAP + 0x4_0000, "[heap]");
    let mut heap = MallocHeaps::default();
    let mut block = |address| heap.in_arena(&memory.0, &maps, address);
    assert_eq!(block(first[0] + 20), HeapLookup::Block(first[0] + 16..first[1] + 8));
    assert_eq!(block(first[1] + 20), HeapLookup::Free(first[1] + 16..first[2]));
    assert_eq!(block(first[2] + 20), HeapLookup::Block(first[2] + 16..first[3] + 8));
    assert_eq!(block(second[1] + 20), HeapLookup::Block(second[1] + 16..second[2] + 8));
    assert_eq!(block(HEAP + 0x120), HeapLookup::Unknown(INCONSISTENT), "before the first chunk");
}

#[test]
fn an_inconsistent_header_gives_no_answer() {
    let chunks = sizes(200, 5);
    let mut sound = FakeMemory::new(HEAP, 0x80_0000);
    let end = sound.end();
    let starts = sound.chunks(HEAP, &chunks, end, 0);
    let maps = maps(HEAP, end, "[heap]");
    let (broken, address) = (starts[100], starts[150] + 20);
    for word in [0, 1, 0x10, 0x29, 0x8000_0000_0000_0001, u64::MAX, 0x1001 | 2, 0x1001 | 4, 0x31, 0x12_3451] {
        let mut memory = FakeMemory(sound.0.clone());
        memory.set(broken + 8, word);
        let found = MallocHeaps::default().in_arena(&memory.0, &maps, address);
        assert_eq!(found, HeapLookup::Unknown(INCONSISTENT), "{word:#x}");
        // It does not affect chunks far below it.
        assert_eq!(
            Some(MallocHeaps::default().in_arena(&memory.0, &maps, starts[50] + 8)),
            expected(&starts, &chunks, starts[50] + 8)
        );
    }
    // A free chunk with different sizes at its two ends.
    let free = (100..140).find(|&index: &usize| chunks[index].1).unwrap();
    let mut memory = FakeMemory(sound.0.clone());
    memory.set(starts[free + 1], 0x4440);
    assert_eq!(MallocHeaps::default().in_arena(&memory.0, &maps, address), HeapLookup::Unknown(INCONSISTENT));
    assert_eq!(
        MallocHeaps::default().in_arena(&MemoryImage::default(), &maps, address),
        HeapLookup::Unknown(INCONSISTENT),
        "the memory vanished"
    );
}

#[test]
fn random_memory_is_no_heap() {
    let mut seed = 1_u64;
    for round in 0..20 {
        let mut memory = FakeMemory::new(HEAP, 0x2_0000);
        for at in (0..0x2_0000).step_by(8) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // EndlessChunks words, which are sizes more often.
            memory.set(HEAP + at, seed >> (20 + seed % 40));
        }
        let maps = maps(HEAP, HEAP + 0x2_0000, "[heap]");
        let found = MallocHeaps::default().in_arena(&memory.0, &maps, HEAP + 0x1_8000);
        assert_eq!(found, HeapLookup::Unknown(INCONSISTENT), "round {round}");
    }
}

/// Endless chunks of 32 bytes.
struct EndlessChunks;

impl ReadableMemory for EndlessChunks {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        into.fill(0);
        let first = usize::try_from((8_u64.wrapping_sub(address)) % 32).unwrap();
        into.iter_mut().skip(first).step_by(32).for_each(|byte| *byte = 0x21);
        into.len()
    }
}

#[test]
fn a_walk_is_limited_and_continues_at_the_next_query() {
    let end = HEAP + (640 << 20);
    let maps = maps(HEAP, end, "[heap]");
    let mut heap = MallocHeaps::default();
    let last = HEAP + (600 << 20);
    let mut queries = 0;
    let found = loop {
        queries += 1;
        match heap.in_arena(&EndlessChunks, &maps, last + 20) {
            HeapLookup::Unknown(why) if queries < 10 => assert!(why.contains("too large"), "{why}"),
            found => break found,
        }
    };
    assert_eq!((found, queries), (HeapLookup::Block(last + 16..last + 40), 3), "256 MiB each time");
    assert_eq!(heap.in_arena(&EndlessChunks, &maps, HEAP + 340), HeapLookup::Block(HEAP + 336..HEAP + 360));
}

#[test]
fn later_heaps_of_an_arena_refer_to_the_first() {
    let (first, second) = (ARENA, ARENA + (64 << 20));
    let mut memory = FakeMemory::new(first, (64 << 20) + 0x10_0000);
    let whole = 64 << 20;
    for (heap, before, bytes) in [(first, 0, whole), (second, first, 0x10_0000)] {
        for (at, word) in [(0, first + 0x30), (8, before), (16, bytes), (24, bytes), (32, 4096)] {
            memory.set(heap + at, word);
        }
    }
    let starts = memory.chunks(first + 0x8d0, &[(0x290, false), (0x1000, false)], second - 0x20, 4);
    memory.set(second - 0x20 + 8, 0x11);
    memory.set(second - 0x10 + 8, 0x1);
    let later = memory.chunks(second + 0x30, &[(0x500, false), (0x40, false)], memory.end(), 4);
    let maps = maps(first, memory.end(), "");
    let mut heap = MallocHeaps::default();
    assert_eq!(heap.in_arena(&memory.0, &maps, starts[1] + 20), HeapLookup::Block(starts[1] + 16..starts[2] + 8));
    assert_eq!(heap.in_arena(&memory.0, &maps, later[1] + 20), HeapLookup::Block(later[1] + 16..later[2] + 8));
    for (at, word) in [(0, first + 0x31_0000), (0, 7), (16, 1 << 40), (24, 0), (8, 5)] {
        let mut memory = FakeMemory(memory.0.clone());
        memory.set(second + at, word);
        assert_eq!(
            MallocHeaps::default().in_arena(&memory.0, &maps, later[1] + 20),
            HeapLookup::NotMalloc,
            "{at}: {word:#x}"
        );
    }
}

#[test]
fn blocks_with_their_own_mapping_are_found() {
    let start = 0x7f00_0000_0000;
    let mut memory = FakeMemory::new(start, 0x10_0000);
    let end = memory.end();
    memory.set(start + 8, 0x2_0000 | 2);
    memory.set(start + 0x2_0000 + 8, 0x4_0000 | 2);
    // The start of this block was unmapped, so that the rest is aligned to 128 bytes.
    memory.set(start + 0x2_0000 + 112, 112);
    memory.set(start + 0x2_0000 + 112 + 8, (0x4_0000 - 112) | 2);
    // Other memory, then another block.
    memory.set(start + 0x6_3000 + 8, 0x2000 | 2);
    let maps = maps(start, end, "");
    let block = |address| in_mapping(&memory.0, &maps, address);
    assert_eq!(block(start + 16), HeapLookup::Block(start + 16..start + 0x2_0000));
    assert_eq!(block(start + 0x1_ffff), HeapLookup::Block(start + 16..start + 0x2_0000));
    assert_eq!(block(start + 0x2_0080), HeapLookup::Block(start + 0x2_0080..start + 0x6_0000));
    assert_eq!(block(start + 0x2_0020), HeapLookup::NotMalloc, "before the aligned block");
    assert_eq!(block(start + 0x6_0010), HeapLookup::NotMalloc);
    assert_eq!(block(start + 0x6_4000), HeapLookup::Block(start + 0x6_3010..start + 0x6_5000));
    assert_eq!(block(start + 0x6_5000), HeapLookup::NotMalloc);
    assert_eq!(block(start + 8), HeapLookup::NotMalloc, "its header");
}
