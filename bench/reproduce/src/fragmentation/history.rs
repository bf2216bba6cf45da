//! What a memory has been through: a random life of taking and freeing that ends at a given occupancy.
//!
//! The memory is filled once, as a system's page cache does it, then freed at random down to the occupancy, then every frame in
//! use is replaced about once ([`AGE`]) with the occupancy held. Programs are content with any frames, as they are under virtual
//! memory: a piece that is not available is taken in halves. All follows from the seed.

use fieldstone_workloads::random::SplitMix64;

use super::buddy::Buddy;

/// How often the frames in use are replaced, in hundredths.
const AGE: u64 = 100;

/// How small the pieces are that memory is taken and freed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scatter {
    /// Single frames: what paging does to a memory.
    Frames,
    /// Half of the pieces one frame, a quarter two, and so on, up to 1 MiB.
    Mixed,
    /// Only whole blocks of 64 KiB: what a system that hands out blocks and nothing else does.
    Blocks,
}

/// The order of a block of 64 KiB.
pub const BLOCK_ORDER: u8 = 4;

impl Scatter {
    /// All, the worst first.
    pub const ALL: [Self; 3] = [Self::Frames, Self::Mixed, Self::Blocks];

    /// As it stands in cells' ids.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Mixed => "mixed",
            Self::Blocks => "blocks",
        }
    }

    /// The order of the next piece.
    fn order(self, random: &mut SplitMix64) -> u8 {
        match self {
            Self::Frames => 0,
            // The zeros below the lowest set bit: geometric; 1 MiB is order 8.
            Self::Mixed => u8::try_from((random.draw() | 1 << 8).trailing_zeros()).unwrap_or(0),
            Self::Blocks => BLOCK_ORDER,
        }
    }

    /// The smallest piece that is taken.
    const fn smallest(self) -> u8 {
        if let Self::Blocks = self { BLOCK_ORDER } else { 0 }
    }
}

/// A memory with its life so far.
#[derive(Debug)]
pub struct History {
    /// The memory as it is.
    pub memory: Buddy,
    scatter: Scatter,
    held: Vec<(u32, u8)>,
    random: SplitMix64,
}

impl History {
    /// The life of a memory of `bytes` that ends with `percent` of it in use, within one piece.
    #[must_use]
    pub fn live(bytes: u64, percent: u32, scatter: Scatter, seed: u64) -> Self {
        let memory = Buddy::new(bytes);
        let mut life = Self { memory, scatter, held: Vec::new(), random: SplitMix64::new(seed) };
        while life.take() {}
        let used = u64::from(life.memory.frames()) * u64::from(percent) / 100;
        while u64::from(life.used()) > used && life.free() > 0 {}
        life.churn(AGE);
        life
    }

    /// Replaces `hundredths` of the frames in use, a sixteenth of them at most at a time: so much is freed at random, and as
    /// much taken again. The frames that were freed.
    pub fn churn(&mut self, hundredths: u64) -> u64 {
        let used = self.used();
        let wanted = u64::from(used) * hundredths / 100;
        let mut freed = 0;
        while freed < wanted {
            let until = wanted.min(freed + u64::from(used / 16).max(1));
            while freed < until {
                freed += u64::from(self.free());
            }
            while self.used() < used && self.take() {}
        }
        freed
    }

    fn used(&self) -> u32 {
        self.memory.frames() - self.memory.free_frames()
    }

    /// Takes a piece, a smaller one where there is none; false when there is nothing at all.
    fn take(&mut self) -> bool {
        let wanted = self.scatter.order(&mut self.random);
        for order in (self.scatter.smallest()..=wanted).rev() {
            if let Some(first) = self.memory.take(order) {
                self.held.push((first, order));
                return true;
            }
        }
        false
    }

    /// Frees a random piece; the frames that it had, 0 when nothing is held.
    fn free(&mut self) -> u32 {
        if self.held.is_empty() {
            return 0;
        }
        let (first, order) = self.held.swap_remove(self.random.below(self.held.len()));
        self.memory.give(first, order);
        1 << order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 64 << 20;

    #[test]
    fn a_life_ends_where_it_should() {
        for scatter in Scatter::ALL {
            for percent in [0, 10, 50, 99, 100] {
                let life = History::live(BYTES, percent, scatter, 1);
                let used = f64::from(life.used()) / f64::from(life.memory.frames()) * 100.0;
                // One piece of 1 MiB is 1.6 %.
                assert!((used - f64::from(percent)).abs() < 1.7, "{scatter:?}: {used} % of {percent}");
                let held: u32 = life.held.iter().map(|(_, order)| 1 << order).sum();
                assert_eq!(held, life.used());
            }
        }
    }

    #[test]
    fn a_seed_is_a_life_and_another_is_another() {
        let runs = |seed| History::live(BYTES, 60, Scatter::Mixed, seed).memory.free_runs().collect::<Vec<_>>();
        assert_eq!(runs(1), runs(1));
        assert_ne!(runs(1), runs(2));
    }

    #[test]
    fn churning_replaces_as_much_as_it_says() {
        for scatter in Scatter::ALL {
            let mut life = History::live(BYTES, 60, scatter, 4);
            let used = u64::from(life.used());
            let freed = life.churn(250);
            // A piece of 1 MiB too much at each of the forty times.
            assert!((used * 5 / 2..used * 5 / 2 + 41 * 256).contains(&freed), "{freed} of {used}");
            assert!(u64::from(life.used()).abs_diff(used) <= 256);
        }
    }

    #[test]
    fn whole_blocks_never_break() {
        let life = History::live(BYTES, 70, Scatter::Blocks, 3);
        assert!(life.memory.free_runs().all(|run| run % (1 << BLOCK_ORDER) == 0));
    }
}
