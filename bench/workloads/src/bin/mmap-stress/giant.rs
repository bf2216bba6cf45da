//! Reservations far bigger than the machine, as garbage collectors and language runtimes make them: MAP_NORESERVE, touched or
//! committed here and there, given back in parts.

use crate::{
    memory::{Memory, Request},
    model::{Access, Origin, PAGE, Page},
    probe::{Touch, bears},
    world::{Verdict, World, answers, check_page},
};
use std::{collections::BTreeMap, ops::Range};

/// One reservation.
#[derive(Debug)]
pub(crate) struct Giant {
    start: usize,
    bytes: usize,
    /// What the pages allow that are not committed.
    access: Access,
    committed: BTreeMap<usize, Page>,
}

const MOST: usize = 2;

impl Giant {
    /// The addresses that it takes.
    pub(crate) const fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes
    }

    /// Checks the pages that were committed, and one beside each.
    pub(crate) fn check(&self, memory: Memory) -> Verdict {
        self.committed.iter().try_for_each(|(address, page)| check_page(memory, *address, page))?;
        let neighbours = self.committed.keys().map(|address| address + PAGE);
        let plain = Page::fresh(self.access, Origin::Anonymous, 0);
        neighbours
            .filter(|address| self.range().contains(address) && !self.committed.contains_key(address))
            .try_for_each(|address| check_page(memory, address, &plain))
    }

    /// Forgets the pages of `range`.
    fn forget(&mut self, range: &Range<usize>) {
        self.committed.retain(|address, _| !range.contains(address));
    }
}

/// Makes a giant, or uses one.
pub(crate) fn giant(world: &mut World) -> Verdict {
    if world.giants.len() < MOST && world.random.below(3) == 0 {
        return reserve(world);
    }
    if world.giants.is_empty() {
        return Ok(());
    }
    let index = world.random.below(world.giants.len());
    let middle = world.giants[index].bytes / 2 / PAGE * PAGE;
    match world.random.below(16) {
        0 => release(world, index, 0),
        1 if middle > 0 => release(world, index, middle),
        2..=4 => discard(world, index),
        _ => commit(world, index),
    }
}

fn reserve(world: &mut World) -> Verdict {
    // With overcommit forbidden NORESERVE is ignored, and writable giants are refused.
    let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2");
    let access = if strict || world.random.below(2) == 0 { Access::None } else { Access::Write };
    let bytes = (1 << 34) + world.random.below(1 << 38) / PAGE * PAGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let request = Request { address: 0, bytes, protection: access.protection(), flags, file: None };
    let start = world.memory.map(request).map_err(|errno| format!("{request:x?} answered {errno:?}"))?;
    world.check_fresh(start, bytes / PAGE)?;
    world.giants.push(Giant { start, bytes, access, committed: BTreeMap::new() });
    Ok(())
}

/// Writes to a random page, made writable first where it has to be.
fn commit(world: &mut World, index: usize) -> Verdict {
    let giant = &mut world.giants[index];
    let address = giant.start + world.random.below(giant.bytes / PAGE) * PAGE;
    if giant.access == Access::None {
        let answer = world.memory.protect(address, PAGE, Access::Write.protection());
        answers("mprotect in a giant", answer, Ok(()))?;
    }
    let page = giant.committed.entry(address).or_insert(Page::fresh(Access::Write, Origin::Anonymous, 0));
    check_page(world.memory, address, page)?;
    let word = world.random.draw().to_le_bytes();
    let at = world.random.below(PAGE - word.len());
    world.memory.write(address + at, &word);
    page.write(at, &word);
    giant.check(world.memory)
}

/// Drops the contents of a gigabyte around a committed page. What it allows stays.
fn discard(world: &mut World, index: usize) -> Verdict {
    let giant = &mut world.giants[index];
    let nth = world.random.below(giant.committed.len());
    let Some(&address) = giant.committed.keys().nth(nth) else { return Ok(()) };
    let start = giant.start.max(address.saturating_sub(1 << 29));
    let range = start..(start + (1 << 30)).min(giant.range().end);
    let answer = world.memory.advise(range.start, range.len(), libc::MADV_DONTNEED);
    answers("MADV_DONTNEED in a giant", answer, Ok(()))?;
    giant.committed.range_mut(range).for_each(|(_, page)| page.bytes = None);
    giant.check(world.memory)
}

/// Unmaps from byte `kept` to the end.
fn release(world: &mut World, index: usize, kept: usize) -> Verdict {
    let giant = &mut world.giants[index];
    let range = giant.start + kept..giant.range().end;
    answers("munmap of a giant", world.memory.unmap(range.start, range.len()), Ok(()))?;
    if world.alone && bears(range.start, Touch::Read) {
        return Err(format!("the unmapped giant can be read at {:#x}", range.start));
    }
    giant.bytes = kept;
    giant.forget(&range);
    if kept == 0 {
        world.giants.swap_remove(index);
    }
    Ok(())
}

/// Unmaps all giants.
pub(crate) fn release_all(world: &mut World) -> Verdict {
    (0..world.giants.len()).rev().try_for_each(|index| release(world, index, 0))
}
