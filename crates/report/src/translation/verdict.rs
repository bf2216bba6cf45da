//! The verdict on a trace: what dominates, and what to do.
//!
//! What was measured decides. A prediction recommends only where no measurement did; where one did, the two stand beside
//! each other and the profile's [`crate::Advice`] has the last word.

use super::Range;
use super::summary::{TranslationSummary, model_of};
use crate::Advice;
use crate::quantity::{estimate, percent, rate, share};
use crate::summary::{KindSummary, Verdict, WORTHWHILE};
use serde::Serialize;
use std::fmt;

/// What to think of a trace. Shares are of the time on 4 KiB pages.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WalkVerdict {
    /// No access was counted.
    Uncounted {
        /// The program that was started in the traced one's place, if one was.
        started: Option<String>,
    },
    /// Every access found its translation in a TLB.
    NoWalks,
    /// There are walks, and nobody knows what one costs.
    Unpriced {
        /// Walks a thousand accesses, on 4 KiB pages.
        walks_per_thousand: f64,
    },
    /// A walk may cost so little or so much that the share says nothing.
    Unclear {
        /// Share of the time in walks.
        share: Range,
        /// The page kind that did best in real runs, and what it saved; none if no measurement decided.
        measured: Option<(String, f64)>,
    },
    /// Walks take too little to be worth a change.
    Cheap {
        /// Share of the time in walks.
        share: Range,
    },
    /// Walks take a part of the time that is worth having.
    Costly {
        /// Share of the time in walks.
        share: Range,
        /// Part of it that is for instructions.
        instructions: f64,
        /// Whose memory most walks for data are for, and its part of them: a site, or what no site allocated.
        site: Option<(String, f64)>,
        /// What gives it back.
        cure: Cure,
    },
}

/// Shares that lie further apart than this are no estimate, nor is all of the time: a program does something between its walks.
const TOO_WIDE: f64 = 0.5;
const TOO_MUCH: f64 = 0.95;

/// What gives the time in walks back.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "cure", rename_all = "kebab-case")]
pub enum Cure {
    /// Larger pages.
    Pages {
        /// The page kind.
        kind: String,
        /// What it saves, predicted.
        saving: Range,
        /// What it saved in real runs; none if there were none, or too few or noisy ones.
        measured: Option<f64>,
        /// The command that runs the program so; none where the measurement speaks for itself.
        command: Option<String>,
    },
    /// Larger pages do not help; a direct segment would, but no processor has one.
    SegmentOnly {
        /// What it would save.
        saving: Range,
    },
    /// Nothing that was modelled.
    None,
}

impl WalkVerdict {
    /// The verdict on `summary`, whose own verdict is not looked at.
    pub(super) fn on(
        summary: &TranslationSummary,
        started: Option<&str>,
        kinds: &[KindSummary],
        command: &[String],
    ) -> Self {
        let small = summary.configuration("4k");
        let Some((small, walks_per_thousand)) = small.and_then(|small| Some((small, small.walks_per_thousand?))) else {
            return Self::Uncounted { started: started.map(str::to_owned) };
        };
        if walks_per_thousand == 0.0 && small.instruction_walks_per_thousand.unwrap_or(0.0) == 0.0 {
            return Self::NoWalks;
        }
        let Some(share) = small.share() else { return Self::Unpriced { walks_per_thousand } };
        if share.high < WORTHWHILE || share.likely < WORTHWHILE && share.high - share.low <= TOO_WIDE {
            return Self::Cheap { share };
        }
        if share.high - share.low > TOO_WIDE || share.likely > TOO_MUCH {
            return Self::Unclear { share, measured: best(kinds) };
        }
        let instructions = small.instruction_share.map_or(0.0, |of| of.likely) / share.likely;
        let lines = summary.sites.iter().chain(&summary.rest).filter(|line| line.share > 0.0);
        let site = lines.max_by(|a, b| a.share.total_cmp(&b.share)).map(|line| (line.name.clone(), line.share));
        Self::Costly { share, instructions, site, cure: Cure::of(summary, kinds, command) }
    }

    /// The sentence and the command apart, for where a command stands on a line of its own.
    pub fn parts(&self) -> (String, Option<&str>) {
        match self {
            Self::Costly { cure: Cure::Pages { command: Some(command), .. }, .. } => (self.to_string(), Some(command)),
            _ => (self.to_string(), None),
        }
    }
}

/// The page kind that did best, of those that a measurement decided.
fn best(kinds: &[KindSummary]) -> Option<(String, f64)> {
    let decided = |kind: &&KindSummary| matches!(kind.verdict, Some(Verdict::Gain | Verdict::Loss | Verdict::NoGain));
    let gains = kinds.iter().filter(decided).filter_map(|kind| Some((kind.name.clone(), kind.gain()?)));
    gains.max_by(|(_, one), (_, other)| one.total_cmp(other))
}

impl Cure {
    fn of(summary: &TranslationSummary, kinds: &[KindSummary], command: &[String]) -> Self {
        let saving = |name: &str| summary.configuration(name).and_then(|of| of.saving());
        let likely = |name: &str| saving(name).map_or(0.0, |saving| saving.likely);
        // 1 GiB pages need a reserve: they must be worth it.
        let name = if likely("1g") > likely("2m") + WORTHWHILE { "1g" } else { "2m" };
        match (saving(name), saving("direct-segment")) {
            (Some(saving), _) if saving.likely >= WORTHWHILE => Self::pages(name, saving, kinds, command),
            (_, Some(saving)) if saving.likely >= WORTHWHILE => Self::SegmentOnly { saving },
            _ => Self::None,
        }
    }

    /// The measured kind of these pages that did best; of those that none decided, the one that needs least.
    fn pages(name: &str, saving: Range, kinds: &[KindSummary], command: &[String]) -> Self {
        let decided = |kind: &&KindSummary| {
            matches!(kind.verdict, Some(Verdict::Gain | Verdict::Loss | Verdict::NoGain | Verdict::Failed))
        };
        // A program that fails may fail fast: that is no gain.
        let gain = |kind: &KindSummary| kind.gain().filter(|_| kind.verdict != Some(Verdict::Failed));
        // As the advice: transparent huge pages where they are about as good, since they need no reserve.
        let handicap = |kind: &KindSummary| if kind.name == "thp" { 0.0 } else { WORTHWHILE };
        let rank = |kind: &KindSummary| gain(kind).map_or(f64::NEG_INFINITY, |gain| gain - handicap(kind));
        let of_name = kinds.iter().filter(|kind| model_of(&kind.name) == Some(name)).filter(decided);
        let measured = of_name.max_by(|a, b| rank(a).total_cmp(&rank(b)));
        let kind = measured.map_or(if name == "1g" { "hugetlb-1g" } else { "thp" }, |kind| &kind.name);
        Self::Pages {
            kind: kind.to_owned(),
            saving,
            measured: measured.and_then(gain),
            command: measured.is_none().then(|| Advice::command(kind, command)),
        }
    }
}

impl fmt::Display for WalkVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uncounted { started: Some(program) } => write!(
                f,
                "No access was counted: it started {program} in its place, which ran without the tracer. Trace that one."
            ),
            Self::Uncounted { started: None } => {
                write!(f, "No access was counted, so nothing can be said of translation: trace a longer run.")
            }
            Self::NoWalks => write!(
                f,
                "Translation costs nothing: no access missed every TLB. Other pages have nothing to gain here."
            ),
            Self::Unpriced { walks_per_thousand } => write!(
                f,
                "Of 1,000 accesses {} walk on 4 KiB pages. What a walk costs here is not known, so no time is predicted: measured runs tell.",
                rate(*walks_per_thousand)
            ),
            Self::Unclear { share: of, measured } => {
                write!(
                    f,
                    "How much of the time page walks take cannot be told: anything from {} to {} on 4 KiB pages, as a walk's price is so uncertain here. ",
                    share(of.low),
                    share(of.high.min(1.0))
                )?;
                match measured {
                    Some((kind, gain)) if *gain < 0.0 => {
                        write!(f, "What was measured decides: on {kind} it took {} more time.", percent(-gain))
                    }
                    Some((kind, gain)) => {
                        write!(f, "What was measured decides: on {kind} it took {} less time.", percent(*gain))
                    }
                    None => write!(f, "Measured runs tell, and none has decided yet: take more (--runs)."),
                }
            }
            Self::Cheap { share: of } => write!(
                f,
                "Page walks take only {} of the time on 4 KiB pages, an estimate: there is nothing to gain from other pages.",
                estimate(of, share)
            ),
            Self::Costly { share: of, instructions, site, cure } => {
                write!(f, "Page walks take {} of the time on 4 KiB pages, an estimate", estimate(of, share))?;
                write_whose(f, *instructions, site.as_ref())?;
                write!(f, " {cure}")
            }
        }
    }
}

fn write_whose(f: &mut fmt::Formatter<'_>, instructions: f64, site: Option<&(String, f64)>) -> fmt::Result {
    if instructions > 0.5 {
        return write!(f, "; most of it for instructions.");
    }
    match site {
        Some((name, of)) => {
            write!(f, "; {} of the walks for data are for memory of {}.", share(*of), super::sites::shortened(name, 60))
        }
        None => write!(f, "."),
    }
}

impl fmt::Display for Cure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages { kind, saving, measured, command } => {
                write!(f, "On {kind} it would take {} less time, predicted; ", estimate(saving, percent))?;
                match (measured, command) {
                    (Some(gain), _) if *gain < 0.0 => write!(f, "measured: {} more. ", percent(-gain))?,
                    (Some(gain), _) => write!(f, "measured: {} less. ", percent(*gain))?,
                    (None, Some(_)) => return write!(f, "no measurement decided. Run it so:"),
                    (None, None) => return write!(f, "measured runs on it failed."),
                }
                write!(f, "What was measured decides.")
            }
            Self::SegmentOnly { saving } => write!(
                f,
                "Larger pages give nothing of it back. A direct segment would take {} less time, but no processor has one: place what is used together close together.",
                estimate(saving, percent)
            ),
            Self::None => {
                write!(f, "Nothing that was modelled gives it back: place what is used together close together.")
            }
        }
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
