//! Control flow around an address.
//!
//! ```text
//!   head:  …            ←──┐ 2. found by the jump
//!   ip:    add [rdi], 1    │ 1. decoding starts here
//!          cmp … jne head ─┘
//!          ret               3. the way out, up to here
//! ```
//! Algorithm: an executed address is the start of an instruction. From there, code can be decoded
//! forwards only. All direct jumps are followed, both ways if they are conditional; calls are
//! stepped over. Code before the address is found by jumps back to it.
//!
//! Limits: the target of an indirect jump is known only if it was observed ([`TakenJumps`]). Jumps
//! from other code into this flow are unknown. If two instructions overlap, one of them was decoded
//! in error (for example behind a call that does not return), and the flow is refused.
//!
//! Source: Taylor, *Cachekata*, section 5.2.2 (backwards-jump analysis; branch records for indirect
//! jumps). There forward jumps are not followed.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use crate::error::{Error, RefusalReason, Result};
use crate::memory::{CachedMemory, ReadableMemory};

/// Maximum distance from the start at which code is decoded, in bytes, both ways.
pub const WINDOW_BYTES: u64 = 4096;
/// Maximum number of decoded instructions.
pub const MAX_INSTRUCTIONS: usize = 1024;

const MAX_INSTRUCTION_BYTES: usize = 15;

/// The code around an address.
#[derive(Debug, Clone)]
pub struct Flow {
    /// The start of the analysis, which starts a block.
    pub ip: u64,
    /// All instructions, by address. No two share bytes.
    pub instructions: BTreeMap<u64, Instruction>,
    /// Blocks, by the address of their first instruction.
    pub blocks: BTreeMap<u64, BasicBlock>,
}

/// Observed indirect jumps: address and target. They need not be complete, so no code is rewritten
/// because of them.
pub type TakenJumps = BTreeSet<(u64, u64)>;

/// Consecutive instructions, entered at the first and left at the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BasicBlock {
    /// Address of the first instruction.
    pub start: u64,
    /// Address of the last instruction.
    pub last: u64,
    /// The first address behind it.
    pub end: u64,
    /// Blocks that may follow.
    pub successors: Vec<u64>,
    /// Other ways to continue.
    pub leaves: Vec<BlockExit>,
}

/// A way out of the known code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockExit {
    /// To an address that was not decoded.
    To(u64),
    /// A return.
    Return,
    /// An indirect jump.
    Indirect,
    /// An instruction that enters the kernel and does not return by itself.
    Trap,
}

impl Flow {
    /// Decodes the code around `ip`, the start of an instruction. Memory is read in whole pages.
    ///
    /// # Errors
    /// [`RefusalReason::Undecodable`] if there is no instruction at `ip`;
    /// [`RefusalReason::Overlap`] if two instructions share bytes.
    pub fn discover(memory: &dyn ReadableMemory, ip: u64) -> Result<Self> {
        Self::discover_with(memory, ip, &TakenJumps::new())
    }

    /// As [`Flow::discover`], and follows observed indirect jumps too. Each of them also keeps an
    /// unknown target.
    ///
    /// # Errors
    /// As there.
    pub fn discover_with(memory: &dyn ReadableMemory, ip: u64, taken: &TakenJumps) -> Result<Self> {
        let memory = &CachedMemory::of(memory);
        let mut reader = FlowReader { memory, ip, taken, instructions: BTreeMap::new(), leaders: BTreeSet::from([ip]) };
        reader.read_all();
        if !reader.instructions.contains_key(&ip) {
            return Err(Error::refused(ip, RefusalReason::Undecodable));
        }
        let after = reader.instructions.values().skip(1);
        if let Some((_, second)) =
            reader.instructions.values().zip(after).find(|(first, second)| first.next_ip() > second.ip())
        {
            return Err(Error::refused(second.ip(), RefusalReason::Overlap));
        }
        let blocks = reader.blocks();
        Ok(Self { ip, instructions: reader.instructions, blocks })
    }

    /// The instructions of a block, in order.
    pub fn instructions_of(&self, block: &BasicBlock) -> impl DoubleEndedIterator<Item = &Instruction> {
        self.instructions.range(block.start..block.end).map(|(_, instruction)| instruction)
    }

    /// The instructions of a block up to and including the first call.
    pub fn instructions_until_call(&self, block: &BasicBlock) -> impl Iterator<Item = &Instruction> {
        let call = self.instructions_of(block).find(|instruction| calls(instruction));
        self.instructions
            .range(block.start..call.map_or(block.end, Instruction::next_ip))
            .map(|(_, instruction)| instruction)
    }

    /// The block that contains the instruction at `ip`.
    #[must_use]
    pub fn block_at(&self, ip: u64) -> Option<&BasicBlock> {
        self.instructions.get(&ip)?;
        self.blocks.range(..=ip).next_back().map(|(_, block)| block)
    }

    /// The block that ends at `start`, if it is the only predecessor of the block there.
    pub(crate) fn sole_predecessor(&self, start: u64) -> Option<&BasicBlock> {
        let leads = |block: &&BasicBlock| block.successors.contains(&start);
        let (_, before) = self.blocks.range(..start).next_back()?;
        (leads(&before) && before.end == start && self.blocks.values().filter(leads).count() == 1).then_some(before)
    }
}

/// The instruction at `address`, if there is one.
pub(crate) fn decode(memory: &dyn ReadableMemory, address: u64) -> Option<Instruction> {
    let mut bytes = [0; MAX_INSTRUCTION_BYTES];
    let got = memory.read(address, &mut bytes);
    let instruction = Decoder::with_ip(64, &bytes[..got.min(bytes.len())], address, DecoderOptions::NONE).decode();
    (!instruction.is_invalid() && instruction.next_ip() > address).then_some(instruction)
}

/// Whether it is a call, system calls included.
pub(crate) fn calls(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// The known targets of an instruction, and its way out of the known code.
fn next(instruction: &Instruction) -> (Vec<u64>, Option<BlockExit>) {
    let after = instruction.next_ip();
    match instruction.flow_control() {
        FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => (vec![after], None),
        FlowControl::UnconditionalBranch if instruction.is_jmp_far() => (vec![], Some(BlockExit::Indirect)),
        FlowControl::UnconditionalBranch => (vec![instruction.near_branch_target()], None),
        FlowControl::ConditionalBranch => {
            let target = instruction.near_branch_target();
            (if target == after { vec![after] } else { vec![after, target] }, None)
        }
        FlowControl::IndirectBranch => (vec![], Some(BlockExit::Indirect)),
        FlowControl::Return => (vec![], Some(BlockExit::Return)),
        _ => (vec![], Some(BlockExit::Trap)),
    }
}

fn ends_block(instruction: &Instruction) -> bool {
    !matches!(instruction.flow_control(), FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall)
}

struct FlowReader<'a> {
    memory: &'a dyn ReadableMemory,
    ip: u64,
    taken: &'a TakenJumps,
    instructions: BTreeMap<u64, Instruction>,
    leaders: BTreeSet<u64>,
}

impl FlowReader<'_> {
    fn read_all(&mut self) {
        let mut open = vec![self.ip];
        while let Some(start) = open.pop() {
            let mut address = start;
            while let Some(instruction) = self.read(address) {
                let (targets, _) = self.next(&instruction);
                if ends_block(&instruction) {
                    self.leaders.extend(&targets);
                    open.extend(targets);
                    break;
                }
                address = instruction.next_ip();
            }
        }
    }

    /// As [`next`], with observed targets.
    fn next(&self, instruction: &Instruction) -> (Vec<u64>, Option<BlockExit>) {
        let (mut targets, leave) = next(instruction);
        if instruction.flow_control() == FlowControl::IndirectBranch {
            let from = instruction.ip();
            targets.extend(self.taken.range((from, 0)..=(from, u64::MAX)).map(|(_, to)| to));
        }
        (targets, leave)
    }

    /// Decodes an instruction that is new and within the window.
    fn read(&mut self, address: u64) -> Option<Instruction> {
        let known = self.instructions.contains_key(&address);
        if known || address.abs_diff(self.ip) > WINDOW_BYTES || self.instructions.len() == MAX_INSTRUCTIONS {
            return None;
        }
        let instruction = decode(self.memory, address)?;
        self.instructions.insert(address, instruction);
        Some(instruction)
    }

    fn blocks(&self) -> BTreeMap<u64, BasicBlock> {
        let mut blocks = BTreeMap::new();
        let mut start = None;
        for instruction in self.instructions.values() {
            let start_of_block = *start.get_or_insert(instruction.ip());
            let after = instruction.next_ip();
            let goes_on =
                !ends_block(instruction) && !self.leaders.contains(&after) && self.instructions.contains_key(&after);
            if !goes_on {
                blocks.insert(start_of_block, self.block(start_of_block, instruction));
                start = None;
            }
        }
        blocks
    }

    fn block(&self, start: u64, last: &Instruction) -> BasicBlock {
        let (targets, leave) = self.next(last);
        let (successors, unread): (Vec<u64>, Vec<u64>) =
            targets.into_iter().partition(|target| self.instructions.contains_key(target));
        let leaves = unread.into_iter().map(BlockExit::To).chain(leave).collect();
        BasicBlock { start, last: last.ip(), end: last.next_ip(), successors, leaves }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{BlockExit, Flow, MAX_INSTRUCTIONS, TakenJumps};
    use crate::error::RefusalReason;
    use crate::memory::MemoryImage;

    fn flow(bytes: &[u8], offset: u64) -> Result<Flow, RefusalReason> {
        let image = MemoryImage { start: 0x1000, bytes: bytes.to_vec() };
        Flow::discover(&image, 0x1000 + offset).map_err(|error| error.reason().unwrap())
    }

    /// inc eax; head: add [rdi], 1; dec ecx; jne head; ret
    const COUNTER: [u8; 11] = [0xff, 0xc0, 0x48, 0x83, 0x07, 0x01, 0xff, 0xc9, 0x75, 0xf8, 0xc3];

    #[test]
    fn a_backward_jump_reveals_the_code_before() {
        let found = flow(&COUNTER, 6).unwrap();
        assert_eq!(found.instructions.keys().copied().collect::<Vec<_>>(), [0x1002, 0x1006, 0x1008, 0x100a]);
        let blocks: Vec<_> = found.blocks.values().map(|block| (block.start, block.last, block.end)).collect();
        assert_eq!(blocks, [(0x1002, 0x1002, 0x1006), (0x1006, 0x1008, 0x100a), (0x100a, 0x100a, 0x100b)]);
        assert_eq!(found.blocks[&0x1006].successors, [0x100a, 0x1002]);
        assert_eq!(found.blocks[&0x100a].leaves, [BlockExit::Return]);
        assert_eq!(found.block_at(0x1008).unwrap().start, 0x1006);
        assert_eq!(found.block_at(0x1007), None, "inside an instruction");
    }

    #[test]
    fn calls_are_stepped_over_and_other_exits_are_recorded() {
        // call +0; jmp [rax] / call +0; jmp far away / int3 / nop and nothing
        let indirect = flow(&[0xe8, 0, 0, 0, 0, 0xff, 0x20], 0).unwrap();
        assert_eq!((indirect.blocks.len(), &indirect.blocks[&0x1000].leaves[..]), (1, &[BlockExit::Indirect][..]));
        let far = flow(&[0xe8, 0, 0, 0, 0, 0xe9, 0, 0, 1, 0], 0).unwrap();
        assert_eq!(far.blocks[&0x1000].leaves, [BlockExit::To(0x1_100a)]);
        assert_eq!(flow(&[0xcc], 0).unwrap().blocks[&0x1000].leaves, [BlockExit::Trap]);
        assert_eq!(flow(&[0x90], 0).unwrap().blocks[&0x1000].leaves, [BlockExit::To(0x1001)]);
    }

    #[test]
    fn observed_targets_of_a_switch_are_followed() {
        // head: dec ecx (2); jmp [rdi + rcx * 8] (3); one: add [rsi], 1 (4); jmp head (2); other:
        // ret
        let code = [0xff, 0xc9, 0xff, 0x24, 0xcf, 0x48, 0x83, 0x06, 0x01, 0xeb, 0xf5, 0xc3];
        let image = MemoryImage { start: 0x1000, bytes: code.to_vec() };
        let blind = Flow::discover(&image, 0x1000).unwrap();
        assert_eq!((blind.blocks.len(), blind.loops().len()), (1, 0));
        // A far target is a target, but nothing is decoded there.
        let taken = TakenJumps::from([(0x1002, 0x1005), (0x1002, 0x9_0000), (0x1005, 0x100b)]);
        let seen = Flow::discover_with(&image, 0x1000, &taken).unwrap();
        assert_eq!(seen.blocks[&0x1000].successors, [0x1005]);
        assert_eq!(seen.blocks[&0x1000].leaves, [BlockExit::To(0x9_0000), BlockExit::Indirect]);
        assert!(!seen.blocks.contains_key(&0x100b), "no jump is at 0x1005");
        let [found] = &seen.loops()[..] else { panic!("{:?}", seen.loops()) };
        assert_eq!((found.head, found.has_indirect), (0x1000, true));
        assert_eq!(found.blocks, BTreeSet::from([0x1000, 0x1005]));
    }

    #[test]
    fn undecodable_and_overlapping_code_is_refused() {
        assert_eq!(flow(&[0x06], 0).unwrap_err(), RefusalReason::Undecodable);
        assert_eq!(flow(&COUNTER, 100).unwrap_err(), RefusalReason::Undecodable, "nothing there");
        // jne into the immediate of mov eax, imm32
        let overlapping = [0x75, 0x01, 0xb8, 0x90, 0x90, 0x90, 0x90, 0xc3];
        assert_eq!(flow(&overlapping, 0).unwrap_err(), RefusalReason::Overlap);
    }

    #[test]
    fn a_flow_is_limited() {
        let found = flow(&[0x90; 10_000], 5_000).unwrap();
        assert_eq!(found.instructions.len(), MAX_INSTRUCTIONS);
        let block = &found.blocks[&found.ip];
        assert_eq!(block.leaves, [BlockExit::To(found.ip + 1024)]);
    }
}
