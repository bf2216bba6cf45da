//! One sample of a process's memory: size, permissions, page sizes, inside or outside the region.
//!
//! The source is `smaps`. If this user may read frame numbers and flags, `pagemap` and `kpageflags`
//! add exact folio sizes and physical contiguity.

use std::collections::BTreeMap;
use std::ops::Range;

use fieldstone_report::{Contiguity, FootprintPoint, PageShare, PermissionShare};
use fieldstone_sys::pagemap::{self, FrameStats, Placement};
use fieldstone_sys::process::has_thp_disabled;
use fieldstone_sys::smaps::{self, Mapping};
use fieldstone_wire::sites::RECORD_ADDRESS;
use fieldstone_wire::span::Span;

use crate::attribution::{self, Cause};
use crate::error::Result;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// One sample of a process's memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemorySnapshot {
    /// Sums over all mappings; the caller sets the time.
    pub(crate) point: FootprintPoint,
    pub(crate) permissions: Vec<PermissionShare>,
    /// Mapped bytes of the region, resident or not.
    pub(crate) mapped_bytes: u64,
    /// Resident bytes of private anonymous read-write memory in the region.
    pub(crate) inside_bytes: u64,
    /// Resident bytes of such memory outside the region, by cause.
    pub(crate) outside: BTreeMap<Cause, u64>,
    /// Resident bytes of such memory on pages of 2 MiB or more, inside and outside.
    pub(crate) huge_bytes: u64,
    /// Resident bytes of such memory on small pages, by reason.
    pub(crate) small: BTreeMap<SmallPageReason, u64>,
    /// Resident bytes of shared writable memory.
    pub(crate) shared_bytes: u64,
    /// Whether the process has disabled transparent huge pages.
    pub(crate) huge_pages_disabled: bool,
    /// Whether the process maps a shared record of allocation sites.
    /// The program that was started and its forked children do; a program that they exec does not.
    pub(crate) has_record: bool,
    /// Ranges with resident memory that the agent serves, in the region or in place.
    resident: Vec<Range<u64>>,
    /// The pages of these ranges according to `smaps`.
    pages: Vec<PageShare>,
}

/// The region's pages.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegionResidency {
    pub(crate) shares: Vec<PageShare>,
    /// The kernel tables that were read: `smaps` or `pagemap+kpageflags`.
    pub(crate) source: &'static str,
    /// `None` if this user may not read frame numbers.
    pub(crate) contiguity: Option<Contiguity>,
}

/// Samples process `pid`. `spans` are the ranges outside `region` that its agent recorded.
pub(crate) fn take_snapshot(pid: u32, region: &Range<u64>, spans: &[Span]) -> Result<MemorySnapshot> {
    let snapshot = MemorySnapshot::of(&smaps::read(pid)?, region, spans);
    Ok(MemorySnapshot { huge_pages_disabled: has_thp_disabled(pid), ..snapshot })
}

impl MemorySnapshot {
    fn of(mappings: &[Mapping], region: &Range<u64>, spans: &[Span]) -> Self {
        let mut snapshot = Self::default();
        let mut permissions = BTreeMap::<String, (u64, u64)>::new();
        let mut pages = BTreeMap::<&'static str, u64>::new();
        for (index, mapping) in mappings.iter().enumerate() {
            let resident = mapping.present_bytes();
            add(&mut snapshot.point, mapping, resident);
            let share = permissions.entry(permission_string(mapping)).or_default();
            share.0 += mapping.bytes();
            share.1 += resident;
            snapshot.has_record |= mapping.start == RECORD_ADDRESS && mapping.permissions.shared;
            let shared = mapping.permissions.shared && mapping.permissions.write;
            snapshot.shared_bytes += if shared { resident } else { 0 };
            if !is_private_rw(mapping) {
                continue;
            }
            let inside = region.contains(&mapping.start);
            snapshot.mapped_bytes += if inside { mapping.bytes() } else { 0 };
            if resident == 0 {
                continue;
            }
            snapshot.huge_bytes += mapping.anon_huge_bytes + resident - mapping.resident_bytes;
            for (why, bytes) in small(mapping) {
                *snapshot.small.entry(why).or_default() += bytes;
            }
            let before = index.checked_sub(1).map(|before| &mappings[before]);
            let cause = (!inside).then(|| attribution::cause(mapping, before, spans));
            *cause.map_or(&mut snapshot.inside_bytes, |cause| snapshot.outside.entry(cause).or_default()) += resident;
            if inside || cause.is_some_and(Cause::is_in_place) {
                snapshot.resident.push(mapping.range());
                count_pages(&mut pages, mapping, resident);
            }
        }
        let permission = |(permission, (bytes, resident_bytes))| PermissionShare { permission, bytes, resident_bytes };
        snapshot.permissions = permissions.into_iter().map(permission).collect();
        snapshot.pages = shares(pages);
        snapshot
    }

    /// Whether memory that the agent serves is resident, in the region or in place.
    pub(crate) fn has_served(&self) -> bool {
        !self.resident.is_empty()
    }

    /// Reads the pages of the region. Costs up to 100 ms for each 2 GiB on small pages.
    pub(crate) fn pages(&self, pid: u32) -> RegionResidency {
        match pagemap::read(pid, &self.resident) {
            Ok(Placement::Exact(frames)) => exact(&frames),
            _ => RegionResidency { shares: self.pages.clone(), source: "smaps", contiguity: None },
        }
    }
}

/// Why memory is on small pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SmallPageReason {
    /// The end of a mapping contains no aligned 2 MiB.
    End,
    /// `MADV_NOHUGEPAGE`.
    Advised,
    /// None of these: an aligned 2 MiB of one mapping.
    Whole,
}

impl SmallPageReason {
    /// The text in a report.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::End => "in ends of mappings, which contain no aligned 2 MiB",
            Self::Advised => {
                "advised to be small (MADV_NOHUGEPAGE): by the program, by --pages 4k, or as the first 2 MiB of the heap or of small requests"
            }
            Self::Whole => {
                "in aligned 2 MiB that were not fully mapped at the first access, or partly discarded: \
                 `fieldstone attach --huge` puts them on huge pages"
            }
        }
    }
}

/// The bytes of a mapping on small pages, by reason. `smaps` does not locate them: the ends of the
/// mapping are assumed to be fully resident.
fn small(mapping: &Mapping) -> [(SmallPageReason, u64); 2] {
    let bytes = mapping.resident_bytes.saturating_sub(mapping.anon_huge_bytes);
    if mapping.has_flag("nh") {
        return [(SmallPageReason::Advised, bytes), (SmallPageReason::Whole, 0)];
    }
    let (first, last) = (mapping.start.next_multiple_of(2 * MIB), mapping.end / (2 * MIB) * (2 * MIB));
    let ends = mapping.bytes() - last.saturating_sub(first);
    [(SmallPageReason::End, bytes.min(ends)), (SmallPageReason::Whole, bytes.saturating_sub(ends))]
}

fn is_private_rw(mapping: &Mapping) -> bool {
    mapping.is_private_anonymous() && mapping.is_read_write()
}

fn permission_string(mapping: &Mapping) -> String {
    let flag = |set, letter| if set { letter } else { '-' };
    let permissions = mapping.permissions;
    [flag(permissions.read, 'r'), flag(permissions.write, 'w'), flag(permissions.execute, 'x')].iter().collect()
}

fn add(point: &mut FootprintPoint, mapping: &Mapping, resident: u64) {
    point.resident_bytes += resident;
    point.swap_bytes += mapping.swap_bytes;
    let hugetlb = resident - mapping.resident_bytes;
    let giant = mapping.kernel_page_bytes >= GIB;
    point.huge_1g_bytes += if giant { hugetlb } else { 0 };
    point.huge_2m_bytes += mapping.anon_huge_bytes + if giant { 0 } else { hugetlb };
    point.small_bytes += mapping.resident_bytes.saturating_sub(mapping.anon_huge_bytes);
}

fn count_pages(pages: &mut BTreeMap<&'static str, u64>, mapping: &Mapping, resident: u64) {
    let hugetlb = resident - mapping.resident_bytes;
    let hugetlb_kind = if mapping.kernel_page_bytes >= GIB { "hugetlb-1g" } else { "hugetlb" };
    *pages.entry(hugetlb_kind).or_default() += hugetlb;
    *pages.entry("thp").or_default() += mapping.anon_huge_bytes;
    *pages.entry("smaller").or_default() += mapping.resident_bytes.saturating_sub(mapping.anon_huge_bytes);
}

fn shares(pages: BTreeMap<&'static str, u64>) -> Vec<PageShare> {
    let share = |(kind, bytes): (&str, u64)| PageShare { kind: kind.to_owned(), bytes };
    pages.into_iter().filter(|&(_, bytes)| bytes > 0).map(share).collect()
}

fn exact(frames: &FrameStats) -> RegionResidency {
    let share = |folio: &pagemap::FolioBytes| PageShare { kind: folio_name(folio), bytes: folio.bytes };
    let runs = &frames.runs;
    let contiguity =
        Contiguity { longest_run_bytes: runs.longest_bytes, median_run_bytes: runs.median_bytes, runs: runs.count };
    RegionResidency {
        shares: frames.folios.iter().map(share).collect(),
        source: "pagemap+kpageflags",
        contiguity: Some(contiguity),
    }
}

fn folio_name(folio: &pagemap::FolioBytes) -> String {
    match (folio.folio_bytes, folio.hugetlb) {
        (GIB, true) => "hugetlb-1g".to_owned(),
        (_, true) => "hugetlb".to_owned(),
        (bytes, false) if bytes == 2 * MIB => "thp".to_owned(),
        (bytes, false) if bytes <= 4096 => "4k".to_owned(),
        (bytes, false) if bytes >= MIB => format!("folio-{}m", bytes / MIB),
        (bytes, false) => format!("folio-{}k", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the region: a transparent and a hugetlb mapping. Outside: a swapped one, code, and a
    /// guard.
    const SMAPS: &str = "\
100000000000-100000800000 rw-p 00000000 00:00 0
Rss: 6144 kB
Anonymous: 6144 kB
AnonHugePages: 4096 kB
KernelPageSize: 4 kB
100000800000-100000c00000 rw-p 00000000 00:0f 77 /anon_hugepage (deleted)
Rss: 0 kB
Private_Hugetlb: 4096 kB
KernelPageSize: 2048 kB
VmFlags: rd wr mr mw me de ht
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Rss: 512 kB
Swap: 256 kB
KernelPageSize: 4 kB
7f0000200000-7f0000300000 r-xp 00000000 08:01 5 /bin/program
Rss: 64 kB
KernelPageSize: 4 kB
7f0000300000-7f0000301000 ---p 00000000 00:00 0
Rss: 0 kB
KernelPageSize: 4 kB
";

    #[test]
    fn a_snapshot_sums_up_the_mappings() {
        let mappings = smaps::parse(SMAPS.as_bytes()).unwrap();
        let snapshot = MemorySnapshot::of(&mappings, &(0x1000_0000_0000..0x2000_0000_0000), &[]);
        let point = snapshot.point;
        assert_eq!(
            (point.huge_2m_bytes, point.small_bytes, point.swap_bytes),
            (8 * MIB, (2 * MIB) + (576 << 10), 256 << 10)
        );
        let parts = point.small_bytes + point.folio_bytes + point.huge_2m_bytes + point.huge_1g_bytes;
        assert_eq!(point.resident_bytes, parts);
        assert_eq!((snapshot.mapped_bytes, snapshot.inside_bytes, snapshot.huge_bytes), (12 * MIB, 10 * MIB, 8 * MIB));
        assert_eq!(snapshot.small.get(&SmallPageReason::Whole), Some(&(2 * MIB)));
        assert_eq!(snapshot.small.get(&SmallPageReason::End), Some(&(MIB >> 1)));
        assert_eq!(snapshot.outside.into_iter().collect::<Vec<_>>(), [(Cause::Unseen, MIB >> 1)]);
        let permissions: Vec<_> =
            snapshot.permissions.iter().map(|share| (share.permission.as_str(), share.bytes)).collect();
        assert_eq!(permissions, [("---", 4096), ("r-x", MIB), ("rw-", 13 * MIB)]);
        let pages: Vec<_> = snapshot.pages.iter().map(|share| (share.kind.as_str(), share.bytes)).collect();
        assert_eq!(pages, [("hugetlb", 4 * MIB), ("smaller", 2 * MIB), ("thp", 4 * MIB)]);
        assert_eq!(snapshot.resident.len(), 2);
    }

    #[test]
    fn folios_are_named_by_their_size() {
        let name = |folio_bytes, hugetlb| folio_name(&pagemap::FolioBytes { folio_bytes, hugetlb, bytes: 1 });
        assert_eq!([name(4096, false), name(65536, false), name(MIB, false)], ["4k", "folio-64k", "folio-1m"]);
        assert_eq!([name(2 * MIB, false), name(2 * MIB, true), name(GIB, true)], ["thp", "hugetlb", "hugetlb-1g"]);
    }
}
