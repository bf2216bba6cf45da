//! Writes by the program and by the kernel.

use crate::{
    model::{PAGE, PageAccess},
    test_thread::{CheckResult, FILE_PAGES, TestThread},
};

/// The maximum number of pages of one write.
const MAX_PAGES: usize = 24;

/// Writes random bytes into writable memory, from any byte on.
pub(crate) fn write(test: &mut TestThread) -> CheckResult {
    let Some((span, page)) = test.model.pick(&mut test.random) else { return Ok(()) };
    let pages = &test.model.spans[span].pages;
    let writable = pages[page..].iter().take(MAX_PAGES).take_while(|page| page.access == PageAccess::Write).count();
    if writable == 0 {
        return Ok(());
    }
    let at = test.random.below(PAGE);
    let count = 1 + test.random.below(writable * PAGE - at);
    let bytes = random_bytes(test, count);
    test.write(span, page, at, &bytes);
    test.check_pages(span, page..page + writable)
}

/// `count` random bytes.
pub(crate) fn random_bytes(test: &mut TestThread, count: usize) -> Vec<u8> {
    let mut words = std::iter::repeat_with(|| test.random.draw().to_le_bytes()).flatten();
    words.by_ref().take(count).collect()
}

/// Makes the kernel write memory, by reading the file. The kernel returns EFAULT for memory that is
/// not writable.
pub(crate) fn kernel_write(test: &mut TestThread) -> CheckResult {
    let Some((span, page)) = test.model.pick(&mut test.random) else { return Ok(()) };
    let pages = &test.model.spans[span].pages;
    let writable = pages[page..].iter().take(MAX_PAGES).take_while(|page| page.access == PageAccess::Write).count();
    let from = test.random.below(FILE_PAGES - MAX_PAGES);
    let address = test.model.spans[span].address(page);
    let offset = i64::try_from(from * PAGE).unwrap_or(0);
    let bytes = writable.max(1) * PAGE;
    match (test.memory.read_file(test.file, address, bytes, offset), writable) {
        (Err(errno), 0) if errno.0 == libc::EFAULT => test.check_pages(span, page..page + 1),
        (Ok(count), 1..) if count == bytes => {
            for index in 0..writable {
                test.record_write(span, page + index, 0, &crate::model::file_page(from + index));
            }
            test.check_pages(span, page..page + writable)
        }
        (answer, _) => Err(format!("pread into {address:#x} with {writable} writable pages returned {answer:?}")),
    }
}
