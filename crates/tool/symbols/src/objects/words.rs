//! Reads 64-bit words of a process's memory.

use fieldstone_rewrite::ReadableMemory;

/// `COUNT` little-endian words at `address`; `None` if one of them cannot be read.
pub(super) fn read_words<const COUNT: usize>(memory: &dyn ReadableMemory, address: u64) -> Option<[u64; COUNT]> {
    let mut bytes = [[0; 8]; COUNT];
    let count = memory.read(address, bytes.as_flattened_mut());
    (count == COUNT * 8).then(|| bytes.map(u64::from_le_bytes))
}
