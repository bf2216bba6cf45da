//! Huge pages for a program that runs already, or that can carry no agent: collapsed from outside.
//!
//! ```text
//!  mapping |--|=======|=== ===|       |.......|---|
//!           a     b       b       c       d     a
//! ```
//! An aligned 2 MiB goes on a huge page when at least half of it is in memory on small pages (`b`). What is empty (`c`) or holds
//! less (`d`) stays, for a huge page would cost more memory than it holds; so do the mappings' ends (`a`). What lies on huge
//! pages already is passed over. All of it is read from the kernel's tables, before and after; see [`fieldstone_sys::collapse`]
//! for what the kernel does.

mod follow;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use fieldstone_report::{CollapsedProcess, Tally, UncollapsedMemory};
use fieldstone_sys::collapse::{HUGE_BYTES, Target};
use fieldstone_sys::pagemap::spans;
use fieldstone_sys::smaps::{self, Mapping};

pub(crate) use follow::Follow;

use crate::error::{Error, Result};

/// A number of ranges, and what of them is in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Ranges of 2 MiB, or less at a mapping's end.
    pub ranges: u64,
    /// Their bytes that were in memory.
    pub bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: u64) {
        self.ranges += 1;
        self.bytes += bytes;
    }
}

/// Why memory stayed on small pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// No whole 2 MiB of one mapping.
    End,
    /// Less than half in memory.
    Sparse,
    /// `MADV_NOHUGEPAGE`.
    SmallByWish,
    /// Refused by the kernel with this errno.
    Refused(i32),
}

impl Left {
    /// The reason in words.
    #[must_use]
    pub fn words(self) -> String {
        match self {
            Self::End => "ends of mappings, which hold no whole 2 MiB".to_owned(),
            Self::Sparse => "less than half in memory: a huge page would cost more than it holds".to_owned(),
            Self::SmallByWish => "the program asked for small pages (MADV_NOHUGEPAGE)".to_owned(),
            Self::Refused(libc::ENOMEM) => "no huge page was free (ENOMEM); memory may be scattered".to_owned(),
            Self::Refused(libc::EBUSY) => "the control group allows no more memory (EBUSY)".to_owned(),
            Self::Refused(libc::EAGAIN) => "in use by the kernel each time it was tried (EAGAIN); try again".to_owned(),
            Self::Refused(libc::EINVAL) => "of a kind that the kernel does not collapse (EINVAL)".to_owned(),
            Self::Refused(errno) => format!("refused: {}", std::io::Error::from_raw_os_error(errno)),
        }
    }
}

/// What one pass over a process's memory did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collapsed {
    /// Before it.
    pub before: Tally,
    /// After it; as before where the process has ended.
    pub after: Tally,
    /// Put on huge pages. (The process goes on meanwhile: `after` need not be the sum.)
    pub moved: Count,
    /// Left on small pages, by reason.
    pub left: BTreeMap<Left, Count>,
    /// Ranges of 2 MiB that were not tried, since the pass was stopped.
    pub not_reached: u64,
    /// The process ended meanwhile.
    pub ended: bool,
}

impl Collapsed {
    /// As the record of process `pid`, called `name`.
    #[must_use]
    pub fn record(&self, pid: u32, name: String, took: Duration) -> CollapsedProcess {
        let left = |(why, count): (&Left, &Count)| UncollapsedMemory {
            reason: why.words(),
            ranges: count.ranges,
            bytes: count.bytes,
        };
        CollapsedProcess {
            pid,
            name,
            duration_s: Some(took.as_secs_f64()),
            before: self.before,
            after: self.after,
            moved_ranges: self.moved.ranges,
            moved_bytes: self.moved.bytes,
            left: self.left.iter().map(left).collect(),
            not_reached_ranges: self.not_reached,
            ended: self.ended,
        }
    }

    fn leave(&mut self, why: Left, bytes: u64) {
        self.left.entry(why).or_default().add(bytes);
    }
}

/// Puts the memory that a process has now on huge pages. Before each range `go_on` is told how many of how many are done, and
/// says whether to go on.
///
/// # Errors
/// [`Error::Linux`] where the process's tables cannot be read, or it has ended before the first range.
pub fn collapse(target: &Target, mut go_on: impl FnMut(u64, u64) -> bool) -> Result<Collapsed> {
    let mappings = smaps::read(target.pid())?;
    let mut done = Collapsed { before: tally(&mappings), ..Collapsed::default() };
    let ranges = plan(target.pid(), &mappings, &mut done)?;
    let all = ranges.len() as u64;
    for (position, (start, bytes)) in (0..).zip(ranges) {
        if !go_on(position, all) {
            done.not_reached = all - position;
            break;
        }
        match target.collapse(start) {
            Ok(()) => done.moved.add(bytes),
            Err(gone) if gone.raw_os_error() == Some(libc::ESRCH) => {
                (done.ended, done.not_reached) = (true, all - position);
                break;
            }
            Err(refused) => done.leave(Left::Refused(refused.raw_os_error().unwrap_or(0)), bytes),
        }
    }
    match smaps::read(target.pid()) {
        Ok(mappings) => done.after = tally(&mappings),
        Err(fieldstone_sys::Error::NoSuchProcess { .. }) => (done.after, done.ended) = (done.before, true),
        Err(other) => return Err(Error::Linux(other)),
    }
    Ok(done)
}

/// The aligned 2 MiB to put on huge pages, and what of each is in memory; what is not among them is counted in `done`.
fn plan(pid: u32, mappings: &[Mapping], done: &mut Collapsed) -> Result<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    for mapping in mappings.iter().filter(|mapping| is_ours_to_collapse(mapping)) {
        let small_bytes = mapping.resident_bytes.saturating_sub(mapping.anon_huge_bytes);
        if small_bytes == 0 {
            continue;
        }
        if mapping.has_flag("nh") {
            done.leave(Left::SmallByWish, small_bytes);
            continue;
        }
        let small = spans(pid, mapping.range())?.into_iter().filter(|span| !span.huge).map(|span| span.range);
        for (start, bytes) in by_huge_range(small) {
            match () {
                () if start < mapping.start || start + HUGE_BYTES > mapping.end => done.leave(Left::End, bytes),
                () if bytes < HUGE_BYTES / 2 => done.leave(Left::Sparse, bytes),
                () => ranges.push((start, bytes)),
            }
        }
    }
    Ok(ranges)
}

/// How much of each aligned 2 MiB the spans cover.
fn by_huge_range(spans: impl Iterator<Item = Range<u64>>) -> BTreeMap<u64, u64> {
    let mut covered = BTreeMap::new();
    for span in spans {
        let mut at = span.start;
        while at < span.end {
            let start = at / HUGE_BYTES * HUGE_BYTES;
            let end = span.end.min(start + HUGE_BYTES);
            *covered.entry(start).or_default() += end - at;
            at = end;
        }
    }
    covered
}

fn is_private_rw(mapping: &Mapping) -> bool {
    let anonymous = mapping.is_private_anonymous() || mapping.name == "[stack]";
    anonymous && mapping.is_read_write()
}

fn is_ours_to_collapse(mapping: &Mapping) -> bool {
    is_private_rw(mapping) && !mapping.is_hugetlb()
}

fn tally(mappings: &[Mapping]) -> Tally {
    let ours = mappings.iter().filter(|mapping| is_private_rw(mapping));
    ours.fold(Tally::default(), |sum, mapping| {
        let hugetlb = mapping.present_bytes() - mapping.resident_bytes;
        Tally {
            resident_bytes: sum.resident_bytes + mapping.present_bytes(),
            huge_bytes: sum.huge_bytes + mapping.anon_huge_bytes + hugetlb,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn spans_are_dealt_out_to_their_huge_ranges() {
        let spans = [MIB..3 * MIB, 3 * MIB + 4096..3 * MIB + 8192, 8 * MIB..10 * MIB];
        let covered: Vec<_> = by_huge_range(spans.into_iter()).into_iter().collect();
        assert_eq!(covered, [(0, MIB), (2 * MIB, MIB + 4096), (8 * MIB, 2 * MIB)]);
        assert!(by_huge_range(std::iter::empty()).is_empty());
    }

    #[test]
    fn what_is_tallied_is_private_anonymous_and_writable() {
        let smaps = "\
100000000000-100000800000 rw-p 00000000 00:00 0
Rss: 6144 kB
AnonHugePages: 4096 kB
100000800000-100000c00000 rw-p 00000000 00:0f 77 /anon_hugepage (deleted)
Rss: 0 kB
Private_Hugetlb: 4096 kB
VmFlags: rd wr ht
7f0000000000-7f0000100000 rw-p 00001000 08:01 5 /bin/program
Rss: 512 kB
7f0000200000-7f0000300000 r--p 00000000 00:00 0
Rss: 64 kB
7ffc00000000-7ffc00100000 rw-p 00000000 00:00 0 [stack]
Rss: 128 kB
";
        let mappings = smaps::parse(smaps.as_bytes()).unwrap();
        let expected = Tally { resident_bytes: 10 * MIB + (128 << 10), huge_bytes: 8 * MIB };
        assert_eq!(tally(&mappings), expected);
        assert_eq!(mappings.iter().filter(|mapping| is_ours_to_collapse(mapping)).count(), 2);
    }

    #[test]
    fn every_reason_has_words_of_its_own() {
        let errnos = [libc::ENOMEM, libc::EBUSY, libc::EAGAIN, libc::EINVAL, libc::EFAULT].map(Left::Refused);
        let mut words: Vec<_> =
            [Left::End, Left::Sparse, Left::SmallByWish].into_iter().chain(errnos).map(Left::words).collect();
        words.sort();
        words.dedup();
        assert_eq!(words.len(), 8, "{words:?}");
        let mut done = Collapsed::default();
        done.leave(Left::Sparse, 4096);
        done.leave(Left::Sparse, 4096);
        assert_eq!(done.record(1, "x".into(), Duration::ZERO).left[0].bytes, 8192);
    }
}
