//! Lines that are no finding, in words: what they are instead, and what would help.

use crate::sharing::LineReport;
use fieldstone_sharing::Verdict;

/// Whether a line of this kind moves between processors all the same.
pub(super) fn is_true_sharing(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::TrueSharing { .. } | Verdict::ProducerConsumer { .. } | Verdict::BitsOfOneByte { .. })
}

/// What a verdict means to the programmer.
pub(super) fn meaning(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Undecided => "Too few samples to decide whether the threads ran at the same time: sample longer.",
        Verdict::Private => "One thread at a time uses it, or others so rarely that it costs nothing.",
        Verdict::ReadOnly => "No thread writes it, so each processor keeps a copy of its own.",
        Verdict::FalseSharing { .. } => {
            "Threads use different bytes of one line, and some write: separating them helps."
        }
        Verdict::Mixed { .. } => "Beside what is truly shared are bytes that are not: separating these helps.",
        Verdict::TrueSharing { .. } => {
            "Several threads write the same bytes. Padding cannot separate them: write less often, or give each thread a copy and add up at the end."
        }
        Verdict::ProducerConsumer { .. } => {
            "One thread writes what others read. Padding cannot separate them: hand over more at a time, or check less often."
        }
        Verdict::BitsOfOneByte { .. } => {
            "Several threads write the same bytes, most likely different bits of them. Padding cannot separate bits: split the field, so that each thread writes a variable of its own, each on a line of its own."
        }
    }
}

/// The kinds of verdict among these lines, each once and in this order, and what they mean.
pub(super) fn kinds(lines: &[&LineReport]) -> Vec<String> {
    let mut kinds: Vec<String> = Vec::new();
    for found in lines {
        let kind = format!("{}: {}", found.judged.verdict.words(), meaning(&found.judged.verdict));
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sharing::fixture;

    #[test]
    fn each_negative_has_its_meaning_and_none_is_advised_to_be_padded() {
        let clean = fixture::clean();
        let lines: Vec<&LineReport> = clean.others.iter().collect();
        let kinds = kinds(&lines);
        assert_eq!(kinds.len(), 5, "{kinds:?}");
        assert!(kinds.iter().all(|kind| !kind.starts_with("false") && !kind.contains("separating")), "{kinds:?}");
        let truly = kinds.iter().filter(|kind| kind.starts_with("true"));
        assert_eq!(truly.filter(|kind| kind.contains("Padding cannot")).count(), 3);
    }
}
