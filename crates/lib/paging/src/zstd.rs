//! The store `zstd`: smaller pages than lz4 for more time.

use zstd_safe::{CCtx, DCtx};

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
pub struct ZstdCodec(CCtx<'static>, DCtx<'static>);

impl Codec for ZstdCodec {
    const NAME: &'static str = "zstd";

    fn new() -> Self {
        Self(CCtx::create(), DCtx::create())
    }

    fn compress(&mut self, page: &Page, output: &mut [u8; MAX_OUTPUT]) -> Option<usize> {
        self.0.compress(&mut output[..MAX_COMPRESSED], page, LEVEL).ok()
    }

    fn decompress(&mut self, compressed: &[u8], page: &mut Page) -> bool {
        self.1.decompress(&mut page[..], compressed) == Ok(PAGE)
    }
}
