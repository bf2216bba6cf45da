//! Tests of `fieldstone store` with files that the library has written.
#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

#[path = "../common/binaries.rs"]
mod binaries;
mod damage;
mod fixture;
mod tables;
