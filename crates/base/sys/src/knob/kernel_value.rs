//! Text of knobs, read and written without allocation, for the restorer after its fork.

use std::ffi::CStr;
use std::fmt::Write;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, Result};

use crate::kernel_file::chosen;

/// Capacity of a path in bytes, zero byte included.
pub(super) const PATH_BYTES: usize = 320;

/// A short string stored inline: a path, a value, a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlineText<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

/// A knob's value.
pub(super) type KnobValue = InlineText<64>;
/// A path; one byte is reserved for the terminating zero.
pub(super) type KnobPath = InlineText<PATH_BYTES>;

impl<const N: usize> InlineText<N> {
    pub(super) const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    /// A copy of `text`. ENAMETOOLONG if it does not fit.
    pub(super) fn new(text: &str) -> Result<Self> {
        let mut copy = Self::EMPTY;
        copy.write_str(text).map_err(|_| Errno::NAMETOOLONG)?;
        Ok(copy)
    }

    pub(super) fn as_str(&self) -> &str {
        self.bytes.get(..self.len).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("")
    }

    /// The string with its zero byte, for the kernel.
    pub(super) fn as_c_str(&self) -> Result<&CStr> {
        CStr::from_bytes_until_nul(&self.bytes).map_err(|_| Errno::NAMETOOLONG)
    }
}

impl<const N: usize> Write for InlineText<N> {
    /// Appends; the last byte stays zero.
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.len + text.len();
        let free = self.bytes.get_mut(self.len..end).filter(|_| end < N).ok_or(std::fmt::Error)?;
        free.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// The value of a knob: its selected word, or its text without the newline.
pub(super) fn read(knob: &OwnedFd) -> Result<KnobValue> {
    let mut bytes = [0; 256];
    let got = rustix::io::pread(knob, &mut bytes, 0)?;
    let text = bytes.get(..got).and_then(|bytes| std::str::from_utf8(bytes).ok()).ok_or(Errno::INVAL)?;
    KnobValue::new(chosen(text).unwrap_or(""))
}

/// The numeric value of a knob.
pub(super) fn read_number(knob: &OwnedFd) -> Result<u64> {
    read(knob)?.as_str().parse().map_err(|_| Errno::INVAL)
}

/// Writes a knob as a shell does: opened with O_TRUNC, so that a plain file holds only the value.
pub(super) fn write(path: &CStr, value: &str) -> Result<()> {
    let knob = openat(CWD, path, OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC, Mode::empty())?;
    // A kernel knob accepts its value in one write or not at all.
    match rustix::io::write(&knob, value.as_bytes())? {
        all if all == value.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}

/// Writes a number.
pub(super) fn write_number(path: &CStr, number: u64) -> Result<()> {
    let mut value = KnobValue::EMPTY;
    write!(value, "{number}").map_err(|_| Errno::INVAL)?;
    write(path, value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_reserves_its_zero_byte() {
        let mut text = InlineText::<4>::new("abc").unwrap();
        assert_eq!((text.as_str(), text.as_c_str().unwrap()), ("abc", c"abc"));
        assert!(text.write_str("d").is_err());
        assert_eq!(text.as_str(), "abc");
        assert!(InlineText::<4>::new("abcd").is_err());
    }
}
