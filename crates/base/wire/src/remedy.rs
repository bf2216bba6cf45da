//! The form of a message: the operation and the cause on the first line, a remedy on the second.
//!
//! ```text
//! cannot write /nodir/a.json: the directory /nodir does not exist
//! try: mkdir -p /nodir
//! ```

use core::fmt;

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
}
