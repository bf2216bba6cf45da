//! The store `zstd`: smaller pages than lz4 for more time.
//!
//! The tables of zstd are in the pager's own memory, so that it never calls malloc.

#![allow(unsafe_code, reason = "calls zstd with tables in memory of the caller, for which there is no safe binding")]

use zstd_safe::zstd_sys as zstd;

use crate::compressed::{Codec, Compressed, MAX_COMPRESSED, MAX_OUTPUT};
use crate::kernel::PAGE;
use crate::store::Page;

/// The fastest level of the usual ones: higher levels gain little on a page.
const LEVEL: i32 = 1;

/// Pages in memory, compressed by zstd at level 1. Pages that zstd makes no smaller than three
/// quarters are left to the next store.
pub type Zstd = Compressed<ZstdCodec>;

/// zstd, a frame for each page.
#[expect(missing_debug_implementations, reason = "has tables only")]
pub struct ZstdCodec {
    compression: *mut zstd::ZSTD_CCtx,
    decompression: *mut zstd::ZSTD_DCtx,
}

// SAFETY: the tables belong to the codec alone.
unsafe impl Send for ZstdCodec {}

/// Bytes of the tables of the compression of a page.
fn compression_bytes() -> usize {
    // SAFETY: both functions compute numbers from their arguments, and access no memory.
    unsafe { zstd::ZSTD_estimateCCtxSize_usingCParams(zstd::ZSTD_getCParams(LEVEL, PAGE as u64, 0)) }
        .next_multiple_of(align_of::<u64>())
}

impl Codec for ZstdCodec {
    const NAME: &'static str = "zstd";

    fn table_bytes() -> usize {
        // SAFETY: the function computes a number, and accesses no memory.
        compression_bytes() + unsafe { zstd::ZSTD_estimateDCtxSize() }
    }

    fn new(memory: &'static mut [u8]) -> Self {
        let (first, second) = memory.split_at_mut(compression_bytes());
        // SAFETY: both parts are aligned to words, have the sizes that zstd asks for, and belong to the
        // codec from now on.
        unsafe {
            Self {
                compression: zstd::ZSTD_initStaticCCtx(first.as_mut_ptr().cast(), first.len()),
                decompression: zstd::ZSTD_initStaticDCtx(second.as_mut_ptr().cast(), second.len()),
            }
        }
    }

    fn compress(&mut self, page: &Page, output: &mut [u8; MAX_OUTPUT]) -> Option<usize> {
        let (to, from) = (output.as_mut_ptr().cast(), page.as_ptr().cast());
        // SAFETY: the buffers have at least these lengths.
        let length = unsafe { zstd::ZSTD_compressCCtx(self.compression, to, MAX_COMPRESSED, from, PAGE, LEVEL) };
        // An error is a number near the largest one.
        (length <= MAX_COMPRESSED).then_some(length)
    }

    fn decompress(&mut self, compressed: &[u8], page: &mut Page) -> bool {
        let (to, from) = (page.as_mut_ptr().cast(), compressed.as_ptr().cast());
        // SAFETY: the buffers have these lengths.
        unsafe { zstd::ZSTD_decompressDCtx(self.decompression, to, PAGE, from, compressed.len()) == PAGE }
    }
}
