//! mprotect, over any part of a span, areas or not.

use crate::{
    model::{Access, PAGE},
    world::{Verdict, World, answers},
};

/// Changes what a range allows; its contents stay.
pub(crate) fn protect(world: &mut World) -> Verdict {
    let Some((span, range)) = world.model.pick_range(&mut world.random) else { return Ok(()) };
    let access = [Access::None, Access::Read, Access::Write, Access::Write][world.random.below(4)];
    let address = world.model.spans[span].address(range.start);
    let bytes = range.len() * PAGE - world.random.below(PAGE);
    answers("mprotect", world.memory.protect(address, bytes, access.protection()), Ok(()))?;
    world.model.spans[span].pages[range.clone()].iter_mut().for_each(|page| page.access = access);
    world.model.split_areas(span, range.clone());
    world.check_pages(span, range)
}
