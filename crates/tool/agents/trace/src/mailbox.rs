//! Reads the announcements of the site recorder (`agents/sites`), a library in the guest that
//! records its allocations.
//!
//! A mark precedes the store that rings the doorbell of a mailbox. So the store is found at
//! translation, and other accesses need no comparison. The mailbox is read from guest memory, which
//! is mapped in this process. Code of the recorder gets no call-backs, and accesses of code that it
//! calls are not recorded.

#![allow(unsafe_code, reason = "reads guest memory, which is mapped in this process")]

use std::ffi::{c_uint, c_void};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::sites::{Announcement, DOORBELL_MARK};
use fieldstone_wire::trace::MemoryEvent;

use crate::qemu::{self, BOTH, Instruction, NO_REGISTERS};
use crate::thread::thread_state;
use crate::trace::{guest_base, trace};

/// The start and the end of the recorder's code.
static RECORDER: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Whether `address` is in the recorder's code.
pub(crate) fn is_recorder(address: u64) -> bool {
    (RECORDER[0].load(Relaxed)..RECORDER[1].load(Relaxed)).contains(&address)
}

/// The number of the instruction that rings a doorbell: the one after the mark.
pub(crate) fn doorbell_position<'a>(mut code: impl Iterator<Item = (&'a [u8], u64)>) -> Option<usize> {
    code.position(|(bytes, _)| bytes == DOORBELL_MARK).map(|at| at + 1)
}

/// Registers the call-back of the `instruction` that rings a doorbell.
pub(crate) fn register(instruction: *mut Instruction) {
    // SAFETY: the instruction belongs to the block being translated; the call-back has QEMU's type.
    unsafe {
        qemu::qemu_plugin_register_vcpu_mem_cb(instruction, on_doorbell, NO_REGISTERS, BOTH, std::ptr::null_mut());
    }
}

/// A doorbell at `address` was rung.
extern "C" fn on_doorbell(number: c_uint, _: u32, address: u64, _: *mut c_void) {
    let Some(thread) = thread_state(number) else { return };
    if !Announcement::is_doorbell(address) {
        return;
    }
    let Ok(host_address) = usize::try_from(address.wrapping_add(guest_base())) else { return };
    let mailbox = std::ptr::with_exposed_provenance::<[u64; 4]>(host_address);
    // SAFETY: the guest has just stored to this mailbox, which is never unmapped and belongs to
    // this thread.
    let words = unsafe { mailbox.read_volatile() };
    match Announcement::read(words) {
        Some(Announcement::Here { address, bytes }) => {
            RECORDER[0].store(address, Relaxed);
            RECORDER[1].store(address.saturating_add(bytes), Relaxed);
            trace().sites.store(1, Relaxed);
        }
        Some(Announcement::Quiet) => thread.pause(),
        Some(Announcement::Alloc { address, bytes, site }) => {
            thread.resume();
            thread.record_event(MemoryEvent::Alloc, [address, bytes, u64::from(site), 0], false);
        }
        Some(Announcement::Free { address }) => {
            thread.resume();
            thread.record_event(MemoryEvent::Free, [address, 0, 0, 0], false);
        }
        Some(Announcement::Map { address, bytes, site }) => {
            thread.resume();
            thread.record_event(MemoryEvent::MapSite, [address, bytes, u64::from(site), 0], false);
        }
        None => {}
    }
}
