//! Tests of `fieldstone run --resident` with real programs.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

#[path = "../common/binaries.rs"]
mod binaries;
mod combined;
mod fixture;
mod languages;
mod object_stores;
mod programs;
mod races;
mod redis_server;
mod redis_store;
mod refusals;
mod semantics;
mod servers;
#[path = "../common/wait.rs"]
mod wait;
