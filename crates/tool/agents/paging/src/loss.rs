//! The message about a page that its store does not return.

use core::fmt::{self, Write};

use fieldstone_paging::StoreError;

use crate::raw;

/// A message of one line, cut to its capacity.
struct Line {
    text: [u8; 160],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.text[self.length..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        Ok(())
    }
}

/// Prints the message. The pager does not try again: the thread that needs the page gets `SIGBUS`.
pub(crate) fn report(page: usize, store: &'static str, error: StoreError) -> bool {
    let mut line = Line { text: [0; 160], length: 0 };
    let _ = writeln!(
        line,
        "fieldstone: cannot bring back the page {page:#x} from the store {store}: {error}; its thread gets SIGBUS"
    );
    raw::write_error(&line.text[..line.length]);
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut() {
        let mut line = Line { text: [0; 160], length: 0 };
        write!(line, "{:>200}", "x").unwrap();
        assert_eq!(line.length, 160);
    }
}
