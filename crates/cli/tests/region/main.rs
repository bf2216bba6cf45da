//! `fieldstone run --region` as its user, and the program it runs, see it.

#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]

#[path = "../common/mod.rs"]
mod common;
mod ending;
mod following;
mod pages;
mod refused;
mod server;
mod stage;
mod stress;
mod unchanged;
