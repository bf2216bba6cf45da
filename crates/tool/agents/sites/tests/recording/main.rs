//! The recorder at work: small programs whose every allocation is known, and big ones that must not notice.

#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code, reason = "maps the record")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]

mod counting;
mod mapping;
mod odd;
mod real_programs;
mod stage;
