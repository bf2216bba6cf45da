//! A few words of a process's memory.

use fieldstone_rewrite::Memory;

/// So many words from `address` on; none where not all of them are mapped.
pub(super) fn words<const COUNT: usize>(memory: &dyn Memory, address: u64) -> Option<[u64; COUNT]> {
    let mut bytes = [[0; 8]; COUNT];
    let got = memory.read(address, bytes.as_flattened_mut());
    (got == COUNT * 8).then(|| bytes.map(u64::from_le_bytes))
}
