//! The times at which a thread was sampled at a line, in short windows, and whether two threads ran
//! at the same time.
//!
//! ```text
//!   window          0   1   2   3   4   5   6   7   8   9
//!   thread 1        x   x       x   x   x   x       x   x       8 of 10
//!   thread 2        x       x   x   x       x   x   x           7 of 10       5 in common; expected: 8 · 7 / 10 = 5.6
//!
//!   thread 1        x   x   x                   x   x   x
//!   thread 3                x   x   x   x   x   x               2 in common; expected: 6 · 6 / 10 = 3.6: alternating
//! ```
//! Threads that never ran at the same time share nothing, whatever bytes they accessed. Neither do
//! threads that alternate on one CPU, so a common window counts only if the CPUs differ.
//!
//! Algorithm: independent threads have about as many common windows as expected by chance.
//! Alternating threads have common windows only where a turn ends inside a window. The last 128
//! windows before the later thread's last one are compared; older ones are no evidence.

use serde::{Deserialize, Serialize};

use crate::bits::Bits;

/// Minimum number of common windows. One or two occur where a turn ends or a thread starts.
pub const LEAST_COMMON: u32 = 3;

/// Minimum ratio of common windows to the number expected by chance. Turns of five windows that end
/// inside a window have about 0.5; independent threads rarely have less than 0.6.
pub const LEAST_OF_CHANCE: f64 = 0.6;

/// Binary digits of a CPU's number that are kept: numbers that differ by a multiple of 256 are
/// equal here.
const CPU_DIGITS: usize = 8;

/// The windows in which a thread was sampled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// Number of the last window.
    last: u64,
    /// Flag n: n windows before the last.
    seen: Bits,
    /// The last CPU in each window, digit by digit.
    #[serde(default)]
    cpu: [Bits; CPU_DIGITS],
}

impl Windows {
    /// Records a sample in this window on this CPU. Windows may come out of order.
    pub fn mark(&mut self, window: u64, cpu: u32) {
        if window > self.last || self.seen.is_empty() {
            let passed = window.saturating_sub(self.last);
            self.seen = self.seen.up(passed);
            self.cpu = self.cpu.map(|digit| digit.up(passed));
            self.last = window;
        }
        let flag = Bits::range(0..1).up(self.last - window);
        self.seen |= flag;
        for (at, digit) in self.cpu.iter_mut().enumerate() {
            *digit = if cpu >> at & 1 == 1 { *digit | flag } else { *digit & !flag };
        }
    }

    /// Number of windows with samples, of the last 128.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.seen.count()
    }

    /// Number of the last window.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Whether its first sample is so short before window `now` that it cannot have enough common
    /// windows with any thread.
    pub(crate) fn is_new(&self, now: u64) -> bool {
        let first = (self.last + 1).saturating_sub(self.seen.span().into());
        self.count() < LEAST_COMMON && now.saturating_sub(first) < LEAST_COMMON.into()
    }

    /// Whether both threads ran at the same time, by these windows.
    #[must_use]
    pub fn ran_with(&self, other: &Self) -> bool {
        let last = self.last.max(other.last);
        let (passed, others_passed) = (last - self.last, last - other.last);
        let (own, others) = (self.seen.up(passed), other.seen.up(others_passed));
        let digits = self.cpu.iter().zip(&other.cpu);
        let apart = digits.fold(Bits::NONE, |apart, (one, two)| apart | (one.up(passed) ^ two.up(others_passed)));
        let all = f64::from((own | others).span());
        // Windows on the same CPU are ignored.
        let counted = !(own & others) | apart;
        let (own, others) = (own & counted, others & counted);
        let common = (own & others).count();
        let by_chance = f64::from(own.count()) * f64::from(others.count()) / all;
        common >= LEAST_COMMON && f64::from(common) >= LEAST_OF_CHANCE * by_chance
    }
}

#[cfg(test)]
mod tests {
    use super::Windows;

    fn seen_on(cpu: u32, windows: impl IntoIterator<Item = u64>) -> Windows {
        let mut all = Windows::default();
        windows.into_iter().for_each(|window| all.mark(window, cpu));
        all
    }

    fn seen(windows: impl IntoIterator<Item = u64>) -> Windows {
        seen_on(0, windows)
    }

    /// Windows on another CPU.
    fn beside(windows: impl IntoIterator<Item = u64>) -> Windows {
        seen_on(5, windows)
    }

    #[test]
    fn three_common_windows_are_needed() {
        assert!(seen([5, 6, 7]).ran_with(&beside([5, 6, 7])));
        assert!(!seen([5, 6, 7]).ran_with(&beside([6, 7, 8])));
        assert!(!Windows::default().ran_with(&beside([0, 1, 2])));
    }

    #[test]
    fn the_order_in_which_samples_arrive_does_not_matter() {
        assert_eq!(seen([9, 3, 7, 3]), seen([3, 7, 9]));
        assert_eq!(seen([400, 3]), seen([400]), "too long ago");
        assert_eq!(seen([0, 200]).count(), 1);
    }

    #[test]
    fn one_cpu_runs_one_thread_at_a_time() {
        assert!(!seen(0..128).ran_with(&seen(0..128)), "turns shorter than a window");
        assert!(!seen_on(7, 0..128).ran_with(&seen_on(7, 0..128)));
        let mut moves = seen(0..64);
        (64..128).for_each(|window| moves.mark(window, 3));
        assert!(moves.ran_with(&seen(0..128)), "half of the time beside it");
        (0..128).for_each(|window| moves.mark(window, 0));
        assert!(!moves.ran_with(&seen(0..128)), "seen there later");
    }

    #[test]
    fn alternating_threads_do_not_run_at_the_same_time() {
        // Turns of five windows; each turn ends inside a window with samples of both.
        let turn = |cpu, which| seen_on(cpu, (0..128).filter(move |window| window / 5 % 2 == which || window % 5 == 0));
        assert!(!turn(0, 0).ran_with(&turn(5, 1)));
        // One long turn each.
        assert!(!seen(0..60).ran_with(&beside(59..120)));
    }

    #[test]
    fn rare_threads_run_with_a_permanent_one() {
        assert!(seen(0..128).ran_with(&beside((0..128).step_by(30))));
        // Both occasionally and independently: every third and every fifth window.
        assert!(seen((0..128).step_by(3)).ran_with(&beside((0..128).step_by(5))));
    }

    #[test]
    fn a_thread_is_new_until_it_could_have_three_windows() {
        assert!(seen([7]).is_new(8) && seen([7, 9]).is_new(9));
        assert!(!seen([7]).is_new(10), "it had the time, and did not come");
        assert!(!seen([7, 8, 9]).is_new(9));
    }

    #[test]
    fn old_windows_of_an_ended_thread_are_ignored() {
        let ended = seen(0..50);
        assert!(ended.ran_with(&beside(0..60)));
        assert!(!ended.ran_with(&beside(0..400)), "its windows are out of sight");
    }
}
