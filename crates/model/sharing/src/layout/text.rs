//! The padded structure as source text; each contended member has a comment with its users.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::{ContendedMember, Member, ObjectLayout};

/// Column of the comments.
const DECLARATION: usize = 44;
/// Number of threads that are named for a member; more are counted.
const NAMED: usize = 4;

/// The structure in C11 and C++11. `alignas` is on members, where both languages permit it.
pub(super) fn structure(
    object: &ObjectLayout,
    placed: &[Member],
    aligned: &BTreeMap<usize, u64>,
    fights: &[ContendedMember],
    bytes_after: u64,
) -> String {
    let mut text = format!("struct {} {{  // {} bytes, was {}\n", identifier(&object.name), bytes_after, object.stride);
    if !aligned.is_empty() {
        text.push_str("    // in C before C23: #include <stdalign.h>\n");
    }
    for (at, member) in placed.iter().enumerate() {
        let alignment = aligned.get(&at).map_or_else(String::new, |bytes| format!("alignas({bytes}) "));
        let declaration = if member.declaration.is_empty() {
            format!("unsigned char {}[{}]", identifier(&member.name), member.bytes)
        } else {
            member.declaration.clone()
        };
        let users = users(fights.iter().filter(|fight| fight.member == member.name));
        let comment = if users.is_empty() { member.offset.to_string() } else { format!("{}: {users}", member.offset) };
        push(&mut text, &format!("    {alignment}{declaration};"), &comment);
    }
    text.push_str("};\n");
    text
}

fn push(text: &mut String, line: &str, comment: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line:DECLARATION$}  // {comment}");
}

/// Kind and users of a member, over all elements: `a lock, atomic, written by threads 1, 2, read by
/// thread 3`.
fn users<'a>(fights: impl Iterator<Item = &'a ContendedMember> + Clone) -> String {
    let is = |what: fn(&ContendedMember) -> bool, word: &str| fights.clone().any(what).then(|| word.to_owned());
    let kinds = [is(|fight| fight.is_lock, "a lock"), is(|fight| fight.is_atomic, "atomic")];
    let writers: BTreeSet<u32> = fights.clone().flat_map(|fight| fight.writers.iter().copied()).collect();
    let all = fights.flat_map(|fight| fight.threads.iter().copied());
    let readers: BTreeSet<u32> = all.filter(|thread| !writers.contains(thread)).collect();
    let uses = [used("written", &writers), used("read", &readers)];
    kinds.into_iter().chain(uses).flatten().collect::<Vec<_>>().join(", ")
}

fn used(verb: &str, threads: &BTreeSet<u32>) -> Option<String> {
    if threads.is_empty() {
        return None;
    }
    let names: Vec<String> = threads.iter().take(NAMED).map(u32::to_string).collect();
    let more = threads.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let noun = if threads.len() > 1 { "threads" } else { "thread" };
    Some(format!("{verb} by {noun} {}{more}", names.join(", ")))
}

/// A valid identifier: `std::pair<int, int>` becomes `std__pair_int__int_`.
fn identifier(name: &str) -> String {
    let fine = |letter: char| if letter.is_ascii_alphanumeric() || letter == '_' { letter } else { '_' };
    let name: String = name.chars().map(fine).collect();
    if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) { format!("_{name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::identifier;

    #[test]
    fn names_become_identifiers() {
        assert_eq!(identifier("lreg_args"), "lreg_args");
        assert_eq!(identifier("std::pair<int, int>"), "std__pair_int__int_");
        assert_eq!((identifier(""), identifier("3d")), ("_".to_owned(), "_3d".to_owned()));
    }
}
