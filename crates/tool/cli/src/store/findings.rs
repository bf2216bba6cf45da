//! The text and the JSON of what a check has found.

use fieldstone_report::quantity::bytes;
use fieldstone_store::{Finding, Lost, RawTable};
use serde_json::{Value, json};

use super::record::{bound_text, escaped};

/// A finding as one line: its place, what is wrong, and what is lost.
pub(crate) fn line(finding: &Finding) -> String {
    format!("page {}, byte {}: {}. Lost: {}", finding.page(), finding.offset, finding.what, lost(&finding.lost))
}

/// A finding as JSON. `from` and `to` are keys or names of tables in the text form of `dump`.
pub(crate) fn json(finding: &Finding) -> Value {
    let (table, from, to) = match &finding.lost {
        Lost::Entries { table, from, to } => {
            (Some(table.name.as_str()), key(table, from), to.as_deref().and_then(|to| key(table, to)))
        }
        Lost::Tables { from, to } => (None, name(from), to.as_deref().and_then(name)),
        _ => (None, None, None),
    };
    json!({
        "page": finding.page(),
        "offset": finding.offset,
        "what": finding.what,
        "lost": lost(&finding.lost),
        "table": table,
        "from": from,
        "to": to,
    })
}

/// What is lost, in words.
pub(crate) fn lost(lost: &Lost) -> String {
    match lost {
        Lost::Nothing => "nothing".to_owned(),
        Lost::Space(space) => format!("no entry; {} cannot be used", bytes(*space)),
        Lost::Pages(first, last) => {
            format!("what was in pages {first} to {last}; a check without --quick reports each loss")
        }
        Lost::Unreachable(size) => {
            format!("nothing more; `dump --salvage` can read entries in these {}", bytes(*size))
        }
        Lost::Commits(first, last) if first == last => format!("commit {first}"),
        Lost::Commits(first, last) => format!("commits {first} to {last}"),
        Lost::Entries { table, from, to } => {
            let subject = format!("of table {}", escaped(table.name.as_bytes()));
            match (is_single(from, to.as_deref()), key(table, from), to.as_deref().and_then(|to| key(table, to))) {
                (true, Some(key), _) => format!("the entry {subject} with the key {key}"),
                (_, from, to) => format!("entries {subject}, {}", range("keys", from, to)),
            }
        }
        Lost::Tables { from, to } => match (is_single(from, to.as_deref()), name(from), to.as_deref().and_then(name)) {
            (true, Some(name), _) => format!("table {name}"),
            (_, from, to) => format!("tables, {}", range("names", from, to)),
        },
        Lost::Objects(name) => format!("objects of type {}", escaped(name.as_bytes())),
        Lost::All => "everything".to_owned(),
        other => format!("{other:?}"),
    }
}

fn range(noun: &str, from: Option<String>, to: Option<String>) -> String {
    match (from, to) {
        (None, None) => format!("all {noun}"),
        (Some(from), None) => format!("{noun} from {from} on"),
        (None, Some(to)) => format!("{noun} below {to}"),
        (Some(from), Some(to)) => format!("{noun} from {from} to below {to}"),
    }
}

/// Whether a range contains one key only.
fn is_single(from: &[u8], to: Option<&[u8]>) -> bool {
    to.is_some_and(|to| to.strip_prefix(from).is_some_and(|rest| rest == [0]))
}

/// The text of a bound of keys; `None` for the first key.
fn key(table: &RawTable, bound: &[u8]) -> Option<String> {
    (!bound.is_empty()).then(|| bound_text(&table.key_type, bound))
}

fn name(bound: &[u8]) -> Option<String> {
    (!bound.is_empty()).then(|| escaped(bound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_named() {
        let table = RawTable { name: "users".into(), key_type: "u16".into(), value_type: "text".into() };
        let entries = |from: &[u8], to: Option<&[u8]>| {
            lost(&Lost::Entries { table: table.clone(), from: from.to_vec(), to: to.map(<[u8]>::to_vec) })
        };
        assert_eq!(entries(&[], None), "entries of table users, all keys");
        assert_eq!(entries(&[1], None), "entries of table users, keys from 256 on");
        assert_eq!(entries(&[], Some(&[0, 7])), "entries of table users, keys below 7");
        assert_eq!(entries(&[0, 1], Some(&[1])), "entries of table users, keys from 1 to below 256");
        assert_eq!(entries(&[0, 1], Some(&[0, 1, 0])), "the entry of table users with the key 1");
        let tables = Lost::Tables { from: b"a".to_vec(), to: Some(b"a\0".to_vec()) };
        assert_eq!(lost(&tables), "table a");
        assert_eq!(lost(&Lost::Commits(7, 9)), "commits 7 to 9");
        assert_eq!(lost(&Lost::Objects("Part".into())), "objects of type Part");
        let finding = json!({"lost": lost(&Lost::Space(8192))});
        assert_eq!(finding["lost"], "no entry; 8 KiB cannot be used");
    }
}
