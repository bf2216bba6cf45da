//! What is not to be told: a file of names, one a line.
//!
//! ```text
//!   # counters that are read once a day
//!   object:stats_*
//!   function:boost::*::spin_lock
//!   module:/usr/lib/*/libgomp.so*
//! ```
//! `*` stands for any characters, none included; everything else for itself. A finding is not told if any of its
//! objects, functions or modules has such a name. Empty lines and those that begin with `#` say nothing.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What a name is the name of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A global variable, or the place where memory was allocated.
    Object,
    /// A function that touches the bytes.
    Function,
    /// The file that a function or a global is from.
    Module,
}

const KINDS: [(&str, Kind); 3] = [("object", Kind::Object), ("function", Kind::Function), ("module", Kind::Module)];

/// One line that says something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Line in the file, from one.
    pub line: usize,
    /// Names of what.
    pub kind: Kind,
    /// The name, with `*`.
    pub pattern: String,
}

/// An ignore file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ignore {
    entries: Vec<Entry>,
}

impl Ignore {
    /// Reads the text of an ignore file.
    ///
    /// # Errors
    /// The first line that says nothing, with what it should look like.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        let telling = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        Ok(Self { entries: telling.map(|(line, text)| parse_line(line, text)).collect::<Result<_>>()? })
    }

    /// All entries, in order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The first entry for one of these names, so that a report can say which line of the file kept a finding back.
    #[must_use]
    pub fn find<'a>(&self, names: impl IntoIterator<Item = (Kind, &'a str)>) -> Option<&Entry> {
        let names: Vec<(Kind, &str)> = names.into_iter().collect();
        let is_for = |entry: &&Entry| {
            names.iter().any(|(kind, name)| *kind == entry.kind && fits(entry.pattern.as_bytes(), name.as_bytes()))
        };
        self.entries.iter().find(is_for)
    }
}

fn parse_line(line: usize, text: &str) -> Result<Entry> {
    let wrong = |problem, remedy: String| Error::Ignore { line, text: text.to_owned(), problem, remedy };
    let forms = "write object:NAME, function:NAME or module:NAME, with * for any characters";
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
    Ok(Entry { line, kind: *kind, pattern })
}

/// Is `name` of this pattern? When characters do not fit, the last `*` takes one more and the rest is tried again; stars
/// before it never have to be looked at again, so the time is the product of the lengths at most.
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

    use super::{Ignore, Kind, fits};

    #[test]
    fn names_are_found_by_kind() {
        let ignore = Ignore::parse("# ours\n\n object: stats_* \nfunction:a::b\r\nmodule:*/libgomp.so*\n").unwrap();
        assert_eq!(ignore.entries().len(), 3);
        let line = |kind, name| ignore.find([(kind, name)]).map(|entry| entry.line);
        assert_eq!(line(Kind::Object, "stats_of_all"), Some(3));
        assert_eq!(line(Kind::Function, "stats_of_all"), None);
        assert_eq!(line(Kind::Function, "a::b"), Some(4));
        assert_eq!(line(Kind::Function, "a::b::c"), None);
        assert_eq!(line(Kind::Module, "/usr/lib/libgomp.so.1"), Some(5));
        assert!(ignore.find([]).is_none());
        let both = ignore.find([(Kind::Object, "other"), (Kind::Module, "/libgomp.so")]);
        assert_eq!(both.map(|entry| entry.pattern.as_str()), Some("*/libgomp.so*"));
    }

    #[test]
    fn errors_name_the_line_and_the_way_out() {
        for (text, line, words) in [
            ("object:a\nfoo\n", "line 2", "for example function:foo"),
            ("\n\nfile:x", "line 3", "unknown kind"),
            ("function:  ", "line 1", "function:* is for all"),
        ] {
            let told = Ignore::parse(text).unwrap_err().to_string();
            assert!(told.contains(line) && told.contains(words) && told.contains("write object:NAME"), "{told}");
        }
        assert_eq!(Ignore::parse("# nothing\n"), Ok(Ignore::default()));
    }

    #[test]
    fn many_stars_end_soon() {
        let pattern = "a*".repeat(200) + "b";
        assert!(!fits(pattern.as_bytes(), "a".repeat(2000).as_bytes()));
        assert!(fits(pattern.as_bytes(), ("a".repeat(2000) + "b").as_bytes()));
    }

    /// The definition: a star takes nothing, or one and goes on.
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
        fn stars_are_those_of_the_definition(pattern in "[ab*]{0,8}", name in "[ab]{0,10}") {
            prop_assert_eq!(fits(pattern.as_bytes(), name.as_bytes()), naive(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
