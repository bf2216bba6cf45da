//! Other processors: the limit is checked by a comparison, and this store is not used.

#![allow(unsafe_code, reason = "the signature is that of x86-64")]

use std::mem::MaybeUninit;

use crate::bump::last_word;
use crate::error::Result;

/// Whether a guard checks the limit.
pub(crate) const IS_CHECKED_BY_GUARD: bool = false;

/// Does nothing.
#[expect(clippy::unnecessary_wraps, reason = "the signature is that of x86-64")]
pub(crate) fn prepare() -> Result<()> {
    Ok(())
}

/// Stores the last word of a `T` at `start`.
///
/// # Safety
/// The word is in memory that belongs to the caller.
pub(crate) unsafe fn store_is_refused<T>(start: *mut u8, word: MaybeUninit<u64>) -> bool {
    // SAFETY: the caller owns the memory.
    unsafe { start.add(last_word::<T>()).cast::<MaybeUninit<u64>>().write_unaligned(word) };
    false
}
