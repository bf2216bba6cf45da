//! Calls that must fail with the errno of their man page and change nothing.

use crate::{
    memory::Request,
    model::PAGE,
    test_thread::{CheckResult, TestThread, expect_result},
};

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Makes the failing calls of one family, with the addresses of a real span.
pub(crate) fn refusals(test: &mut TestThread) -> CheckResult {
    let Some((span, range)) = test.model.pick_in_area(&mut test.random) else { return Ok(()) };
    let (address, bytes) = (test.model.spans[span].address(range.start), range.len() * PAGE);
    match test.random.below(4) {
        0 => check_mmap(test, address, bytes)?,
        1 => check_mremap(test, address, bytes)?,
        2 => check_advice(test, address, bytes)?,
        _ => check_munmap_and_mprotect(test, address, bytes)?,
    }
    test.check_pages(span, range)
}

fn check_mmap(test: &TestThread, address: usize, bytes: usize) -> CheckResult {
    let base = Request { address: 0, bytes, protection: libc::PROT_READ, flags: ANONYMOUS, file: None };
    let fixed = ANONYMOUS | libc::MAP_FIXED;
    for (what, request, errno) in [
        ("mmap of 0 bytes", Request { bytes: 0, ..base }, libc::EINVAL),
        ("mmap without PRIVATE or SHARED", Request { flags: libc::MAP_ANONYMOUS, ..base }, libc::EINVAL),
        ("mmap without a file", Request { flags: libc::MAP_PRIVATE, ..base }, libc::EBADF),
        ("mmap larger than the address space", Request { bytes: 1 << 62, ..base }, libc::ENOMEM),
        ("mmap at a fixed unaligned address", Request { address: address + 1, flags: fixed, ..base }, libc::EINVAL),
        ("mmap at a fixed kernel address", Request { address: usize::MAX << 47, flags: fixed, ..base }, libc::ENOMEM),
    ] {
        expect_result(what, test.memory.map(request), Err(errno))?;
    }
    Ok(())
}

fn check_mremap(test: &TestThread, address: usize, bytes: usize) -> CheckResult {
    let (may_move, fixed) = (libc::MREMAP_MAYMOVE, libc::MREMAP_FIXED);
    for (what, old, new, flags, to, errno) in [
        ("mremap of an unaligned address", address + 1, bytes, may_move, 0, libc::EINVAL),
        ("mremap to 0 bytes", address, 0, may_move, 0, libc::EINVAL),
        ("mremap fixed without MAYMOVE", address, bytes, fixed, address, libc::EINVAL),
        ("mremap onto itself", address, bytes, may_move | fixed, address, libc::EINVAL),
        ("mremap with unknown flags", address, bytes, 1 << 20, 0, libc::EINVAL),
        ("mremap to a fixed unaligned address", address, bytes, may_move | fixed, address + 1, libc::EINVAL),
    ] {
        expect_result(what, test.memory.remap(old, bytes, new, flags, to), Err(errno))?;
    }
    Ok(())
}

fn check_advice(test: &TestThread, address: usize, bytes: usize) -> CheckResult {
    let advise = |address, bytes, advice| test.memory.advise(address, bytes, advice);
    expect_result(
        "madvise of an unaligned address",
        advise(address + 1, bytes, libc::MADV_DONTNEED),
        Err(libc::EINVAL),
    )?;
    expect_result("madvise with unknown advice", advise(address, bytes, 9999), Err(libc::EINVAL))?;
    expect_result("madvise of 0 bytes", advise(address, 0, libc::MADV_DONTNEED), Ok(()))
}

fn check_munmap_and_mprotect(test: &TestThread, address: usize, bytes: usize) -> CheckResult {
    let memory = test.memory;
    expect_result("munmap of an unaligned address", memory.unmap(address + 8, bytes), Err(libc::EINVAL))?;
    expect_result("munmap of 0 bytes", memory.unmap(address, 0), Err(libc::EINVAL))?;
    expect_result("munmap beyond the address space", memory.unmap(address, 1 << 62), Err(libc::EINVAL))?;
    expect_result(
        "mprotect of an unaligned address",
        memory.protect(address + 8, bytes, libc::PROT_NONE),
        Err(libc::EINVAL),
    )?;
    expect_result("mprotect of 0 bytes", memory.protect(address, 0, libc::PROT_NONE), Ok(()))?;
    expect_result("mincore of an unaligned address", memory.resident(address + 1), Err(libc::EINVAL))?;
    expect_result("mincore of a mapped page", memory.resident(address), Ok(()))?;
    expect_result("msync of a mapped page", memory.sync(address), Ok(()))
}
