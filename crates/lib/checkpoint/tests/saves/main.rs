//! Saves of memory that threads write to, and what is restored.

#![allow(unsafe_code, clippy::unwrap_used, reason = "tests that access memory by its address")]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "small numbers")]

mod contents;
#[cfg(feature = "opendal")]
mod failing_store;
mod faults;
mod fixture;
mod hazards;
#[path = "../../../pages/tests/common/hugetlb_reserve.rs"]
mod hugetlb_reserve;
mod instant;
mod killed;
#[cfg(feature = "opendal")]
mod objects;
mod permission;
mod series;
mod unrecorded;
