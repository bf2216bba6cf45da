//! Saves of memory that threads write to, and what is restored.

#![allow(unsafe_code, clippy::unwrap_used, reason = "tests that access memory by its address")]

mod contents;
mod faults;
mod fixture;
mod instant;
mod killed;
mod permission;
