//! An array of zeros on pages of one kind, as verified by smaps.

#![allow(unsafe_code, reason = "reads mapped memory, and advises the kernel on it")]

use std::io;
use std::ptr::NonNull;

use fieldstone_blocks::{Frames, MmapFrames};
use fieldstone_sys::huge_pages;
use fieldstone_sys::smaps;
use fieldstone_wire::PageKind;

use super::filler;
use super::load_sequence::{CHUNK_BYTES, LoadPhase, LoadSequence};
use crate::error::{Error, Result};

/// Attempts to back the whole array with huge pages.
const ATTEMPTS: usize = 3;

/// Bytes of an array of `words`, rounded up to whole chunks.
pub(super) const fn array_bytes(words: usize) -> usize {
    (words * size_of::<u64>()).next_multiple_of(CHUNK_BYTES)
}

/// An array of zeros, which is never written.
#[derive(Debug)]
pub(super) struct ZeroArray {
    start: NonNull<u64>,
    words: usize,
    /// Owns the memory.
    _frames: MmapFrames,
}

impl ZeroArray {
    /// Maps `words` zeros and makes them resident on pages of `kind`: `Small4k` or `Thp`.
    pub(super) fn new(kind: PageKind, words: usize) -> Result<Self> {
        let bytes = array_bytes(words);
        let frames = MmapFrames::new(kind);
        let start = frames.take(bytes / CHUNK_BYTES).map_err(calibration_error)?;
        // SAFETY: `take` above returned `start` with `bytes` of memory, which only this function
        // knows.
        unsafe { frames.prefault(start, bytes) }.map_err(calibration_error)?;
        let first = start.addr().get() as u64;
        let residency = || Residency::read(first..first + bytes as u64);
        for attempt in 0..ATTEMPTS {
            if kind == PageKind::Small4k || residency()?.huge_bytes >= bytes as u64 {
                break;
            }
            if attempt > 0 {
                // Free memory is fragmented. Without the permission to compact it, the next attempt
                // may still succeed.
                let _ = std::fs::write("/proc/sys/vm/compact_memory", "1");
            }
            // Collapses pages for which the fault found no free huge page. Kernels before 6.1
            // ignore this advice.
            // SAFETY: `frames` owns the range, and collapsing does not change its contents.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_COLLAPSE) };
        }
        residency()?.check(kind, bytes as u64)?;
        Ok(Self { start: start.cast(), words, _frames: frames })
    }

    /// Does all loads in `loads`, each after `rounds` rounds of filler instructions.
    #[inline(never)]
    pub(super) fn load(&self, loads: &LoadSequence, phases: &[LoadPhase], rounds: u32) -> u64 {
        assert!(loads.words() <= self.words, "the loads are within the array");
        loads.load(phases, |index| {
            filler::run(rounds);
            // SAFETY: `index` is below `loads.words()`, which the assertion bounds by `self.words`,
            // while all loads return 0. They do: the kernel zeroed the words, and nothing writes
            // them. Volatile keeps each load.
            unsafe { self.start.add(index).read_volatile() }
        })
    }
}

/// Resident memory in a range of this process, by page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Residency {
    resident_bytes: u64,
    huge_bytes: u64,
}

impl Residency {
    /// Sums the mappings that overlap the range. The kernel merges similar neighbours, which are
    /// then included.
    fn read(range: std::ops::Range<u64>) -> Result<Self> {
        let mut found = Self { resident_bytes: 0, huge_bytes: 0 };
        let mappings = smaps::read(std::process::id())?;
        for mapping in mappings.iter().filter(|mapping| mapping.start < range.end && range.start < mapping.end) {
            found.resident_bytes += mapping.resident_bytes;
            found.huge_bytes += mapping.anon_huge_bytes;
        }
        Ok(found)
    }

    /// Checks that all of `bytes` is on small pages, or at least 99 % on huge pages.
    fn check(self, kind: PageKind, bytes: u64) -> Result<()> {
        let small = kind == PageKind::Small4k;
        let is_expected = if small { self.huge_bytes == 0 } else { self.huge_bytes >= bytes - bytes / 100 };
        if is_expected && self.resident_bytes >= bytes {
            return Ok(());
        }
        let found =
            format!("of {bytes} bytes, {} are resident and {} on huge pages", self.resident_bytes, self.huge_bytes);
        let small_remedy =
            || "another program swaps or collapses memory: stop it, or use a smaller footprint".to_owned();
        let remedy = if small { small_remedy() } else { thp_remedy() };
        Err(Error::page_kind(kind.name(), format!("{found}; {remedy}")))
    }
}

fn thp_remedy() -> String {
    match huge_pages::transparent().global {
        None => "this kernel has no transparent huge pages".to_owned(),
        Some(huge_pages::ThpMode::Never) => {
            format!("`echo madvise | sudo tee {}` allows them", huge_pages::global_mode_path().display())
        }
        Some(_) => {
            "memory is too fragmented (`echo 1 | sudo tee /proc/sys/vm/compact_memory` helps), or PR_SET_THP_DISABLE was inherited"
                .to_owned()
        }
    }
}

/// Wraps an error of a lower crate: out of memory, or nothing to replay.
pub(super) fn calibration_error(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::system("measure the cost of page walks")(io::Error::other(error))
}

/// Serialises the tests that map arrays, because the kernel may merge neighbouring arrays.
#[cfg(test)]
pub(super) fn lock_arrays() -> std::sync::MutexGuard<'static, ()> {
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    LOCK.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::load_sequence::Chains;

    use super::*;

    const BYTES: u64 = 64 << 20;

    #[test]
    fn wrong_page_sizes_are_reported_with_a_remedy() {
        let residency = |resident_bytes, huge_bytes| Residency { resident_bytes, huge_bytes };
        assert!(residency(BYTES, 0).check(PageKind::Small4k, BYTES).is_ok());
        assert!(residency(BYTES, BYTES).check(PageKind::Thp, BYTES).is_ok());
        for (found, kind) in [
            (residency(BYTES, 2 << 20), PageKind::Small4k),
            (residency(BYTES - 4096, 0), PageKind::Small4k),
            (residency(BYTES, BYTES - (2 << 20)), PageKind::Thp),
            (residency(BYTES / 2, BYTES / 2), PageKind::Thp),
        ] {
            let why = found.check(kind, BYTES).unwrap_err().to_string();
            assert!(why.contains(kind.name()) && why.contains(&found.huge_bytes.to_string()), "{why}");
        }
    }

    #[test]
    fn arrays_are_on_the_requested_pages() {
        let _lock = lock_arrays();
        let loads = LoadSequence::random(8 << 20, 10_000, 1).unwrap();
        for kind in [PageKind::Small4k, PageKind::Thp] {
            let array = match ZeroArray::new(kind, loads.words()) {
                Ok(array) => array,
                Err(why @ Error::Launch(fieldstone_launch::Error::PageKind { .. })) => {
                    println!("SKIP the kernel gave no transparent huge page: {why}");
                    return;
                }
                Err(other) => panic!("{other}"),
            };
            let first = array.start.addr().get() as u64;
            let residency = Residency::read(first..first + (8 << 20)).unwrap();
            assert_eq!((residency.resident_bytes, residency.huge_bytes == 0), (8 << 20, kind == PageKind::Small4k));
            for share in [0.0, 0.4, 1.0] {
                let all = [LoadPhase { loads: loads.len(), chains: Chains::waiting(share) }];
                let sums = [0, 1, 5].map(|rounds| array.load(&loads, &all, rounds));
                assert_eq!(sums, [0; 3], "zeros only");
            }
        }
    }

    #[test]
    #[should_panic(expected = "within the array")]
    fn loads_beyond_the_array_are_rejected() {
        let _lock = lock_arrays();
        let loads = LoadSequence::random(8 << 20, 10, 1).unwrap();
        let array = ZeroArray::new(PageKind::Small4k, loads.words() / 2).unwrap();
        array.load(&loads, &[], 0);
    }
}
