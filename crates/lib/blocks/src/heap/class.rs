//! Size classes, eight per doubling: an object is at most 12.5 % larger than the request, and at
//! least 16 bytes.
//!
//! ```text
//! class    0  1  2 ...   7    8   9 ...  15   16  17 ...  23   24
//! bytes   16 32 48 ... 128  144 160 ... 256  288 320 ... 512  576 ...
//! ```
//! A class size is a multiple of the power of two that divides it. An aligned request takes a class
//! whose size the alignment divides.

use core::alloc::Layout;

/// The number of classes. An object of the last one is larger than half of 2 MiB, so no block needs
/// more.
pub(super) const CLASSES: usize = 120;

/// Alignment of every object.
pub(super) const MIN_ALIGN: usize = 16;

/// The class of a request; [`CLASSES`] or more if no class is large enough.
#[inline(always)]
pub(super) const fn of_layout(layout: Layout) -> usize {
    if layout.align() <= MIN_ALIGN {
        return of_bytes(layout.size());
    }
    of_aligned(layout)
}

#[inline(always)]
const fn of_bytes(bytes: usize) -> usize {
    let last = bytes.saturating_sub(1);
    let shift = (last | 255).ilog2() as usize - 3;
    (last >> shift) + (shift - 4) * 8
}

const fn of_aligned(layout: Layout) -> usize {
    // A power of two always fits. If the size is a multiple of the alignment, its own class usually
    // fits.
    let class = of_bytes(if layout.size() < layout.align() { layout.align() } else { layout.size() });
    if class >= CLASSES || object_bytes(class).is_multiple_of(layout.align()) {
        return class;
    }
    of_bytes(layout.size().next_power_of_two())
}

/// Bytes of the objects of a class.
pub(super) const fn object_bytes(class: usize) -> usize {
    if class < 8 { (class + 1) << 4 } else { (class % 8 + 9) << (class / 8 + 3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_what_is_asked_and_wastes_an_eighth() {
        for bytes in 1..100_000 {
            let class = of_bytes(bytes);
            let given = object_bytes(class);
            assert!(given >= bytes && (class == 0 || object_bytes(class - 1) < bytes), "{bytes}: {given}");
            assert!(given - bytes < MIN_ALIGN || (given - bytes) * 8 <= bytes, "{bytes}: {given}");
        }
        assert_eq!(of_bytes(0), 0);
        assert!(of_bytes(isize::MAX as usize) >= CLASSES && object_bytes(CLASSES - 1) > 1 << 20);
    }

    #[test]
    fn an_aligned_request_gets_an_aligned_class() {
        for shift in 0..16 {
            let align = 1 << shift;
            for bytes in (1..5000).chain([align, 3 * align, 9000, 20_000]) {
                let layout = Layout::from_size_align(bytes, align).unwrap();
                let given = object_bytes(of_layout(layout));
                assert!(given >= bytes && given.is_multiple_of(align), "{layout:?}: {given}");
            }
        }
    }
}
