//! A buffer that direct writes (`O_DIRECT`) accept: its bytes begin at a multiple of a block.

use std::ops::{Deref, DerefMut};

use crate::log::BLOCK;

/// Bytes at an address that is a multiple of [`BLOCK`]. A buffer that grows is copied.
#[derive(Debug)]
pub(crate) struct AlignedBuffer {
    /// Unused bytes, then those of the buffer.
    bytes: Vec<u8>,
    start: usize,
}

impl AlignedBuffer {
    /// An empty buffer with room for `capacity` bytes.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        let mut bytes: Vec<u8> = Vec::with_capacity(capacity + BLOCK);
        let start = bytes.as_ptr().align_offset(BLOCK);
        bytes.resize(start, 0);
        Self { bytes, start }
    }

    /// Bytes that it can contain before it is copied.
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity() - self.start
    }

    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Makes it shorter, or fills it up with zeros.
    pub(crate) fn resize(&mut self, length: usize) {
        self.reserve(length.saturating_sub(self.len()));
        self.bytes.resize(self.start + length, 0);
    }

    /// Makes room for more bytes.
    fn reserve(&mut self, more: usize) {
        let needed = self.len() + more;
        if needed > self.capacity() {
            let mut larger = Self::with_capacity(needed.max(2 * self.capacity()));
            larger.bytes.extend_from_slice(self);
            *self = larger;
        }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_grows_stays_aligned_and_has_its_bytes() {
        let mut buffer = AlignedBuffer::with_capacity(0);
        for byte in 0..200 {
            buffer.extend_from_slice(&[byte; 17]);
            assert_eq!(buffer.as_ptr().align_offset(BLOCK), 0);
        }
        assert!(buffer.chunks(17).zip(0..).all(|(bytes, byte)| bytes == [byte; 17]));
        buffer.resize(20);
        buffer.resize(40);
        assert_eq!((buffer.len(), buffer[19], buffer[20]), (40, 1, 0));
    }
}
