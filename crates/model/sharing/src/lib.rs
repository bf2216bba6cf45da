//! Who shares which cache line: from sampled accesses to verdicts, and from verdicts to rules that move bytes apart.
//!
//! Two threads that write different bytes of one line take it from each other as if they wrote the same bytes: false
//! sharing. Samples of a running program say which thread touched which bytes when; this crate adds them up, says what
//! is going on in a line and what it costs at most, and what to do about it: rules for the remapper, or a padded struct
//! for the programmer. It knows nothing of instructions, of processes or of how a page is moved.
//!
//! ```text
//!   samples ── Access ──→ lines ── Line ──→ verdict ──┬── Judged ──→ rules ── PagePlan ──→ the remapper
//!                         (decayed histograms)        │                ↑ history: rules that keep changing
//!                           │                         │                ↑ trial: what a repair gave back
//!                           └── weights ──→ cost      └──→ layout ──→ the padded struct, advice
//! ```
//!
//! | file | |
//! |---|---|
//! | `access` | one access, as a sample shows it |
//! | `settings` | line size, half-life, windows of time, bounds |
//! | `lines/` | the table of lines: weights a line, a thread, a byte; `decay` forgets |
//! | `line`, `bits`, `windows` | what is known of one line at one time; 128 flags; when a thread was seen |
//! | `verdict/` | what goes on in a line |
//! | `cost` | what a line costs at most, with an interval |
//! | `rules/` | which bytes of a page move where |
//! | `history` | rules that keep changing are given up |
//! | `progress`, `trial` | how fast threads get on; a repair without a gain is taken back |
//! | `allowance` | a bound on what tries may cost |
//! | `layout` | members that fight, the padded struct |
//! | `ignore` | what is not to be told |
//! | `requests` | rules that somebody asks for |
//!
//! Source: Taylor, *Cachekata* (sections 4.3, 5 and 7.1), which leaves detection to hardware counters. Here the accesses
//! come from a timer's samples, so a verdict rests on what was seen: it can miss sharing, and it says when it cannot tell.
#![forbid(unsafe_code)]

pub mod access;
pub mod allowance;
pub mod bits;
pub mod cost;
mod decay;
pub mod error;
pub mod history;
pub mod ignore;
pub mod layout;
pub mod line;
pub mod lines;
pub mod progress;
pub mod requests;
pub mod rules;
pub mod settings;
pub mod trial;
pub mod verdict;
pub mod windows;

pub use access::Access;
pub use allowance::Allowance;
pub use bits::Bits;
pub use cost::{Cost, Interval};
pub use error::{Error, Result};
pub use history::{History, Step};
pub use ignore::Ignore;
pub use layout::{Advice, Fight, Member, Object, Redesign};
pub use line::{Line, SiteWeight, ThreadUse};
pub use lines::Lines;
pub use progress::{Compared, Mark, Paces, Progress};
pub use requests::Request;
pub use rules::{Move, PagePlan, Plan, Refusal, Refused};
pub use settings::Settings;
pub use trial::Outcome;
pub use verdict::{Judged, Owner, Verdict, judge};
pub use windows::Windows;
