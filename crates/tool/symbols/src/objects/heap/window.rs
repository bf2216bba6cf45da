//! A read buffer over a process's memory, for words at increasing addresses.

use fieldstone_rewrite::ReadableMemory;

/// Smallest and largest read. Reads grow while the requested addresses are adjacent.
const MIN_BYTES: usize = 4096;
const MAX_BYTES: usize = 256 << 10;

/// The first two words of a chunk: `prev_size` and `size`.
pub(super) type ChunkHeader = [u64; 2];

/// The buffer of the last read.
pub(super) struct MemoryWindow<'a> {
    memory: &'a dyn ReadableMemory,
    start: u64,
    bytes: Vec<u8>,
    /// Bytes that may still be read.
    left_bytes: usize,
}

impl<'a> MemoryWindow<'a> {
    pub(super) fn new(memory: &'a dyn ReadableMemory, most_bytes: usize) -> Self {
        Self { memory, start: 0, bytes: Vec::new(), left_bytes: most_bytes }
    }

    /// The two words at `at`; `None` if they cannot be read, or the limit is reached.
    pub(super) fn head(&mut self, at: u64) -> Option<ChunkHeader> {
        if let Some(head) = self.buffered(at) {
            return Some(head);
        }
        let reach = self.bytes.len() as u64 + MIN_BYTES as u64;
        let follows = at.checked_sub(self.start).is_some_and(|distance| distance <= reach);
        let bytes = if follows { (self.bytes.len() * 2).clamp(MIN_BYTES, MAX_BYTES) } else { MIN_BYTES };
        self.left_bytes = self.left_bytes.checked_sub(bytes)?;
        self.bytes.resize(bytes, 0);
        let count = self.memory.read(at, &mut self.bytes);
        self.bytes.truncate(count);
        self.start = at;
        self.buffered(at)
    }

    /// Whether the limit is reached.
    pub(super) const fn is_spent(&self) -> bool {
        self.left_bytes < MAX_BYTES
    }

    fn buffered(&self, at: u64) -> Option<ChunkHeader> {
        let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
        let head = self.bytes.get(from..)?.first_chunk::<16>()?;
        let (first, second) = head.split_first_chunk::<8>()?;
        Some([u64::from_le_bytes(*first), u64::from_le_bytes(*second.first_chunk()?)])
    }
}
