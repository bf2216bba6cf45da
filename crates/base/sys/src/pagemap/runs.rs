//! Physical contiguity: runs of pages that are adjacent in the address space and in memory.

use serde::Serialize;

/// Contiguity of some memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Runs {
    /// Number of runs; 1 is fully contiguous, 0 means no page is present.
    pub count: u64,
    /// Length of the longest run.
    pub longest_bytes: u64,
    /// Median length of the runs, weighted by bytes: half of the memory is in runs at least this
    /// long.
    pub median_bytes: u64,
}

/// Collects runs from segments in ascending address order. All in pages.
#[derive(Debug, Default)]
pub(super) struct RunCollector {
    lengths: Vec<u64>,
    next_page: u64,
    next_frame: u64,
}

impl RunCollector {
    /// Adds `pages` pages from virtual page `page`, on consecutive frames from `frame`.
    pub(super) fn push(&mut self, page: u64, frame: u64, pages: u64) {
        match self.lengths.last_mut() {
            Some(last) if self.next_page == page && self.next_frame == frame => *last += pages,
            _ => self.lengths.push(pages),
        }
        (self.next_page, self.next_frame) = (page + pages, frame + pages);
    }

    pub(super) fn finish(mut self, page_bytes: u64) -> Runs {
        self.lengths.sort_unstable();
        let total: u64 = self.lengths.iter().sum();
        // From the longest run down, until half of all pages are covered.
        let mut covered = 0;
        let median = self.lengths.iter().rev().copied().find(|length| {
            covered += length;
            covered * 2 >= total
        });
        Runs {
            count: self.lengths.len() as u64,
            longest_bytes: self.lengths.last().copied().unwrap_or(0) * page_bytes,
            median_bytes: median.unwrap_or(0) * page_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_join_only_if_adjacent_on_both_sides() {
        let mut runs = RunCollector::default();
        runs.push(10, 100, 4);
        runs.push(14, 104, 4); // the same run
        runs.push(18, 300, 1); // jumps in memory
        runs.push(20, 301, 2); // a hole in the address space
        assert_eq!(runs.finish(10), Runs { count: 3, longest_bytes: 80, median_bytes: 80 });
        assert_eq!(RunCollector::default().finish(10), Runs::default());
    }

    #[test]
    fn half_of_the_memory_is_in_runs_of_at_least_the_median() {
        let median = |lengths: &[u64]| {
            RunCollector { lengths: lengths.to_vec(), ..RunCollector::default() }.finish(1).median_bytes
        };
        assert_eq!(median(&[1, 1, 1, 1, 1, 1, 6]), 6, "the long run is half of all");
        assert_eq!(median(&[1, 1, 1, 1, 1, 1, 1, 6]), 1, "the long run is less than half");
        assert_eq!(median(&[5, 2, 3]), 5);
    }
}
