//! Random allocations and frees of a memory up to a given occupancy.
//!
//! The memory is filled once, as by a page cache. It is freed at random down to the occupancy. Then
//! each frame in use is replaced about once ([`AGE`]) at constant occupancy. Programs accept any
//! frames, as under virtual memory: a piece that is not available is allocated in halves. The seed
//! determines everything.

use fieldstone_workloads::random::SplitMix64;

use super::buddy::Buddy;

/// Number of replacements of each frame in use, in hundredths.
const AGE: u64 = 100;

/// The sizes of allocated pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scatter {
    /// Single frames, as with paging.
    Frames,
    /// Half of the pieces have one frame, a quarter has two, and so on, up to 1 MiB.
    Mixed,
    /// Blocks of 64 KiB only, as in a system that allocates nothing else.
    Blocks,
}

/// The order of a block of 64 KiB.
pub const BLOCK_ORDER: u8 = 4;

impl Scatter {
    /// All variants, the smallest pieces first.
    pub const ALL: [Self; 3] = [Self::Frames, Self::Mixed, Self::Blocks];

    /// The name in ids of cells.
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
            // The number of zeros below the lowest set bit is geometric. 1 MiB is order 8.
            Self::Mixed => u8::try_from((random.draw() | 1 << 8).trailing_zeros()).unwrap_or(0),
            Self::Blocks => BLOCK_ORDER,
        }
    }

    /// The smallest order that is allocated.
    const fn smallest(self) -> u8 {
        if let Self::Blocks = self { BLOCK_ORDER } else { 0 }
    }
}

/// A memory with its allocated pieces.
#[derive(Debug)]
pub struct History {
    /// The current memory.
    pub memory: Buddy,
    scatter: Scatter,
    held: Vec<(u32, u8)>,
    random: SplitMix64,
}

impl History {
    /// Simulates a memory of `bytes` until `percent` of it are in use, up to one piece.
    #[must_use]
    pub fn simulate(bytes: u64, percent: u32, scatter: Scatter, seed: u64) -> Self {
        let memory = Buddy::new(bytes);
        let mut history = Self { memory, scatter, held: Vec::new(), random: SplitMix64::new(seed) };
        while history.take() {}
        let used = u64::from(history.memory.frames()) * u64::from(percent) / 100;
        while u64::from(history.used()) > used && history.free() > 0 {}
        history.churn(AGE);
        history
    }

    /// Replaces `hundredths` of the frames in use, at most a sixteenth of them per step. A step
    /// frees random pieces and allocates as much. Returns the number of freed frames.
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

    /// Allocates a piece, or a smaller one if there is none. Returns whether it succeeded.
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

    /// Frees a random piece. Returns its number of frames, 0 if nothing is allocated.
    fn free(&mut self) -> u32 {
        if self.held.is_empty() {
            return 0;
        }
        let (first, order) = self.held.swap_remove(self.random.below(self.held.len()));
        self.memory.release(first, order);
        1 << order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 64 << 20;

    #[test]
    fn a_history_ends_at_its_occupancy() {
        for scatter in Scatter::ALL {
            for percent in [0, 10, 50, 99, 100] {
                let history = History::simulate(BYTES, percent, scatter, 1);
                let used = f64::from(history.used()) / f64::from(history.memory.frames()) * 100.0;
                // A piece of 1 MiB is 1.6 %.
                assert!((used - f64::from(percent)).abs() < 1.7, "{scatter:?}: {used} % of {percent}");
                let held: u32 = history.held.iter().map(|(_, order)| 1 << order).sum();
                assert_eq!(held, history.used());
            }
        }
    }

    #[test]
    fn a_seed_determines_the_history() {
        let runs = |seed| History::simulate(BYTES, 60, Scatter::Mixed, seed).memory.free_runs().collect::<Vec<_>>();
        assert_eq!(runs(1), runs(1));
        assert_ne!(runs(1), runs(2));
    }

    #[test]
    fn churning_replaces_the_wanted_share() {
        for scatter in Scatter::ALL {
            let mut history = History::simulate(BYTES, 60, scatter, 4);
            let used = u64::from(history.used());
            let freed = history.churn(250);
            // At most one piece of 1 MiB too much in each of forty steps.
            assert!((used * 5 / 2..used * 5 / 2 + 41 * 256).contains(&freed), "{freed} of {used}");
            assert!(u64::from(history.used()).abs_diff(used) <= 256);
        }
    }

    #[test]
    fn whole_blocks_never_break() {
        let history = History::simulate(BYTES, 70, Scatter::Blocks, 3);
        assert!(history.memory.free_runs().all(|run| run % (1 << BLOCK_ORDER) == 0));
    }
}
