//! Uses 256 MiB of memory with 64 MiB of it resident: `cargo run --release -p fieldstone-paging --example bounded`

#![allow(unsafe_code, reason = "maps memory, and uses it as a slice")]

use std::sync::atomic::Ordering::Relaxed;
use std::thread::spawn;

use fieldstone_paging::{Pager, PagingCounters, Stores};

const BYTES: usize = 256 << 20;
const BOUND: usize = 64 << 20;

static COUNTERS: PagingCounters = PagingCounters::new();

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stores = Stores { lz4_bytes: 32 << 20, file: Some(c"/tmp") };
    let pager: &'static Pager = match Pager::new(BOUND, stores, &COUNTERS, |_| ()) {
        Ok(pager) => Box::leak(Box::new(pager)),
        Err(error) => {
            println!("SKIP {error}");
            return Ok(());
        }
    };
    spawn(|| while pager.serve(10).is_ok() {});
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses the address.
    let memory =
        unsafe { libc::mmap(std::ptr::null_mut(), BYTES, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    let start = memory.expose_provenance();
    pager.adopt(start..start + BYTES, true).map_err(std::io::Error::from_raw_os_error)?;
    // SAFETY: the mapping has this length, and only this slice refers to it.
    let words = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u64>(), BYTES / 8) };
    for (index, word) in words.iter_mut().enumerate() {
        *word = index as u64 / 7;
    }
    let wrong = words.iter().enumerate().filter(|&(index, &word)| word != index as u64 / 7).count();
    assert_eq!(wrong, 0, "each word has its value");
    let mib = |pages: u64| (pages * 4096) >> 20;
    let stored: u64 = COUNTERS.store_bytes.iter().map(|bytes| bytes.load(Relaxed)).sum();
    println!("{} MiB used, at most {} MiB of it resident", BYTES >> 20, mib(COUNTERS.peak_resident.load(Relaxed)));
    println!("{} faults; the stores have {} MiB", COUNTERS.faults.load(Relaxed), stored >> 20);
    assert!(COUNTERS.peak_resident.load(Relaxed) * 4096 <= BOUND as u64);
    Ok(())
}
