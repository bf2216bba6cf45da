//! What the site recorder tells: a library of ours that runs inside the guest (`agents/sites`) and sees its allocations.
//!
//! The store that rings the bell of a letter stands behind a mark, so that it is found when its code is translated and nothing
//! has to be compared at any other access. The letter is read from the guest's memory, which lies in this process. What the
//! recorder does itself is not the program's: its code is not watched, and what others do for it passes unrecorded.

#![allow(unsafe_code, reason = "reads the guest's memory, which lies in this process")]

use std::ffi::{c_uint, c_void};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_wire::sites::{Announcement, DOORBELL_MARK};
use fieldstone_wire::trace::MemoryEvent;

use crate::qemu::{self, BOTH, Instruction, NO_REGISTERS};
use crate::thread::of;
use crate::trace::{guest_base, trace};

/// Where the recorder's code begins and ends.
static RECORDER: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Whether the code at `address` is the recorder's.
pub(crate) fn is_recorder(address: u64) -> bool {
    (RECORDER[0].load(Relaxed)..RECORDER[1].load(Relaxed)).contains(&address)
}

/// The number of the instruction that rings a bell: the one behind the mark.
pub(crate) fn bell<'a>(mut code: impl Iterator<Item = (&'a [u8], u64)>) -> Option<usize> {
    code.position(|(bytes, _)| bytes == DOORBELL_MARK).map(|at| at + 1)
}

/// Has the letter read whose bell `instruction` rings.
pub(crate) fn watch(instruction: *mut Instruction) {
    // SAFETY: the instruction belongs to the block that is being translated; the call-back has QEMU's type.
    unsafe {
        qemu::qemu_plugin_register_vcpu_mem_cb(instruction, rung, NO_REGISTERS, BOTH, std::ptr::null_mut());
    }
}

/// A bell was rung, at `address`.
extern "C" fn rung(number: c_uint, _: u32, address: u64, _: *mut c_void) {
    let Some(thread) = of(number) else { return };
    if !Announcement::is_doorbell(address) {
        return;
    }
    let Ok(place) = usize::try_from(address.wrapping_add(guest_base())) else { return };
    let letter = std::ptr::with_exposed_provenance::<[u64; 4]>(place);
    // SAFETY: the guest has just stored to this place, a letter of a mailbox that is never unmapped; its owner is this thread.
    let words = unsafe { letter.read_volatile() };
    match Announcement::read(words) {
        Some(Announcement::Here { address, bytes }) => {
            RECORDER[0].store(address, Relaxed);
            RECORDER[1].store(address.saturating_add(bytes), Relaxed);
            trace().sites.store(1, Relaxed);
        }
        Some(Announcement::Quiet) => thread.pause(),
        Some(Announcement::Alloc { address, bytes, site }) => {
            thread.resume();
            thread.tell(MemoryEvent::Alloc, [address, bytes, u64::from(site), 0], false);
        }
        Some(Announcement::Free { address }) => {
            thread.resume();
            thread.tell(MemoryEvent::Free, [address, 0, 0, 0], false);
        }
        Some(Announcement::Map { address, bytes, site }) => {
            thread.resume();
            thread.tell(MemoryEvent::MapSite, [address, bytes, u64::from(site), 0], false);
        }
        None => {}
    }
}
