//! mmap and munmap: anywhere, over existing memory (fixed), refused over existing memory, and with
//! holes.

use crate::{
    memory::Request,
    model::{ModelPage, Origin, PAGE, PageAccess},
    probe::arch::MAP_32BIT,
    test_thread::{CheckResult, FILE_PAGES, TestThread, expect_result},
};

/// A thread maps no more memory above this number of pages.
const MAX_PAGES: usize = 8192;

/// The parameters of a new mapping.
struct Plan {
    access: PageAccess,
    origin: Origin,
    flags: i32,
}

impl Plan {
    fn draw(test: &mut TestThread, pages: usize) -> Self {
        let access = [PageAccess::None, PageAccess::Read, PageAccess::Write, PageAccess::Write, PageAccess::Write]
            [test.random.below(5)];
        let anonymous = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
        let (origin, flags) = match test.random.below(12) {
            0 => (Origin::Shared, libc::MAP_ANONYMOUS | libc::MAP_SHARED),
            1 if pages < FILE_PAGES => (Origin::File(test.random.below(FILE_PAGES - pages)), libc::MAP_PRIVATE),
            2 => (Origin::Anonymous, anonymous | libc::MAP_NORESERVE),
            3 => (Origin::Anonymous, anonymous | libc::MAP_POPULATE),
            4 => (Origin::Anonymous, anonymous | libc::MAP_STACK),
            _ => (Origin::Anonymous, anonymous),
        };
        Self { access, origin, flags }
    }

    fn request(&self, test: &TestThread, address: usize, bytes: usize) -> Request {
        let file = match self.origin {
            Origin::File(index) => Some((test.file, i64::try_from(index * PAGE).unwrap_or(0))),
            _ => None,
        };
        Request { address, bytes, protection: self.access.protection(), flags: self.flags, file }
    }

    fn pages(&self, test: &mut TestThread, count: usize) -> Vec<ModelPage> {
        let area = test.model.area();
        let origin = |index| match self.origin {
            Origin::File(first) => Origin::File(first + index),
            other => other,
        };
        (0..count).map(|index| ModelPage::fresh(self.access, origin(index), area)).collect()
    }
}

/// Maps at an address of the kernel's choice, sometimes with a hint. The length need not be whole
/// pages.
pub(crate) fn map(test: &mut TestThread) -> CheckResult {
    if test.model.page_count() > MAX_PAGES {
        return unmap(test);
    }
    let count = test.draw_pages();
    let mut plan = Plan::draw(test, count);
    let bytes = count * PAGE - test.random.below(PAGE);
    // A hint into the middle of a span is in use, so the kernel must choose another address.
    let hint = match test.model.pick(&mut test.random) {
        Some((span, page)) if test.random.below(4) == 0 => test.model.spans[span].address(page),
        _ => 0,
    };
    let low = MAP_32BIT.filter(|_| hint == 0 && test.random.below(16) == 0);
    plan.flags |= low.unwrap_or(0);
    let request = plan.request(test, hint, bytes);
    let start = test.memory.map(request).map_err(|errno| format!("{request:x?} answered {errno:?}"))?;
    test.check_fresh(start, count)?;
    if low.is_some() && start + bytes > 1 << 32 {
        return Err(format!("MAP_32BIT returned {start:#x}"));
    }
    plan.flags = 0;
    let pages = plan.pages(test, count);
    let span = test.model.add(start, pages);
    test.check_pages(span, 0..count)
}

/// Maps over a part of a span, after checking that MAP_FIXED_NOREPLACE refuses to.
pub(crate) fn map_over(test: &mut TestThread) -> CheckResult {
    let Some((span, range)) = test.model.pick_range(&mut test.random) else { return Ok(()) };
    let plan = Plan::draw(test, range.len());
    let address = test.model.spans[span].address(range.start);
    let mut request = plan.request(test, address, range.len() * PAGE);
    request.flags |= libc::MAP_FIXED_NOREPLACE;
    expect_result("mmap with MAP_FIXED_NOREPLACE over a span", test.memory.map(request), Err(libc::EEXIST))?;
    request.flags = plan.flags | libc::MAP_FIXED;
    expect_result("mmap with MAP_FIXED", test.memory.map(request), Ok(address))?;
    let pages = plan.pages(test, range.len());
    test.model.spans[span].pages.splice(range.clone(), pages);
    test.check_pages(span, range)
}

/// Unmaps a part or all of a span. Sometimes unmaps the whole span again, with its hole; sometimes
/// fills the hole.
pub(crate) fn unmap(test: &mut TestThread) -> CheckResult {
    let Some((span, mut range)) = test.model.pick_range(&mut test.random) else { return Ok(()) };
    let address = test.model.spans[span].address(range.start);
    let bytes = range.len() * PAGE - test.random.below(PAGE);
    let then = test.random.below(4);
    expect_result("munmap", test.memory.unmap(address, bytes), Ok(()))?;
    test.check_hole(address, range.len())?;
    if test.is_only_thread && then == 0 {
        return map_in_hole(test, span, range);
    }
    if test.is_only_thread && then == 1 {
        let whole = &test.model.spans[span];
        range = 0..whole.pages.len();
        let (start, bytes) = (whole.start, range.len() * PAGE);
        expect_result("munmap over a hole", test.memory.unmap(start, bytes), Ok(()))?;
        test.check_hole(start, range.len())?;
    }
    test.model.remove_range(span, range);
    Ok(())
}

/// Maps the hole that was just made. Nothing may have been allocated since.
fn map_in_hole(test: &mut TestThread, span: usize, range: std::ops::Range<usize>) -> CheckResult {
    let address = test.model.spans[span].address(range.start);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let plan = Plan { access: PageAccess::Write, origin: Origin::Anonymous, flags };
    let request = plan.request(test, address, range.len() * PAGE);
    expect_result("mmap with MAP_FIXED_NOREPLACE into a hole", test.memory.map(request), Ok(address))?;
    let pages = plan.pages(test, range.len());
    test.model.spans[span].pages.splice(range.clone(), pages);
    test.check_pages(span, range)
}
