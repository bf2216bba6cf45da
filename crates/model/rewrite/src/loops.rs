//! The loops around a flow's start, the innermost first.
//!
//! ```text
//!   head  ┌→ …                     a back edge to the head closes a loop. The loop has the blocks
//!         │  jz skip ─────┐        between the two that are reached from the head and that reach
//!         │  add [rdi], 1 │        the back edge without passing the head again
//!   skip  │  … ←──────────┘
//!         └─ jne head
//! ```
//! Algorithm: back edges, with blocks between head and tail only. Compilers move rare code out of
//! line; without that limit, an outer loop that enters an inner one at its condition would become
//! part of it. Two loops are merged if they share one head, each has a path of its own to it, and
//! neither has a call. An example is an `if` whose `else` precedes the head.
//!
//! Limit: the flow contains only code reachable from its start, so a head need not dominate its
//! loop. [`Loop::side_entries`] has the blocks with known other entries. A clone does not rely on
//! its head: it is checked at each entry.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::Instruction;

use crate::flow::{BasicBlock, BlockExit, Flow, calls};

/// A loop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loop {
    /// Target of the back edges.
    pub head: u64,
    /// Its blocks, by their first addresses.
    pub blocks: BTreeSet<u64>,
    /// The ways out.
    pub exits: Vec<LoopExit>,
    /// Blocks other than the head that are entered from outside.
    pub side_entries: Vec<u64>,
    /// Whether it has a call.
    pub has_call: bool,
    /// Whether a way out ends in an indirect jump, such as a switch, which may lead back in.
    pub has_indirect: bool,
}

/// A way out of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LoopExit {
    /// Address of the last instruction in the loop.
    pub from: u64,
    /// Where it continues.
    pub to: BlockExit,
}

impl Flow {
    /// The loops around the flow's start, the smallest first.
    #[must_use]
    pub fn loops(&self) -> Vec<Loop> {
        let mut bodies = self.bodies();
        bodies.retain(|(_, blocks)| blocks.contains(&self.ip));
        bodies.into_iter().map(|(head, blocks)| self.describe(head, blocks)).collect()
    }

    /// The blocks of a loop that are in no inner loop.
    #[must_use]
    pub fn own_blocks(&self, within: &Loop) -> BTreeSet<u64> {
        let smaller = self.bodies().into_iter().map(|(_, blocks)| blocks).take_while(|blocks| *blocks != within.blocks);
        smaller.fold(within.blocks.clone(), |own, blocks| own.difference(&blocks).copied().collect())
    }

    /// All loops by head and blocks, the smallest first.
    fn bodies(&self) -> Vec<(u64, BTreeSet<u64>)> {
        let mut bodies: Vec<(u64, BTreeSet<u64>)> = Vec::new();
        let before = self.predecessors();
        for (tail, head) in self.back_edges() {
            let body = self.body(&before, tail, head);
            match bodies.iter_mut().find(|(other, _)| *other == head) {
                _ if !body.contains(&tail) => {}
                Some((_, blocks)) => blocks.extend(body),
                None => bodies.push((head, body)),
            }
        }
        self.join(&mut bodies);
        bodies.sort_by_cached_key(|(head, blocks)| (self.size(blocks), *head));
        bodies
    }

    /// The first block of the flow, up to the next jump, as a loop of one iteration.
    #[must_use]
    pub fn stretch(&self) -> Loop {
        self.describe(self.ip, BTreeSet::from([self.ip]))
    }

    /// The instructions of a loop, by address.
    pub fn instructions_in<'a>(&'a self, within: &'a Loop) -> impl Iterator<Item = &'a Instruction> {
        within.blocks.iter().flat_map(move |start| self.instructions_of(&self.blocks[start]))
    }

    /// The instructions of a loop that follow no call in their block.
    pub fn copied_instructions<'a>(&'a self, within: &'a Loop) -> impl Iterator<Item = &'a Instruction> {
        within.blocks.iter().flat_map(move |start| self.instructions_until_call(&self.blocks[start]))
    }

    /// The blocks that an iteration may skip: there is a path from the head back to it without
    /// them.
    #[must_use]
    pub fn optional_blocks(&self, within: &Loop) -> Vec<&BasicBlock> {
        let head = within.head;
        let is_optional = |block: &&BasicBlock| {
            let inside = |next: &u64| within.blocks.contains(next) && *next != head && *next != block.start;
            let reached = reachable(head, |at| self.blocks[&at].successors.iter().copied().filter(inside).collect());
            block.start != head && reached.iter().any(|at| self.blocks[at].successors.contains(&head))
        };
        within.blocks.iter().filter_map(|start| self.blocks.get(start)).filter(is_optional).collect()
    }

    /// Back edges: blocks that end in a jump to themselves or to an earlier block, with the target.
    fn back_edges(&self) -> Vec<(u64, u64)> {
        let mut back = Vec::new();
        for block in self.blocks.values() {
            back.extend(block.successors.iter().filter(|to| **to <= block.last).map(|to| (block.start, *to)));
        }
        back
    }

    /// The predecessors of each block.
    fn predecessors(&self) -> BTreeMap<u64, Vec<u64>> {
        let mut before: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for block in self.blocks.values() {
            block.successors.iter().for_each(|&next| before.entry(next).or_default().push(block.start));
        }
        before
    }

    /// Blocks between `head` and `tail` on a path from one to the other.
    fn body(&self, before: &BTreeMap<u64, Vec<u64>>, tail: u64, head: u64) -> BTreeSet<u64> {
        let between = |start: u64| (head..=tail).contains(&start);
        let forward = reachable(head, |block| {
            self.blocks[&block].successors.iter().copied().filter(|next| between(*next)).collect()
        });
        let backward = reachable(tail, |block| {
            let leading = before.get(&block).filter(|_| block != head);
            leading.into_iter().flatten().copied().filter(|other| between(*other)).collect()
        });
        forward.intersection(&backward).copied().collect()
    }

    /// Merges loops with several paths around one head.
    fn join(&self, bodies: &mut Vec<(u64, BTreeSet<u64>)>) {
        let pairs = |count: usize| (1..count).flat_map(|other| (0..other).map(move |one| (one, other)));
        while let Some((one, other, joined)) =
            pairs(bodies.len()).find_map(|(one, other)| Some((one, other, self.joined(&bodies[one], &bodies[other])?)))
        {
            bodies[one] = joined;
            bodies.remove(other);
        }
    }

    /// The merged loop, if neither contains the other, all iterations pass one head, and there is
    /// no call.
    fn joined(&self, one: &(u64, BTreeSet<u64>), other: &(u64, BTreeSet<u64>)) -> Option<(u64, BTreeSet<u64>)> {
        if one.1.is_subset(&other.1) || other.1.is_subset(&one.1) {
            return None;
        }
        let head = [one.0, other.0].into_iter().find(|head| one.1.contains(head) && other.1.contains(head))?;
        let both = self.describe(head, one.1.union(&other.1).copied().collect());
        (!both.has_call && !both.has_indirect).then_some((head, both.blocks))
    }

    fn size(&self, blocks: &BTreeSet<u64>) -> usize {
        blocks.iter().map(|start| self.instructions_of(&self.blocks[start]).count()).sum()
    }

    fn describe(&self, head: u64, blocks: BTreeSet<u64>) -> Loop {
        let inside = || blocks.iter().map(|start| &self.blocks[start]);
        let mut exits = Vec::new();
        for block in inside() {
            let outside =
                block.successors.iter().filter(|next| !blocks.contains(*next)).map(|next| BlockExit::To(*next));
            exits.extend(outside.chain(block.leaves.iter().copied()).map(|to| LoopExit { from: block.last, to }));
        }
        let outside = self.blocks.values().filter(|block| !blocks.contains(&block.start));
        let entered: BTreeSet<u64> = outside.flat_map(|block| block.successors.iter().copied()).collect();
        let side_entries = entered.into_iter().filter(|to| *to != head && blocks.contains(to)).collect();
        let has_call = inside().flat_map(|block| self.instructions_of(block)).any(calls);
        let ends_indirect = |exit: &LoopExit| match exit.to {
            BlockExit::To(to) => self.blocks.get(&to).is_some_and(|block| block.leaves.contains(&BlockExit::Indirect)),
            to => to == BlockExit::Indirect,
        };
        let has_indirect = exits.iter().any(ends_indirect);
        Loop { head, has_call, has_indirect, exits, side_entries, blocks }
    }
}

/// All blocks reachable from `start` by `step`, including `start`.
fn reachable(start: u64, step: impl Fn(u64) -> Vec<u64>) -> BTreeSet<u64> {
    let mut reached = BTreeSet::from([start]);
    let mut open = vec![start];
    while let Some(block) = open.pop() {
        open.extend(step(block).into_iter().filter(|next| reached.insert(*next)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use iced_x86::code_asm::{CodeAssembler, ecx, edx, qword_ptr, rax, rdi};

    use super::{Loop, LoopExit};
    use crate::flow::{BlockExit, Flow};
    use crate::memory::MemoryImage;

    fn loops(assembler: &mut CodeAssembler, offset: u64) -> Vec<Loop> {
        let image = MemoryImage { start: 0x1000, bytes: assembler.assemble(0x1000).unwrap() };
        Flow::discover(&image, 0x1000 + offset).unwrap().loops()
    }

    /// head: test edx, edx (2); jz skip (2); add [rdi], 1 (4); skip: dec ecx (2); jne head (2); ret
    fn branching() -> CodeAssembler {
        let mut code = CodeAssembler::new(64).unwrap();
        let (mut head, mut skip) = (code.create_label(), code.create_label());
        code.set_label(&mut head).unwrap();
        code.test(edx, edx).unwrap();
        code.jz(skip).unwrap();
        code.add(qword_ptr(rdi), 1).unwrap();
        code.set_label(&mut skip).unwrap();
        code.dec(ecx).unwrap();
        code.jne(head).unwrap();
        code.ret().unwrap();
        code
    }

    #[test]
    fn a_loop_contains_both_paths_through_it() {
        for offset in [0, 4, 8, 10] {
            let found = loops(&mut branching(), offset);
            assert_eq!(found.len(), 1, "from {offset}");
            let mut blocks = BTreeSet::from([0x1000, 0x1004, 0x1008]);
            blocks.insert(0x1000 + offset);
            assert_eq!((found[0].head, &found[0].blocks), (0x1000, &blocks));
            assert_eq!(found[0].exits, [LoopExit { from: 0x100a, to: BlockExit::To(0x100c) }]);
            assert_eq!((found[0].has_call, found[0].has_indirect), (false, false));
            assert!(found[0].side_entries.is_empty());
        }
        assert!(loops(&mut branching(), 12).is_empty(), "the return is in no loop");
    }

    /// outer: jmp test (2); inner: add [rdi], 1 (4); test: dec ecx (2); jne inner (2); dec edx (2);
    /// jne outer (2); ret
    fn entered_at_the_condition() -> CodeAssembler {
        let mut code = CodeAssembler::new(64).unwrap();
        let (mut outer, mut inner, mut test) = (code.create_label(), code.create_label(), code.create_label());
        code.set_label(&mut outer).unwrap();
        code.jmp(test).unwrap();
        code.set_label(&mut inner).unwrap();
        code.add(qword_ptr(rdi), 1).unwrap();
        code.set_label(&mut test).unwrap();
        code.dec(ecx).unwrap();
        code.jne(inner).unwrap();
        code.dec(edx).unwrap();
        code.jne(outer).unwrap();
        code.ret().unwrap();
        code
    }

    #[test]
    fn own_blocks_exclude_those_of_inner_loops() {
        let image = MemoryImage { start: 0x1000, bytes: entered_at_the_condition().assemble(0x1000).unwrap() };
        let flow = Flow::discover(&image, 0x1000).unwrap();
        let [outer] = &flow.loops()[..] else { panic!("{:?}", flow.loops()) };
        assert_eq!(outer.blocks, BTreeSet::from([0x1000, 0x1002, 0x1006, 0x100a]));
        assert_eq!(flow.own_blocks(outer), BTreeSet::from([0x1000, 0x100a]));
        let flow = Flow::discover(&image, 0x1002).unwrap();
        let [inner, outer] = &flow.loops()[..] else { panic!("{:?}", flow.loops()) };
        assert_eq!(flow.own_blocks(inner), inner.blocks);
        assert_eq!(flow.own_blocks(outer), BTreeSet::from([0x1000, 0x100a]));
    }

    #[test]
    fn an_inner_loop_entered_at_its_condition_has_only_its_own_blocks() {
        let found = loops(&mut entered_at_the_condition(), 2);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].head, &found[0].blocks), (0x1002, &BTreeSet::from([0x1002, 0x1006])));
        assert_eq!(found[0].side_entries, [0x1006]);
        assert_eq!(found[0].exits, [LoopExit { from: 0x1008, to: BlockExit::To(0x100a) }]);
        assert_eq!((found[1].head, found[1].blocks.len()), (0x1000, 4));
    }

    /// other: add [rdi], 1 (4); [call rax (2)]; head: test edx, edx (2); jne other (2); add [rdi],
    /// 3 (4); dec ecx (2); jne head (2); ret
    fn else_before_the_head(calls: bool) -> CodeAssembler {
        let mut code = CodeAssembler::new(64).unwrap();
        let (mut other, mut head) = (code.create_label(), code.create_label());
        code.set_label(&mut other).unwrap();
        code.add(qword_ptr(rdi), 1).unwrap();
        if calls {
            code.call(rax).unwrap();
        }
        code.set_label(&mut head).unwrap();
        code.test(edx, edx).unwrap();
        code.jne(other).unwrap();
        code.add(qword_ptr(rdi), 3).unwrap();
        code.dec(ecx).unwrap();
        code.jne(head).unwrap();
        code.ret().unwrap();
        code
    }

    #[test]
    fn two_paths_around_one_head_are_one_loop() {
        for offset in [0, 4, 8, 12] {
            let found = loops(&mut else_before_the_head(false), offset);
            assert_eq!(found.len(), 1, "from {offset}: {found:?}");
            assert_eq!(found[0].head, 0x1004);
            assert!([0x1000, 0x1004, 0x1008].iter().all(|block| found[0].blocks.contains(block)), "{found:?}");
            assert_eq!(found[0].exits, [LoopExit { from: 0x100e, to: BlockExit::To(0x1010) }]);
        }
    }

    #[test]
    fn a_path_with_a_call_is_not_merged() {
        let found = loops(&mut else_before_the_head(true), 10);
        assert_eq!((found.len(), found[0].head, found[0].has_call), (1, 0x1006, false), "{found:?}");
        let found = loops(&mut else_before_the_head(true), 0);
        assert_eq!((found.len(), found[0].head, found[0].has_call), (1, 0x1000, true), "{found:?}");
    }

    #[test]
    fn calls_and_switches_are_recorded() {
        let mut code = CodeAssembler::new(64).unwrap();
        let (mut head, mut switch) = (code.create_label(), code.create_label());
        code.set_label(&mut head).unwrap();
        code.call(rax).unwrap();
        code.jz(switch).unwrap();
        code.dec(ecx).unwrap();
        code.jne(head).unwrap();
        code.set_label(&mut switch).unwrap();
        code.jmp(rax).unwrap();
        let found = loops(&mut code, 0);
        assert_eq!((found.len(), found[0].has_call, found[0].has_indirect), (1, true, true));
    }

    #[test]
    fn a_conditional_block_is_optional() {
        let image = MemoryImage { start: 0x1000, bytes: branching().assemble(0x1000).unwrap() };
        for (from, optional) in [(0, vec![0x1004]), (4, vec![0x1004]), (8, vec![0x1004])] {
            let flow = Flow::discover(&image, 0x1000 + from).unwrap();
            let within = &flow.loops()[0];
            let found: Vec<u64> = flow.optional_blocks(within).iter().map(|block| block.start).collect();
            assert_eq!(found, optional, "from {from}");
        }
        let mut inner = entered_at_the_condition();
        let image = MemoryImage { start: 0x1000, bytes: inner.assemble(0x1000).unwrap() };
        let flow = Flow::discover(&image, 0x1002).unwrap();
        assert!(flow.optional_blocks(&flow.loops()[0]).is_empty(), "one way around");
    }

    #[test]
    fn straight_code_has_no_loop() {
        let mut code = CodeAssembler::new(64).unwrap();
        code.add(qword_ptr(rdi), 1).unwrap();
        code.ret().unwrap();
        assert!(loops(&mut code, 0).is_empty());
    }
}
