//! Detection of false sharing: from sampled accesses to verdicts per cache line, and from verdicts
//! to rules that separate the bytes of different threads.
//!
//! Two threads that write different bytes of one line contend for it as if they wrote the same
//! bytes: false sharing. Samples of a running program show which thread accessed which bytes at
//! which time. This crate accumulates them, classifies each line, bounds its cost, and derives a
//! remedy: rules for the remapper, or a padded struct for the programmer. It depends on no
//! instruction set, process or way to move a page.
//!
//! ```text
//!   samples ── SampledAccess ──→ line_table ── LineUse ──→ verdict ──┬── JudgedLine ──→ rules ── PagePlan ──→ remapper
//!                               (decayed histograms)                 │                  ↑ history: unstable rules
//!                                  │                                 │                  ↑ trial: gain of a repair
//!                                  └── weights ──→ cost              └──→ layout ──→ padded struct, advice
//! ```
//!
//! | file | what it decides or does |
//! |---|---|
//! | `access` | one sampled access |
//! | `settings` | line size, half-life, windows of time, size of the table; thresholds are in `tuning` of `tool/repair` |
//! | `line_table/` | the table of lines: weights per line, thread and byte |
//! | `decay` | how weights fade with time |
//! | `line_use` | the use of one line, by thread and instruction |
//! | `bits`, `windows` | 128 flags; the times at which a thread was sampled |
//! | `verdict/` | the classification of a line |
//! | `cost` | an upper bound of a line's cost, with an interval |
//! | `rules/` | the bytes of a page that move, and their views |
//! | `history` | lines whose rules change too often are given up |
//! | `progress`, `trial` | the speed of threads; the gain of a repair |
//! | `allowance` | a bound on the cost of trials |
//! | `layout` | contended members, the padded struct |
//! | `ignore` | findings that are not reported |
//! | `requests` | rules that a user requests |
//! | `error` | errors of settings, requests and files |
//!
//! Limit: accesses come from timer samples. So a verdict can miss sharing; it says so if there are
//! too few samples.
//!
//! Source: Taylor, *Cachekata* (sections 4.3, 5 and 7.1). There hardware counters detect sharing.
#![forbid(unsafe_code)]

pub mod access;
pub mod allowance;
pub mod bits;
pub mod cost;
mod decay;
pub mod error;
#[cfg(test)]
mod fixture;
pub mod history;
pub mod ignore;
pub mod layout;
pub mod line_table;
pub mod line_use;
pub mod progress;
pub mod requests;
pub mod rules;
pub mod settings;
pub mod trial;
pub mod verdict;
pub mod windows;

pub use access::SampledAccess;
pub use allowance::Allowance;
pub use bits::Bits;
pub use cost::LineCost;
pub use error::{Error, Result};
pub use history::{ChangeDecision, RuleHistory};
pub use ignore::Ignore;
pub use layout::{ContendedMember, LayoutAdvice, Member, ObjectLayout, Redesign, redesigns};
pub use line_table::LineTable;
pub use line_use::{LineUse, SiteWeight, ThreadUse};
pub use progress::{CounterValue, LoopProgress, PaceComparison, PaceSeries};
pub use requests::RuleRequest;
pub use rules::{ByteMove, PagePlan, PlanRefusal, RefusedLine, RemapPlan};
pub use settings::Settings;
pub use trial::TrialOutcome;
pub use verdict::{ByteOwner, JudgedLine, Verdict, judge};
pub use windows::Windows;

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;
