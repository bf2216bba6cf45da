//! The instructions that wait for pages: recorded for a part of the faults, so that the command can
//! name the functions.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use crate::maps::instruction;
use crate::start;

/// One in this number of faults is recorded: that takes some microseconds.
const INTERVAL: u32 = 32;

/// Faults so far.
static FAULTS: AtomicU32 = AtomicU32::new(0);
/// The thread that has waited for a page last.
static LAST_THREAD: AtomicU32 = AtomicU32::new(0);

/// A thread waits for a page.
pub(crate) fn record(thread: u32) {
    LAST_THREAD.store(thread, Relaxed);
    if FAULTS.fetch_add(1, Relaxed).is_multiple_of(INTERVAL)
        && let Some((_, process)) = start::session()
        && let Some(address) = instruction(thread)
    {
        process.sites.count(address);
    }
}

/// The thread that has waited for a page last; 0 if none has.
pub(crate) fn last_thread() -> u32 {
    LAST_THREAD.load(Relaxed)
}
