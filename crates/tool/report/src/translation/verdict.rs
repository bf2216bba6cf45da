//! The verdict on a trace: the largest cost, and the recommendation.
//!
//! Measurements decide. A prediction recommends only where no measurement decided; otherwise both
//! are reported, and the profile's [`crate::Advice`] recommends.

use super::names::plain;
use super::summary::{TranslationSummary, model_of};
use super::{Translation, is_too_wide};
use crate::quantity::{bounds, estimate, percent, rate, share};
use crate::summary::{KindSummary, KindVerdict, WORTHWHILE};
use crate::{Advice, ProfiledProgram};
use fieldstone_stats::Interval;
use serde::Serialize;
use std::fmt;

/// The verdict on a trace. Shares are of the time on 4 KiB pages.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WalkVerdict {
    /// No access was counted.
    Uncounted,
    /// Most of the run was in programs that were started by exec, and ran without the tracer.
    Elsewhere {
        /// The last of them that the tracer saw; programs that this one started are unknown.
        started: String,
        /// The program with the most memory in real runs, if it is not the traced one.
        largest: Option<String>,
        /// The fastest page kind in real runs, and what it saved; `None` if no measurement decided.
        measured: Option<(String, f64)>,
    },
    /// Every access found its translation in a TLB.
    NoWalks,
    /// There are walks without a known price.
    Unpriced {
        /// Walks per thousand accesses, on 4 KiB pages.
        walks_per_thousand: f64,
    },
    /// The bounds of the price are too far apart for an estimate.
    Unclear {
        /// Share of the time in walks.
        share: Interval,
        /// The fastest page kind in real runs, and what it saved; `None` if no measurement decided.
        measured: Option<(String, f64)>,
    },
    /// Walks take too little time to matter.
    Cheap {
        /// Share of the time in walks.
        share: Interval,
        /// A page kind that gained in real runs all the same, and how much; `None` if none did.
        gained: Option<(String, f64)>,
    },
    /// The TLBs are those of another processor.
    Foreign {
        /// Share of the time in walks on that processor.
        share: Interval,
    },
    /// Walks take a considerable part of the time.
    Costly {
        /// Share of the time in walks.
        share: Interval,
        /// Part of it that is for instructions.
        instructions: f64,
        /// The site, or memory of no site, with most walks for data, and its part of them.
        site: Option<(String, f64)>,
        /// The remedy.
        cure: Cure,
    },
}

/// Upper bound of a share that is negligible: with a higher one, it is unclear whether it is.
const MAY_BE: f64 = 3.0 * WORTHWHILE;
/// A higher share is no estimate: a program executes instructions between its walks.
const TOO_MUCH: f64 = 0.95;

/// The end of the verdict where neither prices nor runs decide.
const NOT_MEASURED: &str =
    " No measured run has decided yet: take more (--runs). `--models 2m,mosaics` prices walks by measured runs.";

/// Upper bound of the average time of an instruction, in seconds, of a program that does not always
/// wait for memory.
const SLOW_INSTRUCTION_S: f64 = 1e-9;

/// What saves the time in walks.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "cure", rename_all = "kebab-case")]
pub enum Cure {
    /// Larger pages.
    Pages {
        /// The page kind.
        kind: String,
        /// What it saves, predicted.
        saving: Interval,
        /// The evidence of real runs.
        evidence: Evidence,
    },
    /// Larger pages do not help; a direct segment would, but no processor has one.
    SegmentOnly {
        /// What it would save.
        saving: Interval,
    },
    /// Nothing that was modelled.
    None,
}

/// The evidence of real runs on a page kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "evidence", rename_all = "kebab-case")]
pub enum Evidence {
    /// They decided.
    Measured {
        /// What it saved; negative for a loss.
        gain: f64,
    },
    /// The program failed on it.
    Failed,
    /// There were too few or too noisy ones; or none, and the prediction may be no saving.
    Undecided,
    /// There were none.
    None {
        /// The command that runs the program so.
        command: String,
    },
}

impl WalkVerdict {
    /// The verdict on `summary` of `traced`; ignores the verdict of `summary`.
    pub(super) fn on(
        summary: &TranslationSummary,
        traced: &Translation,
        kinds: &[KindSummary],
        program: &ProfiledProgram,
    ) -> Self {
        let verdict = Self::on_counts(summary, kinds, &program.command);
        let says_little = match verdict {
            Self::Uncounted => true,
            Self::Costly { .. } => false,
            _ => is_little(traced, kinds),
        };
        match (&traced.started, verdict) {
            (Some(started), _) if says_little => {
                Self::Elsewhere { started: started.clone(), largest: largest(program), measured: best(kinds) }
            }
            (_, Self::Cheap { share, .. } | Self::Costly { share, .. }) if traced.processor.foreign => {
                Self::Foreign { share }
            }
            (_, verdict) => verdict,
        }
    }

    /// The verdict on what was counted, as if that were all.
    fn on_counts(summary: &TranslationSummary, kinds: &[KindSummary], command: &[String]) -> Self {
        let small = summary.configuration("4k");
        let Some((small, walks_per_thousand)) = small.and_then(|small| Some((small, small.walks_per_thousand?))) else {
            return Self::Uncounted;
        };
        if walks_per_thousand == 0.0 && small.instruction_walks_per_thousand.unwrap_or(0.0) == 0.0 {
            return Self::NoWalks;
        }
        let Some(share) = small.share() else { return Self::Unpriced { walks_per_thousand } };
        if share.likely < WORTHWHILE && share.high < MAY_BE {
            return Self::Cheap { share, gained: best(kinds).filter(|(_, gain)| *gain >= WORTHWHILE) };
        }
        if share.likely < WORTHWHILE || is_too_wide(share) || share.likely > TOO_MUCH {
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
            Self::Costly { cure: Cure::Pages { evidence: Evidence::None { command }, .. }, .. } => {
                (self.to_string(), Some(command))
            }
            _ => (self.to_string(), None),
        }
    }
}

/// Whether the traced instructions are the smaller part of a run, by the processor time of `kinds`.
fn is_little(traced: &Translation, kinds: &[KindSummary]) -> bool {
    let run = kinds.iter().find(|kind| kind.name == "4k").and_then(|kind| kind.cost);
    run.is_none_or(|cost| traced.instructions as f64 * SLOW_INSTRUCTION_S < 0.5 * (cost.user_s + cost.system_s))
}

/// The program that had the most memory in real runs, if it was started by the one that was traced.
fn largest(program: &ProfiledProgram) -> Option<String> {
    let traced = program.command.first().map_or("", |path| file_name(path));
    Some(&program.primary).filter(|name| !name.is_empty() && *name != traced).cloned()
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The fastest page kind, of those that a measurement decided. Mosaics are experiments and not
/// recommended.
pub(super) fn best(kinds: &[KindSummary]) -> Option<(String, f64)> {
    let decided =
        |kind: &&KindSummary| matches!(kind.verdict, Some(KindVerdict::Gain | KindVerdict::Loss | KindVerdict::NoGain));
    let gains = kinds
        .iter()
        .filter(|kind| !kind.name.contains(':'))
        .filter(decided)
        .filter_map(|kind| Some((kind.name.clone(), kind.gain()?)));
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

    /// The measured kind of these pages that did best; of those that none decided, the one that
    /// needs least.
    fn pages(name: &str, saving: Interval, kinds: &[KindSummary], command: &[String]) -> Self {
        let of_name = || kinds.iter().filter(|kind| model_of(&kind.name) == Some(name));
        let decided = |kind: &&KindSummary| {
            matches!(
                kind.verdict,
                Some(KindVerdict::Gain | KindVerdict::Loss | KindVerdict::NoGain | KindVerdict::Failed)
            )
        };
        // A program that fails may fail fast: that is no gain.
        let gain = |kind: &KindSummary| kind.gain().filter(|_| kind.verdict != Some(KindVerdict::Failed));
        // As the advice: transparent huge pages where they are about as good, since they need no
        // reserve.
        let handicap = |kind: &KindSummary| if kind.name == "thp" { 0.0 } else { WORTHWHILE };
        let rank = |kind: &KindSummary| gain(kind).map_or(f64::NEG_INFINITY, |gain| gain - handicap(kind));
        let measured = of_name().filter(decided).max_by(|a, b| rank(a).total_cmp(&rank(b)));
        let kind = measured.map_or(if name == "1g" { "hugetlb-1g" } else { "thp" }, |kind| &kind.name);
        let is_open = saving.low < WORTHWHILE || of_name().any(|kind| kind.runs > 0);
        let evidence = match measured {
            Some(kind) => gain(kind).map_or(Evidence::Failed, |gain| Evidence::Measured { gain }),
            None if is_open => Evidence::Undecided,
            None => Evidence::None { command: Advice::command(kind, None, command) },
        };
        Self::Pages { kind: kind.to_owned(), saving, evidence }
    }
}

impl fmt::Display for WalkVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uncounted => {
                write!(f, "No access was counted, so the cost of translation is unknown: trace a longer run.")
            }
            Self::Elsewhere { started, largest, measured } => {
                write!(
                    f,
                    "Most of the run was not traced: {started} was started by exec and ran without the tracer, as did all that it started. Too little of the run was traced. "
                )?;
                match largest {
                    Some(name) if name == file_name(started) => write!(f, "Trace that one by itself.")?,
                    Some(name) => write!(f, "Trace {name} by itself: it had the most memory in real runs.")?,
                    None => write!(f, "Trace the last program of that chain by itself.")?,
                }
                write_measured(f, measured.as_ref())
            }
            Self::NoWalks => write!(
                f,
                "Translation costs nothing: no access missed every TLB. Other pages have no walk to save here."
            ),
            Self::Unpriced { walks_per_thousand } => write!(
                f,
                "Of 1,000 accesses {} walk on 4 KiB pages. The price of a walk is not known here, so no time is predicted; measured runs decide.",
                rate(*walks_per_thousand)
            ),
            Self::Unclear { share: of, measured } => {
                write!(
                    f,
                    "The share of the time in page walks is not known: from {} on 4 KiB pages, because the price of a walk is uncertain here.",
                    bounds(&Interval { high: of.high.min(1.0), ..*of }, share)
                )?;
                match measured {
                    None => f.write_str(NOT_MEASURED),
                    some => write_measured(f, some.as_ref()),
                }
            }
            Self::Cheap { share: of, gained } => {
                write!(f, "Page walks take only {} of the time on 4 KiB pages, an estimate: ", estimate(of, share))?;
                match gained {
                    None => write!(f, "there is nothing to gain from other pages."),
                    Some((kind, gain)) => write!(
                        f,
                        "what {kind} gained ({}) is not due to fewer walks. Fewer page faults are the usual reason.",
                        percent(*gain)
                    ),
                }
            }
            Self::Foreign { share: of } => write!(
                f,
                "On the processor that was modelled, page walks would take {} of the time on 4 KiB pages, an estimate.",
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

fn write_measured(f: &mut fmt::Formatter<'_>, measured: Option<&(String, f64)>) -> fmt::Result {
    let Some((kind, gain)) = measured else { return Ok(()) };
    let (size, way) = (percent(gain.abs()), if *gain < 0.0 { "more" } else { "less" });
    write!(f, " Measured runs decide: on {kind} it took {size} {way} time.")
}

fn write_whose(f: &mut fmt::Formatter<'_>, instructions: f64, site: Option<&(String, f64)>) -> fmt::Result {
    if instructions > 0.5 {
        return write!(f, "; most of it for instructions.");
    }
    match site {
        Some((name, of)) => {
            write!(
                f,
                "; {} of the walks for data are for memory of {}.",
                share(*of),
                super::sites::shortened(&plain(name), 60)
            )
        }
        None => write!(f, "."),
    }
}

impl fmt::Display for Cure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages { kind, saving, evidence } => {
                if let Evidence::Measured { gain } = evidence {
                    let (size, way) = (percent(gain.abs()), if *gain < 0.0 { "more" } else { "less" });
                    let predicted = estimate(saving, share);
                    return write!(
                        f,
                        "On {kind} it took {size} {way} time, measured, which decides; predicted: {predicted} less."
                    );
                }
                write!(f, "On {kind} it would take {} less time, predicted; ", estimate(saving, share))?;
                match evidence {
                    Evidence::Measured { .. } => Ok(()),
                    Evidence::Failed => write!(f, "measured runs on it failed."),
                    Evidence::Undecided => {
                        write!(f, "no measurement decided; see the advice on more runs (--runs).")
                    }
                    Evidence::None { .. } => write!(f, "no measurement decided. Run it like this:"),
                }
            }
            Self::SegmentOnly { saving } => write!(
                f,
                "Larger pages do not save it. A direct segment would take {} less time, but no processor has one: place data that is used together close together.",
                estimate(saving, share)
            ),
            Self::None => {
                write!(f, "No modelled configuration saves it: place data that is used together close together.")
            }
        }
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
