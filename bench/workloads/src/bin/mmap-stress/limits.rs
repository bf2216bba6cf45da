//! RLIMIT_AS: allocations over the limit return NULL or ENOMEM, allocations under it succeed, and
//! the program continues.

#![allow(unsafe_code, reason = "setrlimit, and malloc that must return NULL")]

use crate::{
    memory::Request,
    model::{Origin, PAGE},
    reservation::release_all,
    test_thread::{CheckResult, TestThread, expect_result},
};

/// Well above the memory of this program (a thread arena reserves 64 MiB), well below the requested
/// memory.
const LIMIT: usize = 4 << 30;
const TOO_MUCH: usize = 8 << 30;
const LITTLE: usize = 64 << 20;

/// Sets the limit, makes requests over and under it, and lifts it. Reservations are released first,
/// since they count; so would other threads' reservations.
pub(crate) fn limit(test: &mut TestThread) -> CheckResult {
    let old = current()?;
    if !test.owns_all_memory || old.rlim_max != libc::RLIM_INFINITY {
        return Ok(());
    }
    release_all(test)?;
    set(libc::rlimit { rlim_cur: LIMIT as u64, ..old })?;
    let verdict = under_limit(test);
    set(old)?;
    verdict?;
    if can_allocate(TOO_MUCH / 2) { Ok(()) } else { Err("malloc returned NULL after the limit was lifted".into()) }
}

fn under_limit(test: &mut TestThread) -> CheckResult {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let request = Request { address: 0, bytes: TOO_MUCH, protection: libc::PROT_NONE, flags, file: None };
    expect_result("mmap over RLIMIT_AS", test.memory.map(request), Err(libc::ENOMEM))?;
    if can_allocate(TOO_MUCH) {
        return Err("malloc over RLIMIT_AS did not return NULL".into());
    }
    if let Some((span, range)) = test.model.pick_in_area(&mut test.random)
        && test.model.spans[span].pages[range.start].origin == Origin::Anonymous
    {
        let start = test.model.spans[span].address(range.start);
        let grown = test.memory.remap(start, range.len() * PAGE, TOO_MUCH, libc::MREMAP_MAYMOVE, 0);
        expect_result("mremap over RLIMIT_AS", grown, Err(libc::ENOMEM))?;
        test.check_pages(span, range)?;
    }
    if can_allocate(LITTLE) { Ok(()) } else { Err("malloc under RLIMIT_AS returned NULL".into()) }
}

/// Whether malloc returns `bytes`; writes one byte at the start and one at the end.
fn can_allocate(bytes: usize) -> bool {
    // SAFETY: the block is used only if it is not null, within its length, and freed here. The
    // writes are volatile, so that the pair of malloc and free is not optimised away.
    unsafe {
        let block = libc::malloc(bytes).cast::<u8>();
        if !block.is_null() {
            block.write_volatile(1);
            block.add(bytes - 1).write_volatile(1);
        }
        libc::free(block.cast());
        !block.is_null()
    }
}

fn current() -> Result<libc::rlimit, String> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local rlimit that the kernel writes.
    if unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0 {
        Ok(limit)
    } else {
        Err("getrlimit failed".into())
    }
}

fn set(limit: libc::rlimit) -> CheckResult {
    // SAFETY: `limit` is a valid rlimit; changing the soft limit touches no memory.
    if unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } == 0 {
        Ok(())
    } else {
        Err("setrlimit failed".into())
    }
}
