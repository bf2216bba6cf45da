//! `fieldstone profile` as its user sees it: what is printed, what is written, how it ends, and what it leaves behind.

#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

mod accesses;
#[path = "../common/binaries.rs"]
mod binaries;
#[path = "../common/mod.rs"]
mod common;
mod ending;
mod interrupt;
mod measuring;
mod server;
mod sites;
mod fixture;
mod traced;
