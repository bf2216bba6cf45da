//! The verdict on a trace: what dominates, and what to do.
//!
//! What was measured decides. A prediction recommends only where no measurement did; where one did, the two stand beside
//! each other and the profile's [`crate::Advice`] has the last word.

use super::names::plain;
use super::summary::{TranslationSummary, model_of};
use super::{Range, Translation};
use crate::quantity::{bounds, estimate, percent, rate, share};
use crate::summary::{KindSummary, Verdict, WORTHWHILE};
use crate::{Advice, Program};
use serde::Serialize;
use std::fmt;

/// What to think of a trace. Shares are of the time on 4 KiB pages.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum WalkVerdict {
    /// No access was counted.
    Uncounted,
    /// Most of the run was in programs that were started by exec, and ran without the tracer.
    Elsewhere {
        /// The last of them that the tracer saw being started; who that one started is not known.
        started: String,
        /// The program that had the most memory in real runs, where it is another one than the traced.
        largest: Option<String>,
        /// The page kind that did best in real runs, and what it saved; none if no measurement decided.
        measured: Option<(String, f64)>,
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
        /// The page kind that gained in real runs all the same, and what; none if none did.
        gained: Option<(String, f64)>,
    },
    /// The TLBs are those of another processor: its walks are no part of this machine's time.
    Foreign {
        /// Share of the time that they would take.
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

/// A share that is likely not worth having may be so much at most: else it is not known whether it is.
const MAY_BE: f64 = 3.0 * WORTHWHILE;
/// All of the time is no estimate: a program does something between its walks.
const TOO_MUCH: f64 = 0.95;

/// What is said where neither prices nor runs tell.
const NOT_MEASURED: &str =
    " Measured runs tell, and none has decided yet: take more (--runs). `--models 2m,mosaics` prices walks by them.";

/// A processor does an instruction in this time at the worst, in seconds, unless it waits for memory nearly always.
const SLOW_INSTRUCTION_S: f64 = 1e-9;

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
        /// What real runs say to that.
        evidence: Evidence,
    },
    /// Larger pages do not help; a direct segment would, but no processor has one.
    SegmentOnly {
        /// What it would save.
        saving: Range,
    },
    /// Nothing that was modelled.
    None,
}

/// What real runs on a page kind say to a prediction.
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
    /// There were too few or too noisy ones; or none, and the prediction may be of nothing.
    Undecided,
    /// There were none.
    None {
        /// The command that runs the program so.
        command: String,
    },
}

impl WalkVerdict {
    /// The verdict on `summary`, which is of `traced`; its own verdict is not looked at.
    pub(super) fn on(
        summary: &TranslationSummary,
        traced: &Translation,
        kinds: &[KindSummary],
        program: &Program,
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
        if share.likely < WORTHWHILE || share.is_too_wide() || share.likely > TOO_MUCH {
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

/// Whether the traced instructions are the smaller part of a run, whose processor time `kinds` tell.
fn is_little(traced: &Translation, kinds: &[KindSummary]) -> bool {
    let run = kinds.iter().find(|kind| kind.name == "4k").and_then(|kind| kind.cost);
    run.is_none_or(|cost| traced.instructions as f64 * SLOW_INSTRUCTION_S < 0.5 * (cost.user_s + cost.system_s))
}

/// The program that had the most memory in real runs, if it was started by the one that was traced.
fn largest(program: &Program) -> Option<String> {
    let traced = program.command.first().map_or("", |path| file_name(path));
    Some(&program.primary).filter(|name| !name.is_empty() && *name != traced).cloned()
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The page kind that did best, of those that a measurement decided. Mosaics are for measuring, and nothing to run on.
pub(super) fn best(kinds: &[KindSummary]) -> Option<(String, f64)> {
    let decided = |kind: &&KindSummary| matches!(kind.verdict, Some(Verdict::Gain | Verdict::Loss | Verdict::NoGain));
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

    /// The measured kind of these pages that did best; of those that none decided, the one that needs least.
    fn pages(name: &str, saving: Range, kinds: &[KindSummary], command: &[String]) -> Self {
        let of_name = || kinds.iter().filter(|kind| model_of(&kind.name) == Some(name));
        let decided = |kind: &&KindSummary| {
            matches!(kind.verdict, Some(Verdict::Gain | Verdict::Loss | Verdict::NoGain | Verdict::Failed))
        };
        // A program that fails may fail fast: that is no gain.
        let gain = |kind: &KindSummary| kind.gain().filter(|_| kind.verdict != Some(Verdict::Failed));
        // As the advice: transparent huge pages where they are about as good, since they need no reserve.
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
                write!(f, "No access was counted, so nothing can be said of translation: trace a longer run.")
            }
            Self::Elsewhere { started, largest, measured } => {
                write!(
                    f,
                    "Most of the run was not traced: {started} was started by exec and ran without the tracer, as did whatever it started, and what was traced is too little to speak for the run. "
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
                "Of 1,000 accesses {} walk on 4 KiB pages. What a walk costs here is not known, so no time is predicted: measured runs tell.",
                rate(*walks_per_thousand)
            ),
            Self::Unclear { share: of, measured } => {
                write!(
                    f,
                    "How much of the time page walks take cannot be told: anything from {} on 4 KiB pages, as a walk's price is so uncertain here.",
                    bounds(&Range { high: of.high.min(1.0), ..*of }, share)
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
                        "what {kind} gained ({}) is not by fewer walks. Fewer page faults are the usual reason.",
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
    write!(f, " What was measured decides: on {kind} it took {size} {way} time.")
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
                        write!(f, "no measurement decided; whether more runs (--runs) would is in the advice.")
                    }
                    Evidence::None { .. } => write!(f, "no measurement decided. Run it so:"),
                }
            }
            Self::SegmentOnly { saving } => write!(
                f,
                "Larger pages give nothing of it back. A direct segment would take {} less time, but no processor has one: place what is used together close together.",
                estimate(saving, share)
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
