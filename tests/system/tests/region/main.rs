//! `fieldstone run` as its user, and the program it runs, see it.

#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

mod also;
#[path = "../common/binaries.rs"]
mod binaries;
#[path = "../common/mod.rs"]
mod common;
mod ending;
mod following;
mod growing;
mod heap;
mod kept;
mod mosaics;
mod nodes;
mod notes;
mod opened;
mod outside;
mod pages;
mod pool;
mod refused;
mod running;
mod server;
mod signals;
mod fixture;
mod stress;
mod unchanged;
mod unseen;
