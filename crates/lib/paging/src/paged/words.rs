//! Types that threads may share in paged memory.

#![allow(unsafe_code, reason = "promises that any bytes are valid")]

use std::sync::atomic::{
    AtomicI8, AtomicI16, AtomicI32, AtomicI64, AtomicIsize, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
};

mod sealed {
    pub trait Sealed {}
}

/// Atomic integers and arrays of them: any bytes are a valid value, zeros included, and threads may
/// change them at any time.
///
/// # Safety
/// The type consists of atomic integers of [`Words::WORD`] bytes, without padding.
pub unsafe trait Words: sealed::Sealed + Sync {
    /// Bytes of an atomic integer.
    const WORD: usize;
}

macro_rules! words {
    ($($word:ty)*) => {
        $(
            impl sealed::Sealed for $word {}
            // SAFETY: the type is an atomic integer, whose size is that of the integer.
            unsafe impl Words for $word {
                const WORD: usize = size_of::<$word>();
            }
        )*
    };
}

words!(AtomicU8 AtomicU16 AtomicU32 AtomicU64 AtomicUsize AtomicI8 AtomicI16 AtomicI32 AtomicI64 AtomicIsize);

impl<T: Words, const N: usize> sealed::Sealed for [T; N] {}

// SAFETY: an array has no padding between its elements, which are words.
unsafe impl<T: Words, const N: usize> Words for [T; N] {
    const WORD: usize = T::WORD;
}
