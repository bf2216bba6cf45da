//! Tests of `Paged`. Without a userfaultfd they print SKIP and pass.

#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code, reason = "forks, changes privileges, and passes addresses to the kernel")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "64-bit Linux: a number of a page has the width of an address; numbers of calls are small"
)]
#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

mod advice;
mod contents;
mod fixture;
mod losses;
#[cfg(feature = "opendal")]
mod objects;
mod options;
mod privileges;
mod processes;
#[cfg(feature = "redis")]
mod redis_cluster;
mod user_store;
