//! The meaning of a profile: for each page kind the metric, its ratio to the baseline with an
//! interval, and a verdict.
//!
//! - **Counted** are the runs that ended as the program usually ends on the baseline: a `grep`
//!   without a match ends with `exit 1`, a server with the signal that stopped it. A kind with any
//!   other ending has failed, and is never recommended.
//! - **Pairs**: the i-th run of a kind in a round against the i-th run of the baseline in the same
//!   round.
//! - **Repeatable**: later runs behave like the first one. Where one does not
//!   ([`Finding::NotRepeatable`]), nothing is compared.
//! - **Other pages**: a kind whose pool had too few pages is not compared
//!   ([`Footprint::lacks_pool_pages`]).
//! - **Verdict**: from the 95 % interval of the ratio. The interval of a gain or a loss excludes 1,
//!   and its median differs by 2 % or more. The whole interval of "no gain" is within 2 %. All else
//!   is too noisy.

use crate::quantity::percent;
use crate::translation::summary::TranslationSummary;
use crate::{Advice, Finding, Footprint, MeasuredRun, Metric, Profile, Resident};
use fieldstone_stats::{Estimate, median};
use serde::Serialize;
use std::collections::BTreeMap;

/// A smaller change than this fraction is not worth another page kind.
pub const WORTHWHILE: f64 = 0.02;

/// The meaning of a profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The number that is compared.
    pub metric: Metric,
    /// The page kind that the others are compared with.
    pub baseline: String,
    /// The usual difference of two neighbouring baseline runs, as a fraction; `None` below three
    /// runs.
    pub noise: Option<f64>,
    /// The page kinds, in the profile's order: the baseline first.
    pub kinds: Vec<KindSummary>,
    /// The recommendation.
    pub advice: Advice,
    /// Further notes.
    pub notes: Vec<Advice>,
    /// The meaning of a trace, where the program was traced.
    pub translation: Option<TranslationSummary>,
}

/// The results on one page kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KindSummary {
    /// The page kind.
    pub name: String,
    /// Runs that count.
    pub runs: usize,
    /// Runs that did not end as the program usually does.
    pub failed: usize,
    /// The metric, in seconds.
    pub value_s: Option<Estimate>,
    /// Its ratio to the baseline, pair by pair. None for the baseline itself.
    pub ratio: Option<Estimate>,
    /// The cost of a run besides the metric.
    pub cost: Option<Cost>,
    /// Its resident peak, compared with the baseline.
    pub resident: Option<Resident>,
    /// The verdict; `None` for a baseline that could be measured.
    pub verdict: Option<KindVerdict>,
    /// Why it could not be measured, and the remedy.
    pub unavailable: Option<String>,
}

impl KindSummary {
    /// Part of the baseline's value that this kind saves, as a fraction; negative for a loss.
    pub fn gain(&self) -> Option<f64> {
        self.ratio.map(|ratio| 1.0 - ratio.median)
    }

    /// The verdict in words, with its size where it has one: `gain 40.2 %`, `loss 3.1 %`, `too
    /// noisy`, `baseline`.
    pub fn judgement(&self) -> String {
        match (self.verdict, self.gain()) {
            (Some(verdict @ (KindVerdict::Gain | KindVerdict::Loss)), Some(gain)) => {
                format!("{verdict} {}", percent(gain.abs()))
            }
            (Some(verdict), _) => verdict.to_string(),
            (None, _) => "baseline".to_owned(),
        }
    }
}

/// Medians over the runs that count. System time and faults are what first touch costs: the kernel
/// finds, clears and maps a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cost {
    /// Time from start to end, in seconds.
    pub wall_s: f64,
    /// Time in user mode, in seconds.
    pub user_s: f64,
    /// Time in the kernel, in seconds.
    pub system_s: f64,
    /// Page faults served from memory.
    pub minor_faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
    /// Largest resident size.
    pub max_resident_bytes: u64,
}

/// The verdict on a page kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KindVerdict {
    /// Faster, beyond the interval and by more than 2 %.
    Gain,
    /// Slower, likewise.
    Loss,
    /// The whole interval is within 2 % of the baseline.
    NoGain,
    /// The interval is too wide to decide.
    TooNoisy,
    /// Fewer pairs than an interval needs.
    NotEnoughRuns,
    /// The program did not end as on the baseline.
    Failed,
    /// Later runs differed from the first one.
    NotRepeatable,
    /// Much of the memory was on other pages, because the pool had too few.
    OtherPages,
    /// The machine lacks it, or may not use it.
    Unavailable,
}

impl std::fmt::Display for KindVerdict {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(match self {
            Self::Gain => "gain",
            Self::Loss => "loss",
            Self::NoGain => "no gain",
            Self::TooNoisy => "too noisy",
            Self::NotEnoughRuns => "too few runs",
            Self::Failed => "failed",
            Self::NotRepeatable | Self::OtherPages => "no verdict",
            Self::Unavailable => "unavailable",
        })
    }
}

impl KindVerdict {
    /// The verdict on a ratio to the baseline.
    pub fn of_ratio(ratio: &Estimate) -> Self {
        if !ratio.is_interval() {
            Self::NotEnoughRuns
        } else if ratio.low >= 1.0 - WORTHWHILE && ratio.high <= 1.0 + WORTHWHILE {
            Self::NoGain
        } else if ratio.high < 1.0 && ratio.median <= 1.0 - WORTHWHILE {
            Self::Gain
        } else if ratio.low > 1.0 && ratio.median >= 1.0 + WORTHWHILE {
            Self::Loss
        } else {
            Self::TooNoisy
        }
    }
}

impl Summary {
    /// Computes the statistics, the verdicts and the advice of `profile`. Costs a sort of the
    /// samples.
    pub fn of(profile: &Profile) -> Self {
        let usual = usual_outcome(profile);
        let kinds: Vec<KindSummary> =
            profile.kinds.iter().map(|kind| summarise(profile, &kind.name, usual.as_deref())).collect();
        let baseline: Vec<f64> =
            counted(profile, &profile.baseline, usual.as_deref()).iter().map(|sample| sample.value).collect();
        let noise = fieldstone_stats::noise(&baseline);
        let (advice, notes) = Advice::on(profile, &kinds, noise, usual.as_deref());
        let traced = profile.translation.as_ref();
        let translation = traced.map(|traced| TranslationSummary::of(traced, &kinds, &profile.program));
        Self { metric: profile.metric, baseline: profile.baseline.clone(), noise, kinds, advice, notes, translation }
    }

    /// The kind called `name`.
    pub fn kind(&self, name: &str) -> Option<&KindSummary> {
        self.kinds.iter().find(|kind| kind.name == name)
    }

    /// Whether page kinds besides the baseline were requested, and none of them could be measured.
    pub fn measured_nothing(&self) -> bool {
        let mut others = self.kinds.iter().filter(|kind| kind.name != self.baseline).peekable();
        others.peek().is_some() && others.all(|kind| kind.verdict == Some(KindVerdict::Unavailable))
    }

    /// Counted runs of the baseline.
    pub fn baseline_runs(&self) -> usize {
        self.kind(&self.baseline).map_or(0, |kind| kind.runs)
    }
}

/// The counted runs of `kind`, in the order in which they ran; all of them, if the usual end is
/// unknown.
pub(crate) fn counted<'a>(profile: &'a Profile, kind: &str, usual: Option<&str>) -> Vec<&'a MeasuredRun> {
    let counts = |sample: &MeasuredRun| sample.kind == kind && usual.is_none_or(|usual| sample.outcome == usual);
    let mut samples: Vec<&MeasuredRun> = profile.samples.iter().filter(|sample| counts(sample)).collect();
    samples.sort_by_key(|sample| sample.position);
    samples
}

/// How the program most often ends on the baseline; of two equally frequent ends, `exit 0` or else
/// the first in the alphabet.
pub(crate) fn usual_outcome(profile: &Profile) -> Option<String> {
    let mut runs: BTreeMap<&str, usize> = BTreeMap::new();
    for sample in profile.samples.iter().filter(|sample| sample.kind == profile.baseline) {
        *runs.entry(&sample.outcome).or_default() += 1;
    }
    let most = *runs.values().max()?;
    runs.into_iter().find(|(_, times)| *times == most).map(|(outcome, _)| outcome.to_owned())
}

fn summarise(profile: &Profile, name: &str, usual: Option<&str>) -> KindSummary {
    let samples = counted(profile, name, usual);
    let failed = profile.samples.iter().filter(|sample| sample.kind == name).count() - samples.len();
    let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
    let is_baseline = name == profile.baseline;
    let is_repeatable = !profile.findings.iter().any(|finding| matches!(finding, Finding::NotRepeatable { .. }));
    let has_other_pages = profile.footprint(name).is_some_and(Footprint::lacks_pool_pages);
    let ratio = if is_baseline || !is_repeatable || has_other_pages {
        None
    } else {
        Estimate::of_median(&ratios(&samples, &counted(profile, &profile.baseline, usual)))
    };
    let unavailable = profile.kind(name).and_then(|kind| kind.unavailable.clone());
    let verdict = if unavailable.is_some() {
        Some(KindVerdict::Unavailable)
    } else if !is_baseline && !is_repeatable {
        Some(KindVerdict::NotRepeatable)
    } else if failed > 0 || has_failed(profile, name) {
        Some(KindVerdict::Failed)
    } else if has_other_pages {
        Some(KindVerdict::OtherPages)
    } else if is_baseline {
        None
    } else {
        Some(ratio.as_ref().map_or(KindVerdict::NotEnoughRuns, KindVerdict::of_ratio))
    };
    KindSummary {
        name: name.to_owned(),
        runs: samples.len(),
        failed,
        value_s: Estimate::of_median(&values),
        ratio,
        cost: cost(&samples),
        resident: Resident::all(profile).into_iter().find(|of| of.kind == name),
        verdict,
        unavailable,
    }
}

/// Ratios kind/baseline, a pair of the same round at a time. A baseline of zero seconds has none.
fn ratios(samples: &[&MeasuredRun], baseline: &[&MeasuredRun]) -> Vec<f64> {
    let by_round = |samples: &[&MeasuredRun]| {
        let mut rounds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for sample in samples {
            rounds.entry(sample.round).or_default().push(sample.value);
        }
        rounds
    };
    let baseline = by_round(baseline);
    by_round(samples)
        .iter()
        .filter_map(|(round, values)| Some(values.iter().zip(baseline.get(round)?)))
        .flatten()
        .filter(|(_, baseline)| **baseline > 0.0)
        .map(|(value, baseline)| value / baseline)
        .collect()
}

fn has_failed(profile: &Profile, name: &str) -> bool {
    profile.findings.iter().any(|finding| match finding {
        crate::Finding::Failed { kind, .. } | crate::Finding::TimedOut { kind, .. } => kind == name,
        _ => false,
    })
}

fn cost(samples: &[&MeasuredRun]) -> Option<Cost> {
    let seconds =
        |field: fn(&MeasuredRun) -> f64| median(&samples.iter().map(|sample| field(sample)).collect::<Vec<_>>());
    Some(Cost {
        wall_s: seconds(|sample| sample.wall_s)?,
        user_s: seconds(|sample| sample.user_s)?,
        system_s: seconds(|sample| sample.system_s)?,
        minor_faults: middle_count(samples, |sample| sample.minor_faults)?,
        major_faults: middle_count(samples, |sample| sample.major_faults)?,
        max_resident_bytes: middle_count(samples, |sample| sample.max_resident_bytes)?,
    })
}

/// The median of whole numbers; of an even number of them the lower of the middle two, so that it
/// stays one that was counted.
fn middle_count(samples: &[&MeasuredRun], field: fn(&MeasuredRun) -> u64) -> Option<u64> {
    let mut values: Vec<u64> = samples.iter().map(|sample| field(sample)).collect();
    values.sort_unstable();
    values.get(values.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
