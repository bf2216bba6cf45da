//! A process's memory, read in large pieces and looked at word by word.

use fieldstone_rewrite::Memory;

/// The least and the most that is read at once. What is asked for next often lies just behind: pieces grow while that is so.
const LEAST_BYTES: usize = 4096;
const MOST_BYTES: usize = 256 << 10;

/// Two words: the first two of a chunk.
pub(super) type Head = [u64; 2];

/// The piece that was read last.
pub(super) struct Window<'a> {
    memory: &'a dyn Memory,
    start: u64,
    bytes: Vec<u8>,
    /// So many bytes may still be read.
    left_bytes: usize,
}

impl<'a> Window<'a> {
    pub(super) fn new(memory: &'a dyn Memory, most_bytes: usize) -> Self {
        Self { memory, start: 0, bytes: Vec::new(), left_bytes: most_bytes }
    }

    /// The two words at `at`; none where there is no memory, or all has been read that may be.
    pub(super) fn head(&mut self, at: u64) -> Option<Head> {
        if let Some(head) = self.known(at) {
            return Some(head);
        }
        let follows = at.checked_sub(self.start).is_some_and(|far| far <= self.bytes.len() as u64 + LEAST_BYTES as u64);
        let bytes = if follows { (self.bytes.len() * 2).clamp(LEAST_BYTES, MOST_BYTES) } else { LEAST_BYTES };
        self.left_bytes = self.left_bytes.checked_sub(bytes)?;
        self.bytes.resize(bytes, 0);
        let got = self.memory.read(at, &mut self.bytes);
        self.bytes.truncate(got);
        self.start = at;
        self.known(at)
    }

    /// Whether reading ended since it was enough.
    pub(super) const fn is_spent(&self) -> bool {
        self.left_bytes < MOST_BYTES
    }

    fn known(&self, at: u64) -> Option<Head> {
        let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
        let head = self.bytes.get(from..)?.first_chunk::<16>()?;
        let (first, second) = head.split_first_chunk::<8>()?;
        Some([u64::from_le_bytes(*first), u64::from_le_bytes(*second.first_chunk()?)])
    }
}
