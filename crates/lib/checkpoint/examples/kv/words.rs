//! The words of a memory, which a save reads while they are written: all accesses are atomic loads and
//! stores of a word.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_pages::Memory;

use crate::heap::Block;

#[derive(Debug)]
pub(crate) struct Words(Memory);

impl Words {
    pub(crate) const fn new(memory: Memory) -> Self {
        Self(memory)
    }

    pub(crate) const fn memory(&self) -> &Memory {
        &self.0
    }

    /// The number of words.
    pub(crate) fn count(&self) -> usize {
        self.0.bytes() / 8
    }

    pub(crate) fn get(&self, at: usize) -> u64 {
        self.0.words()[at].load(Relaxed)
    }

    pub(crate) fn set(&self, at: usize, word: u64) {
        self.0.words()[at].store(word, Relaxed);
    }

    /// As [`Words::get`], of a word that contains an index or a number of words.
    pub(crate) fn get_block(&self, at: usize) -> Block {
        self.get(at) as usize
    }

    pub(crate) fn set_block(&self, at: usize, block: Block) {
        self.set(at, block as u64);
    }

    /// Writes bytes from a word on. The last word is filled with zeros.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        let (whole, rest) = bytes.as_chunks::<8>();
        let words = &self.0.words()[at..at + words_of(bytes.len())];
        for (word, bytes) in words.iter().zip(whole) {
            word.store(u64::from_le_bytes(*bytes), Relaxed);
        }
        if !rest.is_empty() {
            words[whole.len()].store(padded(rest), Relaxed);
        }
    }

    /// Reads `length` bytes from a word on.
    pub(crate) fn read(&self, at: usize, length: usize) -> Vec<u8> {
        let count = words_of(length);
        let mut bytes = Vec::with_capacity(count * 8);
        for word in &self.0.words()[at..at + count] {
            bytes.extend_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    /// Whether the bytes from a word on are these, if they are as long.
    pub(crate) fn equals(&self, at: usize, bytes: &[u8]) -> bool {
        let (whole, rest) = bytes.as_chunks::<8>();
        let words = &self.0.words()[at..at + words_of(bytes.len())];
        let is_equal = |(word, bytes): (&AtomicU64, &[u8; 8])| word.load(Relaxed) == u64::from_le_bytes(*bytes);
        words.iter().zip(whole).all(is_equal) && (rest.is_empty() || words[whole.len()].load(Relaxed) == padded(rest))
    }

    /// Copies all words that are not 0 into a memory of zeros, which is at least as large. A page of zeros
    /// stays empty.
    pub(crate) fn copy_to(&self, other: &Self) {
        for (from, to) in self.0.words().iter().zip(other.0.words()) {
            match from.load(Relaxed) {
                0 => {}
                word => to.store(word, Relaxed),
            }
        }
    }
}

/// Words that contain `bytes` bytes.
pub(crate) const fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// The last bytes of a text, as a word.
fn padded(rest: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..rest.len()].copy_from_slice(rest);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_lengths_are_read_as_they_were_written() {
        let words = Words::new(Memory::anonymous(1 << 20).unwrap());
        let bytes: Vec<u8> = (0..100).collect();
        for length in 0..100 {
            words.write(1000, &bytes[..length]);
            assert_eq!(words.read(1000, length), bytes[..length]);
            assert!(words.equals(1000, &bytes[..length]));
            assert!(length == 0 || !words.equals(1000, &bytes[1..=length]));
        }
    }
}
