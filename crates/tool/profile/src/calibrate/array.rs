//! An array of zeros on pages of one kind, and the kernel's word that it lies on them.

#![allow(unsafe_code, reason = "reads mapped memory, and advises the kernel on it")]

use std::io;
use std::ptr::NonNull;

use super::kernel::{CHUNK_BYTES, Places, Stretch};
use fieldstone_blocks::{Frames, MmapFrames};
use fieldstone_sys::huge_pages;
use fieldstone_sys::smaps;
use fieldstone_wire::PageKind;

use super::others;
use crate::error::{Error, Result};

/// Attempts to have all of an array on huge pages.
const ATTEMPTS: usize = 3;

/// Bytes of an array of `words`, in whole chunks.
pub(super) const fn array_bytes(words: usize) -> usize {
    (words * size_of::<u64>()).next_multiple_of(CHUNK_BYTES)
}

/// Zeros. Nobody ever writes them.
#[derive(Debug)]
pub(super) struct Array {
    start: NonNull<u64>,
    words: usize,
    /// Keeps the memory.
    _frames: MmapFrames,
}

impl Array {
    /// `words` zeros, resident, on pages of `kind`: small ones, or transparent huge ones.
    pub(super) fn new(kind: PageKind, words: usize) -> Result<Self> {
        let bytes = array_bytes(words);
        let frames = MmapFrames::new(kind);
        let start = frames.take(bytes / CHUNK_BYTES).map_err(refused)?;
        // SAFETY: the chunks were taken just now.
        unsafe { frames.prefault(start, bytes) }.map_err(refused)?;
        let first = start.addr().get() as u64;
        let on = || Under::read(first..first + bytes as u64);
        for attempt in 0..ATTEMPTS {
            if kind == PageKind::Small4k || on()?.huge_bytes >= bytes as u64 {
                break;
            }
            if attempt > 0 {
                // Free memory is scattered. Who may not ask for its compaction goes on without.
                let _ = std::fs::write("/proc/sys/vm/compact_memory", "1");
            }
            // Where no huge page was free at the fault, one may be made now. A kernel before 6.1 knows no such advice.
            // SAFETY: the range is ours; collapsing changes no contents.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_COLLAPSE) };
        }
        on()?.check(kind, bytes as u64)?;
        Ok(Self { start: start.cast(), words, _frames: frames })
    }

    /// All loads of `places`, in such stretches, with so many rounds of other instructions before each.
    #[inline(never)]
    pub(super) fn load(&self, places: &Places, stretches: &[Stretch], rounds: u32) -> u64 {
        assert!(places.words() <= self.words, "the places are within the array");
        places.load(stretches, |place| {
            others::pass(rounds);
            // SAFETY: places are below their number of words, which is at most ours, as long as what is loaded is 0: the words are mapped
            // and were filled with zeros by the kernel, and nobody writes. Volatile: each is a load of its own.
            unsafe { self.start.add(place).read_volatile() }
        })
    }
}

/// What lies under a range of this process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Under {
    resident_bytes: u64,
    huge_bytes: u64,
}

impl Under {
    /// The mappings that the range lies in. The kernel makes one of neighbours that are alike: then they are told together.
    fn read(range: std::ops::Range<u64>) -> Result<Self> {
        let mut found = Self { resident_bytes: 0, huge_bytes: 0 };
        let mappings = smaps::read(std::process::id())?;
        for mapping in mappings.iter().filter(|mapping| mapping.start < range.end && range.start < mapping.end) {
            found.resident_bytes += mapping.resident_bytes;
            found.huge_bytes += mapping.anon_huge_bytes;
        }
        Ok(found)
    }

    /// Whether all of `bytes` is on small pages, or all but a hundredth on huge ones.
    fn check(self, kind: PageKind, bytes: u64) -> Result<()> {
        let small = kind == PageKind::Small4k;
        let right = if small { self.huge_bytes == 0 } else { self.huge_bytes >= bytes - bytes / 100 };
        if right && self.resident_bytes >= bytes {
            return Ok(());
        }
        let found =
            format!("of {bytes} bytes, {} are resident and {} on huge pages", self.resident_bytes, self.huge_bytes);
        let swapped = || "something swaps or collapses memory: stop it, or take a smaller footprint".to_owned();
        let remedy = if small { swapped() } else { thp_remedy() };
        Err(Error::page_kind(kind.name(), format!("{found}; {remedy}")))
    }
}

fn thp_remedy() -> String {
    match huge_pages::transparent().global {
        None => "this kernel has no transparent huge pages".to_owned(),
        Some(huge_pages::Mode::Never) => {
            format!("`echo madvise | sudo tee {}` allows them", huge_pages::global_mode_path().display())
        }
        Some(_) => {
            "memory is too scattered (`echo 1 | sudo tee /proc/sys/vm/compact_memory` helps), or PR_SET_THP_DISABLE was inherited"
                .to_owned()
        }
    }
}

/// An error of the crates below, of which there are two kinds here: no memory, and nothing to replay.
pub(super) fn refused(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::system("measure the cost of page walks")(io::Error::other(error))
}

/// Held by tests that map arrays: those of two tests might be neighbours.
#[cfg(test)]
pub(super) fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Chains;

    use super::*;

    const BYTES: u64 = 64 << 20;

    #[test]
    fn wrong_pages_are_told_with_the_way_out() {
        let under = |resident_bytes, huge_bytes| Under { resident_bytes, huge_bytes };
        assert!(under(BYTES, 0).check(PageKind::Small4k, BYTES).is_ok());
        assert!(under(BYTES, BYTES).check(PageKind::Thp, BYTES).is_ok());
        for (found, kind) in [
            (under(BYTES, 2 << 20), PageKind::Small4k),
            (under(BYTES - 4096, 0), PageKind::Small4k),
            (under(BYTES, BYTES - (2 << 20)), PageKind::Thp),
            (under(BYTES / 2, BYTES / 2), PageKind::Thp),
        ] {
            let why = found.check(kind, BYTES).unwrap_err().to_string();
            assert!(why.contains(kind.name()) && why.contains(&found.huge_bytes.to_string()), "{why}");
        }
    }

    #[test]
    fn arrays_lie_on_the_pages_that_they_are_for() {
        let _alone = alone();
        let places = Places::random(8 << 20, 10_000, 1).unwrap();
        for kind in [PageKind::Small4k, PageKind::Thp] {
            let array = match Array::new(kind, places.words()) {
                Ok(array) => array,
                Err(why @ Error::Launch(fieldstone_launch::Error::PageKind { .. })) => {
                    println!("SKIP the kernel gave no transparent huge page: {why}");
                    return;
                }
                Err(other) => panic!("{other}"),
            };
            let first = array.start.addr().get() as u64;
            let under = Under::read(first..first + (8 << 20)).unwrap();
            assert_eq!((under.resident_bytes, under.huge_bytes == 0), (8 << 20, kind == PageKind::Small4k));
            for share in [0.0, 0.4, 1.0] {
                let all = [Stretch { loads: places.len(), chains: Chains::waiting(share) }];
                let sums = [0, 1, 5].map(|rounds| array.load(&places, &all, rounds));
                assert_eq!(sums, [0; 3], "zeros only");
            }
        }
    }

    #[test]
    #[should_panic(expected = "within the array")]
    fn places_beyond_the_array_are_not_read() {
        let _alone = alone();
        let places = Places::random(8 << 20, 10, 1).unwrap();
        let array = Array::new(PageKind::Small4k, places.words() / 2).unwrap();
        array.load(&places, &[], 0);
    }
}
