//! mprotect of any part of a span, across areas.

use crate::{
    model::{PAGE, PageAccess},
    test_thread::{CheckResult, TestThread, expect_result},
};

/// Changes the access of a range; its contents stay.
pub(crate) fn protect(test: &mut TestThread) -> CheckResult {
    let Some((span, range)) = test.model.pick_range(&mut test.random) else { return Ok(()) };
    let access = [PageAccess::None, PageAccess::Read, PageAccess::Write, PageAccess::Write][test.random.below(4)];
    let address = test.model.spans[span].address(range.start);
    let bytes = range.len() * PAGE - test.random.below(PAGE);
    expect_result("mprotect", test.memory.protect(address, bytes, access.protection()), Ok(()))?;
    test.model.spans[span].pages[range.clone()].iter_mut().for_each(|page| page.access = access);
    test.model.split_areas(span, range.clone());
    test.check_pages(span, range)
}
