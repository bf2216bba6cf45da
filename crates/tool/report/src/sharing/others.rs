//! Lines that are no finding, in words: what they are instead, and what would help.

use super::Found;
use crate::quantity::plural;
use fieldstone_sharing::Verdict;

/// Does a line of this kind travel between threads all the same?
pub(super) fn is_true_sharing(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::TrueSharing { .. } | Verdict::ProducerConsumer { .. } | Verdict::BitsOfOneByte { .. })
}

/// What a verdict means to the programmer.
pub(super) fn meaning(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Undecided => "Too few samples to say whether the threads ran at the same time: look longer.",
        Verdict::Private => "One thread at a time uses it, or others so seldom that it costs nothing.",
        Verdict::ReadOnly => "Nobody writes it, so each processor keeps a copy of its own.",
        Verdict::FalseSharing { .. } => "Threads use different bytes of one line, and some write: parting them helps.",
        Verdict::Mixed { .. } => "Beside what is truly shared lie bytes that are not: parting these helps.",
        Verdict::TrueSharing { .. } => {
            "Several threads write the same bytes. Padding cannot part them: write less often, or give each thread a copy and add up at the end."
        }
        Verdict::ProducerConsumer { .. } => {
            "One thread writes what others read. Padding cannot part them: hand over more at a time, or look less often."
        }
        Verdict::BitsOfOneByte { .. } => {
            "Several threads write the same bytes, most likely different bits of them. Padding cannot separate bits: split the field, so that each thread writes a variable of its own, each on a line of its own."
        }
    }
}

/// The kinds of verdict among these lines, each once and in this order: the words, and what they mean.
pub(super) fn kinds(lines: &[&Found]) -> Vec<(&'static str, &'static str)> {
    let mut kinds: Vec<(&str, &str)> = Vec::new();
    for found in lines {
        let kind = (found.judged.verdict.words(), meaning(&found.judged.verdict));
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// `12 more lines: 9 only read, 3 one thread at a time`; none of none.
pub(super) fn more(lines: &[&Found]) -> Option<String> {
    let of = |words: &str| lines.iter().filter(|found| found.judged.verdict.words() == words).count();
    let kinds: Vec<String> = kinds(lines).iter().map(|(words, _)| format!("{} {words}", of(words))).collect();
    (!lines.is_empty()).then(|| format!("And {} more: {}.", plural(lines.len() as u64, "line"), kinds.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::fixture;

    #[test]
    fn each_negative_says_what_it_is_and_none_is_told_to_be_padded() {
        let clean = fixture::clean();
        let lines: Vec<&Found> = clean.others.iter().collect();
        let kinds = kinds(&lines);
        assert_eq!(kinds.len(), 5, "{kinds:?}");
        for (words, meaning) in &kinds {
            assert!(!words.starts_with("false") && !meaning.contains("parting"), "{words}: {meaning}");
        }
        let truly = kinds.iter().filter(|(words, _)| words.starts_with("true"));
        assert_eq!(truly.filter(|(_, meaning)| meaning.contains("Padding cannot")).count(), 3);
    }

    #[test]
    fn many_are_counted_by_kind() {
        let clean = fixture::clean();
        let lines: Vec<&Found> = clean.others.iter().chain(&clean.others).collect();
        let told = more(&lines).unwrap();
        assert!(
            told.starts_with("And 10 lines more: ") && told.contains("2 only read") && told.contains("2 true sharing,"),
            "{told}"
        );
        assert!(more(&lines[..1]).unwrap().starts_with("And 1 line more: 1 "));
        assert_eq!(more(&[]), None);
    }
}
