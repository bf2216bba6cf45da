//! Messages to stderr, built without allocating.

#![allow(unsafe_code, reason = "calls the system")]

use core::fmt::{self, Write};

/// A number of bytes with a unit.
pub(crate) struct DisplayBytes(pub(crate) usize);

impl fmt::Display for DisplayBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 10 << 10 => write!(f, "{bytes} bytes"),
            bytes if bytes < 10 << 20 => write!(f, "{} KiB", bytes >> 10),
            bytes if bytes < 10 << 30 => write!(f, "{} MiB", bytes >> 20),
            bytes => write!(f, "{} GiB", bytes >> 30),
        }
    }
}

/// A message of at most 512 bytes, built without allocating.
pub(crate) struct MessageBuffer {
    bytes: [u8; 512],
    used: usize,
}

impl MessageBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; 512], used: 0 }
    }

    pub(crate) fn write_to_stderr(&self) {
        // SAFETY: the bytes belong to this record. An error is ignored, since it cannot be
        // reported.
        let _ = unsafe { libc::write(2, self.bytes.as_ptr().cast(), self.used) };
    }
}

impl Write for MessageBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let free = self.bytes.len() - self.used;
        let copied = text.len().min(free);
        self.bytes[self.used..self.used + copied].copy_from_slice(&text.as_bytes()[..copied]);
        self.used += copied;
        Ok(())
    }
}
