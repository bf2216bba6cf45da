//! The vector registers that `__morestack` saves while it chooses a segment.

#![allow(unsafe_code, reason = "reads a control register")]

use core::sync::atomic::{AtomicU32, Ordering};

/// The XSAVE components that the slow path saves: SSE, AVX, AVX-512. Not x87, which it does not
/// touch. 0 without XSAVE.
pub(crate) static XSAVE_MASK: AtomicU32 = AtomicU32::new(0);
/// Bytes of the saved components: x87 and SSE 512, XSAVE's header 64, AVX 256; AVX-512 up to byte
/// 2688, with a hole for unsaved ones. The minimum, since the stack may be a signal handler's.
pub(crate) static XSAVE_BYTES: AtomicU32 = AtomicU32::new(2688);

/// Detects the registers to save. Called before the slow path first runs.
pub(crate) fn detect() {
    use core::arch::x86_64::{__cpuid, _xgetbv};
    const OSXSAVE: u32 = 1 << 27;
    const SAVED_COMPONENTS: u64 = 0xe6;

    #[target_feature(enable = "xsave")]
    fn enabled_components() -> u64 {
        // SAFETY: XCR0 exists on every processor with XSAVE, which the attribute requires.
        unsafe { _xgetbv(0) }
    }
    if __cpuid(1).ecx & OSXSAVE != 0 {
        // SAFETY: OSXSAVE is set, so the processor has XSAVE and the kernel has enabled it.
        let mask = unsafe { enabled_components() } & SAVED_COMPONENTS;
        const AVX: u64 = 1 << 2;
        let bytes = if mask & !0b111 != 0 { 2688 } else { 576 + if mask & AVX != 0 { 256 } else { 0 } };
        XSAVE_BYTES.store(bytes, Ordering::Relaxed);
        XSAVE_MASK.store(u32::try_from(mask).unwrap_or(0), Ordering::Relaxed);
    }
}
