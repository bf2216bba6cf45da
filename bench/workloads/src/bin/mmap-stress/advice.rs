//! madvise: advice that drops contents, advice without effect, advice for fork.

use crate::{
    contents::random_bytes,
    model::{Origin, PAGE, PageAccess},
    test_thread::{CheckResult, TestThread, expect_result},
};

/// MADV_DONTNEED: private memory reverts to zeros or to its file; shared memory keeps its contents.
pub(crate) fn discard(test: &mut TestThread) -> CheckResult {
    let Some((span, range)) = test.model.pick_range(&mut test.random) else { return Ok(()) };
    let address = test.model.spans[span].address(range.start);
    let answer = test.memory.advise(address, range.len() * PAGE, libc::MADV_DONTNEED);
    expect_result("MADV_DONTNEED", answer, Ok(()))?;
    let pages = &mut test.model.spans[span].pages[range.clone()];
    pages.iter_mut().filter(|page| page.origin != Origin::Shared).for_each(|page| page.bytes = None);
    test.check_pages(span, range)
}

/// MADV_FREE: the kernel may drop contents at any time until they are written again. This step
/// writes them at once.
pub(crate) fn free(test: &mut TestThread) -> CheckResult {
    let Some((span, page)) = test.model.pick(&mut test.random) else { return Ok(()) };
    let address = test.model.spans[span].address(page);
    let first = &test.model.spans[span].pages[page];
    if first.origin != Origin::Anonymous {
        let refused = if matches!(first.origin, Origin::Shared | Origin::File(_)) { Err(libc::EINVAL) } else { Ok(()) };
        return expect_result("MADV_FREE", test.memory.advise(address, PAGE, libc::MADV_FREE), refused);
    }
    if first.access != PageAccess::Write {
        return Ok(());
    }
    let bytes_of =
        |page: &crate::model::ModelPage| page.origin == Origin::Anonymous && page.access == PageAccess::Write;
    let range = test.model.spans[span].run(page, bytes_of);
    let count = range.len().min(64);
    let address = test.model.spans[span].address(range.start);
    expect_result("MADV_FREE", test.memory.advise(address, count * PAGE, libc::MADV_FREE), Ok(()))?;
    let bytes = random_bytes(test, count * PAGE);
    test.write(span, range.start, 0, &bytes);
    test.check_pages(span, range)
}

/// Advice that must succeed and has no visible effect.
const HARMLESS: [i32; 6] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_COLD,
    libc::MADV_DONTDUMP,
    libc::MADV_DODUMP,
];

/// Advice that may fail for some kernels or ranges (EINVAL, ENOMEM, EAGAIN, EFAULT, EBADF).
const IF_POSSIBLE: [i32; 7] = [
    libc::MADV_WILLNEED,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_PAGEOUT,
    libc::MADV_POPULATE_READ,
    libc::MADV_POPULATE_WRITE,
    libc::MADV_COLLAPSE,
];

/// Gives advice that keeps contents and protection.
pub(crate) fn advise(test: &mut TestThread) -> CheckResult {
    let Some((span, range)) = test.model.pick_range(&mut test.random) else { return Ok(()) };
    let (address, bytes) = (test.model.spans[span].address(range.start), range.len() * PAGE);
    let which = test.random.below(HARMLESS.len() + IF_POSSIBLE.len());
    match HARMLESS.get(which) {
        Some(&advice) => {
            expect_result(&format!("madvise({advice})"), test.memory.advise(address, bytes, advice), Ok(()))?
        }
        None => {
            let advice = IF_POSSIBLE[which - HARMLESS.len()];
            let allowed = [libc::EINVAL, libc::ENOMEM, libc::EAGAIN, libc::EFAULT, libc::EBADF, libc::EBUSY];
            if let Err(errno) = test.memory.advise(address, bytes, advice)
                && !allowed.contains(&errno.0)
            {
                return Err(format!("madvise({advice}) answered {errno:?}"));
            }
        }
    }
    test.model.split_areas(span, range.clone());
    test.check_pages(span, range)
}

/// Advises what fork does with a range: zeros (private anonymous memory only), nothing, or a copy.
pub(crate) fn advise_fork(test: &mut TestThread) -> CheckResult {
    let Some((span, range)) = test.model.pick_in_area(&mut test.random) else { return Ok(()) };
    let (address, bytes) = (test.model.spans[span].address(range.start), range.len() * PAGE);
    let advice =
        [libc::MADV_DONTFORK, libc::MADV_DOFORK, libc::MADV_WIPEONFORK, libc::MADV_KEEPONFORK][test.random.below(4)];
    let anonymous = test.model.spans[span].pages[range.start].origin == Origin::Anonymous;
    let possible = advice != libc::MADV_WIPEONFORK || anonymous;
    let expected = if possible { Ok(()) } else { Err(libc::EINVAL) };
    expect_result(&format!("madvise({advice})"), test.memory.advise(address, bytes, advice), expected)?;
    if possible {
        for page in &mut test.model.spans[span].pages[range.clone()] {
            match advice {
                libc::MADV_DONTFORK | libc::MADV_DOFORK => page.is_dropped_on_fork = advice == libc::MADV_DONTFORK,
                _ => page.is_wiped_on_fork = advice == libc::MADV_WIPEONFORK,
            }
        }
    }
    test.model.split_areas(span, range);
    Ok(())
}
