//! `fieldstone sharing` and `run --repair` as their user sees them: programs whose threads share falsely, and those that only seem to.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]

mod deaths;
mod found;
mod repaired;
mod rules;
mod stage;
mod unavailable;
