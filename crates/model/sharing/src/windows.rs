//! When a thread was seen at a line: short windows of time, and whether two threads ran in the same ones.
//!
//! ```text
//!   window          0   1   2   3   4   5   6   7   8   9
//!   thread 1        x   x       x   x   x   x       x   x       8 of 10
//!   thread 2        x       x   x   x       x   x   x           7 of 10       5 in common; chance: 8 · 7 / 10 = 5.6
//!
//!   thread 1        x   x   x                   x   x   x
//!   thread 3                x   x   x   x   x   x               2 in common; chance: 6 · 6 / 10 = 3.6: took turns
//! ```
//! Threads that never ran at the same time share nothing, whatever bytes they touched; nor do those that took turns on one CPU, however short:
//! a window counts where they were seen on different ones. Those that ran independently of
//! each other meet about as often as chance says; those that took turns meet only where a turn ends inside a window.
//! The last 128 windows before the later of two threads' last ones are looked at: what ended long ago is no evidence.

use serde::{Deserialize, Serialize};

use crate::bits::Bits;

/// Windows in which two threads must both have been seen. One or two are where a turn ends, or a thread starts.
pub const LEAST_COMMON: u32 = 3;

/// How often threads that ran at the same time meet at least, to what chance says. Turns of five windows whose ends fall
/// inside a window give about a half; independent threads rarely less than 0.6.
pub const LEAST_OF_CHANCE: f64 = 0.6;

/// Digits of a CPU's number, in twos, that are kept: CPUs whose numbers differ by a multiple of 256 look the same.
const CPU_DIGITS: usize = 8;

/// The windows in which a thread was seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// The number of the last window.
    last: u64,
    /// Flag n: n windows before the last.
    seen: Bits,
    /// The number of the CPU on which it was seen there last, digit by digit.
    #[serde(default)]
    cpu: [Bits; CPU_DIGITS],
}

impl Windows {
    /// The thread was seen in this window, on this CPU; windows may come out of order.
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

    /// In how many windows it was seen, of the last 128.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.seen.count()
    }

    /// The number of the last window.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Was it first seen so short before window `now` that it could not yet meet anyone often enough?
    pub(crate) fn is_new(&self, now: u64) -> bool {
        let first = (self.last + 1).saturating_sub(self.seen.span().into());
        self.count() < LEAST_COMMON && now.saturating_sub(first) < LEAST_COMMON.into()
    }

    /// Did both threads run at the same time, as far as these windows tell?
    #[must_use]
    pub fn ran_with(&self, other: &Self) -> bool {
        let last = self.last.max(other.last);
        let (passed, others_passed) = (last - self.last, last - other.last);
        let (own, others) = (self.seen.up(passed), other.seen.up(others_passed));
        let digits = self.cpu.iter().zip(&other.cpu);
        let apart = digits.fold(Bits::NONE, |apart, (one, two)| apart | (one.up(passed) ^ two.up(others_passed)));
        let all = f64::from((own | others).span());
        // What they did on one CPU says nothing either way.
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

    /// On another CPU.
    fn beside(windows: impl IntoIterator<Item = u64>) -> Windows {
        seen_on(5, windows)
    }

    #[test]
    fn three_windows_in_common_are_needed() {
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
    fn turns_are_not_the_same_time() {
        // Turns of five windows; every turn ends inside a window that both are seen in.
        let turn = |cpu, which| seen_on(cpu, (0..128).filter(move |window| window / 5 % 2 == which || window % 5 == 0));
        assert!(!turn(0, 0).ran_with(&turn(5, 1)));
        // One long turn each.
        assert!(!seen(0..60).ran_with(&beside(59..120)));
    }

    #[test]
    fn rare_visitors_are_the_same_time_as_one_that_is_always_there() {
        assert!(seen(0..128).ran_with(&beside((0..128).step_by(30))));
        // Both now and then, independently: every third and every fifth window.
        assert!(seen((0..128).step_by(3)).ran_with(&beside((0..128).step_by(5))));
    }

    #[test]
    fn a_thread_is_new_until_it_could_have_been_seen_three_times() {
        assert!(seen([7]).is_new(8) && seen([7, 9]).is_new(9));
        assert!(!seen([7]).is_new(10), "it had the time, and did not come");
        assert!(!seen([7, 8, 9]).is_new(9));
    }

    #[test]
    fn a_thread_that_ended_is_no_evidence() {
        let ended = seen(0..50);
        assert!(ended.ran_with(&beside(0..60)));
        assert!(!ended.ran_with(&beside(0..400)), "its windows are out of sight");
    }
}
