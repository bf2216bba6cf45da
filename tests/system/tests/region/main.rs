//! Tests of `fieldstone run --region` and `attach --huge` with real programs.

#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

mod also;
#[path = "../common/binaries.rs"]
mod binaries;
#[path = "../common/mod.rs"]
mod common;
mod ending;
mod children;
mod growth;
mod heap;
mod unmovable;
mod mosaics;
mod nodes;
mod messages;
mod reservations;
mod outside;
mod pages;
mod pool;
mod refused;
mod attach;
mod server;
mod signals;
mod fixture;
mod stress;
mod unchanged;
mod unintercepted;
