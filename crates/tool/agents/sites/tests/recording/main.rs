//! Tests of the recorder with small programs of known allocations, and with large programs that
//! must not change.

#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code, reason = "maps the record")]
#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

mod counting;
mod fixture;
mod mapping;
mod odd;
mod real_programs;
