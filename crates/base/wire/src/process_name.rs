//! The name of a process in a shared record.

use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The first 15 bytes of a program's name, in the order of memory, padded with zeros.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ProcessName([AtomicU64; 2]);

impl ProcessName {
    /// Stores the first bytes of a name.
    pub fn set(&self, name: &[u8]) {
        let mut bytes = [0; 16];
        let count = name.len().min(bytes.len() - 1);
        bytes[..count].copy_from_slice(&name[..count]);
        for (word, bytes) in self.0.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*bytes), Relaxed);
        }
    }
}

/// Bytes that are not UTF-8 are replaced by U+FFFD.
impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [0; 16];
        for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(&self.0) {
            *bytes = word.load(Relaxed).to_le_bytes();
        }
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        for chunk in bytes[..end].utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_str("\u{fffd}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn a_name_is_cut_to_15_bytes() {
        let name = ProcessName::default();
        assert_eq!(name.to_string(), "");
        for (stored, shown) in
            [("redis-server", "redis-server"), ("a-name-of-20-letters", "a-name-of-20-le"), ("zürich", "zürich")]
        {
            name.set(stored.as_bytes());
            assert_eq!(name.to_string(), shown);
        }
        name.set(b"a\xffb");
        assert_eq!(name.to_string(), "a\u{fffd}b");
    }
}
