//! How much time guarded objects may take.
//!
//! ```text
//! permitted = ALLOWANCE + SHARE · processor time of the process
//!             └─ 3/4 for known sites, 7/8 for second objects, all of it for first ones ─┘
//! spent     = time stamp counter around the guarded calls + a charge for page faults
//! ```
//! The unit is time, because a guarded object costs from 3 µs to 50 µs, by the size of the program's
//! working set. Time is counted in ticks of the time stamp counter. Its frequency is measured
//! against the clock of the kernel.
//!
//! Cost: a load and a compare for each due allocation; two clocks are read when the permitted time
//! is used up, at most once in 2²¹ ticks.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::raw;

/// Nanoseconds that each process may spend at its start: 6 ms, the first two objects of about 500
/// sites.
const ALLOWANCE_NS: u64 = 6_000_000;
/// One part in this many of the processor time may be spent: .5 %. The fast path and what the counter
/// does not see take the rest of 1 %.
const SHARE: u64 = 200;
/// Ticks charged for a guarded object in addition to the time of its calls: the faults on its page.
const FAULT_TICKS: u64 = 2_000;
/// The largest charge for one call: a thread that is preempted does not use that time.
const LONGEST_TICKS: u64 = 1 << 18;
/// Ticks between two readings of the clocks.
const INTERVAL_TICKS: u64 = 1 << 21;

static SPENT: AtomicU64 = AtomicU64::new(0);
/// Permitted ticks at the last reading of the clocks.
static PERMITTED: AtomicU64 = AtomicU64::new(0);
static LAST_READING: AtomicU64 = AtomicU64::new(0);
static START_TICKS: AtomicU64 = AtomicU64::new(0);
static START_NS: AtomicU64 = AtomicU64::new(0);

/// Who asks for time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    /// A site without a guarded object.
    New,
    /// A site whose first objects are not all guarded yet.
    Young,
    /// Any other site.
    Known,
}

/// Starts to measure the frequency of the counter.
pub(crate) fn prepare() {
    START_TICKS.store(raw::ticks(), Relaxed);
    START_NS.store(raw::clock_ns(libc::CLOCK_MONOTONIC), Relaxed);
    // Until the frequency is known: 2 ticks a nanosecond, a low estimate.
    PERMITTED.store(ALLOWANCE_NS * 2, Relaxed);
}

/// Whether a guarded object may be allocated now.
pub(crate) fn permits(share: Share) -> bool {
    let fits = || {
        let permitted = PERMITTED.load(Relaxed);
        let reserve = match share {
            Share::New => 0,
            Share::Young => permitted / 8,
            Share::Known => permitted / 4,
        };
        SPENT.load(Relaxed) < permitted - reserve
    };
    fits() || read_clocks() && fits()
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
    let permitted = u128::from(permitted_ns) * u128::from(ticks) / u128::from(elapsed_ns);
    PERMITTED.store(u64::try_from(permitted).unwrap_or(u64::MAX), Relaxed);
    true
}

/// Runs `work` and charges its time.
pub(crate) fn charge<R>(work: impl FnOnce() -> R) -> R {
    let start = raw::ticks();
    let result = work();
    SPENT.fetch_add(raw::ticks().wrapping_sub(start).min(LONGEST_TICKS) + FAULT_TICKS, Relaxed);
    result
}

/// In the child of a fork: its processor time starts at 0, so its spending does too.
pub(crate) fn after_fork() {
    SPENT.store(0, Relaxed);
    prepare();
}
