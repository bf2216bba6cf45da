//! One look at a process: how much memory, under which permissions, on which pages, in the region or not.
//!
//! The kernel's tables are the only source: `smaps` always, frame numbers and flags (exact folio sizes, physical
//! contiguity) where this user may see them.

use std::collections::BTreeMap;
use std::ops::Range;

use fieldstone_report::{Contiguity, FootprintPoint, PageShare, PermissionShare};
use fieldstone_sys::pagemap::{self, Frames, Placement};
use fieldstone_sys::process::has_thp_disabled;
use fieldstone_sys::smaps::{self, Mapping};
use fieldstone_wire::sites::RECORD_ADDRESS;
use fieldstone_wire::span::Span;

use crate::attribution::{self, Cause};
use crate::error::Result;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// What one look saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    /// The sums; its time is not set.
    pub(crate) point: FootprintPoint,
    pub(crate) permissions: Vec<PermissionShare>,
    /// Bytes of the region that are mapped, touched or not.
    pub(crate) mapped_bytes: u64,
    /// Private anonymous read-write memory, executable or not, that is resident in the region.
    pub(crate) inside_bytes: u64,
    /// The same elsewhere, by cause.
    pub(crate) outside: BTreeMap<Cause, u64>,
    /// The same everywhere, on pages of 2 MiB or more.
    pub(crate) huge_bytes: u64,
    /// What of it lay on small pages, by the mapping that it lay in.
    pub(crate) small: BTreeMap<Small, u64>,
    /// Resident shared writable memory.
    pub(crate) shared_bytes: u64,
    /// Whether the process has switched transparent huge pages off.
    pub(crate) huge_pages_disabled: bool,
    /// Whether it shares a record of sites with us: what the program was started as, or a forked child of that.
    pub(crate) has_record: bool,
    /// Ranges that are served, in the region or in place, and hold something.
    resident: Vec<Range<u64>>,
    /// The pages of these ranges as `smaps` shows them.
    pages: Vec<PageShare>,
}

/// The region's pages, as exactly as this user may know.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages {
    pub(crate) shares: Vec<PageShare>,
    pub(crate) source: &'static str,
    pub(crate) contiguity: Option<Contiguity>,
}

/// Looks at process `pid`, whose region is `region`, and whose agent knows these spans outside of it.
pub(crate) fn look(pid: u32, region: &Range<u64>, spans: &[Span]) -> Result<Look> {
    let look = Look::at(&smaps::read(pid)?, region, spans);
    Ok(Look { huge_pages_disabled: has_thp_disabled(pid), ..look })
}

impl Look {
    fn at(mappings: &[Mapping], region: &Range<u64>, spans: &[Span]) -> Self {
        let mut look = Self::default();
        let mut permissions = BTreeMap::<String, (u64, u64)>::new();
        let mut pages = BTreeMap::<&'static str, u64>::new();
        for (index, mapping) in mappings.iter().enumerate() {
            let resident = mapping.present_bytes();
            add(&mut look.point, mapping, resident);
            let share = permissions.entry(words(mapping)).or_default();
            share.0 += mapping.bytes();
            share.1 += resident;
            look.has_record |= mapping.start == RECORD_ADDRESS && mapping.permissions.shared;
            let shared = mapping.permissions.shared && mapping.permissions.write;
            look.shared_bytes += if shared { resident } else { 0 };
            if !is_private_rw(mapping) {
                continue;
            }
            let inside = region.contains(&mapping.start);
            look.mapped_bytes += if inside { mapping.bytes() } else { 0 };
            if resident == 0 {
                continue;
            }
            look.huge_bytes += mapping.anon_huge_bytes + resident - mapping.resident_bytes;
            for (why, bytes) in small(mapping) {
                *look.small.entry(why).or_default() += bytes;
            }
            let before = index.checked_sub(1).map(|before| &mappings[before]);
            let cause = (!inside).then(|| attribution::cause(mapping, before, spans));
            *cause.map_or(&mut look.inside_bytes, |cause| look.outside.entry(cause).or_default()) += resident;
            if inside || cause.is_some_and(Cause::is_in_place) {
                look.resident.push(mapping.range());
                count_pages(&mut pages, mapping, resident);
            }
        }
        let permission = |(permission, (bytes, resident_bytes))| PermissionShare { permission, bytes, resident_bytes };
        look.permissions = permissions.into_iter().map(permission).collect();
        look.pages = shares(pages);
        look
    }

    /// Whether memory is resident that is served, in the region or in place.
    pub(crate) fn has_served(&self) -> bool {
        !self.resident.is_empty()
    }

    /// The pages under the region. Costs up to a tenth of a second for each 2 GiB on small pages.
    pub(crate) fn pages(&self, pid: u32) -> Pages {
        match pagemap::read(pid, &self.resident) {
            Ok(Placement::Exact(frames)) => exact(&frames),
            _ => Pages { shares: self.pages.clone(), source: "smaps", contiguity: None },
        }
    }
}

/// Why memory lies on small pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Small {
    /// No whole 2 MiB of one mapping.
    End,
    /// `MADV_NOHUGEPAGE`.
    Advised,
    /// A whole 2 MiB of one mapping.
    Whole,
}

impl Small {
    /// The words in a report.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::End => "in ends of mappings, which hold no whole 2 MiB",
            Self::Advised => {
                "advised to be small (MADV_NOHUGEPAGE): by the program, by --pages 4k, or as the first 2 MiB of the heap or of small requests"
            }
            Self::Whole => {
                "in whole 2 MiB that were incomplete when they were first touched, or discarded in part: \
                 `fieldstone run --pid` puts them on huge pages"
            }
        }
    }
}

/// The small pages of a mapping. Where it has both ends and whole 2 MiB, the ends are assumed to be full.
fn small(mapping: &Mapping) -> [(Small, u64); 2] {
    let bytes = mapping.resident_bytes.saturating_sub(mapping.anon_huge_bytes);
    if mapping.has_flag("nh") {
        return [(Small::Advised, bytes), (Small::Whole, 0)];
    }
    let (first, last) = (mapping.start.next_multiple_of(2 * MIB), mapping.end / (2 * MIB) * (2 * MIB));
    let ends = mapping.bytes() - last.saturating_sub(first);
    [(Small::End, bytes.min(ends)), (Small::Whole, bytes.saturating_sub(ends))]
}

fn is_private_rw(mapping: &Mapping) -> bool {
    mapping.is_private_anonymous() && mapping.is_read_write()
}

fn words(mapping: &Mapping) -> String {
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

fn exact(frames: &Frames) -> Pages {
    let share = |folio: &pagemap::FolioBytes| PageShare { kind: folio_name(folio), bytes: folio.bytes };
    let runs = &frames.runs;
    let contiguity =
        Contiguity { longest_run_bytes: runs.longest_bytes, median_run_bytes: runs.median_bytes, runs: runs.count };
    Pages {
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

    /// In the region: a transparent and a hugetlb mapping. Outside: a swapped one, code, and a guard.
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
    fn sums_are_those_of_the_mappings() {
        let mappings = smaps::parse(SMAPS.as_bytes()).unwrap();
        let look = Look::at(&mappings, &(0x1000_0000_0000..0x2000_0000_0000), &[]);
        let point = look.point;
        assert_eq!(
            (point.huge_2m_bytes, point.small_bytes, point.swap_bytes),
            (8 * MIB, (2 * MIB) + (576 << 10), 256 << 10)
        );
        let parts = point.small_bytes + point.folio_bytes + point.huge_2m_bytes + point.huge_1g_bytes;
        assert_eq!(point.resident_bytes, parts);
        assert_eq!((look.mapped_bytes, look.inside_bytes, look.huge_bytes), (12 * MIB, 10 * MIB, 8 * MIB));
        assert_eq!(look.small.get(&Small::Whole), Some(&(2 * MIB)));
        assert_eq!(look.small.get(&Small::End), Some(&(MIB >> 1)));
        assert_eq!(look.outside.into_iter().collect::<Vec<_>>(), [(Cause::Unseen, MIB >> 1)]);
        let permissions: Vec<_> =
            look.permissions.iter().map(|share| (share.permission.as_str(), share.bytes)).collect();
        assert_eq!(permissions, [("---", 4096), ("r-x", MIB), ("rw-", 13 * MIB)]);
        let pages: Vec<_> = look.pages.iter().map(|share| (share.kind.as_str(), share.bytes)).collect();
        assert_eq!(pages, [("hugetlb", 4 * MIB), ("smaller", 2 * MIB), ("thp", 4 * MIB)]);
        assert_eq!(look.resident.len(), 2);
    }

    #[test]
    fn folios_are_named_by_their_size() {
        let name = |folio_bytes, hugetlb| folio_name(&pagemap::FolioBytes { folio_bytes, hugetlb, bytes: 1 });
        assert_eq!([name(4096, false), name(65536, false), name(MIB, false)], ["4k", "folio-64k", "folio-1m"]);
        assert_eq!([name(2 * MIB, false), name(2 * MIB, true), name(GIB, true)], ["thp", "hugetlb", "hugetlb-1g"]);
    }
}
