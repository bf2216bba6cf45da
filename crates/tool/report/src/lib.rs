//! Turns measurements into words, numbers and pictures.
//!
//! One way through: a [`Profile`] (what `fieldstone profile` measured) or a [`RunStats`] (what
//! `fieldstone run --stats` counted), among others, is written as JSON and read back by [`Saved::load`];
//! [`Summary::of`] draws the statistics and the advice from a profile; `text`, `csv` and `html`
//! only print what the summary says, with the numbers written by [`quantity`].
//!
//! ```text
//!   profile, footprint, run,   the model: plain data, one JSON schema each
//!   collapse
//!   translation                the same for a trace: what it told, what that means, where the walks come from
//!   sharing                    the same for a look at false sharing, and where that is shown
//!   summary, advise, advice    what the measurements mean, which advice follows, and its words
//!   quantity, shell            how a number and how a command are written
//!   tables                     the cells that terminal and page share
//!   text, csv, html, plots     where it is shown
//!   diff                       two profiles side by side
//! ```
//!
//! Of our crates it knows `sharing` only, whose lines and verdicts are plain data too. Page kinds are plain strings (`"4k"`,
//! `"folio-64k"`, `"thp"`, `"hugetlb"`, `"hugetlb-1g"`), so that a report can be opened where nothing can be measured.
#![forbid(unsafe_code)]

pub mod advice;
mod advise;
pub mod collapse;
pub mod csv;
pub mod diff;
pub mod error;
pub mod footprint;
pub mod html;
mod plots;
pub mod profile;
pub mod quantity;
pub mod repair;
mod resident;
pub mod run;
pub mod saved;
pub mod sharing;
pub mod shell;
pub(crate) use fieldstone_stats as stats;
pub mod summary;
mod tables;
pub mod text;
pub mod translation;

pub use advice::Advice;
pub use collapse::{Collapse, CollapsedProcess, LeftSmall, Tally};
pub use diff::{Change, ConfigurationDiff, Diff, KindDiff};
pub use error::Error;
pub use footprint::{Footprint, FootprintPoint, PermissionShare};
pub use profile::{Difference, Finding, Kind, Machine, Metric, Profile, Program, Sample};
pub use resident::Resident;
pub use run::{Contiguity, Outside, PageShare, ProcessStats, RegionStats, RunStats, SmallPages};
pub use saved::Saved;
pub use sharing::Sharing;
pub use summary::{Cost, KindSummary, Summary, Verdict};
pub use translation::summary::TranslationSummary;
pub use translation::{Range, Translation};

#[cfg(test)]
extern crate self as fieldstone_report;
#[cfg(test)]
#[path = "../tests/fixture/mod.rs"]
mod fixture;
