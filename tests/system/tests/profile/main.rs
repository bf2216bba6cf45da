//! Tests of `fieldstone profile` with real programs: what it prints and writes, its exit code, and
//! what remains.

#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

mod accesses;
#[path = "../common/binaries.rs"]
mod binaries;
#[path = "../common/mod.rs"]
mod common;
mod ending;
mod fixture;
mod interrupt;
mod measuring;
mod pool;
mod server;
mod sites;
mod trace;
