//! What reports say: a file each, from saved measurements to a
//! [`Document`](crate::document::Document).
//!
//! A new report is one file here; where its measurements are saved as CSV too, it has a function
//! that makes the records.

pub mod collapse;
mod colours;
pub mod diff;
pub mod heap_errors;
mod machine;
pub mod profile;
pub mod repair;
pub mod run;
pub mod sharing;
mod translation;
