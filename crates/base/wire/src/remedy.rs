//! The form of a message: the operation and the cause on the first line, a remedy on the second.
//!
//! ```text
//! cannot write /nodir/a.json: the directory /nodir does not exist
//! try: mkdir -p /nodir
//! ```

use core::fmt::{self, Write};

const LEAD: &str = "\ntry: ";

/// The second line of a message, `try: REMEDY`, after a line break. Prints nothing for `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remedy<T>(pub Option<T>);

impl<T: fmt::Display> fmt::Display for Remedy<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_ref().map_or(Ok(()), |remedy| write!(f, "{LEAD}{remedy}"))
    }
}

impl<'a> Remedy<&'a str> {
    /// Splits a message into its first line and its remedy.
    #[must_use]
    pub fn split(message: &'a str) -> (&'a str, Self) {
        message.split_once(LEAD).map_or((message, Self(None)), |(cause, remedy)| (cause, Self(Some(remedy))))
    }
}

/// What the standard library writes behind the text of an error of the operating system.
const NUMBER: &str = " (os error ";

/// An I/O error in words, without the error number behind them: `Permission denied`. The text ends
/// at the number.
#[derive(Clone, Copy, Debug)]
pub struct Cause<E>(pub E);

impl<E: fmt::Display> fmt::Display for Cause<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(UntilNumber { f, is_past: false }, "{}", self.0)
    }
}

/// Passes text on until [`NUMBER`] begins. The standard library writes that in one piece.
struct UntilNumber<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    is_past: bool,
}

impl Write for UntilNumber<'_, '_> {
    fn write_str(&mut self, piece: &str) -> fmt::Result {
        if self.is_past {
            return Ok(());
        }
        let (words, number) = piece.split_once(NUMBER).map_or((piece, None), |(words, rest)| (words, Some(rest)));
        self.is_past = number.is_some();
        self.f.write_str(words)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::format;

    #[test]
    fn a_remedy_is_the_second_line_and_can_be_split_off() {
        let message = format!("cannot write a{}", Remedy(Some("mkdir b")));
        assert_eq!(message, "cannot write a\ntry: mkdir b");
        assert_eq!(Remedy::split(&message), ("cannot write a", Remedy(Some("mkdir b"))));
        assert_eq!(format!("cannot write a{}", Remedy(None::<&str>)), "cannot write a");
        assert_eq!(Remedy::split("cannot write a"), ("cannot write a", Remedy(None)));
    }

    #[test]
    fn the_number_of_an_error_is_left_out() {
        let denied = std::io::Error::from_raw_os_error(13);
        assert!(std::string::ToString::to_string(&denied).ends_with(" (os error 13)"));
        assert_eq!(format!("{}", Cause(&denied)), "Permission denied");
        assert_eq!(format!("{}", Cause("in one piece (os error 2)")), "in one piece");
        assert_eq!(format!("{}", Cause("other")), "other");
    }
}
