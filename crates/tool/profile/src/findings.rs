//! Find what a user must know beside the times: failures, hangs, output that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fieldstone_report::{Difference, Finding, MeasuredRun, quantity};

use super::program_run::TIMED_OUT;

/// Finds anomalies in `samples`, in which the baseline comes first. Of the warm-up runs, only their
/// output is checked: it gives at least two runs per kind, which detects output that never repeats.
/// `limit` is the time limit.
pub(super) fn find(warm: &[MeasuredRun], samples: &[MeasuredRun], limit: Duration) -> Vec<Finding> {
    let mut kinds: Vec<&str> = Vec::new();
    for sample in samples {
        if !kinds.contains(&sample.kind.as_str()) {
            kinds.push(&sample.kind);
        }
    }
    let mut findings: Vec<Finding> = not_repeatable(warm, samples).into_iter().collect();
    let usual = kinds.first().and_then(|kind| most_common_outcome(samples, kind));
    for kind in &kinds {
        let mut odd = BTreeMap::<&str, u32>::new();
        for sample in samples_of_kind(samples, kind).filter(|sample| Some(sample.outcome.as_str()) != usual) {
            *odd.entry(&sample.outcome).or_default() += 1;
        }
        findings.extend(odd.into_iter().map(|(outcome, runs)| match outcome {
            TIMED_OUT => Finding::TimedOut { kind: (*kind).to_owned(), limit_s: limit.as_secs_f64(), runs },
            _ => Finding::Failed { kind: (*kind).to_owned(), outcome: outcome.to_owned(), runs },
        }));
    }
    let all: Vec<MeasuredRun> = warm.iter().chain(samples).cloned().collect();
    findings.extend(output_findings(&all, &kinds));
    findings
}

/// A later run with less than this part of the first run's CPU time has not repeated its work.
const SAME_WORK: f64 = 0.1;
/// Below this CPU time of the first run, in seconds, the comparison is not meaningful.
const SHORT_S: f64 = 0.05;

/// The first difference between the very first run, which is the baseline's warm-up, and a later
/// baseline run. Differences that occur on other kinds of pages alone are not reported here.
pub(super) fn not_repeatable(warm: &[MeasuredRun], samples: &[MeasuredRun]) -> Option<Finding> {
    let first = warm.first()?;
    let later = || samples_of_kind(samples, &first.kind);
    let all = || warm.iter().chain(samples);
    let finding = |what, differs: &dyn Fn(&MeasuredRun) -> bool, words: &dyn Fn(&MeasuredRun) -> String| {
        later().find(|sample| differs(sample))?;
        // The warm-up of another kind may be the first run that finds the results of the first run.
        let (at, other) = all().enumerate().find(|(_, sample)| differs(sample))?;
        let run = u32::try_from(at + 1).unwrap_or(u32::MAX);
        Some(Finding::NotRepeatable { what, run, first: words(first), later: words(other) })
    };
    let cpu_s = |sample: &MeasuredRun| sample.user_s + sample.system_s;
    let has_other_output = |sample: &MeasuredRun| sample.output_hash != first.output_hash;
    // Output that differs in each run is a separate finding.
    let outputs: BTreeSet<_> = later().map(|sample| &sample.output_hash).collect();
    let is_output_stable = outputs.len() == 1 && later().count() > 1;
    finding(Difference::End, &|sample| sample.outcome != first.outcome, &|sample| sample.outcome.clone())
        .or_else(|| {
            let differs = |sample: &MeasuredRun| is_output_stable && has_other_output(sample);
            finding(Difference::Output, &differs, &|sample| sample.output_hash.clone().unwrap_or_default())
        })
        .or_else(|| {
            let differs = |sample: &MeasuredRun| cpu_s(first) >= SHORT_S && cpu_s(sample) < cpu_s(first) * SAME_WORK;
            finding(Difference::Time, &differs, &|sample| quantity::seconds(cpu_s(sample)))
        })
}

pub(super) fn samples_of_kind<'a>(samples: &'a [MeasuredRun], kind: &'a str) -> impl Iterator<Item = &'a MeasuredRun> {
    samples.iter().filter(move |sample| sample.kind == kind)
}

/// The outcome of most runs of a kind.
pub(super) fn most_common_outcome<'a>(samples: &'a [MeasuredRun], kind: &'a str) -> Option<&'a str> {
    let mut counts = BTreeMap::<&str, u32>::new();
    for sample in samples_of_kind(samples, kind) {
        *counts.entry(&sample.outcome).or_default() += 1;
    }
    counts.into_iter().max_by_key(|&(_, count)| count).map(|(outcome, _)| outcome)
}

fn hashes(samples: &[MeasuredRun], kind: &str) -> BTreeSet<String> {
    samples_of_kind(samples, kind).filter_map(|sample| sample.output_hash.clone()).collect()
}

fn output_findings(samples: &[MeasuredRun], kinds: &[&str]) -> Vec<Finding> {
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

    fn sample(kind: &str, outcome: &str, hash: &str) -> MeasuredRun {
        MeasuredRun {
            kind: kind.into(),
            outcome: outcome.into(),
            output_hash: Some(hash.into()),
            ..MeasuredRun::default()
        }
    }

    fn findings(samples: &[MeasuredRun]) -> Vec<Finding> {
        find(&[], samples, Duration::from_secs(5))
    }

    #[test]
    fn normal_runs_give_no_finding() {
        assert!(findings(&[sample("4k", "exit 0", "a"), sample("thp", "exit 0", "a")]).is_empty());
        assert!(
            findings(&[sample("4k", "exit 1", "a"), sample("thp", "exit 1", "a")]).is_empty(),
            "the baseline has the same exit code"
        );
    }

    #[test]
    fn crashes_hangs_and_different_output_are_distinguished() {
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
    fn the_first_run_that_does_not_repeat_the_work_is_found() {
        let run = |kind: &str, outcome: &str, hash: &str, user_s| MeasuredRun { user_s, ..sample(kind, outcome, hash) };
        let found = |warm: &[MeasuredRun], samples: &[MeasuredRun]| not_repeatable(warm, samples);
        let finding = |what, run, first: &str, later: &str| {
            Some(Finding::NotRepeatable { what, run, first: first.into(), later: later.into() })
        };
        let (good, refused) = (run("4k", "exit 0", "a", 1.0), run("4k", "exit 3", "", 0.001));
        let others = [MeasuredRun { kind: "thp".into(), ..refused.clone() }, refused.clone()];
        let warm = [good.clone(), others[0].clone()];
        assert_eq!(found(&warm, &others), finding(Difference::End, 2, "exit 0", "exit 3"));
        assert_eq!(
            found(&warm, std::slice::from_ref(&good)),
            None,
            "a difference on other pages alone is not one of repetition"
        );
        let quiet = run("4k", "exit 0", "b", 0.9);
        let twice = [quiet.clone(), quiet.clone()];
        assert_eq!(found(std::slice::from_ref(&good), &twice), finding(Difference::Output, 2, "a", "b"));
        assert_eq!(
            found(std::slice::from_ref(&good), &twice[1..]),
            None,
            "one more run does not show which of the two is unusual"
        );
        let idle = [run("4k", "exit 0", "a", 0.002), run("4k", "exit 0", "a", 0.002)];
        let Some(Finding::NotRepeatable { what: Difference::Time, run: 2, .. }) = found(&[good], &idle) else {
            panic!("the later run does no work");
        };
    }

    #[test]
    fn output_that_never_repeats_is_not_attributed_to_pages() {
        let samples = [sample("4k", "exit 0", "a"), sample("4k", "exit 0", "b"), sample("thp", "exit 0", "c")];
        assert_eq!(findings(&samples), [Finding::OutputVaries { kind: "4k".into() }]);
        let warm = [sample("4k", "exit 0", "x"), sample("thp", "exit 0", "c")];
        let once = find(&warm, &samples[1..], Duration::from_secs(5));
        assert_eq!(
            once,
            [Finding::OutputVaries { kind: "4k".into() }],
            "one measured run per kind and the warm-up suffice"
        );
    }
}
