//! The accesses of the paper's micro-benchmarks (section 4.2), as offsets in an array that does not
//! exist.
//!
//! ```text
//! linear    0    4    8   12  …     elements of 4 bytes; the first follows the last
//! strided   0   4K   8K  12K  …     every 1024th element, repeated in the same way
//! GUPS      8 × random              words of 8 bytes, one access per update
//! ```

use fieldstone_workloads::gups;

use crate::table2::scan::STRIDE;

const ELEMENT_BYTES: usize = size_of::<u32>();
const WORD_BYTES: u64 = size_of::<u64>() as u64;

/// The order of accesses to an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// All elements in order.
    Linear,
    /// Every 1024th element.
    Strided,
    /// Words at random.
    Gups,
}

impl Stream {
    pub(super) const ALL: [Self; 3] = [Self::Linear, Self::Strided, Self::Gups];

    /// The name in ids.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Strided => "strided",
            Self::Gups => "gups",
        }
    }

    /// The offsets of the accesses, without end.
    pub(super) fn offsets(self, array_bytes: u64) -> Box<dyn Iterator<Item = u64>> {
        match self.step_bytes() {
            Some(step_bytes) => Box::new((0..array_bytes).step_by(step_bytes).cycle()),
            None => {
                let words = usize::try_from(array_bytes / WORD_BYTES).unwrap_or(usize::MAX);
                Box::new(gups::updates(words, u64::MAX, gups::SEED).map(|(place, _)| place as u64 * WORD_BYTES))
            }
        }
    }

    /// Number of accesses until the stream repeats; `None` for a random one.
    pub(super) fn lap(self, array_bytes: u64) -> Option<usize> {
        usize::try_from(array_bytes).ok().zip(self.step_bytes()).map(|(array, step)| array.div_ceil(step))
    }

    /// Bytes from one access to the next; `None` for a random stream.
    const fn step_bytes(self) -> Option<usize> {
        match self {
            Self::Linear => Some(ELEMENT_BYTES),
            Self::Strided => Some(STRIDE * ELEMENT_BYTES),
            Self::Gups => None,
        }
    }
}
