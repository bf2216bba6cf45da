//! What is asked for byte by byte: a file of rules, one a line.
//!
//! ```text
//!   # what     where             how many bytes
//!   isolate    stats+64          8        on lines of their own, whatever is seen of them
//!   count      libq.so:head      8        who touches them, how often, with which instructions
//!   log        0x7f10a0          4096     each access, as it happens
//!   trace      queue             16       the same, with function, file and line
//! ```
//! Source: Taylor, *Cachekata*: `remapper_isolate(address, length)` (figure 5.1), and chapter 6: a mechanism to invoke a callback on a
//! byte-granular memory fault.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::rules::PAGE_BYTES;

/// Bytes that one rule is about at most; more are taken for a mistake.
pub const MOST_BYTES: u64 = 64 * PAGE_BYTES;

/// What is done with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// They live on lines of their own.
    Isolate,
    /// Accesses are counted.
    Count,
    /// Accesses are told.
    Log,
    /// Accesses are told, with where in the source they are.
    Trace,
}

const ACTIONS: [(&str, Action); 4] =
    [("isolate", Action::Isolate), ("count", Action::Count), ("log", Action::Log), ("trace", Action::Trace)];

impl Action {
    /// Whether each access is looked at.
    #[must_use]
    pub const fn watches(self) -> bool {
        !matches!(self, Self::Isolate)
    }
}

/// Where bytes are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum At {
    /// At an address.
    Address(u64),
    /// So far into a global variable.
    Symbol {
        /// The file that it is from, by name; none: the first that has it.
        module: Option<String>,
        /// Its name.
        name: String,
        /// Bytes from its start.
        offset: u64,
    },
}

/// A line that asks for something.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Request {
    /// What is to be done.
    pub action: Action,
    /// Where.
    pub at: At,
    /// With how many bytes.
    pub bytes: u64,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address:#x}"),
            Self::Symbol { module, name, offset } => {
                module.iter().try_for_each(|module| write!(f, "{module}:"))?;
                write!(f, "{name}")?;
                if *offset > 0 { write!(f, "+{offset}") } else { Ok(()) }
            }
        }
    }
}

/// Reads the text of a file of rules.
///
/// # Errors
/// The first line that is no rule, with what it should look like.
pub fn parse(text: &str) -> Result<Vec<Request>> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let telling = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    telling.map(|(line, text)| request(line, text)).collect()
}

fn request(line: usize, text: &str) -> Result<Request> {
    let wrong = |problem| Error::Request { line, text: text.to_owned(), problem };
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let &[action, at, bytes] = &words[..] else { return Err(wrong("has not three words")) };
    let known = ACTIONS.iter().find(|(name, _)| *name == action);
    let (_, action) = known.ok_or_else(|| wrong("begins with no action that there is"))?;
    let at = place(at).ok_or_else(|| wrong("names no place"))?;
    let bytes = number(bytes).filter(|&bytes| bytes > 0).ok_or_else(|| wrong("has no number of bytes"))?;
    if bytes > MOST_BYTES {
        return Err(wrong("is about more bytes than 262144"));
    }
    Ok(Request { action: *action, at, bytes })
}

fn place(text: &str) -> Option<At> {
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        return number(text).map(At::Address);
    }
    // Names of C++ have colons of their own, two at a time; files have none.
    let (module, rest) = match text.split_once(':') {
        Some((module, rest)) if !rest.starts_with(':') && !module.is_empty() => (Some(module.to_owned()), rest),
        _ => (None, text),
    };
    let (name, offset) = match rest.rsplit_once('+') {
        Some((name, offset)) => (name, number(offset)?),
        None => (rest, 0),
    };
    (!name.is_empty()).then(|| At::Symbol { module, name: name.to_owned(), offset })
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, At, parse};

    fn symbol(module: Option<&str>, name: &str, offset: u64) -> At {
        At::Symbol { module: module.map(str::to_owned), name: name.to_owned(), offset }
    }

    #[test]
    fn rules_are_read() {
        let text = "# all kinds\n\nisolate 0x1f40 8\n count stats+0x40\t4\nlog libq.so.1:head 16\ntrace queue::Head::all+8 0x10";
        let read = parse(text).unwrap();
        let expected = [
            (Action::Isolate, At::Address(0x1f40), 8),
            (Action::Count, symbol(None, "stats", 0x40), 4),
            (Action::Log, symbol(Some("libq.so.1"), "head", 0), 16),
            (Action::Trace, symbol(None, "queue::Head::all", 8), 16),
        ];
        assert_eq!(read.into_iter().map(|one| (one.action, one.at, one.bytes)).collect::<Vec<_>>(), expected);
        assert_eq!(parse("# nothing\n"), Ok(Vec::new()));
    }

    #[test]
    fn what_is_shown_is_read_again() {
        for text in ["0x1f40", "stats", "stats+64", "libq.so:head+8"] {
            let read = parse(&format!("count {text} 8")).unwrap().remove(0);
            assert_eq!(read.at.to_string(), text);
        }
    }

    #[test]
    fn errors_name_the_line_and_the_way_out() {
        for (text, words) in [
            ("isolate x", "three words"),
            ("isolate x 8 9", "three words"),
            ("forget x 8", "no action"),
            ("count +8 8", "no place"),
            ("count 0xg 8", "no place"),
            ("count x+y 8", "no place"),
            ("count x 0", "number of bytes"),
            ("count x -1", "number of bytes"),
            ("count x 262145", "more bytes than 262144"),
        ] {
            let told = parse(&format!("# one\n{text}\n")).unwrap_err().to_string();
            assert!(told.contains("line 2") && told.contains(words) && told.contains("isolate stats+64 8"), "{told}");
        }
    }
}
