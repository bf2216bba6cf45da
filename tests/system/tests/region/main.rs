//! Tests of `fieldstone run --region` and `attach --huge` with real programs.

#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

mod also;
mod attach;
#[path = "../common/binaries.rs"]
mod binaries;
mod children;
#[path = "../common/mod.rs"]
mod common;
mod ending;
mod fixture;
mod growth;
mod heap;
mod messages;
mod mosaics;
mod nodes;
mod outside;
mod pages;
mod pool;
mod refused;
mod reservations;
mod server;
mod signals;
mod stress;
mod unchanged;
mod unintercepted;
mod unmovable;
