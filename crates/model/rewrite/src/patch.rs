//! The jump at a loop's head to the clone, and a copy of the overwritten instructions.
//!
//! ```text
//!   head  48 03 07      add rax, [rdi]        e9 cc xx cc xx   jmp clone      copy:  add rax, [rdi]
//!         ff c9         dec ecx                  │     └ an instruction begins here          dec ecx
//!   +5    75 …          jne head                 └── and one here? then this byte is 0xcc   jmp head + 5
//! ```
//! A thread may be at an instruction inside of the five bytes, or return there by a rewritelet, a
//! signal or an unknown jump. So each byte at which an instruction begins is 0xcc, a trap. A thread
//! that traps there is moved to the copy. These bytes are part of the jump's displacement. The
//! address of the clone is chosen accordingly ([`Pun`]).
//!
//! Algorithm: three writes, each visible to all threads (membarrier SYNC_CORE) before the next.
//! First a trap over the first byte, then the other four bytes, then the first byte. A thread that
//! traps at the head meanwhile is moved to the copy too. The patch is removed by the same three
//! writes of the original bytes.
//!
//! Source: the hazards are those of Taylor, *Cachekata*, section 5.1. There the code is not
//! patched, and each new loop takes a fault. Punned displacements are from instruction-punning
//! instrumentation (LiteInst).

use iced_x86::{Code, Instruction, OpKind};
use serde::{Deserialize, Serialize};

use crate::assembly::Assembly;
use crate::error::{Error, RefusalReason, Result};
use crate::flow::{Flow, calls};

/// Size of the jump.
pub const JUMP_BYTES: u64 = 5;
const JUMP: u8 = 0xe9;
pub(crate) const TRAP: u8 = 0xcc;

/// The address of an instruction's copy if it was overwritten, else its own address.
#[must_use]
pub(crate) fn copied_address(moved: &[(u64, u64)], original: u64) -> u64 {
    moved.iter().find(|(from, _)| *from == original).map_or(original, |(_, to)| *to)
}

/// Condition on the bytes of a jump's displacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pun {
    /// The address from which the displacement counts.
    pub after: u64,
    /// Bits of the displacement with required values.
    pub mask: u32,
    /// Their values.
    pub value: u32,
}

/// Bytes that are written at once. All threads must see them before the next write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchWrite {
    /// The address.
    pub address: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The bytes and instructions that a patch at a loop's head overwrites.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeadPatch {
    /// Address of the head.
    pub head: u64,
    /// The overwritten bytes.
    pub original: [u8; 5],
    /// Condition on the jump's displacement.
    pub pun: Pun,
    /// The overwritten instructions, the last one perhaps in part. Empty after deserialization.
    #[serde(skip)]
    overwritten: Vec<Instruction>,
}

/// A copy of the overwritten instructions. It continues behind them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeadCopy {
    /// Its address.
    pub at: u64,
    /// Its code.
    pub code: Vec<u8>,
    /// The original instructions, with the addresses of their copies.
    pub moved: Vec<(u64, u64)>,
}

impl HeadCopy {
    /// Whether it has a copy of the instruction at `original`.
    #[must_use]
    pub fn has(&self, original: u64) -> bool {
        self.moved.iter().any(|&(from, _)| from == original)
    }
}

impl HeadPatch {
    /// Prepares the patch of a head with the five bytes `original`.
    ///
    /// # Errors
    /// [`RefusalReason::ShortHead`] if the flow lacks instructions there,
    /// [`RefusalReason::InnerTarget`] if a jump of the flow leads behind the first of them,
    /// [`RefusalReason::Call`] if one is a call.
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

    /// The copy of the overwritten instructions, for address `at`.
    ///
    /// # Errors
    /// [`RefusalReason::OutOfReach`] if a referenced address is out of reach from there.
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

    /// The writes that make the head jump to `entry`.
    ///
    /// # Errors
    /// [`RefusalReason::Pun`] if the displacement to `entry` does not meet the condition,
    /// [`RefusalReason::OutOfReach`] if it is beyond 2 GiB.
    pub fn writes(&self, entry: u64) -> Result<[PatchWrite; 3]> {
        let distance = self.pun.distance(entry).ok_or_else(|| Error::refused(self.head, RefusalReason::OutOfReach))?;
        if !self.pun.allows(entry) {
            return Err(Error::refused(self.head, RefusalReason::Pun));
        }
        Ok(self.steps(JUMP, distance.to_le_bytes()))
    }

    /// The writes that restore the head.
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
    /// Whether the jump may lead to `entry`.
    #[must_use]
    pub fn allows(&self, entry: u64) -> bool {
        self.distance(entry).is_some_and(|distance| distance.cast_unsigned() & self.mask == self.value)
    }

    /// The lowest permitted target from `from` on. `None` if there is none in reach; a lower `from`
    /// may have one.
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

/// The smallest 32-bit number from `from` on that equals `value` in the bits of `mask`.
fn at_least(from: i64, mask: i64, value: i64) -> Option<i64> {
    let mut found = from;
    loop {
        i32::try_from(found).ok()?;
        let wrong = (found ^ value) & mask;
        if wrong == 0 {
            return Some(found);
        }
        // The highest wrong bit is set, or cleared by a carry into the bits above.
        let bit = 1_i64 << (63 - wrong.leading_zeros());
        found = if value & bit != 0 { (found | bit) & !(bit - 1) } else { (found | (2 * bit - 1)) + 1 };
    }
}

/// The target of a direct jump.
fn target(instruction: &Instruction) -> Option<u64> {
    (instruction.op0_kind() == OpKind::NearBranch64).then(|| instruction.near_branch_target())
}

/// The instructions that have bytes among the first five of the head.
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
