//! What memory must hold: the naive oracle.
//!
//! A *span* is a contiguous range of mapped pages; a page knows what may be done to it, where it comes from, what fork makes
//! of it, and each of its bytes. Pages of one *area* lie in one mapping of the kernel for certain (mremap must not cross two);
//! each call that may split a mapping gives the pieces new area numbers.
//!
//! Spans are chosen by their place in the list, never by address: the same seed takes the same steps wherever mmap puts things.

use fieldstone_workloads::random::{SplitMix64, mix};
use std::ops::Range;

/// Bytes of a page; the program refuses to run on any other size.
pub(crate) const PAGE: usize = 4096;

/// What a page allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    None,
    Read,
    Write,
}

/// What a page shows before anything is written to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// Zeros, private.
    Anonymous,
    /// Zeros, shared with forked children.
    Shared,
    /// This page of the file, private.
    File(usize),
}

/// One page.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) access: Access,
    pub(crate) origin: Origin,
    /// MADV_WIPEONFORK: zeros in a child.
    pub(crate) wiped: bool,
    /// MADV_DONTFORK: not there in a child.
    pub(crate) dropped: bool,
    pub(crate) area: u64,
    /// The contents, where they differ from the origin's.
    pub(crate) bytes: Option<Box<[u8; PAGE]>>,
}

/// Contiguous mapped pages.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) pages: Vec<Page>,
}

/// All spans of a thread.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) spans: Vec<Span>,
    areas: u64,
}

/// Page `index` of the file that file mappings show.
pub(crate) fn file_page(index: usize) -> [u8; PAGE] {
    std::array::from_fn(|at| mix((index * PAGE + at / 8) as u64).to_le_bytes()[at % 8])
}

impl Access {
    /// The PROT_ bits.
    pub(crate) const fn protection(self) -> i32 {
        match self {
            Self::None => libc::PROT_NONE,
            Self::Read => libc::PROT_READ,
            Self::Write => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

impl Page {
    /// A page as mmap makes it.
    pub(crate) const fn fresh(access: Access, origin: Origin, area: u64) -> Self {
        Self { access, origin, wiped: false, dropped: false, area, bytes: None }
    }

    /// A page that mremap adds behind this one.
    pub(crate) const fn grown(&self) -> Self {
        Self { bytes: None, ..*self }
    }

    /// What the page must hold.
    pub(crate) fn expected(&self) -> [u8; PAGE] {
        match (&self.bytes, self.origin) {
            (Some(bytes), _) => **bytes,
            (None, Origin::File(index)) => file_page(index),
            (None, _) => [0; PAGE],
        }
    }

    /// Notes a write of `bytes` from byte `at` on.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        let mut page = self.bytes.take().unwrap_or_else(|| Box::new(self.expected()));
        page[at..at + bytes.len()].copy_from_slice(bytes);
        self.bytes = Some(page);
    }
}

impl Span {
    /// The address of page `index`, also of the one behind the last.
    pub(crate) const fn address(&self, index: usize) -> usize {
        self.start + index * PAGE
    }

    /// The pages around `index` of the same area.
    pub(crate) fn area_around(&self, index: usize) -> Range<usize> {
        self.run(index, |page| page.area == self.pages[index].area)
    }

    /// The pages around `index` for which `holds`, as it must for `index` itself.
    pub(crate) fn run(&self, index: usize, holds: impl Fn(&Page) -> bool) -> Range<usize> {
        let below = self.pages[..index].iter().rev().take_while(|page| holds(page)).count();
        let above = self.pages[index..].iter().take_while(|page| holds(page)).count();
        index - below..index + above
    }
}

impl Model {
    /// A new area number.
    pub(crate) const fn area(&mut self) -> u64 {
        self.areas += 1;
        self.areas
    }

    /// Pages mapped.
    pub(crate) fn page_count(&self) -> usize {
        self.spans.iter().map(|span| span.pages.len()).sum()
    }

    /// A random span and a random page of it.
    pub(crate) fn pick(&self, random: &mut SplitMix64) -> Option<(usize, usize)> {
        let span = random.below(self.spans.len());
        Some((span, random.below(self.spans.get(span)?.pages.len())))
    }

    /// A random span and a range of it, all of it every fourth time.
    pub(crate) fn pick_range(&self, random: &mut SplitMix64) -> Option<(usize, Range<usize>)> {
        let (span, page) = self.pick(random)?;
        Some((span, part(0..self.spans[span].pages.len(), page, random)))
    }

    /// A random span and a range within one area of it.
    pub(crate) fn pick_in_area(&self, random: &mut SplitMix64) -> Option<(usize, Range<usize>)> {
        let (span, page) = self.pick(random)?;
        Some((span, part(self.spans[span].area_around(page), page, random)))
    }

    /// The span that the `bytes` from `address` on would overlap.
    pub(crate) fn overlap(&self, address: usize, bytes: usize) -> Option<&Span> {
        self.spans.iter().find(|span| span.start < address + bytes && address < span.address(span.pages.len()))
    }

    /// Adds a span; its index.
    pub(crate) fn add(&mut self, start: usize, pages: Vec<Page>) -> usize {
        self.spans.push(Span { start, pages });
        self.spans.len() - 1
    }

    /// Takes `range` out of a span, whose rest becomes one span, two, or none.
    pub(crate) fn cut(&mut self, span: usize, range: Range<usize>) -> Vec<Page> {
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

    /// Gives the pages of `range` new areas, one for each that it touches: the kernel may have split there.
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

/// A random part of `whole` that holds `page`; all of it every fourth time.
fn part(whole: Range<usize>, page: usize, random: &mut SplitMix64) -> Range<usize> {
    let start = whole.start + random.below(page - whole.start + 1);
    let end = page + 1 + random.below(whole.end - page);
    if random.below(4) == 0 { whole } else { start..end }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let mut model = Model::default();
        let area = model.area();
        model.add(PAGE, vec![Page::fresh(Access::Write, Origin::Anonymous, area); 10]);
        model
    }

    #[test]
    fn a_cut_leaves_the_rest_where_it_was() {
        let mut model = model();
        assert_eq!(model.cut(0, 3..5).len(), 2);
        let places: Vec<_> = model.spans.iter().map(|span| (span.start / PAGE, span.pages.len())).collect();
        assert_eq!(places, [(1, 3), (6, 5)]);
        assert!(model.overlap(4 * PAGE, 2 * PAGE).is_none());
        assert!(model.overlap(3 * PAGE, 2 * PAGE).is_some());
        model.cut(0, 0..3);
        assert_eq!(model.page_count(), 5);
    }

    #[test]
    fn areas_split_where_a_call_began_and_ended() {
        let mut model = model();
        model.split_areas(0, 2..4);
        model.split_areas(0, 3..6);
        let runs: Vec<_> = [0, 2, 3, 4, 6].map(|page| model.spans[0].area_around(page)).into();
        assert_eq!(runs, [0..2, 2..3, 3..4, 4..6, 6..10]);
    }

    #[test]
    fn contents_are_the_origins_until_written() {
        let mut page = Page::fresh(Access::Write, Origin::File(3), 0);
        assert_eq!(page.expected(), file_page(3));
        page.write(4000, &[1, 2]);
        assert_eq!((page.expected()[3999], page.expected()[4001]), (file_page(3)[3999], 2));
    }
}
