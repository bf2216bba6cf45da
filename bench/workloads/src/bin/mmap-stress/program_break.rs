//! sbrk, in a process whose malloc uses sbrk too. Each step lowers the break again before malloc
//! can take memory above it, or keeps the memory for the rest of the run.

use crate::{
    memory::MemoryCalls,
    model::PAGE,
    probe::{ProbeKind, is_accessible},
    test_thread::{CheckResult, TestThread, expect_result},
};
use fieldstone_workloads::random::mix;
use std::ops::Range;

/// Memory between two breaks that this test keeps; word i holds a mix of its address.
#[derive(Debug)]
pub(crate) struct KeptBreak {
    start: usize,
    bytes: usize,
}

const MAX_KEPT: usize = 16;

impl KeptBreak {
    /// The address range.
    pub(crate) const fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes
    }

    fn words(&self) -> impl Iterator<Item = usize> {
        (self.start.next_multiple_of(8)..self.start + self.bytes - 7).step_by(8)
    }

    fn write(&self, memory: MemoryCalls) {
        self.words().for_each(|address| memory.write(address, &mix(address as u64).to_le_bytes()));
    }

    /// Checks every word.
    pub(crate) fn check(&self, memory: MemoryCalls) -> CheckResult {
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

/// Raises the break, writes, lowers it again; all twice, since the memory must be zero the second
/// time too. Or keeps the memory.
pub(crate) fn sbrk(test: &mut TestThread) -> CheckResult {
    let memory = test.memory;
    let bytes = (1 + test.random.below(80)) * PAGE - test.random.below(64) * 8;
    let keep = test.breaks.len() < MAX_KEPT && test.random.below(4) == 0;
    let start = memory.sbrk(0).map_err(|errno| format!("sbrk(0) answered {errno:?}"))?;
    let delta = isize::try_from(bytes).unwrap_or(0);
    for _ in 0..2 {
        expect_result("sbrk, raising", memory.sbrk(delta), Ok(start))?;
        expect_result("sbrk(0)", memory.sbrk(0), Ok(start + bytes))?;
        let piece = KeptBreak { start, bytes };
        check_zero(memory, &piece)?;
        piece.write(memory);
        piece.check(memory)?;
        if keep {
            test.check_free(start, bytes)?;
            test.breaks.push(piece);
            return Ok(());
        }
        expect_result("sbrk, lowering", memory.sbrk(-delta), Ok(start + bytes))?;
        let first = start.next_multiple_of(PAGE);
        if first < start + bytes && is_accessible(first, ProbeKind::Read) {
            return Err(format!("{first:#x} can be read above the lowered break"));
        }
    }
    Ok(())
}

/// Whole pages above the old break are fresh. The page that contains the break may have been used
/// before.
fn check_zero(memory: MemoryCalls, piece: &KeptBreak) -> CheckResult {
    for page in (piece.start.next_multiple_of(PAGE)..piece.range().end).step_by(PAGE) {
        if memory.read(page) != [0; PAGE] {
            return Err(format!("the page {page:#x}, fresh from sbrk, is not zero"));
        }
    }
    Ok(())
}
