//! How much time guarded objects may take.
//!
//! ```text
//! permitted = ALLOWANCE + SHARE · processor time of the process
//!             less 1/2 of ALLOWANCE for known sites, less 1/8 of it for second objects
//! spent     = 2 · time stamp counter around each guarded allocation + a charge for page faults
//! ```
//! When the permitted time is used up, the first allocation of a new site is guarded nevertheless:
//! one in [`FIRST_TICKS`], and [`FIRST_BURST`] at once. This time counts as spent, so other objects
//! wait longer.
//!
//! A free takes about as long as its allocation, and is charged with it. Otherwise the frees of
//! objects that were permitted early would use up what is kept for new sites.
//!
//! The unit is time, because a guarded object costs from 3 µs to 50 µs, by the size of the program's
//! working set. Time is counted in ticks of the time stamp counter. Its frequency is measured
//! against the clock of the kernel.
//!
//! Cost: a load and a compare for each due allocation; two clocks are read when the permitted time
//! is used up, at most once in 2²¹ ticks.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::raw;

/// Nanoseconds that each process may spend at its start: 10 ms, the first two objects of about 400
/// sites.
const ALLOWANCE_NS: u64 = 10_000_000;
/// One part in this many of the processor time may be spent: .4 %. The fast path and what the counter
/// does not see take the rest of 1 %.
const SHARE: u64 = 250;
/// Ticks charged for a guarded object in addition to the time of its calls: the faults on its page.
const FAULT_TICKS: u64 = 2_000;
/// The largest charge for one call, about 50 µs: a thread that is preempted does not use that time.
const LONGEST_TICKS: u64 = 1 << 17;
/// Ticks between two readings of the clocks.
const INTERVAL_TICKS: u64 = 1 << 21;

/// Ticks between two first allocations that are guarded without permitted time: about 140 a second,
/// .1 % of the time.
const FIRST_TICKS: u64 = 1 << 24;
/// How many of them may follow one another after a time without any.
const FIRST_BURST: u64 = 64;

static SPENT: AtomicU64 = AtomicU64::new(0);
/// Permitted ticks at the last reading of the clocks, and those of the allowance alone.
static PERMITTED: AtomicU64 = AtomicU64::new(0);
static ALLOWANCE: AtomicU64 = AtomicU64::new(0);
static LAST_READING: AtomicU64 = AtomicU64::new(0);
static START_TICKS: AtomicU64 = AtomicU64::new(0);
static START_NS: AtomicU64 = AtomicU64::new(0);

/// Who asks for time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// A site at its first allocation.
    First,
    /// A site without a guarded object.
    New,
    /// A site whose first objects are not all guarded yet.
    Young,
    /// Any other site.
    Known,
}

impl Share {
    /// The ticks that are kept for sites with fewer objects. They are a part of the
    /// allowance and not of the permitted time, so that a long run spends what it may.
    const fn reserve(self, allowance: u64) -> u64 {
        match self {
            Self::First | Self::New => 0,
            Self::Young => allowance / 8,
            Self::Known => allowance / 2,
        }
    }
}

/// Starts to measure the frequency of the counter.
pub(crate) fn prepare() {
    START_TICKS.store(raw::ticks(), Relaxed);
    START_NS.store(raw::clock_ns(libc::CLOCK_MONOTONIC), Relaxed);
    // Until the frequency is known: 2 ticks a nanosecond, a low estimate.
    PERMITTED.store(ALLOWANCE_NS * 2, Relaxed);
    ALLOWANCE.store(ALLOWANCE_NS * 2, Relaxed);
}

/// Whether a guarded object may be allocated now.
pub(crate) fn permits(share: Share) -> bool {
    let fits = || SPENT.load(Relaxed) + share.reserve(ALLOWANCE.load(Relaxed)) < PERMITTED.load(Relaxed);
    fits() || read_clocks() && fits() || share == Share::First && permits_first(raw::ticks())
}

/// Whether the first allocation of a new site may be guarded without permitted time: a leaky bucket
/// that holds [`FIRST_BURST`].
fn permits_first(now: u64) -> bool {
    static FULL_AT: AtomicU64 = AtomicU64::new(0);
    let take = |full_at: u64| {
        let full_at = full_at.max(now) + FIRST_TICKS;
        (full_at - now <= FIRST_BURST * FIRST_TICKS).then_some(full_at)
    };
    FULL_AT.fetch_update(Relaxed, Relaxed, take).is_ok()
}

/// Computes the permitted time. False if that was done shortly before.
fn read_clocks() -> bool {
    let now = raw::ticks();
    if now.wrapping_sub(LAST_READING.load(Relaxed)) < INTERVAL_TICKS {
        return false;
    }
    LAST_READING.store(now, Relaxed);
    let ticks = now.wrapping_sub(START_TICKS.load(Relaxed));
    let elapsed_ns = raw::clock_ns(libc::CLOCK_MONOTONIC).saturating_sub(START_NS.load(Relaxed)).max(1);
    let permitted_ns = ALLOWANCE_NS + raw::clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID) / SHARE;
    let in_ticks = |ns: u64| u64::try_from(u128::from(ns) * u128::from(ticks) / u128::from(elapsed_ns));
    PERMITTED.store(in_ticks(permitted_ns).unwrap_or(u64::MAX), Relaxed);
    ALLOWANCE.store(in_ticks(ALLOWANCE_NS).unwrap_or(u64::MAX), Relaxed);
    true
}

/// Runs an allocation, and charges its time and that of its free.
pub(crate) fn charge<R>(work: impl FnOnce() -> R) -> R {
    let start = raw::ticks();
    let result = work();
    SPENT.fetch_add(2 * raw::ticks().wrapping_sub(start).min(LONGEST_TICKS) + FAULT_TICKS, Relaxed);
    result
}

/// In the child of a fork: its processor time starts at 0, so its spending does too.
pub(crate) fn after_fork() {
    SPENT.store(0, Relaxed);
    prepare();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_allocations_of_new_sites_are_guarded_without_permitted_time() {
        let at = |now: u64| (0..1000).filter(|_| permits_first(now)).count();
        let start = 1 << 40;
        assert_eq!(at(start), 64);
        assert_eq!(at(start + FIRST_TICKS / 2), 0);
        assert_eq!(at(start + 10 * FIRST_TICKS), 10);
        assert_eq!(at(start + 1000 * FIRST_TICKS), 64);
    }

    #[test]
    fn first_and_second_objects_of_new_sites_go_before_those_of_known_ones() {
        prepare();
        let allowance = ALLOWANCE.load(Relaxed);
        let permitted = |part: u64| {
            SPENT.store(allowance * part / 16, Relaxed);
            LAST_READING.store(raw::ticks(), Relaxed);
            [Share::Known, Share::Young, Share::New].map(permits)
        };
        assert_eq!(permitted(7), [true, true, true]);
        assert_eq!(permitted(9), [false, true, true]);
        assert_eq!(permitted(15), [false, false, true]);
        assert_eq!(permitted(17), [false, false, false]);
        // A process that has run for long spends its share on known sites too.
        PERMITTED.store(allowance * 10, Relaxed);
        assert_eq!(permitted(16 * 9), [true, true, true]);
        after_fork();
    }
}
