//! Memory for the time before the real functions are known: finding them may allocate.
//!
//! ```text
//! ROOM  | length, 16 bytes | block | length | block | ...        blocks of whole 16 bytes, never given back
//! ```

#![allow(unsafe_code, reason = "hands out pieces of a static")]

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

const BYTES: usize = 64 << 10;
const UNIT: usize = 16;

#[repr(C, align(16))]
struct Room(UnsafeCell<[u8; BYTES]>);

// SAFETY: pieces are handed out once each, by an atomic counter; what is in them is their owner's.
unsafe impl Sync for Room {}

static ROOM: Room = Room(UnsafeCell::new([0; BYTES]));
static USED: AtomicUsize = AtomicUsize::new(0);

fn start() -> usize {
    ROOM.0.get() as usize
}

/// A zeroed block at a whole multiple of 16; null when there is no room.
pub(crate) fn alloc(bytes: usize) -> *mut c_void {
    let Some(whole) = bytes.checked_next_multiple_of(UNIT).filter(|&whole| whole < BYTES) else {
        return core::ptr::null_mut();
    };
    let at = USED.fetch_add(UNIT + whole, Relaxed);
    if at + UNIT + whole > BYTES {
        return core::ptr::null_mut();
    }
    // SAFETY: the counter has just given this piece to this call, and it lies inside the room.
    unsafe {
        let piece = ROOM.0.get().cast::<u8>().add(at);
        #[allow(clippy::cast_ptr_alignment, reason = "pieces begin at whole units of an aligned room")]
        piece.cast::<usize>().write(bytes);
        piece.add(UNIT).cast()
    }
}

/// Whether a block is from here.
pub(crate) fn owns(block: *const c_void) -> bool {
    (start()..start() + BYTES).contains(&(block as usize))
}

/// The length of a block from here.
pub(crate) fn bytes(block: *const c_void) -> usize {
    // SAFETY: `alloc` wrote it there.
    unsafe { block.cast::<usize>().sub(UNIT / size_of::<usize>()).read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lie_apart_and_know_their_length() {
        let blocks = [1, 16, 17, 0, 100].map(|bytes| (alloc(bytes), bytes));
        for (place, &(block, length)) in blocks.iter().enumerate() {
            assert!(owns(block) && (block as usize).is_multiple_of(16));
            assert_eq!(bytes(block), length);
            assert!(blocks[..place].iter().all(|&(other, other_length)| {
                block as usize >= other as usize + other_length || other as usize >= block as usize + length
            }));
        }
        assert!(alloc(BYTES).is_null() && alloc(usize::MAX).is_null());
        assert!(!owns(core::ptr::null()) && !owns(core::ptr::from_ref(&blocks).cast()));
    }
}
