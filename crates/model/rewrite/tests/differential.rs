//! The same loops, original and rewritten: registers, flags, stack and memory must not differ.
//!
//! In rewritten runs the page is inaccessible; its bytes are in the home copy and two views. Faults
//! are answered with rewritelets, so that each form runs, and every path from the clone to the
//! original and back.
#![expect(clippy::unwrap_used, reason = "a test")]

mod machine;
mod programs;

use std::ops::Range;
use std::sync::atomic::Ordering;

use fieldstone_rewrite::page::PAGE_BYTES as PAGE_LENGTH;
use fieldstone_rewrite::patch::HeadPatch;
use fieldstone_rewrite::{
    AccessSite, ClonePlan, Flow, LiveSet, Liveness, Loop, LoopClone, Operand, PagePiece, Redirect, RefusalReason,
    RemapRule, RemappedPage, Rewritelet, RewriteletForm,
};
use iced_x86::{InstructionInfoFactory, Register};
use machine::{
    Agent, CACHE, CODE, FAR, HOME, MachineState, PAGE, PAGE_BYTES, PLAIN, STACK, STACK_BYTES, TestMachine, VIEWS,
};
use programs::{AccessForm, LoopProgram, LoopStep, Place, program};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// Offsets of the rules' bytes in the page.
const RULES: [Range<u64>; 2] = [0x100..0x140, 0x140..0x180];
/// Offset to which a program's pointer moves from rule 1.
const UNDERLAY: u64 = 0x300;
/// All flags that an instruction defines, except the auxiliary carry, which logic instructions
/// leave undefined.
const FLAGS: u64 = 0x8c5 | 0x400;
const RED_ZONE: u64 = 128;

/// How a loop is rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// Not at all: each access faults into a rewritelet of this form.
    PerRule,
    Ladder,
    Displaced,
    /// The program starts in the clone; faults are answered.
    Clone,
    /// The loop's head jumps to the clone.
    Patched,
}

const ALL: [How; 5] = [How::PerRule, How::Ladder, How::Displaced, How::Clone, How::Patched];

/// Everything that a run leaves behind.
#[derive(Debug, PartialEq, Eq)]
struct FinalState {
    gpr: [u64; 16],
    flags: u64,
    page: Vec<u8>,
    plain: Vec<u8>,
    stack: Vec<u8>,
}

struct Setup {
    machine: TestMachine,
    page: RemappedPage,
}

impl Setup {
    fn new() -> Self {
        let machine = TestMachine::new();
        let delta = |to: u64| (to - PAGE).cast_signed();
        let start = machine.at(PAGE);
        let rule = |(bytes, view): (Range<u64>, u64)| RemapRule {
            bytes: start + bytes.start..start + bytes.end,
            delta: delta(view),
        };
        let rules = RULES.into_iter().zip(VIEWS).map(rule).collect();
        let page = RemappedPage::new(start, delta(HOME), rules).unwrap();
        Self { machine, page }
    }

    /// The initial state of a program, with all memory initialized.
    fn begin(&self, program: &LoopProgram) -> MachineState {
        let machine = &self.machine;
        machine.protect(true);
        machine.write(CODE, &vec![0xcc; PAGE_BYTES]);
        machine.write(CODE, &program.code(machine.at(CODE), &TestMachine::end()).0);
        let content: Vec<u8> = (0..PAGE_BYTES).map(|index| u8::try_from(index * 7 % 251).unwrap()).collect();
        for place in [PAGE, HOME, VIEWS[0], VIEWS[1], PLAIN] {
            machine.write(place, &content);
        }
        machine.write(STACK, &vec![0x5a; usize::try_from(STACK_BYTES).unwrap()]);
        let mut state = MachineState { flags: 0x202, ..MachineState::default() };
        let frame = machine.at(STACK) + STACK_BYTES / 2;
        let slot = self.slot(program);
        machine.write(STACK + STACK_BYTES / 2 - 8, &slot.to_le_bytes());
        for (number, value) in [0, 1, 2, 3, 8, 9].into_iter().zip(program.data) {
            state.gpr[number] = value;
        }
        (state.gpr[4], state.gpr[5]) = (frame - 0x100, frame);
        (state.gpr[6], state.gpr[7]) = (machine.at(PLAIN), machine.at(PAGE) + RULES[0].start + program.cell * 8);
        (state.gpr[11], state.gpr[15]) = (slot, program.iterations);
        state
    }

    /// Initial value of the slot.
    fn slot(&self, program: &LoopProgram) -> u64 {
        match program.slot {
            0..=2 => self.machine.at(PAGE) + RULES[1].start,
            3 => self.machine.at(PAGE) + RULES[0].start,
            4 => self.machine.at(PAGE) + UNDERLAY,
            _ => self.machine.at(PLAIN),
        }
    }

    fn outcome(&self, state: &MachineState, page: Vec<u8>) -> FinalState {
        let machine = &self.machine;
        let stack =
            (state.gpr[4] - machine.at(STACK)).checked_sub(RED_ZONE).expect("the stack pointer is in the stack");
        let bytes = usize::try_from(STACK_BYTES - stack).unwrap();
        FinalState {
            gpr: state.gpr,
            flags: state.flags & FLAGS,
            page,
            plain: machine.bytes(PLAIN, PAGE_BYTES),
            stack: machine.bytes(STACK + stack, bytes),
        }
    }

    /// Start address of a program.
    fn head(&self, program: &LoopProgram) -> u64 {
        program.code(self.machine.at(CODE), &[]).1
    }

    /// Runs the original.
    fn plain(&self, program: &LoopProgram) -> FinalState {
        let state = self.begin(program);
        let mut agent = Agent::default();
        let state = self.machine.run(self.head(program), &state, &mut agent);
        assert_eq!(agent.lost.load(Ordering::SeqCst), 0, "the original itself faults: {program:?}");
        self.outcome(&state, self.machine.bytes(PAGE, PAGE_BYTES))
    }

    /// Runs the rewritten program; returns the number of faults too.
    fn rewritten(&self, program: &LoopProgram, how: How) -> (FinalState, usize) {
        self.rewritten_with(program, how, |_| {})
    }

    /// Runs the program rewritten with changed redirects.
    fn rewritten_with(
        &self,
        program: &LoopProgram,
        how: How,
        change: impl FnOnce(&mut Vec<Redirect>),
    ) -> (FinalState, usize) {
        let state = self.begin(program);
        let mut rewriting = Rewriting::new(self, self.head(program));
        if how == How::Patched {
            rewriting.copy_head();
        }
        rewriting.add_rewritelets(how);
        let entry = match how {
            How::Clone | How::Patched => {
                let mut redirects = rewriting.redirects(program);
                change(&mut redirects);
                rewriting.clone_loop(&redirects)
            }
            _ => self.head(program),
        };
        let mut agent = rewriting.agent;
        self.machine.protect(false);
        let state = self.machine.run(entry, &state, &mut agent);
        let lost = agent.lost.load(Ordering::SeqCst);
        assert_eq!(lost, 0, "lost at {lost:#x}, {how:?}, of {:#x}: {program:?}", self.machine.at(0));
        self.machine.protect(true);
        let mut page = self.machine.bytes(HOME, PAGE_BYTES);
        for (rule, view) in RULES.into_iter().zip(VIEWS) {
            let bytes = self.machine.bytes(view + rule.start, usize::try_from(rule.end - rule.start).unwrap());
            page[usize::try_from(rule.start).unwrap()..][..bytes.len()].copy_from_slice(&bytes);
        }
        (self.outcome(&state, page), agent.faults.into_inner())
    }
}

/// The rewriting of one program, as the supervisor does it.
struct Rewriting<'a> {
    setup: &'a Setup,
    flow: Flow,
    within: Loop,
    liveness: Liveness,
    /// The patch of the head, if there is one, and the copies of the overwritten instructions.
    patch: Option<HeadPatch>,
    moved: Vec<(u64, u64)>,
    agent: Agent,
    used: usize,
}

impl<'a> Rewriting<'a> {
    fn new(setup: &'a Setup, head: u64) -> Self {
        let flow = Flow::discover(&setup.machine, head).unwrap();
        // The last one is the largest.
        let within = flow.loops().pop().expect("a loop");
        assert_eq!(within.head, head);
        let liveness = Liveness::of(&flow);
        Self { setup, flow, within, liveness, patch: None, moved: Vec::new(), agent: Agent::default(), used: 0 }
    }

    /// Writes code to its address.
    fn place(&mut self, at: u64, code: &[u8]) {
        let offset = at - self.setup.machine.at(0);
        assert!(offset >= CACHE);
        self.setup.machine.write(offset, code);
        self.used = self.used.max(usize::try_from(offset - CACHE).unwrap() + code.len());
    }

    fn room(&self) -> u64 {
        self.setup.machine.room_from(self.used)
    }

    /// Adds rewritelets of one form for all instructions that may access the page: for each piece,
    /// if the form depends on the piece.
    fn add_rewritelets(&mut self, how: How) {
        let mut factory = InstructionInfoFactory::new();
        let moved = self.moved.clone();
        let accesses: Vec<_> = self.flow.instructions_in(&self.within).copied().collect();
        for instruction in accesses.iter().filter(|instruction| Operand::of(instruction, &mut factory).is_ok()) {
            // With a full live set everything is saved. Both cases are tested.
            let live = if self.used.is_multiple_of(2) { self.liveness.before(instruction.ip()) } else { LiveSet::ALL };
            let site = AccessSite { instruction, live, moved: &moved };
            let mut ladder = None;
            for piece in self.setup.page.pieces() {
                let PagePiece { bytes, delta } = piece.clone();
                let form = match how {
                    How::PerRule => RewriteletForm::PerRule(RemapRule::from(piece)),
                    How::Ladder => RewriteletForm::Ladder(self.setup.page.clone()),
                    _ => RewriteletForm::Displaced(delta),
                };
                let at = match (how, ladder) {
                    (How::Ladder, Some(at)) => at,
                    _ => {
                        let made = match Rewritelet::new(&site, &form, self.room()) {
                            // Its address is known and in another piece.
                            Err(error) if error.reason() == Some(RefusalReason::OutsideRule) => continue,
                            made => made.unwrap(),
                        };
                        self.place(made.at, &made.code);
                        self.agent.map.extend(made.map);
                        made.at
                    }
                };
                ladder = Some(at);
                self.agent.rewritelets.push((instruction.ip(), bytes.start, bytes.end - 1, at));
            }
        }
    }

    /// The redirects that the program selects, each by the rule that its register is meant for.
    fn redirects(&self, program: &LoopProgram) -> Vec<Redirect> {
        let mut factory = InstructionInfoFactory::new();
        let mut redirects = Vec::new();
        for (index, instruction) in self.flow.instructions_in(&self.within).enumerate() {
            let Ok(operand) = Operand::of(instruction, &mut factory) else { continue };
            let rule = match operand.base {
                Register::RDI | Register::None => &self.setup.page.rules[0],
                Register::R11 => &self.setup.page.rules[1],
                _ => continue,
            };
            if program.redirected & (1 << (index % 32)) != 0 {
                // The initial value of the slot is likely in each iteration; the program may change
                // it.
                let is_expected = operand.base == Register::R11 && program.redirected & (1 << (index % 31 + 1)) != 0;
                let expected = is_expected.then(|| self.setup.slot(program).wrapping_add_signed(operand.displacement));
                redirects.push(Redirect { ip: instruction.ip(), rule: rule.clone(), expected });
            }
        }
        redirects
    }

    /// Copies the instructions that a jump at the head overwrites, if that is possible.
    fn copy_head(&mut self) {
        let head = self.within.head - self.setup.machine.at(0);
        let original: [u8; 5] = self.setup.machine.bytes(head, 5).try_into().unwrap();
        let Ok(patch) = HeadPatch::new(&self.flow, self.within.head, original) else { return };
        let copy = patch.copy_at(self.room()).unwrap();
        self.place(copy.at, &copy.code);
        self.agent.map.extend(copy.moved.iter().map(|(original, copy)| (*copy, *original)));
        (self.patch, self.moved) = (Some(patch), copy.moved);
    }

    /// Makes the clone; returns the program's start address, which is the head if it is patched.
    fn clone_loop(&mut self, redirects: &[Redirect]) -> u64 {
        let room = self.room();
        let punned = self.patch.as_ref().and_then(|patch| patch.pun.entry_from(room)).filter(|at| *at < room + 0x8000);
        let plan = ClonePlan {
            flow: &self.flow,
            within: &self.within,
            liveness: &self.liveness,
            redirects,
            moved: &self.moved,
            enter: &[],
            at: punned.unwrap_or(room),
            // The head jumps to the start of the clone.
            aligned: false,
        };
        let clone = LoopClone::new(&plan).unwrap();
        assert_eq!(clone.entry, clone.at, "the entry is at its start");
        self.place(clone.at, &clone.code);
        self.agent.map.extend(&clone.map);
        let Some(patch) = self.patch.as_ref().filter(|_| punned.is_some()) else { return clone.entry };
        for write in patch.writes(clone.entry).unwrap() {
            self.setup.machine.write(write.address - self.setup.machine.at(0), &write.bytes);
        }
        self.within.head
    }
}

fn check(program: &LoopProgram) -> Result<(), TestCaseError> {
    let setup = Setup::new();
    let plain = setup.plain(program);
    for how in ALL {
        let (rewritten, _) = setup.rewritten(program, how);
        prop_assert_eq!(&rewritten, &plain, "{:?}", how);
    }
    Ok(())
}

/// Number of programs per seed.
const CASES: u32 = 400;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

/// Tests the programs of one seed.
fn check_seed(seed: u64) {
    println!("FIELDSTONE_FUZZ_SEED={seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() };
    if let Err(found) = TestRunner::new_with_rng(config, random).run(&program(), |program| check(&program)) {
        panic!("FIELDSTONE_FUZZ_SEED={seed}: {found}");
    }
}

#[test]
fn rewritten_loops_behave_as_the_originals() {
    let (begun, seconds) = (std::time::Instant::now(), setting("FIELDSTONE_FUZZ_SECONDS").unwrap_or(0));
    // A run with a time limit starts at another seed each time.
    let clock = std::time::UNIX_EPOCH.elapsed().unwrap();
    let other = if seconds == 0 { 1 } else { clock.as_secs() << 30 | u64::from(clock.subsec_nanos()) };
    let first = setting("FIELDSTONE_FUZZ_SEED").unwrap_or(other);
    let mut seed = first;
    check_seed(seed);
    while begun.elapsed().as_secs() < seconds {
        seed = seed.wrapping_add(1);
        check_seed(seed);
    }
}

/// Two counters in the bytes of two rules, one through a pointer that each iteration loads.
fn counters() -> LoopProgram {
    let memory = |kind, place| LoopStep::Memory { kind, place, data: 1, wide: true };
    LoopProgram {
        other: Vec::new(),
        steps: vec![
            memory(AccessForm::AddTo, Place::Stays(1)),
            LoopStep::Reload,
            memory(AccessForm::LockAdd, Place::Loaded(2)),
            memory(AccessForm::AddFrom, Place::Loaded(0)),
        ],
        iterations: 1000,
        cell: 1,
        slot: 0,
        data: [1, 2, 3, 4, 5, 6],
        redirected: u32::MAX,
    }
}

#[test]
fn a_clone_causes_no_fault() {
    let setup = Setup::new();
    let plain = setup.plain(&counters());
    assert_eq!(setup.rewritten(&counters(), How::Clone), (plain, 0));
}

#[test]
fn both_paths_around_a_head_are_in_its_clone() {
    let setup = Setup::new();
    let both = LoopProgram { other: counters().steps, ..counters() };
    let plain = setup.plain(&both);
    assert_eq!(setup.rewritten(&both, How::Clone), (plain, 0));
}

#[test]
fn without_a_clone_each_access_faults() {
    let setup = Setup::new();
    for how in [How::PerRule, How::Ladder, How::Displaced] {
        let (_, faults) = setup.rewritten(&counters(), how);
        assert_eq!(faults, 3 * 1000, "{how:?}");
    }
}

#[test]
fn a_patched_head_jumps_to_the_clone() {
    // One long instruction at the head permits any jump target.
    let mut program = counters();
    program
        .steps
        .insert(0, LoopStep::Memory { kind: AccessForm::StoreNumber, place: Place::Stays(0), data: 0, wide: true });
    let setup = Setup::new();
    let plain = setup.plain(&program);
    assert_eq!(setup.rewritten(&program, How::Patched), (plain, 0));
}

#[test]
fn a_pointer_out_of_the_rule_leaves_the_clone_and_returns() {
    let setup = Setup::new();
    let elsewhere = LoopProgram { slot: 4, ..counters() };
    let plain = setup.plain(&elsewhere);
    let (rewritten, faults) = setup.rewritten(&elsewhere, How::Clone);
    assert_eq!(rewritten, plain);
    assert!(faults > 0, "the check fails, and the original faults on the underlay's bytes");
}

#[test]
fn a_pointer_that_changes_in_an_iteration_is_rechecked() {
    let memory = |kind| LoopStep::Memory { kind, place: Place::Loaded(0), data: 1, wide: true };
    let steps = vec![LoopStep::Reload, memory(AccessForm::AddTo), LoopStep::Turn, memory(AccessForm::LockAdd)];
    let program = LoopProgram { steps, iterations: 5, ..counters() };
    let setup = Setup::new();
    let plain = setup.plain(&program);
    // The second access is outside of the rule in each iteration. So the clone runs in the first
    // iteration only.
    let (rewritten, faults) = setup.rewritten(&program, How::Clone);
    assert_eq!(rewritten, plain);
    assert_eq!(faults, 1 + 4 * 2, "then there is no way back into it without a patch");
}

#[test]
fn a_wrong_displacement_is_detected() {
    let setup = Setup::new();
    let plain = setup.plain(&counters());
    for wrong in 0..3 {
        let (rewritten, _) =
            setup.rewritten_with(&counters(), How::Clone, |redirects| redirects[wrong].rule.delta += 8);
        assert_ne!(rewritten, plain, "the redirect {wrong} leads eight bytes too far, and nobody sees it");
    }
}

#[test]
fn a_view_out_of_reach_is_accessed_through_a_register() {
    let setup = Setup::new();
    let global = |load| LoopStep::Global { cell: 2, data: 1, load };
    for (load, live) in [(true, true), (true, false), (false, true), (false, false)] {
        let program = LoopProgram { steps: vec![global(load)], iterations: 1, ..counters() };
        let plain = setup.plain(&program);
        let state = setup.begin(&program);
        setup.machine.write(FAR, &setup.machine.bytes(PAGE, PAGE_BYTES));
        let mut rewriting = Rewriting::new(&setup, setup.head(&program));
        let instruction = rewriting.flow.instructions[&setup.machine.at(CODE)];
        let live = if live { LiveSet::ALL } else { rewriting.liveness.before(instruction.ip()) };
        let site = AccessSite { instruction: &instruction, live, moved: &[] };
        let made =
            Rewritelet::new(&site, &RewriteletForm::Displaced((FAR - PAGE).cast_signed()), rewriting.room()).unwrap();
        rewriting.place(made.at, &made.code);
        setup.machine.protect(false);
        let mut agent = Agent::default();
        let state = setup.machine.run(made.at, &state, &mut agent);
        assert_eq!(agent.lost.load(Ordering::SeqCst), 0);
        setup.machine.protect(true);
        assert_eq!(setup.outcome(&state, setup.machine.bytes(FAR, PAGE_BYTES)), plain);
    }
}

#[test]
fn a_ladder_does_not_redirect_straddling_accesses() {
    let setup = Setup::new();
    let steps = vec![LoopStep::Memory { kind: AccessForm::AddTo, place: Place::Stays(0), data: 1, wide: true }];
    let program = LoopProgram { steps, iterations: 1, cell: 0, ..counters() };
    let state = setup.begin(&program);
    let mut rewriting = Rewriting::new(&setup, setup.head(&program));
    let instruction = rewriting.flow.instructions[&setup.machine.at(CODE)];
    let site = AccessSite { instruction: &instruction, live: LiveSet::ALL, moved: &[] };
    let ladder = Rewritelet::new(&site, &RewriteletForm::Ladder(setup.page.clone()), rewriting.room()).unwrap();
    rewriting.place(ladder.at, &ladder.code);
    setup.machine.protect(false);
    let page = setup.machine.at(PAGE);
    for astride in [RULES[0].start - 4, RULES[1].start - 1, RULES[1].end - 7, PAGE_LENGTH - 1, 0_u64.wrapping_sub(1)] {
        let mut state = state;
        state.gpr[7] = page.wrapping_add(astride);
        let mut agent = Agent::default();
        let left = setup.machine.run(ladder.at, &state, &mut agent);
        let lost = agent.lost.load(Ordering::SeqCst) as u64;
        // The rewritten code faults as the original does.
        assert!(ladder.map[1..].contains(&(lost, instruction.ip())), "{astride:#x}: at {lost:#x} of {:x?}", ladder.map);
        assert_eq!((left.gpr, left.flags & FLAGS), (state.gpr, state.flags & FLAGS), "all is as it was");
    }
}
