//! What a trace means: rates instead of counts, prices beside measurements, and a verdict.
//!
//! - **Rates** are a thousand accesses, or a thousand instructions for fetches. Nothing counted is no rate, not a rate of 0.
//! - **A page kind is predicted** by the configuration that models its page size: `thp` and `hugetlb` by `2m`, `hugetlb-1g`
//!   by `1g`. The prediction is held against the same kind's measured time in user mode, where both are there: larger pages save page
//!   faults, too, which no walk foretells.
//! - **What is no statement about the run is left out**: all but counts where too little of it was traced, and predictions beside
//!   measured times where the TLBs are another processor's.

use super::sites::SiteLine;
use super::verdict::{WalkVerdict, best};
use super::{Mixture, Modelled, Mosaics, Range, Translation, WalkCost, canonical};
use crate::Program;
use crate::document::NOISY_MARK;
use crate::quantity;
use crate::stats::Estimate;
use crate::summary::{Cost, KindSummary, Verdict, WORTHWHILE};
use serde::Serialize;

/// What a trace means.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TranslationSummary {
    /// The configurations, in the trace's order.
    pub configurations: Vec<ConfigurationSummary>,
    /// Part of the walks for data, on 4 KiB pages, that were for the primary region. None if there were no walks.
    pub region_share: Option<f64>,
    /// Where the walks come from, most of them first.
    pub sites: Vec<SiteLine>,
    /// The same for memory that no site allocated, what could be told of no memory among it.
    pub rest: Vec<SiteLine>,
    /// What was predicted of the measured page kinds.
    pub predictions: Vec<Prediction>,
    /// What real runs decided, as a sentence: it stands above what was predicted. None where none decided.
    pub measured: Option<String>,
    /// The noise of the replay that the predictions start from, where they have to be marked for it.
    pub noisy: Option<f64>,
    /// Real runs on mosaics, and what a walk costs by them, where there were any.
    pub mosaics: Option<Mosaics>,
    /// What to think of it, and to do.
    pub verdict: WalkVerdict,
    /// What all of it is of, where the TLBs are not those of the machine that ran the program.
    pub caveat: Option<String>,
}

/// What one configuration came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigurationSummary {
    /// `4k`, `2m`, `direct-segment` and so on.
    pub name: String,
    /// Misses of the first level, a thousand accesses to data.
    pub misses_per_thousand: Option<f64>,
    /// Walks, a thousand accesses to data.
    pub walks_per_thousand: Option<f64>,
    /// Walks for instructions, a thousand instructions.
    pub instruction_walks_per_thousand: Option<f64>,
    /// Memory references of a walk for data.
    pub references_a_walk: Option<f64>,
    /// Part of the walks for data that are far.
    pub far_share: Option<f64>,
    /// Share of the time in walks for data.
    pub data_share: Option<Range>,
    /// The same for instructions.
    pub instruction_share: Option<Range>,
    /// Time of a run, as a share of that on 4 KiB pages.
    pub time: Option<Range>,
}

impl ConfigurationSummary {
    /// Share of the time in walks of both kinds; none if neither has a price.
    pub fn share(&self) -> Option<Range> {
        match (self.data_share, self.instruction_share) {
            (Some(data), Some(instruction)) => Some(data.plus(instruction)),
            (one, other) => one.or(other),
        }
    }

    /// Part of the time on 4 KiB pages that it saves.
    pub fn saving(&self) -> Option<Range> {
        self.time.map(Range::rest)
    }
}

/// What was predicted of a page kind, and what was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// The page kind of the real runs.
    pub kind: String,
    /// The configuration that models it.
    pub configuration: String,
    /// Time on it, as a share of that on 4 KiB pages, predicted.
    pub time: Range,
    /// The measured ratio.
    pub measured: Estimate,
    /// The same of time in user mode alone, which is what walks take; what first touches cost the kernel counts as on 4 KiB pages.
    pub user: Option<f64>,
    /// What the measurement says by itself.
    pub verdict: Verdict,
}

impl Prediction {
    /// How far the best guess is from what was measured in user mode, as a part of the time on 4 KiB pages.
    pub fn error(&self) -> f64 {
        (self.time.likely - self.user.unwrap_or(self.measured.median)).abs()
    }

    /// Whether the two intervals have a common part.
    pub fn meets(&self) -> bool {
        self.time.low <= self.measured.high && self.measured.low <= self.time.high
    }
}

impl TranslationSummary {
    /// Draws the rates, the shares and the verdict from `traced`; `kinds` are what was measured of `program`.
    pub fn of(traced: &Translation, kinds: &[KindSummary], program: &Program) -> Self {
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

    /// Leaves out what would be no statement about the run.
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

    /// Whether what was traced is too little to speak for the run: then there are counts, and nothing else.
    pub fn is_of_little(&self) -> bool {
        matches!(self.verdict, WalkVerdict::Elsewhere { .. })
    }

    /// What a noisy replay means for the predictions, as a sentence.
    pub fn noisy_sentence(&self) -> Option<String> {
        self.noisy.map(|noise| {
            format!(
                "Marked {NOISY_MARK}: predicted from a noisy replay, whose repetitions are {} apart from their middle. On a quiet machine it may say something else.",
                quantity::percent(noise)
            )
        })
    }

    /// Whether of shares and times no more than the bounds can be told.
    pub fn is_unclear(&self) -> bool {
        matches!(self.verdict, WalkVerdict::Unclear { .. })
    }

    /// What a direct segment would take away, as a sentence; none if there were no walks, or nobody asked.
    pub fn region_sentence(&self) -> Option<String> {
        let asked = self.configuration("direct-segment").is_some();
        self.region_share.filter(|_| asked).map(|inside| {
            format!(
                "{} of the D-TLB misses are in the primary region: a direct segment takes them away.",
                quantity::share(inside)
            )
        })
    }

    /// The real runs on the mixture of pages that configuration `name` models, where there were any.
    pub fn mixture(&self, name: &str) -> Option<&Mixture> {
        let name = canonical(name);
        self.mosaics.as_ref()?.mixtures.iter().find(|of| canonical(&of.configuration) == name)
    }

    /// The configuration called `name`, in any spelling that [`canonical`] knows.
    pub fn configuration(&self, name: &str) -> Option<&ConfigurationSummary> {
        let name = canonical(name);
        self.configurations.iter().find(|of| canonical(&of.name) == name)
    }
}

/// The page kind that did best in real runs, in a sentence.
fn measured_sentence(kinds: &[KindSummary]) -> Option<String> {
    let (best, most) = best(kinds)?;
    // As the advice: transparent huge pages where they are about as good.
    let is_as_good = |of: &&KindSummary| of.name == "thp" && of.gain().is_some_and(|gain| gain > most - WORTHWHILE);
    let of = kinds.iter().find(is_as_good).or_else(|| kinds.iter().find(|of| of.name == best))?;
    let (kind, gain, ratio) = (&of.name, of.gain()?, of.ratio?);
    let ends = quantity::interval(1.0 - ratio.high, 1.0 - ratio.low, |part| format!("{:.1}", part * 100.0));
    let (size, way) = (quantity::percent(gain.abs()), if gain < 0.0 { "more" } else { "less" });
    let interval = if gain < 0.0 { String::new() } else { format!(" (95 % interval: {ends} %)") };
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

fn configuration(of: &Modelled, traced: &Translation) -> ConfigurationSummary {
    let thousand = |count: u64, whole: u64| part(count, whole).map(|part| part * 1000.0);
    let (data, instruction) = (&of.data, &of.instruction);
    ConfigurationSummary {
        name: of.name.clone(),
        misses_per_thousand: thousand(data.first_level_misses, data.accesses),
        walks_per_thousand: thousand(data.walks, data.accesses),
        instruction_walks_per_thousand: thousand(instruction.walks, traced.counted_instructions),
        references_a_walk: part(data.walk_references, data.walks),
        far_share: part(data.far_walks, data.walks),
        data_share: of.data_share.and_then(Range::as_share),
        instruction_share: of.instruction_share.and_then(Range::as_share),
        time: of.time.and_then(Range::as_share),
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
