//! The meaning of a trace: rates instead of counts, predictions compared with measurements, and a
//! verdict.
//!
//! - **Rates** are per thousand accesses, or per thousand instructions for fetches. Without counts
//!   there is no rate.
//! - **A page kind is predicted** by the configuration that models its page size: `thp` and
//!   `hugetlb` by `2m`, `hugetlb-1g` by `1g`. The prediction is compared with the same kind's
//!   measured time in user mode: larger pages save page faults, too, which is not predicted.
//! - **Left out** are all numbers but counts where too little of the run was traced, and
//!   comparisons with measured times where the TLBs are another processor's.

use super::sites::SiteLine;
use super::verdict::{WalkVerdict, best};
use super::{ModelledConfiguration, Mosaics, ReportedMixture, Translation, WalkCost, as_share, canonical};
use crate::ProfiledProgram;
use crate::document::NOISY_MARK;
use crate::quantity;
use crate::summary::{Cost, KindSummary, KindVerdict, WORTHWHILE};
use fieldstone_stats::{Estimate, Interval};
use serde::Serialize;

/// The meaning of a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TranslationSummary {
    /// The configurations, in the trace's order.
    pub configurations: Vec<ConfigurationSummary>,
    /// Part of the walks for data, on 4 KiB pages, that were for the primary region. None if there
    /// were no walks.
    pub region_share: Option<f64>,
    /// Walks by allocation site, most of them first.
    pub sites: Vec<SiteLine>,
    /// The same for memory of no site, including unattributed walks.
    pub rest: Vec<SiteLine>,
    /// Predictions for the measured page kinds.
    pub predictions: Vec<Prediction>,
    /// The best measured page kind, as a sentence; `None` if no measurement decided.
    pub measured: Option<String>,
    /// The noise of the replay behind the predictions, if they are marked.
    pub noisy: Option<f64>,
    /// Real runs on mosaics, and what a walk costs by them, where there were any.
    pub mosaics: Option<Mosaics>,
    /// The verdict and the recommendation.
    pub verdict: WalkVerdict,
    /// A sentence on the modelled processor, if it is not that of this machine.
    pub caveat: Option<String>,
}

/// The results of one configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigurationSummary {
    /// `4k`, `2m`, `direct-segment` and so on.
    pub name: String,
    /// Misses of the first level, per thousand accesses to data.
    pub misses_per_thousand: Option<f64>,
    /// Walks, per thousand accesses to data.
    pub walks_per_thousand: Option<f64>,
    /// Walks for instructions, per thousand instructions.
    pub instruction_walks_per_thousand: Option<f64>,
    /// Memory references of a walk for data.
    pub references_a_walk: Option<f64>,
    /// Part of the walks for data that are far.
    pub far_share: Option<f64>,
    /// Share of the time in walks for data.
    pub data_share: Option<Interval>,
    /// The same for instructions.
    pub instruction_share: Option<Interval>,
    /// Time of a run, as a share of that on 4 KiB pages.
    pub time: Option<Interval>,
}

impl ConfigurationSummary {
    /// Share of the time in walks of both kinds; none if neither has a price.
    pub fn share(&self) -> Option<Interval> {
        match (self.data_share, self.instruction_share) {
            (Some(data), Some(instruction)) => Some(data.plus(instruction)),
            (one, other) => one.or(other),
        }
    }

    /// Part of the time on 4 KiB pages that it saves.
    pub fn saving(&self) -> Option<Interval> {
        self.time.map(Interval::rest)
    }
}

/// Prediction and measurement of a page kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// The page kind of the real runs.
    pub kind: String,
    /// The configuration that models it.
    pub configuration: String,
    /// Time on it, as a share of that on 4 KiB pages, predicted.
    pub time: Interval,
    /// The measured ratio.
    pub measured: Estimate,
    /// The same of time in user mode alone, which walks are part of; kernel time is taken from the
    /// runs on 4 KiB pages.
    pub user: Option<f64>,
    /// The verdict on the measurement alone.
    pub verdict: KindVerdict,
}

impl Prediction {
    /// The difference of prediction and measurement in user mode, as a part of the time on 4 KiB
    /// pages.
    pub fn error(&self) -> f64 {
        (self.time.likely - self.user.unwrap_or(self.measured.median)).abs()
    }

    /// Whether the two intervals overlap.
    pub fn meets(&self) -> bool {
        self.time.low <= self.measured.high && self.measured.low <= self.time.high
    }
}

impl TranslationSummary {
    /// Computes the rates, the shares and the verdict of `traced`; `kinds` are the measurements of
    /// `program`.
    pub fn of(traced: &Translation, kinds: &[KindSummary], program: &ProfiledProgram) -> Self {
        let configurations: Vec<_> = traced.configurations.iter().map(|of| configuration(of, traced)).collect();
        let (sites, rest) = SiteLine::all(traced);
        let small = traced.configuration("4k").map(|of| of.data).unwrap_or_default();
        let mut summary = Self {
            region_share: part(small.region_walks, small.walks),
            predictions: predictions(&configurations, kinds),
            measured: measured_sentence(kinds).filter(|_| traced.processor.caveat().is_none()),
            noisy: traced.walk_cost.as_ref().and_then(WalkCost::noisy),
            mosaics: traced.mosaics.clone(),
            configurations,
            sites,
            rest,
            verdict: WalkVerdict::NoWalks,
            caveat: traced.processor.caveat(),
        };
        summary.verdict = WalkVerdict::on(&summary, traced, kinds, program);
        summary.withhold();
        summary
    }

    /// Leaves out numbers that are no statement about the run.
    fn withhold(&mut self) {
        if self.is_of_little() {
            self.region_share = None;
            self.sites.clear();
            self.rest.clear();
            for of in &mut self.configurations {
                (of.data_share, of.instruction_share, of.time) = (None, None, None);
            }
        }
        if self.is_of_little() || self.caveat.is_some() {
            self.predictions.clear();
            self.mosaics = None;
        }
    }

    /// Whether too little of the run was traced: then there are only counts.
    pub fn is_of_little(&self) -> bool {
        matches!(self.verdict, WalkVerdict::Elsewhere { .. })
    }

    /// A sentence on a noisy replay.
    pub fn noisy_sentence(&self) -> Option<String> {
        self.noisy.map(|noise| {
            format!(
                "Marked {NOISY_MARK}: predicted from a noisy replay, whose repetitions differ by {} from their middle. On a quiet machine the prediction may differ.",
                quantity::percent(noise)
            )
        })
    }

    /// Whether only the bounds of shares and times are known.
    pub fn is_unclear(&self) -> bool {
        matches!(self.verdict, WalkVerdict::Unclear { .. })
    }

    /// A sentence on the walks that a direct segment avoids; `None` without walks, or if none was
    /// modelled.
    pub fn region_sentence(&self) -> Option<String> {
        let is_modelled = self.configuration("direct-segment").is_some();
        self.region_share.filter(|_| is_modelled).map(|inside| {
            format!(
                "{} of the D-TLB misses are in the primary region: a direct segment avoids them.",
                quantity::share(inside)
            )
        })
    }

    /// The real runs on the mixture of pages that configuration `name` models, where there were
    /// any.
    pub fn mixture(&self, name: &str) -> Option<&ReportedMixture> {
        let name = canonical(name);
        self.mosaics.as_ref()?.mixtures.iter().find(|of| canonical(&of.configuration) == name)
    }

    /// The configuration called `name`, in any spelling that [`canonical`] knows.
    pub fn configuration(&self, name: &str) -> Option<&ConfigurationSummary> {
        let name = canonical(name);
        self.configurations.iter().find(|of| canonical(&of.name) == name)
    }
}

/// A sentence on the page kind that is fastest in real runs.
fn measured_sentence(kinds: &[KindSummary]) -> Option<String> {
    let (best, most) = best(kinds)?;
    // Transparent huge pages where they are about as good, as in the advice.
    let is_as_good = |of: &&KindSummary| of.name == "thp" && of.gain().is_some_and(|gain| gain > most - WORTHWHILE);
    let of = kinds.iter().find(is_as_good).or_else(|| kinds.iter().find(|of| of.name == best))?;
    let (kind, gain, ratio) = (&of.name, of.gain()?, of.ratio?);
    let ends = quantity::interval(1.0 - ratio.high, 1.0 - ratio.low, |part| format!("{:.1}", part * 100.0));
    let (size, way) = (quantity::percent(gain.abs()), if gain < 0.0 { "more" } else { "less" });
    let interval = if gain < 0.0 { String::new() } else { format!(" ({}: {ends} %)", Interval::LABEL) };
    Some(format!("Measured: on {kind} it took {size} {way} time{interval}."))
}

/// The configuration that models a page kind.
pub(crate) fn model_of(kind: &str) -> Option<&'static str> {
    match kind {
        "4k" => Some("4k"),
        "thp" | "hugetlb" => Some("2m"),
        "hugetlb-1g" => Some("1g"),
        _ => None,
    }
}

/// `count` of `whole`, from 0 to 1; none of nothing.
pub(crate) fn part(count: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| count as f64 / whole as f64)
}

fn configuration(of: &ModelledConfiguration, traced: &Translation) -> ConfigurationSummary {
    let thousand = |count: u64, whole: u64| part(count, whole).map(|part| part * 1000.0);
    let (data, instruction) = (&of.data, &of.instruction);
    ConfigurationSummary {
        name: of.name.clone(),
        misses_per_thousand: thousand(data.first_level_misses, data.accesses),
        walks_per_thousand: thousand(data.walks, data.accesses),
        instruction_walks_per_thousand: thousand(instruction.walks, traced.counted_instructions),
        references_a_walk: part(data.walk_references, data.walks),
        far_share: part(data.far_walks, data.walks),
        data_share: of.data_share.and_then(as_share),
        instruction_share: of.instruction_share.and_then(as_share),
        time: of.time.and_then(as_share),
    }
}

/// Time on other pages as a share of that on `small` ones, where only that in user mode differs.
fn in_user_mode(small: &Cost, own: &Cost) -> Option<f64> {
    let whole = small.user_s + small.system_s;
    (whole > 0.0).then(|| 1.0 - (small.user_s - own.user_s) / whole)
}

fn predictions(configurations: &[ConfigurationSummary], kinds: &[KindSummary]) -> Vec<Prediction> {
    let small = kinds.iter().find(|kind| kind.name == "4k").and_then(|kind| kind.cost);
    let prediction = |kind: &KindSummary| {
        let model = model_of(&kind.name)?;
        let configuration = configurations.iter().find(|of| canonical(&of.name) == model)?;
        Some(Prediction {
            kind: kind.name.clone(),
            configuration: configuration.name.clone(),
            time: configuration.time?,
            measured: kind.ratio?,
            user: small.zip(kind.cost).and_then(|(small, own)| in_user_mode(&small, &own)),
            verdict: kind.verdict?,
        })
    };
    kinds.iter().filter_map(prediction).collect()
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
