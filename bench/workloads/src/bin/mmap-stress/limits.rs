//! RLIMIT_AS: memory over the limit is refused with NULL or ENOMEM, memory under it is not, and the program goes on.

#![allow(unsafe_code, reason = "setrlimit, and malloc that must answer NULL")]

use crate::{
    giant::release_all,
    memory::Request,
    model::{Origin, PAGE},
    world::{Verdict, World, answers},
};

/// Well above what this program uses (thread arenas reserve 64 MiB each), well below what is asked for.
const LIMIT: usize = 4 << 30;
const TOO_MUCH: usize = 8 << 30;
const LITTLE: usize = 64 << 20;

/// Sets the limit, asks for too much in every way and for little, and lifts it. Giants are given back first: they count, and
/// so would other threads'.
pub(crate) fn limit(world: &mut World) -> Verdict {
    let old = current()?;
    if !world.sole || old.rlim_max != libc::RLIM_INFINITY {
        return Ok(());
    }
    release_all(world)?;
    set(libc::rlimit { rlim_cur: LIMIT as u64, ..old })?;
    let verdict = under_limit(world);
    set(old)?;
    verdict?;
    if mallocs(TOO_MUCH / 2) { Ok(()) } else { Err("malloc answered NULL after the limit was lifted".into()) }
}

fn under_limit(world: &mut World) -> Verdict {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let request = Request { address: 0, bytes: TOO_MUCH, protection: libc::PROT_NONE, flags, file: None };
    answers("mmap over RLIMIT_AS", world.memory.map(request), Err(libc::ENOMEM))?;
    if mallocs(TOO_MUCH) {
        return Err("malloc over RLIMIT_AS did not answer NULL".into());
    }
    if let Some((span, range)) = world.model.pick_in_area(&mut world.random)
        && world.model.spans[span].pages[range.start].origin == Origin::Anonymous
    {
        let start = world.model.spans[span].address(range.start);
        let grown = world.memory.remap(start, range.len() * PAGE, TOO_MUCH, libc::MREMAP_MAYMOVE, 0);
        answers("mremap over RLIMIT_AS", grown, Err(libc::ENOMEM))?;
        world.check_pages(span, range)?;
    }
    if mallocs(LITTLE) { Ok(()) } else { Err("malloc under RLIMIT_AS answered NULL".into()) }
}

/// Whether malloc gives `bytes`; a byte in each half is written.
fn mallocs(bytes: usize) -> bool {
    // SAFETY: the block is used only when it is not null, within its length, and freed at once. The writes are volatile, so
    // that the pair of malloc and free is not optimised away.
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
    // SAFETY: `limit` is a place for the result.
    if unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0 {
        Ok(limit)
    } else {
        Err("getrlimit failed".into())
    }
}

fn set(limit: libc::rlimit) -> Verdict {
    // SAFETY: `limit` is a valid rlimit; lowering and lifting the soft limit touches no memory.
    if unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) } == 0 {
        Ok(())
    } else {
        Err("setrlimit failed".into())
    }
}
