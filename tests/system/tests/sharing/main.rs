//! Tests of `fieldstone sharing`, `run --repair` and `attach --repair` with programs that have
//! false sharing, or seem to.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

#[path = "../common/binaries.rs"]
mod binaries;
mod findings;
mod fixture;
mod killed_helpers;
mod repair;
mod rules;
mod unavailable;
