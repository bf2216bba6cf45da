//! What reports say: a file each, from saved measurements to a
//! [`Document`](crate::document::Document).
//!
//! | file | what it decides or does |
//! |---|---|
//! | `profile` | the tables, plots and records of a profile |
//! | `translation` | the section of a profile on address translation |
//! | `diff` | the difference of two profiles |
//! | `run` | the counts of `run --region` |
//! | `collapse` | the counts of `attach --huge` |
//! | `sharing` | false sharing |
//! | `repair` | the events of a repair |
//! | `heap_errors` | a file of findings, and the counts of `run --guard`; the text of one finding is in `crate::heap_error` |
//! | `paging` | the counts of `run --resident` |
//! | `machine` | the lines on the machine that measured |
//! | `colours` | the colours of page sizes |
//!
//! A new report is one file here; where its measurements are saved as CSV too, it has a function
//! that makes the records.

pub mod collapse;
mod colours;
pub mod diff;
pub mod heap_errors;
mod machine;
pub mod paging;
pub mod profile;
pub mod repair;
pub mod run;
pub mod sharing;
mod translation;
