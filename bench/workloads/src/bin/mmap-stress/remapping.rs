//! mremap: grow, shrink, move to an address, move and keep the old range. Always within one mapping
//! of the kernel, as mremap requires.

use crate::{
    memory::Request,
    model::{ModelPage, Origin, PAGE, PageAccess},
    test_thread::{CheckResult, TestThread, expect_result},
};
use std::ops::Range;

/// Grows a range: in place, or elsewhere if allowed.
pub(crate) fn grow(test: &mut TestThread) -> CheckResult {
    let Some((span, range)) = anonymous_range(test) else { return Ok(()) };
    let may_move = test.random.below(3) > 0;
    let more = test.draw_pages();
    let flags = if may_move { libc::MREMAP_MAYMOVE } else { 0 };
    let (old, count) = (test.model.spans[span].address(range.start), range.len() + more);
    match test.memory.remap(old, range.len() * PAGE, count * PAGE, flags, 0) {
        Err(errno) if errno.0 == libc::ENOMEM && !may_move => test.check_pages(span, range),
        Err(errno) => Err(format!("mremap of {} pages at {old:#x} to {count} answered {errno:?}", range.len())),
        Ok(new) if new == old => record_growth(test, span, range, more),
        Ok(new) if may_move => {
            test.check_hole(old, range.len())?;
            record_move(test, span, range, new, count)
        }
        Ok(new) => Err(format!("mremap moved {old:#x} to {new:#x} without MREMAP_MAYMOVE")),
    }
}

fn record_growth(test: &mut TestThread, span: usize, range: Range<usize>, more: usize) -> CheckResult {
    let end = test.model.spans[span].address(range.end);
    test.check_fresh(end, more)?;
    let pages = &mut test.model.spans[span].pages;
    let added = pages[range.end - 1].extension();
    pages.extend(std::iter::repeat_n(added, more));
    test.check_pages(span, range.start..range.end + more)
}

/// Records a move: `range` is now at `new` and `count` pages long.
fn record_move(test: &mut TestThread, span: usize, range: Range<usize>, new: usize, count: usize) -> CheckResult {
    let mut pages = test.model.remove_range(span, range);
    resize(&mut pages, count);
    test.check_fresh(new, count)?;
    let span = test.model.add(new, pages);
    test.check_pages(span, 0..count)
}

fn resize(pages: &mut Vec<ModelPage>, count: usize) {
    let added = pages[pages.len() - 1].extension();
    pages.resize(count, added);
}

/// Releases the end of a range.
pub(crate) fn shrink(test: &mut TestThread) -> CheckResult {
    let Some((span, range)) = test.model.pick_in_area(&mut test.random) else { return Ok(()) };
    let kept = 1 + test.random.below(range.len());
    let start = test.model.spans[span].address(range.start);
    let flags = [0, libc::MREMAP_MAYMOVE][test.random.below(2)];
    expect_result(
        "mremap to fewer pages",
        test.memory.remap(start, range.len() * PAGE, kept * PAGE, flags, 0),
        Ok(start),
    )?;
    if kept < range.len() {
        test.check_hole(start + kept * PAGE, range.len() - kept)?;
        test.model.remove_range(span, range.start + kept..range.end);
    }
    Ok(())
}

/// Moves a range to a chosen address: a new reservation, or the middle of another span.
pub(crate) fn move_to(test: &mut TestThread) -> CheckResult {
    let Some((span, range)) = test.model.pick_in_area(&mut test.random) else { return Ok(()) };
    let old = test.model.spans[span].address(range.start);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    if let Some((onto, index)) = test.model.pick(&mut test.random) {
        let target = &test.model.spans[onto];
        if onto != span && index + range.len() <= target.pages.len() {
            let to = target.address(index);
            let bytes = range.len() * PAGE;
            expect_result("mremap onto a span", test.memory.remap(old, bytes, bytes, flags, to), Ok(to))?;
            test.check_hole(old, range.len())?;
            return record_move_onto(test, (span, range), onto, index);
        }
    }
    let anonymous = test.model.spans[span].pages[range.start].origin == Origin::Anonymous;
    let max = if anonymous { range.len() + 40 } else { range.len() };
    let count = 1 + test.random.below(max);
    let to = reserve(test, count)?;
    expect_result("mremap to an address", test.memory.remap(old, range.len() * PAGE, count * PAGE, flags, to), Ok(to))?;
    test.check_hole(old, range.len())?;
    record_move(test, span, range, to, count)
}

fn record_move_onto(test: &mut TestThread, from: (usize, Range<usize>), onto: usize, index: usize) -> CheckResult {
    let (span, range) = from;
    let target = test.model.spans[onto].address(index);
    let pages = test.model.remove_range(span, range);
    let holds = |span: &crate::model::PageSpan| span.start <= target && target < span.address(span.pages.len());
    // Removing the range may have changed the index of the target.
    let Some(onto) = test.model.spans.iter().position(holds) else { return Err("the target span is missing".into()) };
    let covered = index..index + pages.len();
    test.model.spans[onto].pages.splice(covered.clone(), pages);
    // Adjacent pages of the same area number may now belong to another mapping of the kernel.
    test.model.split_areas(onto, covered.clone());
    test.check_pages(onto, covered)
}

/// Moves the pages and keeps the old range, which is then zero.
pub(crate) fn move_and_keep(test: &mut TestThread) -> CheckResult {
    let Some((span, range)) = anonymous_range(test) else { return Ok(()) };
    let bytes = range.len() * PAGE;
    let old = test.model.spans[span].address(range.start);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    let new = test.memory.remap(old, bytes, bytes, flags, 0);
    let new = new.map_err(|errno| format!("mremap with MREMAP_DONTUNMAP answered {errno:?}"))?;
    test.check_fresh(new, range.len())?;
    let kept = &mut test.model.spans[span].pages[range.clone()];
    let taken: Vec<ModelPage> = kept
        .iter_mut()
        .map(|page| {
            let fresh = page.extension();
            std::mem::replace(page, fresh)
        })
        .collect();
    test.model.split_areas(span, range.clone());
    test.check_pages(span, range)?;
    let count = taken.len();
    let span = test.model.add(new, taken);
    test.check_pages(span, 0..count)
}

/// A range of private anonymous memory within one area: only such memory can grow, or be kept.
fn anonymous_range(test: &mut TestThread) -> Option<(usize, Range<usize>)> {
    let (span, range) = test.model.pick_in_area(&mut test.random)?;
    (test.model.spans[span].pages[range.start].origin == Origin::Anonymous).then_some((span, range))
}

/// Reserves `count` pages outside the model; the caller replaces the reservation at once.
fn reserve(test: &TestThread, count: usize) -> Result<usize, String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = PageAccess::None.protection();
    let request = Request { address: 0, bytes: count * PAGE, protection, flags, file: None };
    let address = test.memory.map(request).map_err(|errno| format!("mmap of a reservation returned {errno:?}"))?;
    test.check_fresh(address, count).map(|()| address)
}
