//! Memory until the functions that an agent interposes are found: finding them may allocate.
//!
//! ```text
//! BUFFER  | length, 16 bytes | block | length | block | ...        blocks of multiples of 16 bytes, never freed
//! ```

#![allow(unsafe_code, reason = "allocates from a static buffer")]

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

const BYTES: usize = 64 << 10;
const UNIT: usize = 16;

#[repr(C, align(16))]
struct Buffer(UnsafeCell<[u8; BYTES]>);

// SAFETY: an atomic counter returns each range once, and only its owner accesses it.
unsafe impl Sync for Buffer {}

static BUFFER: Buffer = Buffer(UnsafeCell::new([0; BYTES]));
static USED: AtomicUsize = AtomicUsize::new(0);

fn start() -> usize {
    BUFFER.0.get() as usize
}

/// A zeroed block at a multiple of 16; null if the arena is full.
pub fn alloc(bytes: usize) -> *mut c_void {
    let Some(whole) = bytes.checked_next_multiple_of(UNIT).filter(|&whole| whole < BYTES) else {
        return core::ptr::null_mut();
    };
    let at = USED.fetch_add(UNIT + whole, Relaxed);
    if at + UNIT + whole > BYTES {
        return core::ptr::null_mut();
    }
    // SAFETY: the counter returned this range to this call only, and it is inside the buffer.
    unsafe {
        let start = BUFFER.0.get().cast::<u8>().add(at);
        #[allow(
            clippy::cast_ptr_alignment,
            reason = "allocations start at multiples of the unit of an aligned buffer"
        )]
        start.cast::<usize>().write(bytes);
        start.add(UNIT).cast()
    }
}

/// Whether a block is from the arena.
pub fn owns(block: *const c_void) -> bool {
    (start()..start() + BYTES).contains(&(block as usize))
}

/// The length of a block of the arena in bytes.
pub fn bytes(block: *const c_void) -> usize {
    // SAFETY: `alloc` wrote the length in the unit before the block.
    unsafe { block.cast::<usize>().sub(UNIT / size_of::<usize>()).read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_store_their_length() {
        let blocks = [1, 16, 17, 0, 100].map(|bytes| (alloc(bytes), bytes));
        for (index, &(block, length)) in blocks.iter().enumerate() {
            assert!(owns(block) && (block as usize).is_multiple_of(16));
            assert_eq!(bytes(block), length);
            assert!(blocks[..index].iter().all(|&(other, other_length)| {
                block as usize >= other as usize + other_length || other as usize >= block as usize + length
            }));
        }
        assert!(alloc(BYTES).is_null() && alloc(usize::MAX).is_null());
        assert!(!owns(core::ptr::null()) && !owns(core::ptr::from_ref(&blocks).cast()));
    }
}
