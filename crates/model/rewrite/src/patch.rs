//! A jump at a loop's head that leads to the clone, and a copy of what it overwrites.
//!
//! ```text
//!   head  48 03 07      add rax, [rdi]        e9 cc xx cc xx   jmp clone      copy:  add rax, [rdi]
//!         ff c9         dec ecx                  │     └ an instruction began here          dec ecx
//!   +5    75 …          jne head                 └── and one here? then this byte is 0xcc   jmp head + 5
//! ```
//! A thread may stand, or come back by a trampoline, a signal or a jump that nobody knows of, at an instruction inside the five
//! bytes. So each byte at which one began is 0xcc: whoever comes there traps, and the agent sends it on to the copy. These bytes are
//! part of the jump's distance, which the clone's entry is placed by: [`Pun`].
//!
//! Written in three steps, each seen by all threads (membarrier SYNC_CORE) before the next: a trap over the first byte, the
//! other four, the first byte. Whoever traps at the head in between is sent to the copy too. Undone likewise, in reverse.
//!
//! Source: the hazards are those of Taylor, *Cachekata*, section 5.1, which therefore left the code alone and took a fault
//! for each new loop. Punned distances are known from instruction-punning instrumentation (LiteInst).

use iced_x86::{Code, Instruction, OpKind};
use serde::{Deserialize, Serialize};

use crate::assembly::Assembly;
use crate::error::{Error, RefusalReason, Result};
use crate::flow::{Flow, calls};

/// Bytes of the jump.
pub const JUMP_BYTES: u64 = 5;
const JUMP: u8 = 0xe9;
pub(crate) const TRAP: u8 = 0xcc;

/// Where an instruction has gone: the copy's address if it was overwritten, else its own.
#[must_use]
pub(crate) fn copied_address(moved: &[(u64, u64)], original: u64) -> u64 {
    moved.iter().find(|(from, _)| *from == original).map_or(original, |(_, to)| *to)
}

/// What the bytes of a jump's distance have to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pun {
    /// Where the distance counts from.
    pub after: u64,
    /// Bits of the distance that are given.
    pub mask: u32,
    /// What they are.
    pub value: u32,
}

/// Bytes that are written at once, and must be seen by all threads before the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchWrite {
    /// Where.
    pub address: u64,
    /// What.
    pub bytes: Vec<u8>,
}

/// What a patch at a loop's head overwrites.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeadPatch {
    /// The head.
    pub head: u64,
    /// The bytes that the jump takes the place of.
    pub original: [u8; 5],
    /// What the distance has to be.
    pub pun: Pun,
    /// The instructions that it overwrites, the last one perhaps in part. One that was kept somewhere has none.
    #[serde(skip)]
    overwritten: Vec<Instruction>,
}

/// A copy of the overwritten instructions, which goes on behind them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadCopy {
    /// Where it lies.
    pub at: u64,
    /// Its code.
    pub code: Vec<u8>,
    /// The original instructions, and where their copies are.
    pub moved: Vec<(u64, u64)>,
}

impl HeadCopy {
    /// Whether it has a copy of the instruction that was there.
    #[must_use]
    pub fn has(&self, original: u64) -> bool {
        self.moved.iter().any(|&(from, _)| from == original)
    }
}

impl HeadPatch {
    /// Looks at the head of a loop; `original` are the five bytes that are there.
    ///
    /// # Errors
    /// [`RefusalReason::ShortHead`] when the flow does not have the instructions there, [`RefusalReason::InnerTarget`] when a jump of the flow leads
    /// behind the first of them, [`RefusalReason::Call`] when one calls.
    pub fn new(flow: &Flow, head: u64, original: [u8; 5]) -> Result<Self> {
        let overwritten = overwritten(flow, head)?;
        let inside = (head + 1)..(head + JUMP_BYTES);
        if flow.instructions.values().filter_map(target).any(|target| inside.contains(&target)) {
            return Err(Error::refused(head, RefusalReason::InnerTarget));
        }
        if let Some(call) = overwritten.iter().find(|instruction| calls(instruction)) {
            return Err(Error::refused(call.ip(), RefusalReason::Call));
        }
        let mut pun = Pun { after: head + JUMP_BYTES, mask: 0, value: 0 };
        for instruction in overwritten.iter().skip(1) {
            let shift = 8 * (instruction.ip() - head - 1);
            pun.mask |= 0xff << shift;
            pun.value |= u32::from(TRAP) << shift;
        }
        Ok(Self { head, original, pun, overwritten })
    }

    /// The copy of what is overwritten, placed at `at`.
    ///
    /// # Errors
    /// [`RefusalReason::OutOfReach`] when what it refers to is too far from there.
    pub fn copy_at(&self, at: u64) -> Result<HeadCopy> {
        let mut code = Assembly::default();
        let mut labels = Vec::new();
        for instruction in &self.overwritten {
            labels.push((instruction.ip(), code.here()));
            code.push(*instruction);
        }
        let behind = self.overwritten.last().map_or(self.pun.after, Instruction::next_ip);
        code.jump(Code::Jmp_rel32_64, behind);
        let encoded = code.encode(at, self.head)?;
        let address = |(original, label)| Some((original, encoded.address(label)?));
        let moved = labels.into_iter().filter_map(address).collect();
        Ok(HeadCopy { at, code: encoded.bytes, moved })
    }

    /// What to write so that the head leads to `entry`.
    ///
    /// # Errors
    /// [`RefusalReason::Pun`] when the distance to `entry` does not have the bytes that it has to have, [`RefusalReason::OutOfReach`] when it is
    /// beyond 2 GiB.
    pub fn writes(&self, entry: u64) -> Result<[PatchWrite; 3]> {
        let distance = self.pun.distance(entry).ok_or_else(|| Error::refused(self.head, RefusalReason::OutOfReach))?;
        if !self.pun.allows(entry) {
            return Err(Error::refused(self.head, RefusalReason::Pun));
        }
        Ok(self.steps(JUMP, distance.to_le_bytes()))
    }

    /// What to write so that the head is as it was.
    #[must_use]
    pub fn undo(&self) -> [PatchWrite; 3] {
        let [first, rest @ ..] = self.original;
        self.steps(first, rest)
    }

    fn steps(&self, first: u8, rest: [u8; 4]) -> [PatchWrite; 3] {
        let write = |address, bytes: &[u8]| PatchWrite { address, bytes: bytes.to_vec() };
        [write(self.head, &[TRAP]), write(self.head + 1, &rest), write(self.head, &[first])]
    }
}

impl Pun {
    /// May the jump lead to `entry`?
    #[must_use]
    pub fn allows(&self, entry: u64) -> bool {
        self.distance(entry).is_some_and(|distance| distance.cast_unsigned() & self.mask == self.value)
    }

    /// The lowest address from `from` on that the jump may lead to. None where there is none in reach: try a lower one.
    #[must_use]
    pub fn entry_from(&self, from: u64) -> Option<u64> {
        let lowest = self.after.saturating_sub(1 << 31);
        let distance = i64::from(self.distance(from.max(lowest))?);
        let found = at_least(distance, i64::from(self.mask), i64::from(self.value))?;
        self.after.checked_add_signed(found)
    }

    fn distance(&self, entry: u64) -> Option<i32> {
        i32::try_from(i128::from(entry) - i128::from(self.after)).ok()
    }
}

/// The smallest number from `from` on that has the bits of `value` where `mask` has bits, and is 32 bits long.
fn at_least(from: i64, mask: i64, value: i64) -> Option<i64> {
    let mut found = from;
    loop {
        i32::try_from(found).ok()?;
        let wrong = (found ^ value) & mask;
        if wrong == 0 {
            return Some(found);
        }
        // The highest wrong bit: one to be set is set, one to be cleared carries into what is above it.
        let bit = 1_i64 << (63 - wrong.leading_zeros());
        found = if value & bit != 0 { (found | bit) & !(bit - 1) } else { (found | (2 * bit - 1)) + 1 };
    }
}

/// Where a direct jump leads.
fn target(instruction: &Instruction) -> Option<u64> {
    (instruction.op0_kind() == OpKind::NearBranch64).then(|| instruction.near_branch_target())
}

/// The instructions from the head on that have bytes among the first five.
fn overwritten(flow: &Flow, head: u64) -> Result<Vec<Instruction>> {
    let mut found: Vec<Instruction> = Vec::new();
    let mut at = head;
    while at < head + JUMP_BYTES {
        let instruction = flow.instructions.get(&at).ok_or_else(|| Error::refused(head, RefusalReason::ShortHead))?;
        found.push(*instruction);
        at = instruction.next_ip();
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
