//! What a user must know of the runs beside their times: failures, hangs, output that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fieldstone_report::{Difference, Finding, Sample, quantity};

use super::once::TIMED_OUT;

/// Reads the samples; the baseline's come first. The warm-up runs `warm` are heard on output only: two runs of a kind at
/// least, so that output which never repeats is known for that.
pub(super) fn of(warm: &[Sample], samples: &[Sample], limit: Duration) -> Vec<Finding> {
    let mut kinds: Vec<&str> = Vec::new();
    for sample in samples {
        if !kinds.contains(&sample.kind.as_str()) {
            kinds.push(&sample.kind);
        }
    }
    let mut findings: Vec<Finding> = not_repeatable(warm, samples).into_iter().collect();
    let usual = kinds.first().and_then(|kind| usual_outcome(samples, kind));
    for kind in &kinds {
        let mut odd = BTreeMap::<&str, u32>::new();
        for sample in of_kind(samples, kind).filter(|sample| Some(sample.outcome.as_str()) != usual) {
            *odd.entry(&sample.outcome).or_default() += 1;
        }
        findings.extend(odd.into_iter().map(|(outcome, runs)| match outcome {
            TIMED_OUT => Finding::TimedOut { kind: (*kind).to_owned(), limit_s: limit.as_secs_f64(), runs },
            _ => Finding::Failed { kind: (*kind).to_owned(), outcome: outcome.to_owned(), runs },
        }));
    }
    let all: Vec<Sample> = warm.iter().chain(samples).cloned().collect();
    findings.extend(output_findings(&all, &kinds));
    findings
}

/// A later run that takes less than this part of the first one's processor time has not done the same work.
const SAME_WORK: f64 = 0.1;
/// A first run of less processor time, in seconds, has done too little to tell.
const SHORT_S: f64 = 0.05;

/// Whether a later run of the baseline did otherwise than the very first run, which was its warm-up. Page kinds have no part in it:
/// what happens on them alone is another finding.
pub(super) fn not_repeatable(warm: &[Sample], samples: &[Sample]) -> Option<Finding> {
    let first = warm.first()?;
    let later = || of_kind(samples, &first.kind);
    let all = || warm.iter().chain(samples);
    let finding = |what, differs: &dyn Fn(&Sample) -> bool, words: &dyn Fn(&Sample) -> String| {
        later().find(|sample| differs(sample))?;
        // The warm-up of another kind may have been the first that found what the first run left.
        let (at, other) = all().enumerate().find(|(_, sample)| differs(sample))?;
        let run = u32::try_from(at + 1).unwrap_or(u32::MAX);
        Some(Finding::NotRepeatable { what, run, first: words(first), later: words(other) })
    };
    let busy = |sample: &Sample| sample.user_s + sample.system_s;
    let prints_otherwise = |sample: &Sample| sample.output_hash != first.output_hash;
    // Output that is another one each time is a finding of its own.
    let outputs: BTreeSet<_> = later().map(|sample| &sample.output_hash).collect();
    let is_once = outputs.len() == 1 && later().count() > 1;
    finding(Difference::End, &|sample| sample.outcome != first.outcome, &|sample| sample.outcome.clone())
        .or_else(|| {
            let differs = |sample: &Sample| is_once && prints_otherwise(sample);
            finding(Difference::Output, &differs, &|sample| sample.output_hash.clone().unwrap_or_default())
        })
        .or_else(|| {
            let differs = |sample: &Sample| busy(first) >= SHORT_S && busy(sample) < busy(first) * SAME_WORK;
            finding(Difference::Time, &differs, &|sample| quantity::seconds(busy(sample)))
        })
}

pub(super) fn of_kind<'a>(samples: &'a [Sample], kind: &'a str) -> impl Iterator<Item = &'a Sample> {
    samples.iter().filter(move |sample| sample.kind == kind)
}

/// How most runs of a kind ended.
pub(super) fn usual_outcome<'a>(samples: &'a [Sample], kind: &'a str) -> Option<&'a str> {
    let mut counts = BTreeMap::<&str, u32>::new();
    for sample in of_kind(samples, kind) {
        *counts.entry(&sample.outcome).or_default() += 1;
    }
    counts.into_iter().max_by_key(|&(_, count)| count).map(|(outcome, _)| outcome)
}

fn hashes(samples: &[Sample], kind: &str) -> BTreeSet<String> {
    of_kind(samples, kind).filter_map(|sample| sample.output_hash.clone()).collect()
}

fn output_findings(samples: &[Sample], kinds: &[&str]) -> Vec<Finding> {
    let baseline = kinds.first().map(|kind| hashes(samples, kind)).unwrap_or_default();
    let finding = |kind: &&str| {
        let own = hashes(samples, kind);
        let kind = (*kind).to_owned();
        match own.len() {
            0 => None,
            1 if own == baseline || baseline.len() != 1 => None,
            1 => Some(Finding::OutputDiffers { kind }),
            _ => Some(Finding::OutputVaries { kind }),
        }
    };
    kinds.iter().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(kind: &str, outcome: &str, hash: &str) -> Sample {
        Sample { kind: kind.into(), outcome: outcome.into(), output_hash: Some(hash.into()), ..Sample::default() }
    }

    fn findings(samples: &[Sample]) -> Vec<Finding> {
        of(&[], samples, Duration::from_secs(5))
    }

    #[test]
    fn good_runs_give_none() {
        assert!(findings(&[sample("4k", "exit 0", "a"), sample("thp", "exit 0", "a")]).is_empty());
        assert!(findings(&[sample("4k", "exit 1", "a"), sample("thp", "exit 1", "a")]).is_empty(), "as usual");
    }

    #[test]
    fn crashes_hangs_and_other_output_are_told_apart() {
        let samples = [
            sample("4k", "exit 0", "a"),
            sample("thp", "signal 11 (SIGSEGV)", "a"),
            sample("hugetlb", TIMED_OUT, "a"),
            sample("folio-64k", "exit 0", "b"),
        ];
        assert_eq!(
            findings(&samples),
            [
                Finding::Failed { kind: "thp".into(), outcome: "signal 11 (SIGSEGV)".into(), runs: 1 },
                Finding::TimedOut { kind: "hugetlb".into(), limit_s: 5.0, runs: 1 },
                Finding::OutputDiffers { kind: "folio-64k".into() },
            ]
        );
    }

    #[test]
    fn what_only_the_first_run_does_is_found_with_its_number() {
        let run = |kind: &str, outcome: &str, hash: &str, user_s| Sample { user_s, ..sample(kind, outcome, hash) };
        let found = |warm: &[Sample], samples: &[Sample]| not_repeatable(warm, samples);
        let finding = |what, run, first: &str, later: &str| {
            Some(Finding::NotRepeatable { what, run, first: first.into(), later: later.into() })
        };
        let (good, refused) = (run("4k", "exit 0", "a", 1.0), run("4k", "exit 3", "", 0.001));
        let others = [Sample { kind: "thp".into(), ..refused.clone() }, refused.clone()];
        let warm = [good.clone(), others[0].clone()];
        assert_eq!(found(&warm, &others), finding(Difference::End, 2, "exit 0", "exit 3"));
        assert_eq!(found(&warm, std::slice::from_ref(&good)), None, "what happens on other pages alone is theirs");
        let quiet = run("4k", "exit 0", "b", 0.9);
        let twice = [quiet.clone(), quiet.clone()];
        assert_eq!(found(std::slice::from_ref(&good), &twice), finding(Difference::Output, 2, "a", "b"));
        assert_eq!(
            found(std::slice::from_ref(&good), &twice[1..]),
            None,
            "one run more does not show which of the two is odd"
        );
        let idle = [run("4k", "exit 0", "a", 0.002), run("4k", "exit 0", "a", 0.002)];
        let Some(Finding::NotRepeatable { what: Difference::Time, run: 2, .. }) = found(&[good], &idle) else {
            panic!("a run that does nothing");
        };
    }

    #[test]
    fn output_that_never_repeats_says_nothing_of_pages() {
        let samples = [sample("4k", "exit 0", "a"), sample("4k", "exit 0", "b"), sample("thp", "exit 0", "c")];
        assert_eq!(findings(&samples), [Finding::OutputVaries { kind: "4k".into() }]);
        let warm = [sample("4k", "exit 0", "x"), sample("thp", "exit 0", "c")];
        let once = of(&warm, &samples[1..], Duration::from_secs(5));
        assert_eq!(once, [Finding::OutputVaries { kind: "4k".into() }], "one measured run of each, and the warm-up");
    }
}
