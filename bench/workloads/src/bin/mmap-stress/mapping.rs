//! mmap and munmap: everywhere, fixed over what is there, never over what is there, and holes.

use crate::{
    memory::Request,
    model::{Access, Origin, PAGE, Page},
    world::{FILE_PAGES, Verdict, World, answers},
};

/// A thread keeps about so many pages.
const MOST_PAGES: usize = 8192;

/// What to map.
struct Plan {
    access: Access,
    origin: Origin,
    flags: i32,
}

impl Plan {
    fn draw(world: &mut World, pages: usize) -> Self {
        let access = [Access::None, Access::Read, Access::Write, Access::Write, Access::Write][world.random.below(5)];
        let anonymous = libc::MAP_ANONYMOUS | libc::MAP_PRIVATE;
        let (origin, flags) = match world.random.below(12) {
            0 => (Origin::Shared, libc::MAP_ANONYMOUS | libc::MAP_SHARED),
            1 if pages < FILE_PAGES => (Origin::File(world.random.below(FILE_PAGES - pages)), libc::MAP_PRIVATE),
            2 => (Origin::Anonymous, anonymous | libc::MAP_NORESERVE),
            3 => (Origin::Anonymous, anonymous | libc::MAP_POPULATE),
            4 => (Origin::Anonymous, anonymous | libc::MAP_STACK),
            _ => (Origin::Anonymous, anonymous),
        };
        Self { access, origin, flags }
    }

    fn request(&self, world: &World, address: usize, bytes: usize) -> Request {
        let file = match self.origin {
            Origin::File(index) => Some((world.file, i64::try_from(index * PAGE).unwrap_or(0))),
            _ => None,
        };
        Request { address, bytes, protection: self.access.protection(), flags: self.flags, file }
    }

    fn pages(&self, world: &mut World, count: usize) -> Vec<Page> {
        let area = world.model.area();
        let origin = |index| match self.origin {
            Origin::File(first) => Origin::File(first + index),
            other => other,
        };
        (0..count).map(|index| Page::fresh(self.access, origin(index), area)).collect()
    }
}

/// Maps where the kernel likes, with a length that need not be whole pages, sometimes with a hint.
pub(crate) fn map(world: &mut World) -> Verdict {
    if world.model.page_count() > MOST_PAGES {
        return unmap(world);
    }
    let count = world.draw_pages();
    let mut plan = Plan::draw(world, count);
    let bytes = count * PAGE - world.random.below(PAGE);
    // A hint into the middle of a span is taken, so the kernel must choose another place.
    let hint = match world.model.pick(&mut world.random) {
        Some((span, page)) if world.random.below(4) == 0 => world.model.spans[span].address(page),
        _ => 0,
    };
    let low = cfg!(target_arch = "x86_64") && hint == 0 && world.random.below(16) == 0;
    #[cfg(target_arch = "x86_64")]
    if low {
        plan.flags |= libc::MAP_32BIT;
    }
    let request = plan.request(world, hint, bytes);
    let start = world.memory.map(request).map_err(|errno| format!("{request:x?} answered {errno:?}"))?;
    world.check_fresh(start, count)?;
    if low && start + bytes > 1 << 32 {
        return Err(format!("MAP_32BIT gave {start:#x}"));
    }
    plan.flags = 0;
    let pages = plan.pages(world, count);
    let span = world.model.add(start, pages);
    world.check_pages(span, 0..count)
}

/// Maps over a part of a span; before that asks, in vain, not to replace it.
pub(crate) fn map_over(world: &mut World) -> Verdict {
    let Some((span, range)) = world.model.pick_range(&mut world.random) else { return Ok(()) };
    let plan = Plan::draw(world, range.len());
    let address = world.model.spans[span].address(range.start);
    let mut request = plan.request(world, address, range.len() * PAGE);
    request.flags |= libc::MAP_FIXED_NOREPLACE;
    answers("mmap with MAP_FIXED_NOREPLACE over a span", world.memory.map(request), Err(libc::EEXIST))?;
    request.flags = plan.flags | libc::MAP_FIXED;
    answers("mmap with MAP_FIXED", world.memory.map(request), Ok(address))?;
    let pages = plan.pages(world, range.len());
    world.model.spans[span].pages.splice(range.clone(), pages);
    world.check_pages(span, range)
}

/// Unmaps a part or all of a span; sometimes the whole of it again, hole and all; sometimes the hole is filled again.
pub(crate) fn unmap(world: &mut World) -> Verdict {
    let Some((span, mut range)) = world.model.pick_range(&mut world.random) else { return Ok(()) };
    let address = world.model.spans[span].address(range.start);
    let bytes = range.len() * PAGE - world.random.below(PAGE);
    let then = world.random.below(4);
    answers("munmap", world.memory.unmap(address, bytes), Ok(()))?;
    world.check_hole(address, range.len())?;
    if world.alone && then == 0 {
        return map_in_hole(world, span, range);
    }
    if world.alone && then == 1 {
        let whole = &world.model.spans[span];
        range = 0..whole.pages.len();
        let (start, bytes) = (whole.start, range.len() * PAGE);
        answers("munmap over a hole", world.memory.unmap(start, bytes), Ok(()))?;
        world.check_hole(start, range.len())?;
    }
    world.model.cut(span, range);
    Ok(())
}

/// Fills the hole that was just made. Nothing may have been allocated since.
fn map_in_hole(world: &mut World, span: usize, range: std::ops::Range<usize>) -> Verdict {
    let address = world.model.spans[span].address(range.start);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let plan = Plan { access: Access::Write, origin: Origin::Anonymous, flags };
    let request = plan.request(world, address, range.len() * PAGE);
    answers("mmap with MAP_FIXED_NOREPLACE into a hole", world.memory.map(request), Ok(address))?;
    let pages = plan.pages(world, range.len());
    world.model.spans[span].pages.splice(range.clone(), pages);
    world.check_pages(span, range)
}
