//! Page walks: the entries read, given the contents of the walk caches.
//!
//! ```text
//!            512 GiB      1 GiB        2 MiB      4 KiB
//!   address ┬ pml4e ────→ pdpte ────→  pde  ────→ pte → page
//!           └ the walk starts at the deepest cached entry, and the caches are filled with the others
//! ```
//! Walk caches hold entries that point to tables, not the entry that maps the page, which is read
//! last. Whether that entry's cache line was recently used is counted separately.
//!
//! Under virtualization the tables have guest physical addresses. So before each read, and for the
//! page itself, the host's table is walked: 4 × 5 + 4 = 24 reads without caches. Guest tables are
//! assumed to be contiguous in physical memory (one for each 2 MiB, 1 GiB, 512 GiB of addresses),
//! and guest memory to be in address order.

use crate::lru::LruTable;
use crate::mmu::WalkCaches;
use crate::page::PageSize;

/// Address bits that one table resolves.
const TABLE_BITS: u32 = 9;
/// The guest physical address of the tables, by level, above all guest addresses, which have 58
/// bits.
const TABLES: u64 = 1 << 58;
const TABLES_OF_A_LEVEL: u64 = 1 << 59;

/// The page walker of a core.
#[derive(Debug, Clone)]
pub(super) struct PageWalker {
    own: PagingCaches,
    nested: Option<HostWalker>,
}

/// The host's part of a nested walk.
#[derive(Debug, Clone)]
struct HostWalker {
    size: PageSize,
    tlb: Option<LruTable>,
    caches: PagingCaches,
}

/// The work of a walk.
#[derive(Debug, Clone, Copy)]
pub(super) struct WalkWork {
    pub(super) references: u64,
    pub(super) line_missed: bool,
}

/// The caches of walks through one page table.
#[derive(Debug, Clone)]
struct PagingCaches {
    /// By the number of address bits that remain to be resolved: 21, 30, 39.
    tables: [Option<LruTable>; 3],
    lines: Option<LruTable>,
}

impl PageWalker {
    pub(super) fn new(caches: &WalkCaches, host: Option<PageSize>) -> Self {
        let nested = |size| HostWalker { size, tlb: table(caches.nested), caches: PagingCaches::new(caches) };
        Self { own: PagingCaches::new(caches), nested: host.map(nested) }
    }

    /// Walks for the page of `size` at `address`.
    #[inline]
    pub(super) fn walk(&mut self, address: u64, size: PageSize) -> WalkWork {
        let line_missed = self.own.leaf_line_missed(address, size);
        let references = self.own.references(address, size);
        let Some(nested) = &mut self.nested else { return WalkWork { references, line_missed } };
        let host: u64 = (0..references).map(|step| nested.translate(table_address(address, size, step))).sum();
        WalkWork { references: references + host + nested.translate(address), line_missed }
    }

    pub(super) fn clear(&mut self) {
        self.own.clear();
        if let Some(nested) = &mut self.nested {
            nested.caches.clear();
            nested.tlb.iter_mut().for_each(LruTable::clear);
        }
    }
}

impl PagingCaches {
    fn new(caches: &WalkCaches) -> Self {
        Self { tables: [caches.pde, caches.pdpte, caches.pml4e].map(table), lines: table(caches.pte_lines) }
    }

    /// The entries read for a page of `size`: the one that maps it, and those above up to a cached
    /// one.
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

    /// Whether the cache line of the entry that maps the page was not recently used. A line has
    /// eight entries.
    #[inline]
    fn leaf_line_missed(&mut self, address: u64, size: PageSize) -> bool {
        let line = address >> (size.shift() + 3);
        self.lines.as_mut().is_none_or(|lines| !lines.touch(line, (line << 2 | size.index() as u64) + 1))
    }

    fn clear(&mut self) {
        self.tables.iter_mut().flatten().chain(&mut self.lines).for_each(LruTable::clear);
    }
}

impl HostWalker {
    /// The reads of the host's table for a guest physical address.
    fn translate(&mut self, address: u64) -> u64 {
        let page = address >> self.size.shift();
        if self.tlb.as_mut().is_some_and(|tlb| tlb.touch(page, page + 1)) {
            return 0;
        }
        self.caches.references(address, self.size)
    }
}

/// The guest physical address of the table that the walk for `address` reads `step` entries before
/// its last.
fn table_address(address: u64, size: PageSize, step: u64) -> u64 {
    let level = size.index() as u64 + step;
    let shift = (0..=level).fold(PageSize::Small4k.shift(), |shift, _| shift + TABLE_BITS);
    TABLES + level * TABLES_OF_A_LEVEL + (address >> shift) * PageSize::Small4k.bytes()
}

fn table(entries: u32) -> Option<LruTable> {
    (entries > 0).then(|| LruTable::full(entries))
}

#[cfg(test)]
mod tests {
    use super::{PageSize, PageWalker, WalkCaches};

    const NONE: WalkCaches = WalkCaches { pml4e: 0, pdpte: 0, pde: 0, pte_lines: 0, nested: 0 };
    const ALL: WalkCaches = WalkCaches { pml4e: 2, pdpte: 2, pde: 2, pte_lines: 2, nested: 0 };

    #[test]
    fn without_caches_every_level_is_read() {
        let mut walker = PageWalker::new(&NONE, None);
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
            let mut walker = PageWalker::new(&NONE, Some(host));
            assert_eq!(walker.walk(0x1234_5678, guest).references, reads, "{guest} on {host}");
        }
    }

    #[test]
    fn the_deepest_cached_entry_shortens_the_walk() {
        let mut walker = PageWalker::new(&ALL, None);
        let mut references = |address| walker.walk(address, PageSize::Small4k).references;
        assert_eq!(references(0), 4, "cold");
        assert_eq!(references(0x1000), 1, "the same 2 MiB");
        assert_eq!(references(0x20_0000), 2, "the same 1 GiB");
        assert_eq!(references(0x4000_0000), 3, "the same 512 GiB");
        assert_eq!(references(0x80_0000_0000), 4, "nothing cached");
        assert_eq!(references(0x4000_0000), 1, "the last two entries are cached");
        assert_eq!(references(0), 3, "its 2 MiB and 1 GiB entries are evicted, its 512 GiB entry is not");
    }

    #[test]
    fn lines_have_eight_entries() {
        let mut walker = PageWalker::new(&ALL, None);
        let missed: Vec<bool> = (0..17).map(|page| walker.walk(page << 12, PageSize::Small4k).line_missed).collect();
        assert_eq!((0..17).filter(|&page| missed[page]).collect::<Vec<_>>(), [0, 8, 16]);
    }

    #[test]
    fn a_nested_tlb_removes_the_host_walks() {
        let mut walker = PageWalker::new(&WalkCaches { nested: 8, ..NONE }, Some(PageSize::Large2m));
        // The page and four tables at separate addresses: five host walks of three reads, and four
        // reads.
        assert_eq!(walker.walk(0x1000, PageSize::Small4k).references, 19);
        assert_eq!(walker.walk(0x2000, PageSize::Small4k).references, 4);
        // Another 2 MiB: its last table is adjacent to the first one's; only the page itself is new
        // to the host.
        assert_eq!(walker.walk(0x20_0000, PageSize::Small4k).references, 7);
    }
}
