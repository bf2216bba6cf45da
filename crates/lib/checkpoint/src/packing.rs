//! How the contents of a chunk are stored.

use crate::checkpointer::Compression;
use crate::format::{CHUNK_PAGES, Kind, PAGE, check};
use crate::memory_words::is_zero;

/// The level of zstd: higher ones take several times as long for a few percent.
#[cfg(feature = "zstd")]
const ZSTD_LEVEL: i32 = 1;

impl Compression {
    /// The compression of what is stored in this way, if this build has it.
    pub(crate) const fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::Lz4 => Some(Self::Lz4),
            #[cfg(feature = "zstd")]
            Kind::Zstd => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// A run of pages on its way to the sink.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) region: u32,
    pub(crate) first: u64,
    pub(crate) contents: Vec<u8>,
    packed: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) check: u64,
}

impl Run {
    pub(crate) fn new() -> Self {
        let contents = Vec::with_capacity(CHUNK_PAGES * PAGE);
        Self { region: 0, first: 0, contents, packed: Vec::new(), kind: Kind::Raw, check: 0 }
    }

    /// Computes the check, and compresses where that makes it smaller.
    pub(crate) fn pack(&mut self, id: u64, compression: Compression) {
        self.check = check(&self.contents, id, self.region, self.first);
        self.kind = if is_zero(&self.contents) {
            Kind::Zeros
        } else {
            match compression {
                Compression::None => Kind::Raw,
                Compression::Lz4 => pack_lz4(&self.contents, &mut self.packed),
                #[cfg(feature = "zstd")]
                Compression::Zstd => pack_zstd(&self.contents, &mut self.packed),
            }
        };
    }

    /// What is stored.
    pub(crate) fn stored(&self) -> &[u8] {
        match self.kind {
            Kind::Raw => &self.contents,
            Kind::Zeros => &[],
            Kind::Lz4 | Kind::Zstd => &self.packed,
        }
    }
}

fn pack_lz4(contents: &[u8], packed: &mut Vec<u8>) -> Kind {
    packed.resize(lz4_flex::block::get_maximum_output_size(contents.len()), 0);
    match lz4_flex::block::compress_into(contents, packed) {
        Ok(bytes) if bytes < contents.len() => {
            packed.truncate(bytes);
            Kind::Lz4
        }
        _ => Kind::Raw,
    }
}

#[cfg(feature = "zstd")]
fn pack_zstd(contents: &[u8], packed: &mut Vec<u8>) -> Kind {
    // What does not fit is not smaller.
    packed.resize(contents.len(), 0);
    match zstd_safe::compress(&mut packed[..], contents, ZSTD_LEVEL) {
        Ok(bytes) if bytes < contents.len() => {
            packed.truncate(bytes);
            Kind::Zstd
        }
        _ => Kind::Raw,
    }
}

/// Restores what [`Run::pack`] has compressed.
///
/// # Errors
/// What is wrong.
pub(crate) fn unpack(kind: Kind, packed: &[u8], contents: &mut [u8]) -> Result<(), &'static str> {
    let unpacked = match kind {
        Kind::Zstd => unpack_zstd(packed, contents)?,
        _ => lz4_flex::block::decompress_into(packed, contents).ok(),
    };
    if unpacked == Some(contents.len()) { Ok(()) } else { Err("pages do not decompress") }
}

#[cfg(feature = "zstd")]
#[expect(clippy::unnecessary_wraps, reason = "without the feature it is an error")]
fn unpack_zstd(packed: &[u8], contents: &mut [u8]) -> Result<Option<usize>, &'static str> {
    Ok(zstd_safe::decompress(contents, packed).ok())
}

#[cfg(not(feature = "zstd"))]
fn unpack_zstd(_packed: &[u8], _contents: &mut [u8]) -> Result<Option<usize>, &'static str> {
    Err(crate::format::NO_ZSTD)
}
