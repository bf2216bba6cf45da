//! x86-64: the store to a doorbell, behind its mark.

use core::sync::atomic::AtomicU64;

/// The displacement in [`super::DOORBELL_MARK`].
const MARK_DISPLACEMENT: i32 = 0x005e_115d;

/// Stores `value`, behind the [`super::DOORBELL_MARK`].
pub(super) fn store(doorbell: &AtomicU64, value: u64) {
    let place = doorbell.as_ptr();
    // SAFETY: `doorbell` borrows the word, so it is live and aligned; on x86-64 a plain 8-byte
    // store to an atomic is a release store.
    unsafe {
        core::arch::asm!(
            // One 16-byte aligned unit holds both, so no page boundary, and so no end of a
            // translated block, separates them.
            ".p2align 4",
            "nop dword ptr [rax + rax + {mark}]",
            "mov qword ptr [{place}], {value}",
            mark = const MARK_DISPLACEMENT,
            place = in(reg) place,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
}
