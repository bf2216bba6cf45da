//! The store `lz4`: fast, for pages that come back soon.

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into};

use crate::compressed::{Codec, Compressed, MAX_OUTPUT};
use crate::kernel::PAGE;
use crate::store::Page;

/// Pages in memory, compressed by lz4: 2 µs to bring one back. Pages that lz4 makes no smaller than
/// three quarters are left to the next store.
pub type Lz4 = Compressed<Lz4Codec>;

/// lz4, block format.
#[expect(missing_debug_implementations, reason = "has tables only")]
pub struct Lz4Codec(CompressTable);

impl Codec for Lz4Codec {
    const NAME: &'static str = "lz4";

    fn table_bytes() -> usize {
        0
    }

    fn new(_memory: &'static mut [u8]) -> Self {
        Self(CompressTable::small())
    }

    fn compress(&mut self, page: &Page, output: &mut [u8; MAX_OUTPUT]) -> Option<usize> {
        compress_into_with_table(page, output, &mut self.0).ok()
    }

    fn decompress(&mut self, compressed: &[u8], page: &mut Page) -> bool {
        matches!(decompress_into(compressed, page), Ok(PAGE))
    }
}
