//! mremap: grow, shrink, move to a place, move and keep the old range. Always within one mapping of the kernel, as it must be.

use crate::{
    memory::Request,
    model::{Access, Origin, PAGE, Page},
    world::{Verdict, World, answers},
};
use std::ops::Range;

/// Grows a range, in place or, when allowed, elsewhere.
pub(crate) fn grow(world: &mut World) -> Verdict {
    let Some((span, range)) = anonymous_range(world) else { return Ok(()) };
    let may_move = world.random.below(3) > 0;
    let more = world.draw_pages();
    let flags = if may_move { libc::MREMAP_MAYMOVE } else { 0 };
    let (old, count) = (world.model.spans[span].address(range.start), range.len() + more);
    match world.memory.remap(old, range.len() * PAGE, count * PAGE, flags, 0) {
        Err(errno) if errno.0 == libc::ENOMEM && !may_move => world.check_pages(span, range),
        Err(errno) => Err(format!("mremap of {} pages at {old:#x} to {count} answered {errno:?}", range.len())),
        Ok(new) if new == old => grown_in_place(world, span, range, more),
        Ok(new) if may_move => {
            world.check_hole(old, range.len())?;
            moved(world, span, range, new, count)
        }
        Ok(new) => Err(format!("mremap moved {old:#x} to {new:#x} without MREMAP_MAYMOVE")),
    }
}

fn grown_in_place(world: &mut World, span: usize, range: Range<usize>, more: usize) -> Verdict {
    let end = world.model.spans[span].address(range.end);
    world.check_fresh(end, more)?;
    let pages = &mut world.model.spans[span].pages;
    let added = pages[range.end - 1].grown();
    pages.extend(std::iter::repeat_n(added, more));
    world.check_pages(span, range.start..range.end + more)
}

/// Books a move: `range` is now at `new`, `count` pages long.
fn moved(world: &mut World, span: usize, range: Range<usize>, new: usize, count: usize) -> Verdict {
    let mut pages = world.model.cut(span, range);
    resize(&mut pages, count);
    world.check_fresh(new, count)?;
    let span = world.model.add(new, pages);
    world.check_pages(span, 0..count)
}

fn resize(pages: &mut Vec<Page>, count: usize) {
    let added = pages[pages.len() - 1].grown();
    pages.resize(count, added);
}

/// Gives back the end of a range.
pub(crate) fn shrink(world: &mut World) -> Verdict {
    let Some((span, range)) = world.model.pick_in_area(&mut world.random) else { return Ok(()) };
    let kept = 1 + world.random.below(range.len());
    let start = world.model.spans[span].address(range.start);
    let flags = [0, libc::MREMAP_MAYMOVE][world.random.below(2)];
    answers("mremap to less", world.memory.remap(start, range.len() * PAGE, kept * PAGE, flags, 0), Ok(start))?;
    if kept < range.len() {
        world.check_hole(start + kept * PAGE, range.len() - kept)?;
        world.model.cut(span, range.start + kept..range.end);
    }
    Ok(())
}

/// Moves a range to a place of our choice: reserved for it, or in the middle of another span.
pub(crate) fn move_to(world: &mut World) -> Verdict {
    let Some((span, range)) = world.model.pick_in_area(&mut world.random) else { return Ok(()) };
    let old = world.model.spans[span].address(range.start);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    if let Some((onto, place)) = world.model.pick(&mut world.random) {
        let target = &world.model.spans[onto];
        if onto != span && place + range.len() <= target.pages.len() {
            let to = target.address(place);
            let bytes = range.len() * PAGE;
            answers("mremap onto a span", world.memory.remap(old, bytes, bytes, flags, to), Ok(to))?;
            world.check_hole(old, range.len())?;
            return moved_onto(world, (span, range), onto, place);
        }
    }
    let anonymous = world.model.spans[span].pages[range.start].origin == Origin::Anonymous;
    let most = if anonymous { range.len() + 40 } else { range.len() };
    let count = 1 + world.random.below(most);
    let to = reserve(world, count)?;
    answers("mremap to a place", world.memory.remap(old, range.len() * PAGE, count * PAGE, flags, to), Ok(to))?;
    world.check_hole(old, range.len())?;
    moved(world, span, range, to, count)
}

fn moved_onto(world: &mut World, from: (usize, Range<usize>), onto: usize, place: usize) -> Verdict {
    let (span, range) = from;
    let target = world.model.spans[onto].address(place);
    let pages = world.model.cut(span, range);
    let holds = |span: &crate::model::Span| span.start <= target && target < span.address(span.pages.len());
    // The cut may have moved the target in the list.
    let Some(onto) = world.model.spans.iter().position(holds) else { return Err("the target is not there".into()) };
    let covered = place..place + pages.len();
    world.model.spans[onto].pages.splice(covered.clone(), pages);
    // Pages of the same area may lie beside them now, in another mapping of the kernel.
    world.model.split_areas(onto, covered.clone());
    world.check_pages(onto, covered)
}

/// Moves the pages away and keeps the old range, which is then as fresh.
pub(crate) fn move_and_keep(world: &mut World) -> Verdict {
    let Some((span, range)) = anonymous_range(world) else { return Ok(()) };
    let bytes = range.len() * PAGE;
    let old = world.model.spans[span].address(range.start);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_DONTUNMAP;
    let new = world.memory.remap(old, bytes, bytes, flags, 0);
    let new = new.map_err(|errno| format!("mremap with MREMAP_DONTUNMAP answered {errno:?}"))?;
    world.check_fresh(new, range.len())?;
    let kept = &mut world.model.spans[span].pages[range.clone()];
    let taken: Vec<Page> = kept
        .iter_mut()
        .map(|page| {
            let fresh = page.grown();
            std::mem::replace(page, fresh)
        })
        .collect();
    world.model.split_areas(span, range.clone());
    world.check_pages(span, range)?;
    let count = taken.len();
    let span = world.model.add(new, taken);
    world.check_pages(span, 0..count)
}

/// A range of private anonymous memory within one area: only that can grow, or be kept.
fn anonymous_range(world: &mut World) -> Option<(usize, Range<usize>)> {
    let (span, range) = world.model.pick_in_area(&mut world.random)?;
    (world.model.spans[span].pages[range.start].origin == Origin::Anonymous).then_some((span, range))
}

/// A reservation for `count` pages, outside the model: it is replaced at once.
fn reserve(world: &World, count: usize) -> Result<usize, String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = Access::None.protection();
    let request = Request { address: 0, bytes: count * PAGE, protection, flags, file: None };
    let address = world.memory.map(request).map_err(|errno| format!("a reservation answered {errno:?}"))?;
    world.check_fresh(address, count).map(|()| address)
}
