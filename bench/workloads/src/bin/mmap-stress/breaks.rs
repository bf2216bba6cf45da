//! sbrk, beside a malloc that uses it too. What is taken is given back before malloc can take more above it, or kept for ever.

use crate::{
    memory::Memory,
    model::PAGE,
    probe::{Touch, bears},
    world::{Verdict, World, answers},
};
use fieldstone_workloads::random::mix;
use std::ops::Range;

/// Bytes between two breaks that stay ours; word i holds a mix of its address.
#[derive(Debug)]
pub(crate) struct Break {
    start: usize,
    bytes: usize,
}

const MOST_KEPT: usize = 16;

impl Break {
    /// The addresses that it takes.
    pub(crate) const fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes
    }

    fn words(&self) -> impl Iterator<Item = usize> {
        (self.start.next_multiple_of(8)..self.start + self.bytes - 7).step_by(8)
    }

    fn write(&self, memory: Memory) {
        self.words().for_each(|address| memory.write(address, &mix(address as u64).to_le_bytes()));
    }

    /// Checks every word.
    pub(crate) fn check(&self, memory: Memory) -> Verdict {
        for page in (self.start / PAGE * PAGE..self.start + self.bytes).step_by(PAGE) {
            let found = memory.read(page);
            for address in self.words().skip_while(|a| *a < page).take_while(|a| *a < page + PAGE) {
                if found[address - page..address - page + 8] != mix(address as u64).to_le_bytes() {
                    return Err(format!("the word at {address:#x}, from sbrk, has changed"));
                }
            }
        }
        Ok(())
    }
}

/// Raises the break, writes, lowers it again: twice, and the second time the memory must be fresh. Or keeps it.
pub(crate) fn sbrk(world: &mut World) -> Verdict {
    let memory = world.memory;
    let bytes = (1 + world.random.below(80)) * PAGE - world.random.below(64) * 8;
    let keep = world.breaks.len() < MOST_KEPT && world.random.below(4) == 0;
    let start = memory.sbrk(0).map_err(|errno| format!("sbrk(0) answered {errno:?}"))?;
    let delta = isize::try_from(bytes).unwrap_or(0);
    for _ in 0..2 {
        answers("sbrk, raising", memory.sbrk(delta), Ok(start))?;
        answers("sbrk(0)", memory.sbrk(0), Ok(start + bytes))?;
        let piece = Break { start, bytes };
        check_zero(memory, &piece)?;
        piece.write(memory);
        piece.check(memory)?;
        if keep {
            world.check_free(start, bytes)?;
            world.breaks.push(piece);
            return Ok(());
        }
        answers("sbrk, lowering", memory.sbrk(-delta), Ok(start + bytes))?;
        let first = start.next_multiple_of(PAGE);
        if first < start + bytes && bears(first, Touch::Read) {
            return Err(format!("{first:#x} can be read above the lowered break"));
        }
    }
    Ok(())
}

/// Whole pages above the old break are fresh; the one that it lies in may have been used before.
fn check_zero(memory: Memory, piece: &Break) -> Verdict {
    for page in (piece.start.next_multiple_of(PAGE)..piece.range().end).step_by(PAGE) {
        if memory.read(page) != [0; PAGE] {
            return Err(format!("the page {page:#x}, fresh from sbrk, is not zero"));
        }
    }
    Ok(())
}
