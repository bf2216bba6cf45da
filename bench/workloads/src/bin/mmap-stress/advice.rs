//! madvise: what drops contents, what only advises, what fork makes of it.

use crate::{
    contents::random_bytes,
    model::{Access, Origin, PAGE},
    world::{Verdict, World, answers},
};

/// MADV_DONTNEED: private memory goes back to zeros or to its file, shared memory stays.
pub(crate) fn discard(world: &mut World) -> Verdict {
    let Some((span, range)) = world.model.pick_range(&mut world.random) else { return Ok(()) };
    let address = world.model.spans[span].address(range.start);
    let answer = world.memory.advise(address, range.len() * PAGE, libc::MADV_DONTNEED);
    answers("MADV_DONTNEED", answer, Ok(()))?;
    let pages = &mut world.model.spans[span].pages[range.clone()];
    pages.iter_mut().filter(|page| page.origin != Origin::Shared).for_each(|page| page.bytes = None);
    world.check_pages(span, range)
}

/// MADV_FREE: the kernel may drop contents whenever it likes, until they are written again, as they are at once.
pub(crate) fn free(world: &mut World) -> Verdict {
    let Some((span, page)) = world.model.pick(&mut world.random) else { return Ok(()) };
    let address = world.model.spans[span].address(page);
    let first = &world.model.spans[span].pages[page];
    if first.origin != Origin::Anonymous {
        let refused = if matches!(first.origin, Origin::Shared | Origin::File(_)) { Err(libc::EINVAL) } else { Ok(()) };
        return answers("MADV_FREE", world.memory.advise(address, PAGE, libc::MADV_FREE), refused);
    }
    if first.access != Access::Write {
        return Ok(());
    }
    let bytes_of = |page: &crate::model::Page| page.origin == Origin::Anonymous && page.access == Access::Write;
    let range = world.model.spans[span].run(page, bytes_of);
    let count = range.len().min(64);
    let address = world.model.spans[span].address(range.start);
    answers("MADV_FREE", world.memory.advise(address, count * PAGE, libc::MADV_FREE), Ok(()))?;
    let bytes = random_bytes(world, count * PAGE);
    world.write(span, range.start, 0, &bytes);
    world.check_pages(span, range)
}

/// Advice that must be taken, and changes nothing that can be seen.
const HARMLESS: [i32; 6] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_COLD,
    libc::MADV_DONTDUMP,
    libc::MADV_DODUMP,
];

/// Advice that a kernel may not know or a range may not bear (EINVAL, ENOMEM, EAGAIN, EFAULT, EBADF).
const IF_POSSIBLE: [i32; 7] = [
    libc::MADV_WILLNEED,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_PAGEOUT,
    libc::MADV_POPULATE_READ,
    libc::MADV_POPULATE_WRITE,
    libc::MADV_COLLAPSE,
];

/// Advises; contents and protection stay.
pub(crate) fn advise(world: &mut World) -> Verdict {
    let Some((span, range)) = world.model.pick_range(&mut world.random) else { return Ok(()) };
    let (address, bytes) = (world.model.spans[span].address(range.start), range.len() * PAGE);
    let which = world.random.below(HARMLESS.len() + IF_POSSIBLE.len());
    match HARMLESS.get(which) {
        Some(&advice) => answers(&format!("madvise({advice})"), world.memory.advise(address, bytes, advice), Ok(()))?,
        None => {
            let advice = IF_POSSIBLE[which - HARMLESS.len()];
            let allowed = [libc::EINVAL, libc::ENOMEM, libc::EAGAIN, libc::EFAULT, libc::EBADF, libc::EBUSY];
            if let Err(errno) = world.memory.advise(address, bytes, advice)
                && !allowed.contains(&errno.0)
            {
                return Err(format!("madvise({advice}) answered {errno:?}"));
            }
        }
    }
    world.model.split_areas(span, range.clone());
    world.check_pages(span, range)
}

/// Says what fork shall make of a range: zeros (private anonymous memory only), nothing, or a copy.
pub(crate) fn advise_fork(world: &mut World) -> Verdict {
    let Some((span, range)) = world.model.pick_in_area(&mut world.random) else { return Ok(()) };
    let (address, bytes) = (world.model.spans[span].address(range.start), range.len() * PAGE);
    let advice =
        [libc::MADV_DONTFORK, libc::MADV_DOFORK, libc::MADV_WIPEONFORK, libc::MADV_KEEPONFORK][world.random.below(4)];
    let anonymous = world.model.spans[span].pages[range.start].origin == Origin::Anonymous;
    let possible = advice != libc::MADV_WIPEONFORK || anonymous;
    let expected = if possible { Ok(()) } else { Err(libc::EINVAL) };
    answers(&format!("madvise({advice})"), world.memory.advise(address, bytes, advice), expected)?;
    if possible {
        for page in &mut world.model.spans[span].pages[range.clone()] {
            match advice {
                libc::MADV_DONTFORK | libc::MADV_DOFORK => page.dropped = advice == libc::MADV_DONTFORK,
                _ => page.wiped = advice == libc::MADV_WIPEONFORK,
            }
        }
    }
    world.model.split_areas(span, range);
    Ok(())
}
