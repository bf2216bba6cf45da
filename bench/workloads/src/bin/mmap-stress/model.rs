//! The expected contents and protection of memory.
//!
//! A *span* is a contiguous range of mapped pages. Each page records its access, its origin, the
//! effect of fork and each byte. Pages of one *area* certainly belong to one mapping of the kernel
//! (mremap must not cross two). Each call that may split a mapping gives the pieces new area
//! numbers.
//!
//! Spans are chosen by their index in the list, never by address. So the same seed takes the same
//! steps, whatever addresses mmap returns.

use fieldstone_workloads::random::{SplitMix64, mix};
use std::ops::Range;

/// Bytes of a page; the program fails on any other size.
pub(crate) const PAGE: usize = 4096;

/// The permitted access to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageAccess {
    None,
    Read,
    Write,
}

/// The contents of a page before the first write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// Zeros, private.
    Anonymous,
    /// Zeros, shared with forked children.
    Shared,
    /// The page of the file with this index, private.
    File(usize),
}

/// One page of the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelPage {
    pub(crate) access: PageAccess,
    pub(crate) origin: Origin,
    /// Whether a child sees zeros (MADV_WIPEONFORK).
    pub(crate) is_wiped_on_fork: bool,
    /// Whether the page is unmapped in a child (MADV_DONTFORK).
    pub(crate) is_dropped_on_fork: bool,
    pub(crate) area: u64,
    /// The contents, if written; `None` means those of the origin.
    pub(crate) bytes: Option<Box<[u8; PAGE]>>,
}

/// A range of contiguous mapped pages.
#[derive(Debug)]
pub(crate) struct PageSpan {
    pub(crate) start: usize,
    pub(crate) pages: Vec<ModelPage>,
}

/// All spans of a thread.
#[derive(Debug, Default)]
pub(crate) struct MemoryModel {
    pub(crate) spans: Vec<PageSpan>,
    areas: u64,
}

/// Page `index` of the mapped file.
pub(crate) fn file_page(index: usize) -> [u8; PAGE] {
    std::array::from_fn(|at| mix((index * PAGE + at / 8) as u64).to_le_bytes()[at % 8])
}

impl PageAccess {
    /// The PROT_ bits.
    pub(crate) const fn protection(self) -> i32 {
        match self {
            Self::None => libc::PROT_NONE,
            Self::Read => libc::PROT_READ,
            Self::Write => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

impl ModelPage {
    /// A page as mmap returns it.
    pub(crate) const fn fresh(access: PageAccess, origin: Origin, area: u64) -> Self {
        Self { access, origin, is_wiped_on_fork: false, is_dropped_on_fork: false, area, bytes: None }
    }

    /// A page that mremap adds behind this one.
    pub(crate) const fn extension(&self) -> Self {
        Self { bytes: None, ..*self }
    }

    /// The expected contents.
    pub(crate) fn expected(&self) -> [u8; PAGE] {
        match (&self.bytes, self.origin) {
            (Some(bytes), _) => **bytes,
            (None, Origin::File(index)) => file_page(index),
            (None, _) => [0; PAGE],
        }
    }

    /// Records a write of `bytes` from byte `at` on.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        let mut page = self.bytes.take().unwrap_or_else(|| Box::new(self.expected()));
        page[at..at + bytes.len()].copy_from_slice(bytes);
        self.bytes = Some(page);
    }
}

impl PageSpan {
    /// The address of page `index`, which may be the number of pages (the end).
    pub(crate) const fn address(&self, index: usize) -> usize {
        self.start + index * PAGE
    }

    /// The pages of the same area around `index`.
    pub(crate) fn area_around(&self, index: usize) -> Range<usize> {
        self.run(index, |page| page.area == self.pages[index].area)
    }

    /// The pages around `index` that fulfil `holds`; `index` itself must fulfil it.
    pub(crate) fn run(&self, index: usize, holds: impl Fn(&ModelPage) -> bool) -> Range<usize> {
        let below = self.pages[..index].iter().rev().take_while(|page| holds(page)).count();
        let above = self.pages[index..].iter().take_while(|page| holds(page)).count();
        index - below..index + above
    }
}

impl MemoryModel {
    /// Returns a new area number.
    pub(crate) const fn area(&mut self) -> u64 {
        self.areas += 1;
        self.areas
    }

    /// The number of mapped pages.
    pub(crate) fn page_count(&self) -> usize {
        self.spans.iter().map(|span| span.pages.len()).sum()
    }

    /// A random span and a random page of it.
    pub(crate) fn pick(&self, random: &mut SplitMix64) -> Option<(usize, usize)> {
        let span = random.below(self.spans.len());
        Some((span, random.below(self.spans.get(span)?.pages.len())))
    }

    /// A random span and a range of it; every fourth time the whole span.
    pub(crate) fn pick_range(&self, random: &mut SplitMix64) -> Option<(usize, Range<usize>)> {
        let (span, page) = self.pick(random)?;
        Some((span, part(0..self.spans[span].pages.len(), page, random)))
    }

    /// A random span and a range within one area of it.
    pub(crate) fn pick_in_area(&self, random: &mut SplitMix64) -> Option<(usize, Range<usize>)> {
        let (span, page) = self.pick(random)?;
        Some((span, part(self.spans[span].area_around(page), page, random)))
    }

    /// The span that overlaps the `bytes` from `address` on.
    pub(crate) fn overlap(&self, address: usize, bytes: usize) -> Option<&PageSpan> {
        self.spans.iter().find(|span| span.start < address + bytes && address < span.address(span.pages.len()))
    }

    /// Adds a span and returns its index.
    pub(crate) fn add(&mut self, start: usize, pages: Vec<ModelPage>) -> usize {
        self.spans.push(PageSpan { start, pages });
        self.spans.len() - 1
    }

    /// Removes `range` from a span, which becomes one span, two, or none. Returns the removed
    /// pages.
    pub(crate) fn remove_range(&mut self, span: usize, range: Range<usize>) -> Vec<ModelPage> {
        let rest_start = self.spans[span].address(range.end);
        let pages = &mut self.spans[span].pages;
        let rest = pages.split_off(range.end);
        let taken = pages.split_off(range.start);
        let empty = pages.is_empty();
        if !rest.is_empty() {
            self.add(rest_start, rest);
        }
        if empty {
            self.spans.swap_remove(span);
        }
        taken
    }

    /// Assigns new areas to the pages of `range`, one per old area: the kernel may have split the
    /// mappings there.
    pub(crate) fn split_areas(&mut self, span: usize, range: Range<usize>) {
        let mut last = None;
        for index in range {
            let old = self.spans[span].pages[index].area;
            let new = match last {
                Some((area, new)) if area == old => new,
                _ => self.area(),
            };
            self.spans[span].pages[index].area = new;
            last = Some((old, new));
        }
    }
}

/// A random part of `whole` that contains `page`; every fourth time all of it.
fn part(whole: Range<usize>, page: usize, random: &mut SplitMix64) -> Range<usize> {
    let start = whole.start + random.below(page - whole.start + 1);
    let end = page + 1 + random.below(whole.end - page);
    if random.below(4) == 0 { whole } else { start..end }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> MemoryModel {
        let mut model = MemoryModel::default();
        let area = model.area();
        model.add(PAGE, vec![ModelPage::fresh(PageAccess::Write, Origin::Anonymous, area); 10]);
        model
    }

    #[test]
    fn removing_a_range_does_not_move_the_rest() {
        let mut model = model();
        assert_eq!(model.remove_range(0, 3..5).len(), 2);
        let places: Vec<_> = model.spans.iter().map(|span| (span.start / PAGE, span.pages.len())).collect();
        assert_eq!(places, [(1, 3), (6, 5)]);
        assert!(model.overlap(4 * PAGE, 2 * PAGE).is_none());
        assert!(model.overlap(3 * PAGE, 2 * PAGE).is_some());
        model.remove_range(0, 0..3);
        assert_eq!(model.page_count(), 5);
    }

    #[test]
    fn areas_split_at_the_ends_of_a_call() {
        let mut model = model();
        model.split_areas(0, 2..4);
        model.split_areas(0, 3..6);
        let runs: Vec<_> = [0, 2, 3, 4, 6].map(|page| model.spans[0].area_around(page)).into();
        assert_eq!(runs, [0..2, 2..3, 3..4, 4..6, 6..10]);
    }

    #[test]
    fn a_page_has_the_contents_of_its_origin_until_written() {
        let mut page = ModelPage::fresh(PageAccess::Write, Origin::File(3), 0);
        assert_eq!(page.expected(), file_page(3));
        page.write(4000, &[1, 2]);
        assert_eq!((page.expected()[3999], page.expected()[4001]), (file_page(3)[3999], 2));
    }
}
