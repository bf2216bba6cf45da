//! Computes folios from frame flags.
//!
//! A folio is an aligned power of two of frames: a head, then tails. So the head of a tail frame is
//! the first frame with a head flag among frame & !1, & !3, & !7, ...: all nearer ones are inside
//! the folio. The size is the smallest power of two for which head + size is no tail. Both searches
//! take as many reads as the folio has bits. Small folios are counted in bulk, a window of 512
//! frames (2 MiB) at a time. They need a search only where the end of the window or of the mapping
//! cuts them. Larger folios need the searches alone: about ten flags are read per 512 frames of
//! transparent huge memory.

use std::collections::BTreeMap;
use std::io;

use super::FolioBytes;

const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;
const HUGETLB: u64 = 1 << 17;
const ZERO: u64 = 1 << 24;

/// Frames read together. Folios are aligned, so a smaller one never crosses a multiple of it.
const WINDOW: u64 = WINDOW_FRAMES as u64;
const WINDOW_FRAMES: usize = 512;

/// Upper bound: 16 GiB, the largest hugetlb page of any machine, on pages of 4 KiB.
const LARGEST_ORDER: u32 = 22;

/// A source of frame flags: `/proc/kpageflags`, or a table in a test.
pub(super) trait FrameFlags {
    /// Reads the flags of consecutive frames from `frame`; frames past the last one read as 0.
    fn read(&mut self, frame: u64, flags: &mut [u64]) -> io::Result<()>;

    fn one(&mut self, frame: u64) -> io::Result<u64> {
        let mut flags = [0];
        self.read(frame, &mut flags)?;
        Ok(flags[0])
    }
}

/// Counts pages by the size of their folio. All in pages.
#[derive(Debug, Default)]
pub(super) struct FolioCounter {
    pages: BTreeMap<(u64, bool), u64>,
    zero_pages: u64,
}

impl FolioCounter {
    /// Adds the mapped, consecutive frames `frame..frame + pages`.
    pub(super) fn push(&mut self, source: &mut impl FrameFlags, frame: u64, pages: u64) -> io::Result<()> {
        let end = frame + pages;
        let mut at = frame;
        while at < end {
            let window_end = (at + 1).next_multiple_of(WINDOW).min(end);
            at = match self.large(source, at, end)? {
                Some(next) => next,
                None => self.window(source, at, window_end)?,
            };
        }
        Ok(())
    }

    /// Counts one folio of at least a window by probes, and returns the frame after it; `None` if
    /// there is no such folio at `at`.
    fn large(&mut self, source: &mut impl FrameFlags, at: u64, end: u64) -> io::Result<Option<u64>> {
        if !at.is_multiple_of(WINDOW) || end - at < WINDOW {
            return Ok(None);
        }
        let flags = source.one(at)?;
        // The second probe avoids the others in a window of many small folios.
        if flags & HEAD == 0 || source.one(at + WINDOW / 2)? & TAIL == 0 {
            return Ok(None);
        }
        let size = folio_pages(source, at)?;
        if size < WINDOW {
            return Ok(None);
        }
        let mapped = size.min(end - at);
        self.count(flags, size, mapped);
        Ok(Some(at + mapped))
    }

    /// Counts the frames up to `end`, at most to the window's end, by reading them all; returns
    /// `end`.
    fn window(&mut self, source: &mut impl FrameFlags, mut at: u64, end: u64) -> io::Result<u64> {
        let mut buffer = [0; WINDOW_FRAMES];
        let mut rest = buffer.get_mut(..usize::try_from(end - at).unwrap_or(0)).unwrap_or_default();
        source.read(at, rest)?;
        while let Some(&first) = rest.first() {
            let tails = || rest[1..].iter().take_while(|flags| **flags & TAIL != 0).count();
            let compound = first & (HEAD | TAIL) != 0;
            let mapped = if compound { 1 + tails() } else { 1 };
            let cut = mapped == rest.len() || first & TAIL != 0;
            let size = if compound && cut { folio_pages(source, at)? } else { mapped as u64 };
            self.count(first, size, mapped as u64);
            rest = &mut rest[mapped..];
            at += mapped as u64;
        }
        Ok(end)
    }

    fn count(&mut self, flags: u64, size: u64, pages: u64) {
        if flags & ZERO != 0 {
            self.zero_pages += pages;
        } else {
            *self.pages.entry((size, flags & HUGETLB != 0)).or_default() += pages;
        }
    }

    /// The bytes on the kernel's zero page, and the bytes in each folio size.
    pub(super) fn finish(self, page_bytes: u64) -> (u64, Vec<FolioBytes>) {
        let folios = self.pages.into_iter().map(|((size, hugetlb), pages)| FolioBytes {
            folio_bytes: size * page_bytes,
            hugetlb,
            bytes: pages * page_bytes,
        });
        (self.zero_pages * page_bytes, folios.collect())
    }
}

/// The size of the folio that `frame`, a head or tail, belongs to.
fn folio_pages(source: &mut impl FrameFlags, frame: u64) -> io::Result<u64> {
    let mut head = frame;
    for order in 0..=LARGEST_ORDER {
        head = frame & !((1 << order) - 1);
        if source.one(head)? & HEAD != 0 {
            break;
        }
    }
    for order in 0..=LARGEST_ORDER {
        if source.one(head + (1 << order))? & TAIL == 0 {
            return Ok(1 << order);
        }
    }
    Ok(1 << LARGEST_ORDER)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A memory described by its folios in order: (size in frames, extra flags).
    struct FolioTable(Vec<u64>);

    impl FolioTable {
        fn new(folios: &[(usize, u64)]) -> Self {
            let mut flags = Vec::new();
            for &(size, extra) in folios {
                for index in 0..size {
                    let place = if size == 1 {
                        0
                    } else if index == 0 {
                        HEAD
                    } else {
                        TAIL
                    };
                    flags.push(place | extra);
                }
            }
            Self(flags)
        }
    }

    impl FrameFlags for FolioTable {
        fn read(&mut self, frame: u64, flags: &mut [u64]) -> io::Result<()> {
            for (index, flags) in flags.iter_mut().enumerate() {
                *flags = self.0.get(usize::try_from(frame).unwrap() + index).copied().unwrap_or(0);
            }
            Ok(())
        }
    }

    fn counted(table: &mut FolioTable, segments: &[(u64, u64)]) -> (u64, Vec<(u64, bool, u64)>) {
        let mut counter = FolioCounter::default();
        for &(frame, pages) in segments {
            counter.push(table, frame, pages).unwrap();
        }
        let (zero, folios) = counter.finish(1);
        (zero, folios.iter().map(|folio| (folio.folio_bytes, folio.hugetlb, folio.bytes)).collect())
    }

    #[test]
    fn whole_folios_and_single_pages() {
        let mut table = FolioTable::new(&[(16, 0), (16, 0), (1, 0), (1, 0), (2, 0), (4, 0), (8, HUGETLB), (1, ZERO)]);
        let all = counted(&mut table, &[(0, 49)]);
        assert_eq!(all, (1, vec![(1, false, 2), (2, false, 2), (4, false, 4), (8, true, 8), (16, false, 32)]));
    }

    #[test]
    fn a_cut_folio_keeps_its_true_size() {
        let mut table = FolioTable::new(&[(16, 0), (16, 0), (16, 0), (512 - 48, 0), (512, 0)]);
        // The last part of the first, all of the second, the first part of the third.
        assert_eq!(counted(&mut table, &[(13, 3 + 16 + 5)]), (0, vec![(16, false, 24)]));
        // A part of the middle, and one single tail.
        assert_eq!(counted(&mut table, &[(18, 3), (31, 1)]), (0, vec![(16, false, 4)]));
        // A whole folio that ends where the segment ends, and memory's last folio.
        assert_eq!(counted(&mut table, &[(16, 16)]), (0, vec![(16, false, 16)]));
        assert_eq!(counted(&mut table, &[(1000, 24)]), (0, vec![(512, false, 24)]));
    }

    #[test]
    fn large_folios_are_counted_by_probes() {
        let mut table = FolioTable::new(&[
            (512, 0),
            (512, 0),
            (1024, HUGETLB),
            (16, 0),
            (16, 0),
            (32, 0),
            (64, 0),
            (128, 0),
            (256, 0),
            (512, 0),
        ]);
        // From the middle of the first to the middle of the last, and from inside the largest.
        let all = counted(&mut table, &[(300, 212 + 512 + 1024 + 512 + 100)]);
        let expected = [(16, false, 32), (32, false, 32), (64, false, 64), (128, false, 128), (256, false, 256)];
        assert_eq!(all.1[..5], expected);
        assert_eq!(all.1[5..], [(512, false, 212 + 512 + 100), (1024, true, 1024)]);
        assert_eq!(counted(&mut table, &[(1024 + 500, 524)]).1, [(1024, true, 524)]);
    }

    #[test]
    fn a_split_read_gives_the_same_result() {
        let layout: Vec<(usize, u64)> = [(4, 0), (1, 0), (1, ZERO), (2, 0), (8, HUGETLB), (16, 0), (16, 0)].into();
        let mut table = FolioTable::new(&layout);
        let whole = counted(&mut table, &[(0, 48)]);
        for cut in 1..48 {
            assert_eq!(counted(&mut table, &[(0, cut), (cut, 48 - cut)]), whole, "cut at {cut}");
        }
    }
}
