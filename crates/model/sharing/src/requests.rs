//! Requested rules: a file with one rule per line.
//!
//! ```text
//!   # action   place             bytes
//!   isolate    stats+64          8        give these bytes lines of their own, without regard to samples
//!   count      libq.so:head      8        count accesses by thread and instruction
//!   log        0x7f10a0          4096     report each access when it happens
//!   trace      queue             16       the same, with function, file and line
//! ```
//! Source: Taylor, *Cachekata*: `remapper_isolate(address, length)` (figure 5.1), and chapter 6: a
//! mechanism to invoke a callback on a byte-granular memory fault.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::rules::PAGE_BYTES;

/// Maximum number of bytes of one rule; more are taken for a mistake.
pub const MOST_BYTES: u64 = 64 * PAGE_BYTES;

/// What is done with the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// They get lines of their own.
    Isolate,
    /// Accesses are counted.
    Count,
    /// Accesses are reported.
    Log,
    /// Accesses are reported with their place in the source.
    Trace,
}

const ACTIONS: [(&str, Action); 4] =
    [("isolate", Action::Isolate), ("count", Action::Count), ("log", Action::Log), ("trace", Action::Trace)];

impl Action {
    /// Whether each access is watched.
    #[must_use]
    pub const fn watches(self) -> bool {
        !matches!(self, Self::Isolate)
    }
}

/// The place of the bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RequestTarget {
    /// An address.
    Address(u64),
    /// An offset in a global variable.
    Symbol {
        /// Name of the file that contains it; `None` for the first file that does.
        module: Option<String>,
        /// Name of the variable.
        name: String,
        /// Offset in bytes.
        offset: u64,
    },
}

/// A requested rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RuleRequest {
    /// The action.
    pub action: Action,
    /// The place.
    pub at: RequestTarget,
    /// Number of bytes.
    pub bytes: u64,
    /// File and line of the rule, such as `rules:3`; empty if it is from no file.
    #[serde(default)]
    pub source: String,
}

impl fmt::Display for RequestTarget {
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

/// Parses the text of `file`, a file of rules.
///
/// # Errors
/// The first invalid line, with the expected form.
pub fn parse(file: &str, text: &str) -> Result<Vec<RuleRequest>> {
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    let rules = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    rules.map(|(line, text)| request(format!("{file}:{line}"), text)).collect()
}

fn request(source: String, text: &str) -> Result<RuleRequest> {
    let wrong = |problem| Error::Request { place: source.clone(), text: text.to_owned(), problem };
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let &[action, at, bytes] = &words[..] else { return Err(wrong("does not have three words")) };
    let known = ACTIONS.iter().find(|(name, _)| *name == action);
    let (_, action) = known.ok_or_else(|| wrong("begins with an unknown action"))?;
    let at = place(at).ok_or_else(|| wrong("names no place"))?;
    let bytes = number(bytes).filter(|&bytes| bytes > 0).ok_or_else(|| wrong("has no number of bytes"))?;
    if bytes > MOST_BYTES {
        return Err(wrong("is about more bytes than 262144"));
    }
    Ok(RuleRequest { action: *action, at, bytes, source })
}

fn place(text: &str) -> Option<RequestTarget> {
    if text.starts_with(|first: char| first.is_ascii_digit()) {
        return number(text).map(RequestTarget::Address);
    }
    // C++ names contain pairs of colons; file names contain none.
    let (module, rest) = match text.split_once(':') {
        Some((module, rest)) if !rest.starts_with(':') && !module.is_empty() => (Some(module.to_owned()), rest),
        _ => (None, text),
    };
    let (name, offset) = match rest.rsplit_once('+') {
        Some((name, offset)) => (name, number(offset)?),
        None => (rest, 0),
    };
    (!name.is_empty()).then(|| RequestTarget::Symbol { module, name: name.to_owned(), offset })
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Action, RequestTarget, parse};

    fn symbol(module: Option<&str>, name: &str, offset: u64) -> RequestTarget {
        RequestTarget::Symbol { module: module.map(str::to_owned), name: name.to_owned(), offset }
    }

    #[test]
    fn rules_are_parsed() {
        let text = "# all kinds\n\nisolate 0x1f40 8\n count stats+0x40\t4\nlog libq.so.1:head 16\ntrace queue::Head::all+8 0x10";
        let read = parse("rules", text).unwrap();
        assert_eq!(read[0].source, "rules:3");
        let expected = [
            (Action::Isolate, RequestTarget::Address(0x1f40), 8),
            (Action::Count, symbol(None, "stats", 0x40), 4),
            (Action::Log, symbol(Some("libq.so.1"), "head", 0), 16),
            (Action::Trace, symbol(None, "queue::Head::all", 8), 16),
        ];
        assert_eq!(read.into_iter().map(|one| (one.action, one.at, one.bytes)).collect::<Vec<_>>(), expected);
        assert_eq!(parse("rules", "# nothing\n"), Ok(Vec::new()));
    }

    #[test]
    fn displayed_places_are_parsed_again() {
        for text in ["0x1f40", "stats", "stats+64", "libq.so:head+8"] {
            let read = parse("rules", &format!("count {text} 8")).unwrap().remove(0);
            assert_eq!(read.at.to_string(), text);
        }
    }

    #[test]
    fn errors_name_the_line_and_the_remedy() {
        for (text, words) in [
            ("isolate x", "three words"),
            ("isolate x 8 9", "three words"),
            ("forget x 8", "unknown action"),
            ("count +8 8", "no place"),
            ("count 0xg 8", "no place"),
            ("count x+y 8", "no place"),
            ("count x 0", "number of bytes"),
            ("count x -1", "number of bytes"),
            ("count x 262145", "more bytes than 262144"),
        ] {
            let found = parse("rules", &format!("# one\n{text}\n")).unwrap_err().to_string();
            assert!(found.starts_with("cannot read rules:2: ") && found.contains(words), "{found}");
            assert!(found.contains("\ntry: ") && found.contains("isolate stats+64 8"), "{found}");
        }
    }
}
