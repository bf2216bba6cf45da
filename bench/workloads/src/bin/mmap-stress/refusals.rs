//! Calls that must be refused, with the errno of their man page, and change nothing.

use crate::{
    memory::Request,
    model::PAGE,
    world::{Verdict, World, answers},
};

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// Makes one kind of such calls, with the addresses of a real span.
pub(crate) fn refusals(world: &mut World) -> Verdict {
    let Some((span, range)) = world.model.pick_in_area(&mut world.random) else { return Ok(()) };
    let (address, bytes) = (world.model.spans[span].address(range.start), range.len() * PAGE);
    match world.random.below(4) {
        0 => of_mmap(world, address, bytes)?,
        1 => of_mremap(world, address, bytes)?,
        2 => of_advice(world, address, bytes)?,
        _ => of_munmap_and_mprotect(world, address, bytes)?,
    }
    world.check_pages(span, range)
}

fn of_mmap(world: &World, address: usize, bytes: usize) -> Verdict {
    let base = Request { address: 0, bytes, protection: libc::PROT_READ, flags: ANONYMOUS, file: None };
    let fixed = ANONYMOUS | libc::MAP_FIXED;
    for (what, request, errno) in [
        ("mmap of nothing", Request { bytes: 0, ..base }, libc::EINVAL),
        ("mmap neither private nor shared", Request { flags: libc::MAP_ANONYMOUS, ..base }, libc::EINVAL),
        ("mmap of no file", Request { flags: libc::MAP_PRIVATE, ..base }, libc::EBADF),
        ("mmap of more than there are addresses", Request { bytes: 1 << 62, ..base }, libc::ENOMEM),
        ("mmap fixed off a page", Request { address: address + 1, flags: fixed, ..base }, libc::EINVAL),
        ("mmap fixed in the kernel", Request { address: usize::MAX << 47, flags: fixed, ..base }, libc::ENOMEM),
    ] {
        answers(what, world.memory.map(request), Err(errno))?;
    }
    Ok(())
}

fn of_mremap(world: &World, address: usize, bytes: usize) -> Verdict {
    let (may_move, fixed) = (libc::MREMAP_MAYMOVE, libc::MREMAP_FIXED);
    for (what, old, new, flags, to, errno) in [
        ("mremap off a page", address + 1, bytes, may_move, 0, libc::EINVAL),
        ("mremap to nothing", address, 0, may_move, 0, libc::EINVAL),
        ("mremap fixed without MAYMOVE", address, bytes, fixed, address, libc::EINVAL),
        ("mremap onto itself", address, bytes, may_move | fixed, address, libc::EINVAL),
        ("mremap with unknown flags", address, bytes, 1 << 20, 0, libc::EINVAL),
        ("mremap fixed off a page", address, bytes, may_move | fixed, address + 1, libc::EINVAL),
    ] {
        answers(what, world.memory.remap(old, bytes, new, flags, to), Err(errno))?;
    }
    Ok(())
}

fn of_advice(world: &World, address: usize, bytes: usize) -> Verdict {
    let advise = |address, bytes, advice| world.memory.advise(address, bytes, advice);
    answers("madvise off a page", advise(address + 1, bytes, libc::MADV_DONTNEED), Err(libc::EINVAL))?;
    answers("madvise with unknown advice", advise(address, bytes, 9999), Err(libc::EINVAL))?;
    answers("madvise of nothing", advise(address, 0, libc::MADV_DONTNEED), Ok(()))
}

fn of_munmap_and_mprotect(world: &World, address: usize, bytes: usize) -> Verdict {
    let memory = world.memory;
    answers("munmap off a page", memory.unmap(address + 8, bytes), Err(libc::EINVAL))?;
    answers("munmap of nothing", memory.unmap(address, 0), Err(libc::EINVAL))?;
    answers("munmap beyond all addresses", memory.unmap(address, 1 << 62), Err(libc::EINVAL))?;
    answers("mprotect off a page", memory.protect(address + 8, bytes, libc::PROT_NONE), Err(libc::EINVAL))?;
    answers("mprotect of nothing", memory.protect(address, 0, libc::PROT_NONE), Ok(()))?;
    answers("mincore off a page", memory.resident(address + 1), Err(libc::EINVAL))?;
    answers("mincore of a mapped page", memory.resident(address), Ok(()))?;
    answers("msync of a mapped page", memory.sync(address), Ok(()))
}
