//! Findings that are not reported: a file with one name per line.
//!
//! ```text
//!   # counters that are read once a day
//!   object:stats_*
//!   function:boost::*::spin_lock
//!   module:/usr/lib/*/libgomp.so*
//! ```
//! `*` matches any number of characters. A finding is not reported if one of its objects, functions
//! or modules matches. Empty lines and lines that begin with `#` are ignored.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The kind of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NameKind {
    /// A global variable, or the place where memory was allocated.
    Object,
    /// A function that accesses the bytes.
    Function,
    /// The file that contains a function or a global variable.
    Module,
}

const KINDS: [(&str, NameKind); 3] =
    [("object", NameKind::Object), ("function", NameKind::Function), ("module", NameKind::Module)];

/// One line of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IgnoreEntry {
    /// Line number in the file, from 1.
    pub line: usize,
    /// The kind of names that it matches.
    pub kind: NameKind,
    /// The pattern, with `*`.
    pub pattern: String,
}

/// An ignore file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ignore {
    entries: Vec<IgnoreEntry>,
}

impl Ignore {
    /// Parses the text of `file`, an ignore file.
    ///
    /// # Errors
    /// The first invalid line, with the expected form.
    pub fn parse(file: &str, text: &str) -> Result<Self> {
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        let entries = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        Ok(Self { entries: entries.map(|(line, text)| parse_line(file, line, text)).collect::<Result<_>>()? })
    }

    /// All entries, in order.
    #[must_use]
    pub fn entries(&self) -> &[IgnoreEntry] {
        &self.entries
    }

    /// The first entry that matches one of these names, so that a report can name the line of the
    /// file.
    #[must_use]
    pub fn find<'a>(&self, names: impl IntoIterator<Item = (NameKind, &'a str)>) -> Option<&IgnoreEntry> {
        let names: Vec<(NameKind, &str)> = names.into_iter().collect();
        let is_for = |entry: &&IgnoreEntry| {
            names.iter().any(|(kind, name)| *kind == entry.kind && fits(entry.pattern.as_bytes(), name.as_bytes()))
        };
        self.entries.iter().find(is_for)
    }
}

fn parse_line(file: &str, line: usize, text: &str) -> Result<IgnoreEntry> {
    let place = format!("{file}:{line}");
    let wrong = |problem, remedy| Error::Ignore { place, text: text.to_owned(), problem, remedy };
    let forms = "object:NAME, function:NAME or module:NAME, with * for any characters";
    let Some((word, pattern)) = text.split_once(':') else {
        return Err(wrong("has no kind", format!("{forms}, for example function:{text}")));
    };
    let Some((_, kind)) = KINDS.iter().find(|(name, _)| *name == word.trim_end()) else {
        return Err(wrong("begins with an unknown kind", forms.to_owned()));
    };
    let pattern = pattern.trim_start().to_owned();
    if pattern.is_empty() {
        return Err(wrong("has no name", format!("{forms}; {word}:* is for all")));
    }
    Ok(IgnoreEntry { line, kind: *kind, pattern })
}

/// Whether `name` matches the pattern. At a mismatch, the last `*` takes one more character.
/// Earlier stars are final, so the time is at most the product of the lengths.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while in_name < name.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at, in_name));
            at += 1;
        } else if pattern.get(at) == Some(&name[in_name]) {
            at += 1;
            in_name += 1;
        } else if let Some((star_at, taken)) = star {
            star = Some((star_at, taken + 1));
            (at, in_name) = (star_at + 1, taken + 1);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Ignore, NameKind, fits};

    #[test]
    fn names_are_found_by_kind() {
        let ignore =
            Ignore::parse("known", "# ours\n\n object: stats_* \nfunction:a::b\r\nmodule:*/libgomp.so*\n").unwrap();
        assert_eq!(ignore.entries().len(), 3);
        let line = |kind, name| ignore.find([(kind, name)]).map(|entry| entry.line);
        assert_eq!(line(NameKind::Object, "stats_of_all"), Some(3));
        assert_eq!(line(NameKind::Function, "stats_of_all"), None);
        assert_eq!(line(NameKind::Function, "a::b"), Some(4));
        assert_eq!(line(NameKind::Function, "a::b::c"), None);
        assert_eq!(line(NameKind::Module, "/usr/lib/libgomp.so.1"), Some(5));
        assert!(ignore.find([]).is_none());
        let both = ignore.find([(NameKind::Object, "other"), (NameKind::Module, "/libgomp.so")]);
        assert_eq!(both.map(|entry| entry.pattern.as_str()), Some("*/libgomp.so*"));
    }

    #[test]
    fn errors_name_the_line_and_the_remedy() {
        for (text, line, words) in [
            ("object:a\nfoo\n", "known:2: ", "for example function:foo"),
            ("\n\nfile:x", "known:3: ", "unknown kind"),
            ("function:  ", "known:1: ", "function:* is for all"),
        ] {
            let found = Ignore::parse("known", text).unwrap_err().to_string();
            assert!(found.contains(line) && found.contains(words) && found.contains("\ntry: object:NAME"), "{found}");
        }
        assert_eq!(Ignore::parse("known", "# nothing\n"), Ok(Ignore::default()));
    }

    #[test]
    fn patterns_with_many_stars_match_quickly() {
        let pattern = "a*".repeat(200) + "b";
        assert!(!fits(pattern.as_bytes(), "a".repeat(2000).as_bytes()));
        assert!(fits(pattern.as_bytes(), ("a".repeat(2000) + "b").as_bytes()));
    }

    /// The definition: a star matches nothing, or one character and more.
    fn naive(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), next) => naive(rest, name) || next.is_some_and(|(_, behind)| naive(pattern, behind)),
            (Some((a, rest)), Some((b, behind))) => a == b && naive(rest, behind),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn matching_equals_the_naive_definition(pattern in "[ab*]{0,8}", name in "[ab]{0,10}") {
            prop_assert_eq!(fits(pattern.as_bytes(), name.as_bytes()), naive(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
