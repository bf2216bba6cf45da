//! Which thread uses which bytes of a line: as a map, and as runs of bytes with their weights.

use super::threads::NamedThreads;
use crate::document::{ByteMap, ByteUse, ByteUser};
use crate::sharing::{LineReport, MemoryOwner};
use fieldstone_sharing::{Bits, LineUse, ThreadUse};
use std::ops::Range;

/// The share of a line's weight below which a byte's weight is left over from old samples, and is
/// not shown.
const LEAST: f64 = 1e-4;

/// What one thread does with a line's bytes.
pub(super) struct ThreadBytes {
    pub(super) thread: u32,
    /// One for each byte.
    pub(super) uses: Vec<ByteUse>,
    /// Samples.
    pub(super) weight: f64,
}

/// Neighbouring bytes that a thread uses in the same way.
pub(super) struct ByteRun {
    pub(super) thread: u32,
    /// Bytes of the line.
    pub(super) bytes: Range<u32>,
    /// What is there, where that is known.
    pub(super) member: String,
    /// The lock that is there, in words, by its type.
    pub(super) lock: Option<String>,
    /// Atomic instructions access it.
    pub(super) is_atomic: bool,
    /// Samples of reads.
    pub(super) read: f64,
    /// Samples of writes.
    pub(super) written: f64,
}

/// The bytes of a line that are shown: all, unless a file says that it has more than a pair can
/// have.
fn bytes(line: &LineUse) -> usize {
    line.bytes.min(Bits::COUNT) as usize
}

/// Whether it is shared only because the prefetcher fetches pairs. Not known of a line that
/// contradicts itself, which a file may hold.
pub(super) fn only_as_pair(found: &LineReport) -> bool {
    let line = &found.judged.line;
    let is_whole = |thread: &ThreadUse| thread.read.len() == bytes(line) && thread.written.len() == bytes(line);
    let is_sound = line.address.checked_add(line.bytes.into()).is_some() && line.threads.iter().all(is_whole);
    is_sound && found.judged.only_as_pair()
}

/// The map of the line's bytes.
pub(super) fn map(found: &LineReport, threads: &NamedThreads<'_>) -> ByteMap {
    let line = &found.judged.line;
    let user = |row: ThreadBytes| {
        let (background, letter) = threads.colours(row.thread);
        ByteUser {
            letter: threads.letter(row.thread),
            number: row.thread,
            name: threads.name(row.thread),
            colours: (background.to_owned(), letter.to_owned()),
            uses: row.uses,
            weight: row.weight,
        }
    };
    ByteMap {
        bytes: bytes(line),
        users: rows(line).into_iter().map(user).collect(),
        description: in_words(found, threads),
    }
}

/// A row for each thread that uses the line, in the order of their numbers.
pub(super) fn rows(line: &LineUse) -> Vec<ThreadBytes> {
    let least = line.weight * LEAST;
    let row = |thread: &ThreadUse| ThreadBytes {
        thread: thread.thread,
        uses: (0..bytes(line)).map(|byte| use_of(thread, byte, least)).collect(),
        weight: thread.weight(),
    };
    let used = |row: &ThreadBytes| row.uses.iter().any(|of_byte| *of_byte != ByteUse::Unused);
    line.threads.iter().map(row).filter(used).collect()
}

fn use_of(thread: &ThreadUse, byte: usize, least: f64) -> ByteUse {
    let more = |weights: &[f32]| weights.get(byte).is_some_and(|weight| f64::from(*weight) > least);
    if more(&thread.written) {
        ByteUse::Written
    } else if more(&thread.read) {
        ByteUse::Read
    } else {
        ByteUse::Unused
    }
}

/// The runs of all threads, by thread and byte.
pub(super) fn runs(found: &LineReport) -> Vec<ByteRun> {
    let line = &found.judged.line;
    let of = |row: &ThreadBytes| {
        let thread = line.threads.iter().find(|thread| thread.thread == row.thread);
        // What is atomic, or a lock, is a run of its own.
        let is_atomic = |byte: usize| thread.is_some_and(|thread| thread.atomic.has(number(byte)));
        let lock = |byte: usize| lock_at(&found.places, std::iter::once(line.address.saturating_add(byte as u64)));
        let kind = |(byte, &of_byte): (usize, &ByteUse)| (of_byte, is_atomic(byte), lock(byte));
        let kinds: Vec<(ByteUse, bool, Option<String>)> = row.uses.iter().enumerate().map(kind).collect();
        let mut start = 0;
        let mut runs = Vec::new();
        for alike in kinds.chunk_by(|a, b| a == b) {
            let end = start + alike.len();
            if let (Some(thread), true) = (thread, alike[0].0 != ByteUse::Unused) {
                runs.push(run(found, thread, start..end));
            }
            start = end;
        }
        runs
    };
    rows(line).iter().flat_map(of).collect()
}

fn run(found: &LineReport, thread: &ThreadUse, bytes: Range<usize>) -> ByteRun {
    let sum = |weights: &[f32]| weights.iter().take(bytes.end).skip(bytes.start).copied().map(f64::from).sum();
    let address = |byte: usize| found.judged.line.address.saturating_add(byte as u64);
    ByteRun {
        thread: thread.thread,
        member: member(&found.places, address(bytes.start)..address(bytes.end)),
        lock: lock_at(&found.places, address(bytes.start)..address(bytes.end)),
        is_atomic: thread.atomic.has(number(bytes.start)),
        bytes: number(bytes.start)..number(bytes.end),
        read: sum(&thread.read),
        written: sum(&thread.written),
    }
}

/// A line has 128 bytes at most.
fn number(byte: usize) -> u32 {
    u32::try_from(byte).unwrap_or(u32::MAX)
}

/// What is at these addresses: `[0].SYY … SXY`, `head`, or the object's name where several meet;
/// empty where it is not known.
fn member(places: &[MemoryOwner], addresses: Range<u64>) -> String {
    let mut names: Vec<(String, Option<u64>, String)> = Vec::new();
    for address in addresses {
        let Some(place) = places.iter().find(|place| place.has(address)) else { continue };
        let object = if places.len() > 1 { place.short() } else { String::new() };
        let (element, member) = match place.member(address) {
            Some((element, member)) => (element, member.name.clone()),
            None if places.len() > 1 => (None, String::new()),
            None => continue,
        };
        names.push((object, element, member));
    }
    match (names.first(), names.last()) {
        (Some(first), Some(last)) if first == last => full(first),
        (Some(first), Some(last)) if first.0 == last.0 && first.1 == last.1 => format!("{} … {}", full(first), last.2),
        (Some(first), Some(last)) => format!("{} … {}", full(first), full(last)),
        _ => String::new(),
    }
}

/// `queue[3].head`, of what is known.
pub(super) fn full((object, element, member): &(String, Option<u64>, String)) -> String {
    let element = element.map_or_else(String::new, |element| format!("[{element}]"));
    let point = if member.is_empty() || (object.is_empty() && element.is_empty()) { "" } else { "." };
    format!("{object}{element}{point}{member}")
}

/// The map in words, for a reader who cannot see it: `A writes bytes 0–15; B reads bytes 24–31`.
fn in_words(found: &LineReport, threads: &NamedThreads<'_>) -> String {
    let words = runs(found).into_iter().map(|run| {
        let verb = if run.written > 0.0 { "writes" } else { "reads" };
        format!("{} {verb} bytes {}", threads.letter(run.thread), span(&run.bytes))
    });
    words.collect::<Vec<_>>().join("; ")
}

/// `0–15`, or `7` of one byte.
pub(super) fn span(bytes: &Range<u32>) -> String {
    match bytes.end.saturating_sub(1) {
        last if last == bytes.start => last.to_string(),
        last => format!("{}–{last}", bytes.start),
    }
}

/// The lock at one of these addresses: `lock of slots[3]`, or `a lock` of a variable that is
/// nothing else.
pub(super) fn lock_at(places: &[MemoryOwner], addresses: impl Iterator<Item = u64>) -> Option<String> {
    let at = |address| {
        let place = places.iter().find(|place| place.has(address))?;
        let (element, member) = place.member(address).filter(|(_, member)| member.is_lock())?;
        let object = place.object.as_ref()?;
        // Variables that share a line are shown as one object that is named after them.
        let is_variable = object.name.split(", ").any(|name| name == member.name);
        let element = element.map_or_else(String::new, |element| format!("[{element}]"));
        Some(if is_variable { "a lock".to_owned() } else { format!("lock of {}{element}", place.short()) })
    };
    addresses.into_iter().find_map(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::{Sharing, fixture};

    fn named(found: &LineReport) -> Vec<(u32, String, String, bool)> {
        runs(found).into_iter().map(|run| (run.thread, span(&run.bytes), run.member, run.written > 0.0)).collect()
    }

    #[test]
    fn runs_are_the_members_that_threads_use() {
        let sharing: Sharing = fixture::regression();
        let line = sharing.findings.iter().min_by_key(|found| found.judged.line.address).unwrap();
        let run = |thread, bytes: &str, member: &str, written| (thread, bytes.to_owned(), member.to_owned(), written);
        // The second line of the array, which begins 16 bytes behind a line's start.
        let expected = [
            run(100, "0–15", "[0].SYY … SXY", true),
            run(101, "24–35", "[1].points … num_elems", false),
            run(101, "40–63", "[1].SX … SXX", true),
        ];
        assert_eq!(named(line), expected);
    }

    #[test]
    fn weights_of_a_run_are_those_of_its_bytes() {
        let sharing = fixture::regression();
        let found = &sharing.findings[0];
        let sum: f64 = runs(found).iter().map(|run| run.read + run.written).sum();
        assert!((sum - found.judged.line.weight).abs() < 1e-3 * found.judged.line.weight, "{sum}");
    }

    #[test]
    fn where_objects_meet_each_run_names_its_own() {
        let mut found = fixture::regression().findings.remove(0);
        let line = found.judged.line.address;
        let object =
            |name: &str, address, bytes| MemoryOwner { name: name.into(), address, bytes, ..MemoryOwner::default() };
        found.places = vec![object("hits", line, 16), object("misses", line + 24, 40)];
        let names: Vec<String> = runs(&found).into_iter().map(|run| run.member).collect();
        assert_eq!(names, ["hits", "misses", "misses"]);
        found.places.clear();
        assert!(runs(&found).iter().all(|run| run.member.is_empty()));
    }

    #[test]
    fn what_has_faded_away_is_not_drawn() {
        let mut found = fixture::regression().findings.remove(0);
        let weight = found.judged.line.weight;
        found.judged.line.threads[0].read = vec![0.0; 64];
        found.judged.line.threads[0].written = vec![0.0; 64];
        #[expect(clippy::cast_possible_truncation, reason = "a weight as lines keep it")]
        let rest = (weight * 1e-6) as f32;
        found.judged.line.threads[0].written[3] = rest;
        let drawn: Vec<u32> = rows(&found.judged.line).iter().map(|row| row.thread).collect();
        assert_eq!(drawn, [found.judged.line.threads[1].thread]);
    }
}
