//! `fieldstone sharing` and `run --repair` as their user sees them: programs whose threads share falsely, and those that only seem to.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

#[path = "../common/binaries.rs"]
mod binaries;
mod deaths;
mod found;
mod repaired;
mod rules;
mod fixture;
mod unavailable;
