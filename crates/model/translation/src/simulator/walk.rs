//! Page walks: which entries are read, given what the walk caches know.
//!
//! ```text
//!            512 GiB      1 GiB        2 MiB      4 KiB
//!   address ┬ pml4e ────→ pdpte ────→  pde  ────→ pte → page
//!           └ the deepest cache that knows the address says where to go on; what it did not know it learns
//! ```
//! A cache keeps entries that lead to tables, so the entry that maps a page (the last read) is in none of them; whether
//! its line was used lately is counted apart.
//!
//! Under virtualization the tables lie at guest physical addresses, so before each read, and for the page itself, the
//! host's table is walked: 4 × 5 + 4 = 24 reads without any cache. Guest tables are taken to lie one behind the other
//! in physical memory, a table for each 2 MiB, 1 GiB, 512 GiB of addresses, and the guest's memory in the order of its
//! addresses.

use crate::lru::Table;
use crate::machine::WalkCaches;
use crate::page::PageSize;

/// Bits of an address that one table resolves.
const TABLE_BITS: u32 = 9;
/// Above all guest addresses, which have 58 bits: where its tables lie, by level.
const TABLES: u64 = 1 << 58;
const TABLES_OF_A_LEVEL: u64 = 1 << 59;

/// The walkers of a core.
#[derive(Debug, Clone)]
pub(super) struct Walker {
    own: Path,
    nested: Option<Nested>,
}

/// The host's part of a nested walk.
#[derive(Debug, Clone)]
struct Nested {
    size: PageSize,
    tlb: Option<Table>,
    path: Path,
}

/// What a walk cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) references: u64,
    pub(super) line_missed: bool,
}

/// The caches of one page table's walks.
#[derive(Debug, Clone)]
struct Path {
    /// By the bits of an address that stay to be resolved: 21, 30, 39.
    tables: [Option<Table>; 3],
    lines: Option<Table>,
}

impl Walker {
    pub(super) fn new(caches: &WalkCaches, host: Option<PageSize>) -> Self {
        let nested = |size| Nested { size, tlb: table(caches.nested), path: Path::new(caches) };
        Self { own: Path::new(caches), nested: host.map(nested) }
    }

    /// Walks for the page of `size` at `address`.
    #[inline]
    pub(super) fn walk(&mut self, address: u64, size: PageSize) -> Cost {
        let line_missed = self.own.leaf_line_missed(address, size);
        let references = self.own.references(address, size);
        let Some(nested) = &mut self.nested else { return Cost { references, line_missed } };
        let host: u64 = (0..references).map(|step| nested.translate(table_address(address, size, step))).sum();
        Cost { references: references + host + nested.translate(address), line_missed }
    }

    pub(super) fn clear(&mut self) {
        self.own.clear();
        if let Some(nested) = &mut self.nested {
            nested.path.clear();
            nested.tlb.iter_mut().for_each(Table::clear);
        }
    }
}

impl Path {
    fn new(caches: &WalkCaches) -> Self {
        Self { tables: [caches.pde, caches.pdpte, caches.pml4e].map(table), lines: table(caches.pte_lines) }
    }

    /// Entries that are read for a page of `size`: the one that maps it, and those above until a cache knows.
    #[inline]
    fn references(&mut self, address: u64, size: PageSize) -> u64 {
        let mut references = 1;
        let mut shift = size.shift() + TABLE_BITS;
        for cache in &mut self.tables[size.index()..] {
            let prefix = address >> shift;
            if cache.as_mut().is_some_and(|cache| cache.touch(prefix, prefix + 1)) {
                return references;
            }
            references += 1;
            shift += TABLE_BITS;
        }
        references
    }

    /// Is the entry that maps the page in a line that was not used lately? A line has eight entries.
    #[inline]
    fn leaf_line_missed(&mut self, address: u64, size: PageSize) -> bool {
        let line = address >> (size.shift() + 3);
        self.lines.as_mut().is_none_or(|lines| !lines.touch(line, (line << 2 | size.index() as u64) + 1))
    }

    fn clear(&mut self) {
        self.tables.iter_mut().flatten().chain(&mut self.lines).for_each(Table::clear);
    }
}

impl Nested {
    /// Reads of the host's table for a guest physical address.
    fn translate(&mut self, address: u64) -> u64 {
        let page = address >> self.size.shift();
        if self.tlb.as_mut().is_some_and(|tlb| tlb.touch(page, page + 1)) {
            return 0;
        }
        self.path.references(address, self.size)
    }
}

/// Where in guest physical memory the table lies that the walk for `address` reads `step` entries before its last.
fn table_address(address: u64, size: PageSize, step: u64) -> u64 {
    let level = size.index() as u64 + step;
    let shift = (0..=level).fold(PageSize::Small4k.shift(), |shift, _| shift + TABLE_BITS);
    TABLES + level * TABLES_OF_A_LEVEL + (address >> shift) * PageSize::Small4k.bytes()
}

fn table(entries: u32) -> Option<Table> {
    (entries > 0).then(|| Table::full(entries))
}

#[cfg(test)]
mod tests {
    use super::{PageSize, WalkCaches, Walker};

    const NONE: WalkCaches = WalkCaches { pml4e: 0, pdpte: 0, pde: 0, pte_lines: 0, nested: 0 };
    const ALL: WalkCaches = WalkCaches { pml4e: 2, pdpte: 2, pde: 2, pte_lines: 2, nested: 0 };

    #[test]
    fn without_caches_every_level_is_read() {
        let mut walker = Walker::new(&NONE, None);
        for _ in 0..2 {
            assert_eq!(PageSize::ALL.map(|size| walker.walk(0x1234_5678, size).references), [4, 3, 2]);
            assert!(walker.walk(0x1234_5678, PageSize::Small4k).line_missed);
        }
    }

    #[test]
    fn nested_walks_read_up_to_24_entries() {
        // Guest levels g, host levels h: g × (h + 1) + h.
        for (guest, host, reads) in [
            (PageSize::Small4k, PageSize::Small4k, 24),
            (PageSize::Small4k, PageSize::Large2m, 19),
            (PageSize::Large2m, PageSize::Small4k, 19),
            (PageSize::Large2m, PageSize::Large2m, 15),
            (PageSize::Huge1g, PageSize::Huge1g, 8),
        ] {
            let mut walker = Walker::new(&NONE, Some(host));
            assert_eq!(walker.walk(0x1234_5678, guest).references, reads, "{guest} on {host}");
        }
    }

    #[test]
    fn the_deepest_cache_that_knows_shortens_the_walk() {
        let mut walker = Walker::new(&ALL, None);
        let mut references = |address| walker.walk(address, PageSize::Small4k).references;
        assert_eq!(references(0), 4, "cold");
        assert_eq!(references(0x1000), 1, "the same 2 MiB");
        assert_eq!(references(0x20_0000), 2, "the same 1 GiB");
        assert_eq!(references(0x4000_0000), 3, "the same 512 GiB");
        assert_eq!(references(0x80_0000_0000), 4, "nothing known");
        assert_eq!(references(0x4000_0000), 1, "two entries: the last two are there");
        assert_eq!(references(0), 3, "its 2 MiB and its 1 GiB are forgotten, its 512 GiB is not");
    }

    #[test]
    fn lines_have_eight_entries() {
        let mut walker = Walker::new(&ALL, None);
        let missed: Vec<bool> = (0..17).map(|page| walker.walk(page << 12, PageSize::Small4k).line_missed).collect();
        assert_eq!((0..17).filter(|&page| missed[page]).collect::<Vec<_>>(), [0, 8, 16]);
    }

    #[test]
    fn a_nested_tlb_takes_the_host_away() {
        let mut walker = Walker::new(&WalkCaches { nested: 8, ..NONE }, Some(PageSize::Large2m));
        // The page, and four tables, each in another place: five host walks of three reads, and four reads.
        assert_eq!(walker.walk(0x1000, PageSize::Small4k).references, 19);
        assert_eq!(walker.walk(0x2000, PageSize::Small4k).references, 4);
        // Another 2 MiB: its last table lies beside the first one's; only the page itself is new to the host.
        assert_eq!(walker.walk(0x20_0000, PageSize::Small4k).references, 7);
    }
}
