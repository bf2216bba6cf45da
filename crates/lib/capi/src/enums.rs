//! The numbers of the header's enums, and their texts.

#![allow(unsafe_code, reason = "exports symbols")]

use std::ffi::{CStr, c_char, c_uint};

use fieldstone_pages::{GuardMechanism, Loss, Mechanism, Watch};

use crate::result::CallError;

/// `enum fs_mechanism`, in order from 1.
const MECHANISMS: [(Mechanism, &CStr); 5] = [
    (Mechanism::UserfaultThread, c"userfaultfd-thread"),
    (Mechanism::UserfaultSignal, c"userfaultfd-signal"),
    (Mechanism::ProtectThread, c"mprotect-thread"),
    (Mechanism::ProtectSignal, c"mprotect-signal"),
    (Mechanism::Scan, c"pagemap-scan"),
];

pub(crate) fn mechanism(number: c_uint) -> Result<Mechanism, CallError> {
    let at = (number as usize).wrapping_sub(1);
    MECHANISMS.get(at).map(|entry| entry.0).ok_or(CallError::Argument("the mechanism is not one of enum fs_mechanism"))
}

/// 0 for a mechanism that the header does not have.
pub(crate) fn number_of(mechanism: Mechanism) -> c_uint {
    (1..).zip(&MECHANISMS).find(|(_, entry)| entry.0 == mechanism).map_or(0, |(number, _)| number)
}

pub(crate) fn watch(number: c_uint) -> Result<Watch, CallError> {
    match number {
        0 => Ok(Watch::Writes),
        1 => Ok(Watch::Accesses),
        _ => Err(CallError::Argument("what to watch is not one of enum fs_watch")),
    }
}

pub(crate) fn guard(number: c_uint) -> Result<GuardMechanism, CallError> {
    match number {
        0 => Ok(GuardMechanism::Marker),
        1 => Ok(GuardMechanism::Protect),
        _ => Err(CallError::Argument("the guard mechanism is not one of enum fs_guard")),
    }
}

pub(crate) fn number_of_guard(mechanism: GuardMechanism) -> c_uint {
    c_uint::from(mechanism != GuardMechanism::Marker)
}

/// The bits of `enum fs_loss`.
pub(crate) fn bits(losses: &[Loss]) -> c_uint {
    let bit = |loss: &Loss| match loss {
        Loss::KernelAccesses => 1,
        Loss::Mappings => 2,
        Loss::BlockedSignals => 4,
        Loss::PinnedPages => 8,
        Loss::SharedMemory => 16,
        _ => 0,
    };
    losses.iter().map(bit).fold(0, |bits, bit| bits | bit)
}

#[unsafe(no_mangle)]
extern "C" fn fs_mechanism_name(number: c_uint) -> *const c_char {
    let at = (number as usize).wrapping_sub(1);
    MECHANISMS.get(at).map_or(c"unknown", |entry| entry.1).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn fs_loss_text(loss: c_uint) -> *const c_char {
    let text = match loss {
        1 => {
            c"a system call that accesses a trapped page fails with EFAULT: touch the page first, or use a handler in a \
              thread with /dev/userfaultfd or vm.unprivileged_userfaultfd=1"
        }
        2 => {
            c"each separately protected range takes one of vm.max_map_count mappings: protect long \
              ranges, or use userfaultfd, which needs none"
        }
        4 => {
            c"the kernel kills a thread that blocks SIGSEGV and SIGBUS at a trapped page: leave both unblocked, or use \
              FS_USERFAULT_THREAD, which needs no signal"
        }
        8 => {
            c"this process has pinned pages: writes through registered buffers of io_uring, and by devices, do not make pages \
              dirty: mark such buffers (fs_tracking_mark), or do not register tracked memory"
        }
        16 => {
            c"writes to shared memory or a file through another mapping, by write(2) or by another process do not make pages \
              dirty: mark the pages (fs_tracking_mark), or use private anonymous memory"
        }
        _ => c"unknown",
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_names_match_the_library() {
        for (number, (known, name)) in (1..).zip(MECHANISMS) {
            assert!(mechanism(number).is_ok_and(|found| found == known));
            assert_eq!((number_of(known), name.to_str()), (number, Ok(known.name())));
        }
        assert!(mechanism(0).is_err() && mechanism(6).is_err() && watch(2).is_err() && guard(2).is_err());
    }
}
