//! Tests of `fieldstone run --guard` with real programs.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

#[path = "../common/binaries.rs"]
mod binaries;
mod bugs;
mod ending;
mod fixture;
mod handlers;
mod interplay;
mod options;
mod processes;
mod unchanged;
