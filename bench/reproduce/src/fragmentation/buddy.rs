//! A simulated physical memory of 4 KiB frames under a buddy allocator.
//!
//! ```text
//! order 2  |       free head        |     a free piece of 2^order frames starts at a multiple of its size; its first
//! order 1  |   used    |            |     frame is in the list of its order, all others have NOT_HEAD
//! order 0  |used |free |            |
//! ```
//! Each order has a list, last in, first out. A piece is split until it is small enough. A freed
//! piece merges with its buddy while that is free.
//!
//! Source: the allocator of the kernel (Gorman, *Understanding the Linux Virtual Memory Manager*,
//! chapter 6). Differences: the largest order is 16 MiB instead of 4 MiB, so that contiguous 16 MB
//! are possible; one zone, no per-processor lists, no migration types, no compaction.

/// Bytes of a frame.
pub const FRAME_BYTES: u64 = 4096;

/// The largest order: 4096 frames, 16 MiB.
pub const LARGEST_ORDER: u8 = 12;

const NONE: u32 = u32::MAX;
const NOT_HEAD: u8 = u8::MAX;

/// The memory. A piece is identified by its first frame and its order.
#[derive(Debug)]
pub struct Buddy {
    heads: [u32; LARGEST_ORDER as usize + 1],
    next: Vec<u32>,
    previous: Vec<u32>,
    /// The order of the free piece that starts at each frame, or [`NOT_HEAD`].
    order: Vec<u8>,
    /// One bit per frame, set if it is free.
    free: Vec<u64>,
    free_frames: u32,
}

impl Buddy {
    /// A free memory of `bytes`, rounded down to 16 MiB. Uses 13 bytes per frame.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let largest = 1_u32 << LARGEST_ORDER;
        let pieces = u32::try_from(bytes / FRAME_BYTES / u64::from(largest)).unwrap_or(u32::MAX >> LARGEST_ORDER);
        let frames = pieces * largest;
        let mut memory = Self {
            heads: [NONE; LARGEST_ORDER as usize + 1],
            next: vec![NONE; frames as usize],
            previous: vec![NONE; frames as usize],
            order: vec![NOT_HEAD; frames as usize],
            free: vec![0; frames as usize / 64],
            free_frames: 0,
        };
        for piece in (0..pieces).rev() {
            memory.push(piece * largest, LARGEST_ORDER);
            memory.mark(piece * largest, LARGEST_ORDER, true);
        }
        memory
    }

    /// Number of frames.
    #[must_use]
    pub fn frames(&self) -> u32 {
        u32::try_from(self.order.len()).unwrap_or(u32::MAX)
    }

    /// Number of free frames.
    #[must_use]
    pub const fn free_frames(&self) -> u32 {
        self.free_frames
    }

    /// Allocates 2^`order` frames and returns the first; `None` if there is no such piece.
    pub fn take(&mut self, order: u8) -> Option<u32> {
        let mut found = (order..=LARGEST_ORDER).find(|&order| self.heads[usize::from(order)] != NONE)?;
        let first = self.heads[usize::from(found)];
        self.remove(first, found);
        while found > order {
            found -= 1;
            self.push(first + (1 << found), found);
        }
        self.mark(first, order, false);
        Some(first)
    }

    /// Releases a piece that [`Buddy::take`] returned.
    pub fn release(&mut self, first: u32, order: u8) {
        self.mark(first, order, true);
        let (mut first, mut order) = (first, order);
        while order < LARGEST_ORDER {
            let buddy = first ^ (1 << order);
            if self.order[buddy as usize] != order {
                break;
            }
            self.remove(buddy, order);
            first = first.min(buddy);
            order += 1;
        }
        self.push(first, order);
    }

    /// Whether [`Buddy::take`] would succeed for 2^`order` frames.
    #[must_use]
    pub fn serves(&self, order: u8) -> bool {
        (order..=LARGEST_ORDER).any(|order| self.heads[usize::from(order)] != NONE)
    }

    /// The lengths of all runs of free frames, in address order, with any alignment.
    pub fn free_runs(&self) -> impl Iterator<Item = u32> {
        let bits = self.frames();
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.find(at, bits, true)?;
            let end = self.find(start, bits, false).unwrap_or(bits);
            at = end;
            Some(end - start)
        })
    }

    /// The first free frame from `from` on, or the first used one.
    fn find(&self, from: u32, bits: u32, free: bool) -> Option<u32> {
        let mut word = from / 64;
        let mut mask = u64::MAX << (from % 64);
        while word < bits / 64 {
            let wanted = if free { self.free[word as usize] } else { !self.free[word as usize] } & mask;
            if wanted != 0 {
                return Some(word * 64 + wanted.trailing_zeros());
            }
            (word, mask) = (word + 1, u64::MAX);
        }
        None
    }

    fn push(&mut self, first: u32, order: u8) {
        let head = &mut self.heads[usize::from(order)];
        (self.next[first as usize], self.previous[first as usize]) = (*head, NONE);
        if *head != NONE {
            self.previous[*head as usize] = first;
        }
        *head = first;
        self.order[first as usize] = order;
    }

    fn remove(&mut self, first: u32, order: u8) {
        let (next, previous) = (self.next[first as usize], self.previous[first as usize]);
        if previous == NONE {
            self.heads[usize::from(order)] = next;
        } else {
            self.next[previous as usize] = next;
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
        self.order[first as usize] = NOT_HEAD;
    }

    /// Sets the free bits of a piece.
    fn mark(&mut self, first: u32, order: u8, free: bool) {
        let count = 1_u32 << order;
        if free {
            self.free_frames += count;
        } else {
            self.free_frames -= count;
        }
        let mut set = |word: u32, mask: u64| {
            let bits = &mut self.free[word as usize];
            *bits = if free { *bits | mask } else { *bits & !mask };
        };
        // A piece starts at a multiple of its size, so it is within one word or has whole words.
        if count < 64 {
            set(first / 64, ((1 << count) - 1) << (first % 64));
        } else {
            (first / 64..(first + count) / 64).for_each(|word| set(word, u64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_workloads::random::SplitMix64;
    use proptest::prelude::*;

    use super::*;

    const BYTES: u64 = 64 << 20;

    /// A memory as one flag per frame.
    struct Naive(Vec<bool>);

    impl Naive {
        fn serves(&self, order: u8) -> bool {
            self.0.chunks(1 << order).any(|piece| piece.iter().all(|free| *free))
        }

        fn runs(&self) -> Vec<u32> {
            let runs = self.0.chunk_by(|a, b| a == b).filter(|run| run[0]);
            runs.map(|run| u32::try_from(run.len()).unwrap()).collect()
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn it_agrees_with_a_plain_map_of_frames(seed: u64, takes in 1_usize..8) {
            let mut random = SplitMix64::new(seed);
            let mut memory = Buddy::new(BYTES);
            let mut naive = Naive(vec![true; memory.frames() as usize]);
            let mut held: Vec<(u32, u8)> = Vec::new();
            for step in 0..600 {
                if random.below(8) < takes || held.is_empty() {
                    let order = u8::try_from(random.below(usize::from(LARGEST_ORDER) + 1)).unwrap();
                    let possible = naive.serves(order);
                    let taken = memory.take(order);
                    prop_assert_eq!(taken.is_some(), possible, "order {}", order);
                    let Some(first) = taken else { continue };
                    let frames = &mut naive.0[first as usize..][..1 << order];
                    prop_assert!(first % (1 << order) == 0 && frames.iter().all(|free| *free));
                    frames.fill(false);
                    held.push((first, order));
                } else {
                    let (first, order) = held.swap_remove(random.below(held.len()));
                    memory.release(first, order);
                    naive.0[first as usize..][..1 << order].fill(true);
                }
                prop_assert_eq!(memory.free_frames() as usize, naive.0.iter().filter(|free| **free).count());
                if step % 50 == 0 {
                    prop_assert_eq!(memory.free_runs().collect::<Vec<_>>(), naive.runs());
                    prop_assert!((0..=LARGEST_ORDER).all(|order| memory.serves(order) == naive.serves(order)));
                }
            }
        }
    }

    #[test]
    fn released_memory_merges_completely() {
        let mut memory = Buddy::new(BYTES);
        let frames: Vec<u32> = std::iter::from_fn(|| memory.take(0)).collect();
        assert_eq!((frames.len(), memory.free_frames()), (16384, 0));
        frames.iter().rev().for_each(|&first| memory.release(first, 0));
        assert_eq!(memory.free_runs().collect::<Vec<_>>(), [16384]);
        assert!((0..4).all(|_| memory.take(LARGEST_ORDER).is_some()) && memory.take(0).is_none());
    }
}
