//! Read-ahead: pages that are accessed in order come back before they are accessed.
//!
//! ```text
//! fault at the page behind a scan ─→ its window doubles: 1, 2, 4, … 128 pages
//! window = up to 16 pages at once, for which the thread waits │ the rest while no other fault waits
//! ```
//! Several scans are followed at a time, so threads that scan at different places do not disturb each
//! other.

use crate::count::value;
use crate::kernel::PAGE;
use crate::pager::{AHEAD, Pager, Work};
use crate::table::{bits, index_of};

/// Scans that are followed at a time.
const SCANS: usize = 8;
/// Pages of the largest window.
const WINDOW: usize = 128;
/// The part of the bound that a window takes at most, as a divisor.
const WINDOW_SHARE: usize = 16;

/// Accesses in order.
#[derive(Clone, Copy, Debug)]
struct Scan {
    /// The page behind those that it brought.
    next: usize,
    window: usize,
    /// Pages of the window that are not brought yet.
    left: usize,
}

/// The scans that are followed, the last one first.
#[derive(Debug)]
pub(crate) struct Scans([Scan; SCANS]);

impl Scans {
    pub(crate) const NONE: Self = Self([Scan { next: 0, window: 0, left: 0 }; SCANS]);

    /// The window of a fault, of at most `largest` pages. The scan that it continues, or a new one in
    /// the place of the oldest, becomes the last one.
    pub(crate) fn window_at(&mut self, page: usize, largest: usize) -> usize {
        let known = self.0.iter().position(|scan| scan.next == page);
        let window = known.map_or(1, |index| self.0[index].window * 2).clamp(1, largest);
        self.0[..=known.unwrap_or(SCANS - 1)].rotate_right(1);
        self.0[0] = Scan { next: page, window, left: window };
        window
    }

    /// Records that the last scan has brought pages.
    fn advance(&mut self, index: usize, pages: usize) {
        let scan = &mut self.0[index];
        scan.next += pages * PAGE;
        scan.left = scan.left.saturating_sub(pages);
    }

    /// As [`Self::advance`] for the scan of [`Self::window_at`]; `None` if it could bring none.
    pub(crate) fn brought(&mut self, pages: Option<usize>) {
        match pages {
            Some(pages) => self.advance(0, pages),
            None => self.0[0].left = 0,
        }
    }

    /// Whether a window has pages that are not brought yet.
    fn is_behind(&self) -> bool {
        self.0.iter().any(|scan| scan.left > 0)
    }
}

impl Pager {
    /// Pages of the largest window.
    pub(crate) fn largest_window(&self) -> usize {
        WINDOW.min((value(&self.counters.bound) / WINDOW_SHARE).max(AHEAD))
    }

    /// Whether there are pages to bring ahead of their accesses, if no message waits.
    pub(crate) fn has_ahead(&self) -> bool {
        self.work.acquire().scans.is_behind()
    }

    /// Brings some pages of a window. Without success the window ends.
    pub(crate) fn fill_ahead(&self, work: &mut Work) {
        let Some(index) = work.scans.0.iter().position(|scan| scan.left > 0) else { return };
        let Scan { next, left, .. } = work.scans.0[index];
        let wanted = left.min(AHEAD);
        let brought = if self.make_room(wanted) { self.fill_stored_run(work, next, wanted) } else { 0 };
        match brought {
            0 => work.scans.0[index].left = 0,
            pages => work.scans.advance(index, pages),
        }
    }

    /// Fills stored pages from `page` on, at most `wanted`; how many are filled now.
    fn fill_stored_run(&self, work: &mut Work, page: usize, wanted: usize) -> usize {
        let Some(mut chunk) = self.table.lock_known(page).filter(|_| !self.holds_pages()) else { return 0 };
        let first = index_of(page);
        if !chunk.chunk.stored[first].is_some() || chunk.chunk.resident & bits(first, 1) != 0 {
            return 0;
        }
        let count = self.run_length(&chunk, first, wanted, true);
        let stored = &chunk.chunk.stored[first..first + count];
        let Ok(loaded) = self.load(stored, &mut work.buffer[..count]) else { return 0 };
        let (bytes, _) = self.fd.copy(page, work.buffer[..loaded].as_flattened());
        let filled = bytes / PAGE;
        self.record_filled(&mut chunk, first, filled, true);
        filled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_double_for_each_of_several_scans() {
        let mut scans = Scans::NONE;
        let mut starts: Vec<usize> = (1..=SCANS).map(|scan| scan << 30).collect();
        for window in [1, 2, 4, 8, 16, 32, 64, 128, 128] {
            for start in &mut starts {
                assert_eq!(scans.window_at(*start, WINDOW), window);
                scans.brought(Some(window));
                *start += window * PAGE;
            }
        }
        assert_eq!(scans.window_at(starts[0], AHEAD), AHEAD, "the largest window has become smaller");
        assert_eq!(scans.window_at(5 * PAGE, WINDOW), 1);
        assert_eq!(scans.window_at(starts[1], WINDOW), 1, "the oldest scan was dropped");
    }

    #[test]
    fn a_window_is_brought_in_parts() {
        let mut scans = Scans::NONE;
        for page in 0..3 {
            scans.window_at(page * PAGE, WINDOW);
            scans.brought(Some(1));
            assert_eq!(scans.is_behind(), page > 0);
        }
        // The next page is behind those that were brought, not behind the window.
        assert_eq!(scans.window_at(3 * PAGE, WINDOW), 8);
        scans.brought(None);
        assert!(!scans.is_behind());
    }
}
