//! Collapses the memory of another process into huge pages: a running one, or one without an agent.
//!
//! ```text
//!  mapping |--|=======|=== ===|       |.......|---|
//!           a     b       b       c       d     a
//! ```
//! An aligned range of 2 MiB is collapsed if at least half of it is resident on small pages (`b`).
//! For an empty range (`c`) or a sparse one (`d`) a huge page would cost more memory than it holds.
//! The ends of a mapping (`a`) contain no aligned 2 MiB. Ranges on huge pages are skipped.
//! The kernel's tables show the state before and after. The system call is described in
//! [`fieldstone_sys::collapse`].

mod tree_collapser;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use fieldstone_report::{CollapsedProcess, Tally, UncollapsedMemory};
use fieldstone_sys::collapse::{CollapseTarget, HUGE_BYTES};
use fieldstone_sys::pagemap::present_ranges;
use fieldstone_sys::smaps::{self, Mapping};

pub(crate) use tree_collapser::TreeCollapser;

use crate::error::{Error, Result};

/// A number of ranges and their resident bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeCount {
    /// Ranges of at most 2 MiB; shorter at the ends of a mapping.
    pub ranges: u64,
    /// Resident bytes in them.
    pub bytes: u64,
}

impl RangeCount {
    fn add(&mut self, bytes: u64) {
        self.ranges += 1;
        self.bytes += bytes;
    }
}

/// Why memory was not collapsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UncollapsedReason {
    /// The end of a mapping contains no aligned 2 MiB.
    End,
    /// Less than half of the 2 MiB is resident.
    Sparse,
    /// `MADV_NOHUGEPAGE`.
    AdvisedSmall,
    /// The kernel refused with this errno.
    Refused(i32),
}

impl UncollapsedReason {
    /// The text in a report.
    #[must_use]
    pub fn description(self) -> String {
        match self {
            Self::End => "ends of mappings, which hold no whole 2 MiB".to_owned(),
            Self::Sparse => "less than half in memory: a huge page would cost more memory than it holds".to_owned(),
            Self::AdvisedSmall => "the program requested small pages (MADV_NOHUGEPAGE)".to_owned(),
            Self::Refused(libc::ENOMEM) => "no huge page was free (ENOMEM); memory may be scattered".to_owned(),
            Self::Refused(libc::EBUSY) => "the control group allows no more memory (EBUSY)".to_owned(),
            Self::Refused(libc::EAGAIN) => "in use by the kernel at each attempt (EAGAIN); try again".to_owned(),
            Self::Refused(libc::EINVAL) => "of a kind that the kernel does not collapse (EINVAL)".to_owned(),
            Self::Refused(errno) => format!("refused: {}", std::io::Error::from_raw_os_error(errno)),
        }
    }
}

/// The result of one pass over the memory of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollapseResult {
    /// Memory before the pass.
    pub before: Tally,
    /// Memory after the pass; equal to `before` if the process ended.
    pub after: Tally,
    /// Ranges put on huge pages. The process runs meanwhile, so `after` need not be the sum.
    pub collapsed: RangeCount,
    /// Memory that stays on small pages, by reason.
    pub uncollapsed: BTreeMap<UncollapsedReason, RangeCount>,
    /// Ranges of 2 MiB that were not tried because the pass was stopped or the process ended.
    pub not_reached: u64,
    /// Whether the process ended during the pass.
    pub ended: bool,
}

impl CollapseResult {
    /// The record for a report, of process `pid` named `name`.
    #[must_use]
    pub fn record(&self, pid: u32, name: String, duration: Duration) -> CollapsedProcess {
        let left = |(reason, count): (&UncollapsedReason, &RangeCount)| UncollapsedMemory {
            reason: reason.description(),
            ranges: count.ranges,
            bytes: count.bytes,
        };
        CollapsedProcess {
            pid,
            name,
            duration_s: Some(duration.as_secs_f64()),
            before: self.before,
            after: self.after,
            moved_ranges: self.collapsed.ranges,
            moved_bytes: self.collapsed.bytes,
            left: self.uncollapsed.iter().map(left).collect(),
            not_reached_ranges: self.not_reached,
            ended: self.ended,
        }
    }

    fn count_uncollapsed(&mut self, reason: UncollapsedReason, bytes: u64) {
        self.uncollapsed.entry(reason).or_default().add(bytes);
    }
}

/// Collapses the present memory of a process into huge pages. Before each range it calls
/// `should_continue(finished ranges, all ranges)`, and stops if that returns false.
///
/// # Errors
/// [`Error::Linux`] if the tables of the process cannot be read, or it ended before the first
/// range.
pub fn collapse(target: &CollapseTarget, mut should_continue: impl FnMut(u64, u64) -> bool) -> Result<CollapseResult> {
    let mappings = smaps::read(target.pid())?;
    let mut result = CollapseResult { before: tally(&mappings), ..CollapseResult::default() };
    let ranges = plan(target.pid(), &mappings, &mut result)?;
    let all = ranges.len() as u64;
    for (position, (start, bytes)) in (0..).zip(ranges) {
        if !should_continue(position, all) {
            result.not_reached = all - position;
            break;
        }
        match target.collapse(start) {
            Ok(()) => result.collapsed.add(bytes),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                (result.ended, result.not_reached) = (true, all - position);
                break;
            }
            Err(error) => {
                result.count_uncollapsed(UncollapsedReason::Refused(error.raw_os_error().unwrap_or(0)), bytes);
            }
        }
    }
    match smaps::read(target.pid()) {
        Ok(mappings) => result.after = tally(&mappings),
        Err(fieldstone_sys::Error::NoSuchProcess { .. }) => (result.after, result.ended) = (result.before, true),
        Err(other) => return Err(Error::Linux(other)),
    }
    Ok(result)
}

/// The ranges of 2 MiB to collapse: start and resident bytes. The others are counted in `result`.
fn plan(pid: u32, mappings: &[Mapping], result: &mut CollapseResult) -> Result<Vec<(u64, u64)>> {
    let mut ranges = Vec::new();
    for mapping in mappings.iter().filter(|mapping| is_collapsible(mapping)) {
        let small_bytes = mapping.resident_bytes.saturating_sub(mapping.anon_huge_bytes);
        if small_bytes == 0 {
            continue;
        }
        if mapping.has_flag("nh") {
            result.count_uncollapsed(UncollapsedReason::AdvisedSmall, small_bytes);
            continue;
        }
        let small = present_ranges(pid, mapping.range())?.into_iter().filter(|span| !span.huge).map(|span| span.range);
        for (start, bytes) in by_huge_range(small) {
            match () {
                () if start < mapping.start || start + HUGE_BYTES > mapping.end => {
                    result.count_uncollapsed(UncollapsedReason::End, bytes);
                }
                () if bytes < HUGE_BYTES / 2 => result.count_uncollapsed(UncollapsedReason::Sparse, bytes),
                () => ranges.push((start, bytes)),
            }
        }
    }
    Ok(ranges)
}

/// Bytes that the spans cover in each aligned 2 MiB, by its start address.
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

fn is_collapsible(mapping: &Mapping) -> bool {
    is_private_rw(mapping) && !mapping.is_hugetlb()
}

fn tally(mappings: &[Mapping]) -> Tally {
    let private = mappings.iter().filter(|mapping| is_private_rw(mapping));
    private.fold(Tally::default(), |sum, mapping| {
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
    fn spans_are_split_at_huge_page_boundaries() {
        let spans = [MIB..3 * MIB, 3 * MIB + 4096..3 * MIB + 8192, 8 * MIB..10 * MIB];
        let covered: Vec<_> = by_huge_range(spans.into_iter()).into_iter().collect();
        assert_eq!(covered, [(0, MIB), (2 * MIB, MIB + 4096), (8 * MIB, 2 * MIB)]);
        assert!(by_huge_range(std::iter::empty()).is_empty());
    }

    #[test]
    fn only_private_anonymous_writable_memory_is_tallied() {
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
        assert_eq!(mappings.iter().filter(|mapping| is_collapsible(mapping)).count(), 2);
    }

    #[test]
    fn each_reason_has_its_own_text() {
        let errnos =
            [libc::ENOMEM, libc::EBUSY, libc::EAGAIN, libc::EINVAL, libc::EFAULT].map(UncollapsedReason::Refused);
        let mut descriptions: Vec<_> =
            [UncollapsedReason::End, UncollapsedReason::Sparse, UncollapsedReason::AdvisedSmall]
                .into_iter()
                .chain(errnos)
                .map(UncollapsedReason::description)
                .collect();
        descriptions.sort();
        descriptions.dedup();
        assert_eq!(descriptions.len(), 8, "{descriptions:?}");
        let mut result = CollapseResult::default();
        result.count_uncollapsed(UncollapsedReason::Sparse, 4096);
        result.count_uncollapsed(UncollapsedReason::Sparse, 4096);
        assert_eq!(result.record(1, "x".into(), Duration::ZERO).left[0].bytes, 8192);
    }
}
