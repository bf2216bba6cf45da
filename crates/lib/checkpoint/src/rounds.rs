//! Copies written pages, in rounds, while the program writes.
//!
//! Each round copies the pages that were written during the one before. The rounds end when the pages
//! that are left fit into the stop, or when the program writes faster than they are copied.

use std::ops::Range;
use std::time::Duration;

use fieldstone_pages::Tracking;

use crate::checkpointer::Region;
use crate::error::{Error, Result};
use crate::format::PAGE;
use crate::output::Output;
use crate::page_set::PageSet;

/// Rounds after the first one.
const ROUNDS: usize = 12;

/// Copies written pages until those that are left fit into the stop; returns how many bytes it may copy.
///
/// # Errors
/// [`Error::Outrun`], and those of the memory and the sink.
pub(crate) fn copy_rounds(
    regions: &mut [Region],
    output: &mut Output<'_>,
    stop_limit: Duration,
    largest_stop: usize,
) -> Result<usize> {
    for round in 0..=ROUNDS {
        let before = output.pages();
        for (index, region) in regions.iter_mut().enumerate() {
            let Region { tracking, used, unsaved, round: written } = region;
            if round == 0 {
                // What was written before the save, and what an earlier one has not saved.
                written.add(unsaved);
            }
            take_written(tracking, written)?;
            unsaved.add(written);
            used.add(written);
            for run in written.runs() {
                output.copy_run(index, tracking.memory(), run)?;
            }
            written.clear();
        }
        let left_bytes = left(regions)?;
        // Half of the time: the rest of the stop is for the search for written pages.
        let fits = (output.copied_per_second() * stop_limit.as_secs_f64() / 2.0) as usize;
        let limit_bytes = fits.min(largest_stop);
        if left_bytes <= limit_bytes {
            return Ok(limit_bytes);
        }
        // The next round would take as long as this one, or almost.
        let copied_bytes = (output.pages() - before) as usize * PAGE;
        if round == ROUNDS || left_bytes > copied_bytes / 2 {
            return Err(Error::Outrun { left_bytes, limit_bytes });
        }
    }
    unreachable!("the last round returns")
}

/// Moves the pages that were written from the tracking to a set.
fn take_written(tracking: &Tracking, set: &mut PageSet) -> Result<()> {
    for range in tracking.dirty()? {
        set.insert(pages(range?));
    }
    Ok(())
}

/// Bytes of pages that are written and not copied.
fn left(regions: &[Region]) -> Result<usize> {
    let mut bytes = 0;
    for region in regions {
        for range in region.tracking.peek()? {
            bytes += range?.len();
        }
    }
    Ok(bytes)
}

/// The pages of a range of bytes.
pub(crate) fn pages(range: Range<usize>) -> Range<usize> {
    range.start / PAGE..range.end / PAGE
}
