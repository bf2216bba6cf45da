//! Huge pages for the guest's memory, so that the trace itself pays less for translation.
//!
//! QEMU runs some hundred instructions between two accesses of the guest that lie next to each other natively: the processor
//! no longer overlaps their page walks, and a program that walks much would wait for each of them. The models see guest
//! addresses alone, so which pages the guest's memory really has is free to choose.
//!
//! What is mapped to be written at once is asked for, and no more than a part of what is free, so that a program which uses
//! little of what it maps does not run out of memory here.

#![allow(unsafe_code, reason = "advises the kernel about the guest's memory")]

use std::ptr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::trace::guest_base;

/// One of so many parts of the memory that is free may be asked for.
const PART: u64 = 2;

/// What was asked for, less what was unmapped since: at least, where other memory was unmapped too.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Asks for huge pages where the guest has mapped private anonymous memory with these flags.
pub(crate) fn ask(address: u64, bytes: u64, protection: u64, flags: u64) {
    let has = |set: u64, flag: i32| set & u64::from(flag.cast_unsigned()) != 0;
    if !has(protection, libc::PROT_WRITE) || has(flags, libc::MAP_NORESERVE) {
        return;
    }
    let before = ASKED.fetch_add(bytes, Relaxed);
    if before.saturating_add(bytes) > free_bytes() / PART {
        return forget(bytes);
    }
    let place = address.wrapping_add(guest_base());
    if let (Ok(place), Ok(length)) = (usize::try_from(place), usize::try_from(bytes)) {
        // SAFETY: which pages memory has changes nothing in it. A kernel without huge pages, or no such memory, is an error that
        // leaves all as it was.
        unsafe { libc::madvise(ptr::without_provenance_mut(place), length, libc::MADV_HUGEPAGE) };
    }
}

/// The guest has unmapped memory.
pub(crate) fn forget(bytes: u64) {
    let _ = ASKED.fetch_update(Relaxed, Relaxed, |asked| Some(asked.saturating_sub(bytes)));
}

fn free_bytes() -> u64 {
    // SAFETY: asks for two numbers.
    let [pages, size] = [libc::_SC_AVPHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(size).unwrap_or(0))
}
