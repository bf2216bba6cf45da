//! An entry as a line of text, and back, for any bytes.
//!
//! ```text
//! TABLE   KEY-TYPE   VALUE-TYPE   KEY   VALUE      an entry: five fields with tabs between them
//! TABLE   KEY-TYPE   VALUE-TYPE                    a table: before its entries
//! complete   ENTRIES                               the last line: salvaged ENTRIES if something is missing
//! ```
//! Keys and values of the types `u8` to `i128` are decimal numbers. All other fields are text:
//! `\\`, `\t`, `\n` and `\r` for these characters, and `\xNN` for each byte that belongs to a
//! control character or to no UTF-8 text. Numbers with bytes that are none of their type have
//! `\xNN` for each byte.

use std::borrow::Cow;
use std::fmt::Write;

use fieldstone_store::{RawTable, Value};
use serde::{Deserialize, Serialize};

/// The fields of a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line<'a> {
    table: Cow<'a, str>,
    key_type: Cow<'a, str>,
    value_type: Cow<'a, str>,
    /// `None` for a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
}

/// The last line of a dump: without it, the dump has ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Last {
    pub(crate) end: Extent,
    /// Entries before it; `None` in the input of other programs, which need not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) entries: Option<u64>,
}

/// What a dump has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Extent {
    /// All entries.
    Complete,
    /// The entries that can be read of a damaged file.
    Salvaged,
}

impl Last {
    /// The line, without its end.
    pub(crate) fn text(&self) -> String {
        let end = match self.end {
            Extent::Complete => "complete",
            Extent::Salvaged => "salvaged",
        };
        self.entries.map_or_else(|| end.to_owned(), |entries| format!("{end}\t{entries}"))
    }

    /// The fields of a line; `None` if it is another one.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (end, entries) = text.split_once('\t').map_or((text, None), |(end, entries)| (end, Some(entries)));
        let end = match end {
            "complete" => Extent::Complete,
            "salvaged" => Extent::Salvaged,
            _ => return None,
        };
        let entries = entries.map(|entries| entries.parse().ok());
        if entries == Some(None) { None } else { Some(Self { end, entries: entries.flatten() }) }
    }
}

/// A table, and an entry of it unless the line is that of the table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) table: RawTable,
    pub(crate) entry: Option<(Vec<u8>, Vec<u8>)>,
}

impl<'a> Line<'a> {
    /// The line of a table.
    pub(crate) fn of_table(table: &RawTable) -> Self {
        let [table, key_type, value_type] =
            [&table.name, &table.key_type, &table.value_type].map(|text| Cow::Owned(escaped(text.as_bytes())));
        Self { table, key_type, value_type, key: None, value: None }
    }

    /// The line of an entry of the same table.
    pub(crate) fn with_entry(&'a self, table: &RawTable, key: &[u8], value: &[u8]) -> Self {
        let [name, key_type, value_type] = [&self.table, &self.key_type, &self.value_type].map(|text| &**text);
        Self {
            table: name.into(),
            key_type: key_type.into(),
            value_type: value_type.into(),
            key: Some(to_text(&table.key_type, key).into()),
            value: Some(to_text(&table.value_type, value).into()),
        }
    }

    /// The line, without its end.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("{}\t{}\t{}", self.table, self.key_type, self.value_type);
        if let (Some(key), Some(value)) = (&self.key, &self.value) {
            text += &format!("\t{key}\t{value}");
        }
        text
    }

    /// The fields of a line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(text: &'a str) -> Result<Self, String> {
        let fields: Vec<&str> = text.split('\t').collect();
        let (table, key, value) = match fields[..] {
            [table, key_type, value_type] => ([table, key_type, value_type], None, None),
            [table, key_type, value_type, key, value] => ([table, key_type, value_type], Some(key), Some(value)),
            _ => return Err(format!("it has {} fields with tabs between them, not 5 or 3", fields.len())),
        };
        let [table, key_type, value_type] = table.map(Cow::Borrowed);
        Ok(Self { table, key_type, value_type, key: key.map(Cow::Borrowed), value: value.map(Cow::Borrowed) })
    }

    /// The bytes of the fields.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn record(&self) -> Result<Record, String> {
        let name = |text: &str| {
            String::from_utf8(unescaped(text)?).map_err(|_| format!("{text:?} is no UTF-8, so it is no name"))
        };
        let table =
            RawTable { name: name(&self.table)?, key_type: name(&self.key_type)?, value_type: name(&self.value_type)? };
        let entry = match (&self.key, &self.value) {
            (Some(key), Some(value)) => Some((from_text(&table.key_type, key)?, from_text(&table.value_type, value)?)),
            (None, None) => None,
            _ => return Err("it has a key or a value, not both".to_owned()),
        };
        let is_typed = entry.as_ref().is_none_or(|(key, value)| table.has_types_of(key, value));
        if is_typed {
            Ok(Record { table, entry })
        } else {
            let (key, value) = (&table.key_type, &table.value_type);
            Err(format!("its key is no {key}, or its value is no {value}"))
        }
    }
}

/// The text of a key or a value.
pub(crate) fn to_text(type_name: &str, bytes: &[u8]) -> String {
    match number_text(type_name, bytes) {
        Some(number) => number,
        None if number_bytes(type_name).is_some() => hexadecimal(bytes),
        None => escaped(bytes),
    }
}

/// The text of a bound of keys. Bounds of numbers may lack their last bytes, which are zeros then.
pub(crate) fn bound_text(type_name: &str, bound: &[u8]) -> String {
    let mut bytes = bound.to_vec();
    bytes.resize(bytes.len().max(number_bytes(type_name).unwrap_or(0)), 0);
    to_text(type_name, &bytes)
}

/// The bytes of a key or a value.
fn from_text(type_name: &str, text: &str) -> Result<Vec<u8>, String> {
    if number_bytes(type_name).is_some() && !text.is_empty() && !text.starts_with('\\') {
        return number_of_text(type_name, text).ok_or_else(|| format!("{text} is no {type_name}"));
    }
    unescaped(text)
}

/// The functions for the types of numbers, by the names of the types.
macro_rules! numbers {
    ($($number:ident)*) => {
        /// The bytes of the numbers of a type; `None` for another type.
        fn number_bytes(type_name: &str) -> Option<usize> {
            $(if type_name == <$number as Value>::TYPE {
                return Some(size_of::<$number>());
            })*
            None
        }

        /// A number as decimal text; `None` if the bytes are none of this type.
        fn number_text(type_name: &str, bytes: &[u8]) -> Option<String> {
            $(if type_name == <$number as Value>::TYPE {
                return <$number as Value>::decode(bytes).map(|number| number.to_string());
            })*
            None
        }

        /// The bytes of a number; `None` if the text is none of this type.
        fn number_of_text(type_name: &str, text: &str) -> Option<Vec<u8>> {
            let mut bytes = Vec::new();
            $(if type_name == <$number as Value>::TYPE {
                text.parse::<$number>().ok()?.encode(&mut bytes);
                return Some(bytes);
            })*
            None
        }
    };
}

numbers!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128);

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 4);
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
    text
}

/// Bytes as text without tabs, line ends and control characters.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                control if control.is_control() => {
                    text.push_str(&hexadecimal(control.encode_utf8(&mut [0; 4]).as_bytes()));
                }
                letter => text.push(letter),
            }
        }
        text.push_str(&hexadecimal(chunk.invalid()));
    }
    text
}

/// The bytes of escaped text.
fn unescaped(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        rest = behind;
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        let (code, behind) = match rest {
            [b'\\', behind @ ..] => (b'\\', behind),
            [b't', behind @ ..] => (b'\t', behind),
            [b'n', behind @ ..] => (b'\n', behind),
            [b'r', behind @ ..] => (b'\r', behind),
            [b'x', high, low, behind @ ..] => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, behind),
                _ => return Err(r"behind \x are not two hexadecimal digits".to_owned()),
            },
            _ => return Err(r"behind \ is none of \, t, n, r and xNN".to_owned()),
        };
        bytes.push(code);
        rest = behind;
    }
    Ok(bytes)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(key_type: &str, value_type: &str) -> RawTable {
        RawTable { name: "t\t\\ü".into(), key_type: key_type.into(), value_type: value_type.into() }
    }

    fn there_and_back(table: &RawTable, key: &[u8], value: &[u8]) -> String {
        let line = Line::of_table(table);
        let text = line.with_entry(table, key, value).text();
        let record =
            Line::parse(&text).and_then(|line| line.record()).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(record, Record { table: table.clone(), entry: Some((key.to_vec(), value.to_vec())) });
        text
    }

    #[test]
    fn all_bytes_are_kept() {
        let all: Vec<u8> = (0..=255).collect();
        let bytes = table("bytes", "bytes");
        for start in 0..256 {
            let text = there_and_back(&bytes, &all[start..], &all[..start]);
            assert!(!text.contains(|letter: char| letter.is_control() && letter != '\t'), "{text:?}");
        }
        assert_eq!(there_and_back(&bytes, b"", b""), "t\\t\\\\ü\tbytes\tbytes\t\t");
        assert_eq!(
            there_and_back(&table("own", "text"), b"\xc3", "é\u{85}\n".as_bytes()),
            "t\\t\\\\ü\town\ttext\t\\xc3\té\\xc2\\x85\\n"
        );
    }

    #[test]
    fn numbers_are_decimal() {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        7_u64.encode(&mut key);
        (-7_i8).encode(&mut value);
        let typed = table("u64", "i8");
        assert!(there_and_back(&typed, &key, &value).ends_with("\t7\t-7"));
        assert_eq!((to_text("u64", b"12"), to_text("u64", b"")), ("\\x31\\x32".to_owned(), String::new()));
        assert_eq!((from_text("u64", "\\x31\\x32"), from_text("u64", "")), (Ok(b"12".to_vec()), Ok(Vec::new())));
        assert_eq!(bound_text("u32", &[0, 1]), "65536");
        assert_eq!(bound_text("text", b"a"), "a");
    }

    #[test]
    fn the_last_line_is_read_as_it_was_written() {
        for last in [
            Last { end: Extent::Complete, entries: Some(7) },
            Last { end: Extent::Salvaged, entries: Some(0) },
            Last { end: Extent::Complete, entries: None },
        ] {
            assert_eq!(Last::parse(&last.text()), Some(last));
            assert!(Line::parse(&last.text()).is_err(), "it is no entry");
        }
        for other in ["", "complete\tx", "complete\t1\t2", "completely"] {
            assert_eq!(Last::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn wrong_lines_are_refused() {
        for (line, reason) in [
            ("a\tb", "2 fields"),
            ("a\tb\tc\td", "4 fields"),
            ("", "1 fields"),
            ("t\tu8\tu8\t256\t1", "256 is no u8"),
            ("t\tu8\tu8\tx\t1", "x is no u8"),
            ("t\tu8\tu8\t\\x01\\x02\t1", "its key is no u8"),
            ("t\ttext\ttext\t\\xff\t1", "its key is no text"),
            ("t\tbytes\tbytes\t\\q\t1", "behind \\"),
            ("t\tbytes\tbytes\t\\x1\t1", "behind \\"),
            ("\\xff\tbytes\tbytes", "no UTF-8"),
        ] {
            let error = Line::parse(line).and_then(|line| line.record()).unwrap_err();
            assert!(error.contains(reason), "{line:?}: {error}");
        }
        let found = Line::parse("t\tu8\tu8").and_then(|line| line.record()).unwrap();
        assert_eq!(found.entry, None);
    }
}
