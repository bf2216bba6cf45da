//! A letter and a colour a thread, the same wherever it is shown: in the order in which the lines,
//! heaviest first, name them.
//!
//! There are 26 letters. With more threads, letters are used again, so that two threads have the
//! same letter only if 25 others are between them; the thread's number stands beside the letter in
//! each map.

use crate::sharing::{LineReport, SampledThread, Sharing};
use std::collections::BTreeMap;

/// A thread's colour on the page and that of letters on it. Okabe and Ito's, which colour-blind
/// readers can distinguish: middle tones that stand on light and dark paper.
const COLOURS: [(&str, &str); 8] = [
    ("#1f73b7", "#ffffff"),
    ("#d6781e", "#000000"),
    ("#009e73", "#000000"),
    ("#cc79a7", "#000000"),
    ("#e2c73a", "#000000"),
    ("#56b4e9", "#000000"),
    ("#a07d3c", "#ffffff"),
    ("#949aa3", "#000000"),
];

/// The threads that lines name.
pub(super) struct NamedThreads<'a> {
    order: BTreeMap<u32, usize>,
    known: BTreeMap<u32, &'a SampledThread>,
}

impl<'a> NamedThreads<'a> {
    pub(super) fn of(sharing: &'a Sharing, lines: &[&LineReport]) -> Self {
        let mut order = BTreeMap::new();
        for thread in lines.iter().flat_map(|found| &found.judged.line.threads) {
            let next = order.len();
            order.entry(thread.thread).or_insert(next);
        }
        Self { order, known: sharing.threads.iter().map(|thread| (thread.tid, thread)).collect() }
    }

    /// Its letter; a question mark for one that no line names.
    pub(super) fn letter(&self, tid: u32) -> char {
        self.order.get(&tid).map_or('?', |&at| char::from(b'A' + u8::try_from(at % 26).unwrap_or(0)))
    }

    /// Its colour, and that of letters on it.
    pub(super) fn colours(&self, tid: u32) -> (&'static str, &'static str) {
        let at = self.order.get(&tid).copied().unwrap_or(COLOURS.len() - 1);
        COLOURS[at % COLOURS.len()]
    }

    /// `worker 4243`, or the number alone.
    pub(super) fn name(&self, tid: u32) -> String {
        match self.known.get(&tid).filter(|thread| !thread.name.is_empty()) {
            Some(thread) => format!("{} {tid}", thread.name),
            None => tid.to_string(),
        }
    }

    /// The letters of some of them: `A B C`; of many the first.
    pub(super) fn letters(&self, tids: &[u32], most: usize) -> String {
        let mut letters: Vec<String> = tids.iter().take(most).map(|&tid| self.letter(tid).to_string()).collect();
        letters.extend((tids.len() > most).then(|| format!("and {} more", tids.len() - most)));
        letters.join(" ")
    }

    /// Those that have a letter, in its order.
    pub(super) fn lettered(&self) -> Vec<u32> {
        let mut tids: Vec<(usize, u32)> = self.order.iter().map(|(&tid, &at)| (at, tid)).collect();
        tids.sort_unstable();
        tids.into_iter().map(|(_, tid)| tid).collect()
    }

    /// The function that it began in, where that is known.
    pub(super) fn start(&self, tid: u32) -> Option<&str> {
        self.known.get(&tid)?.start.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::fixture;

    #[test]
    fn a_thread_has_one_letter_on_all_lines() {
        let sharing = fixture::regression();
        let lines: Vec<&LineReport> = sharing.findings.iter().collect();
        let threads = NamedThreads::of(&sharing, &lines);
        assert_eq!(threads.letters(&[100, 101, 102, 103], 3), "A B C and 1 more");
        assert_eq!((threads.name(101), threads.name(7)), ("worker-1 101".into(), "7".into()));
        assert_eq!((threads.letter(7), threads.start(100)), ('?', Some("work")));
        assert_ne!(threads.colours(100).0, threads.colours(101).0);
    }

    #[test]
    fn more_threads_than_letters_and_colours_still_have_some() {
        let mut sharing = fixture::regression();
        let line = &mut sharing.findings[0].judged.line;
        line.threads =
            (0..60).map(|tid| fieldstone_sharing::ThreadUse { thread: tid, ..line.threads[0].clone() }).collect();
        let lines: Vec<&LineReport> = sharing.findings.iter().take(1).collect();
        let threads = NamedThreads::of(&sharing, &lines);
        assert_eq!((threads.letter(25), threads.letter(26), threads.lettered().len()), ('Z', 'A', 60));
        assert_eq!(threads.colours(0), threads.colours(8));
    }
}
