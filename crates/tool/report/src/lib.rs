//! Reports on saved measurements: as text for a terminal, as JSON and CSV, and as one
//! self-contained page.
//!
//! ```text
//!   measurement ─► Profile, RunStats, Sharing, …      data with one JSON schema each
//!                     │           │
//!                     │           └─► Summary, Diff   statistics, verdicts, advice
//!                     ▼                  ▼
//!              reports::NAME::document ─► Document    headings, facts, tables of values, plots
//!                                            ├─► text::render       a terminal
//!                                            ├─► html::render       a page
//!                                            └─► markdown::render   a page of documentation
//!              reports::NAME::records  ─► Records ─► csv::render
//! ```
//! | module | content |
//! |---|---|
//! | [`profile`], [`run`], [`collapse`], [`sharing`], [`translation`] | the data |
//! | [`heap_error`] | the data and the text of one finding of `run --guard` |
//! | [`footprint`] | the memory of one run over time |
//! | [`saved`] | files |
//! | [`summary`] | statistics of the runs; the verdicts and their words |
//! | [`advice`], `choice` | each advice with its text; which advice applies |
//! | [`diff`] | comparison of two profiles |
//! | `resident` | resident memory on each page kind, compared with the baseline |
//! | [`document`] | a report as data |
//! | [`paging`] | the data of `run --resident` |
//! | [`reports`] | a file in `reports/` for each report; `reports/heap_errors` prints a file of findings |
//! | [`mod@text`], [`html`], [`markdown`], [`csv`] | the renderers, in `render/`; `templates/document.html` has all tags, classes and styles of HTML |
//! | [`quantity`], [`shell`] | how a number and a command are written |
//! | `error` | errors of reading, writing and drawing |
//!
//! Of the other crates it uses `sharing`, whose lines and verdicts are plain data, `stats`, and
//! `wire` for the words of reasons and remedies. Page kinds are plain strings (`"4k"`,
//! `"folio-64k"`, `"thp"`, `"hugetlb"`, `"hugetlb-1g"`), so that a report can be opened where
//! nothing can be measured.
#![forbid(unsafe_code)]

pub mod advice;
mod choice;
pub mod collapse;
pub mod diff;
pub mod document;
pub mod error;
pub mod footprint;
pub mod heap_error;
pub mod paging;
pub mod profile;
pub mod quantity;
mod render;
pub mod reports;
mod resident;
pub mod run;
pub mod saved;
pub mod sharing;
pub mod shell;
pub mod summary;
pub mod translation;

pub use advice::Advice;
pub use collapse::{Collapse, CollapsedProcess, Tally, UncollapsedMemory};
pub use diff::{Change, ConfigurationDiff, Diff, KindDiff};
pub use document::Document;
pub use error::Error;
pub use footprint::{Footprint, FootprintPoint, PermissionShare};
pub use heap_error::{GuardStats, HeapError};
pub use paging::PagingStats;
pub use profile::{Difference, Finding, MachineRecord, MeasuredRun, Metric, Profile, ProfiledProgram, RequestedKind};
pub use render::{csv, html, markdown, text};
pub use resident::Resident;
pub use run::{Contiguity, Outside, PageShare, ProcessStats, RegionStats, RunStats, SmallPages};
pub use saved::SavedFile;
pub use sharing::Sharing;
pub use summary::{Cost, KindSummary, KindVerdict, Summary};
pub use translation::Translation;
pub use translation::summary::TranslationSummary;

#[cfg(test)]
extern crate self as fieldstone_report;
#[cfg(test)]
#[path = "../tests/fixture/mod.rs"]
mod fixture;
