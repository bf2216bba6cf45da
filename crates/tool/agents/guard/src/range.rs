//! The guarded objects, and their address range as the entries read it.
//!
//! Until the objects exist, the range is empty: no block is in it.

#![allow(unsafe_code, reason = "shares a value that is written once")]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

use fieldstone_guard::Slots;
use fieldstone_preload::unpaged::AddressRange;

/// First address of the range.
pub(crate) static BASE: AtomicUsize = AtomicUsize::new(0);
/// Bytes of the range; 0 while there are no objects.
pub(crate) static SPAN: AtomicUsize = AtomicUsize::new(0);

struct SlotsCell(UnsafeCell<MaybeUninit<Slots>>);

// SAFETY: written once, by the thread that starts the agent, before `SPAN` is set; read only while
// `SPAN` is not 0.
unsafe impl Sync for SlotsCell {}

static SLOTS: SlotsCell = SlotsCell(UnsafeCell::new(MaybeUninit::uninit()));

/// Publishes the objects.
///
/// # Safety
/// To be called once, by the thread that starts the agent.
pub(crate) unsafe fn install(slots: Slots) {
    let (base, span) = (slots.base(), slots.span());
    // SAFETY: no reference exists while `SPAN` is 0, and the caller calls this once.
    unsafe { (*SLOTS.0.get()).write(slots) };
    BASE.store(base, Release);
    SPAN.store(span, Release);
}

/// The guarded objects stay resident: a page behind a guard must not come back from a store when
/// the guard is removed.
// A test binary does not export it.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, expect(dead_code, reason = "only the paging agent calls it"))]
pub(crate) extern "C" fn fieldstone_unpaged_range() -> AddressRange {
    let start = BASE.load(Acquire);
    AddressRange { start, end: start + SPAN.load(Acquire) }
}

/// The objects; `None` until the agent has started, and in a program that is not guarded.
pub(crate) fn slots() -> Option<&'static Slots> {
    if SPAN.load(Acquire) == 0 {
        return None;
    }
    // SAFETY: `install` wrote the value before it set `SPAN`, and it is never written again.
    Some(unsafe { (*SLOTS.0.get()).assume_init_ref() })
}

/// Whether an address is in the range.
pub(crate) fn contains(address: usize) -> bool {
    address.wrapping_sub(BASE.load(Acquire)) < SPAN.load(Acquire)
}
