//! Lines of text to standard error, formatted without an allocation.

use core::fmt::{self, Write};

use crate::process::write_error;

/// Text of a line that is not written yet. A longer line is written in parts.
struct Line {
    text: [u8; 256],
    bytes: usize,
}

impl Line {
    fn flush(&mut self) {
        write_error(&self.text[..self.bytes]);
        self.bytes = 0;
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if self.bytes == self.text.len() {
                self.flush();
            }
            self.text[self.bytes] = byte;
            self.bytes += 1;
        }
        Ok(())
    }
}

/// Prints a line.
pub fn print(content: fmt::Arguments<'_>) {
    let mut line = Line { text: [0; 256], bytes: 0 };
    // Writing does not fail.
    let _ = line.write_fmt(content);
    let _ = line.write_str("\n");
    line.flush();
}
