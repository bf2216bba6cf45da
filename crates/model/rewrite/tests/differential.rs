//! The same loops as they are and rewritten: registers, flags, stack and memory must not differ.
//!
//! Rewritten runs have the page inaccessible; its bytes lie in the underlay and two views. Faults are answered with rewritelets, so
//! that each form is tried, and every way from the clone to the original and back.
#![expect(clippy::unwrap_used, reason = "a test")]

mod machine;
mod programs;

use std::ops::Range;
use std::sync::atomic::Ordering;

use fieldstone_rewrite::page::PAGE_BYTES as PAGE_LENGTH;
use fieldstone_rewrite::patch::HeadPatch;
use fieldstone_rewrite::{
    Flow, RewriteletForm, LiveSet, Liveness, Loop, LoopClone, Operand, RemappedPage, PagePiece, ClonePlan, Redirect, RefusalReason, RemapRule, AccessSite, Rewritelet,
};
use iced_x86::{InstructionInfoFactory, Register};
use machine::{Agent, CACHE, CODE, FAR, HOME, Machine, PAGE, PAGE_BYTES, PLAIN, STACK, STACK_BYTES, WalkState, VIEWS};
use programs::{Kind, CounterPlace, Program, Step, program};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// Offsets in the page of the rules' bytes.
const RULES: [Range<u64>; 2] = [0x100..0x140, 0x140..0x180];
/// Where a program's pointer turns to from rule 1.
const UNDERLAY: u64 = 0x300;
/// All flags that an instruction defines, but for the auxiliary carry, which logic leaves undefined.
const FLAGS: u64 = 0x8c5 | 0x400;
const RED_ZONE: u64 = 128;

/// How a loop is rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// Not at all: each access faults into a rewritelet of this form.
    PerRule,
    Ladder,
    Displaced,
    /// The clone is entered where the loop begins; faults are answered.
    Clone,
    /// The loop's head leads to the clone.
    Patched,
}

const ALL: [How; 5] = [How::PerRule, How::Ladder, How::Displaced, How::Clone, How::Patched];

/// All that a run leaves.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    gpr: [u64; 16],
    flags: u64,
    page: Vec<u8>,
    plain: Vec<u8>,
    stack: Vec<u8>,
}

struct Bench {
    machine: Machine,
    page: RemappedPage,
}

impl Bench {
    fn new() -> Self {
        let machine = Machine::new();
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

    /// The state that a program begins in, with all memory as it is then.
    fn begin(&self, program: &Program) -> WalkState {
        let machine = &self.machine;
        machine.protect(true);
        machine.write(CODE, &vec![0xcc; PAGE_BYTES]);
        machine.write(CODE, &program.code(machine.at(CODE), &Machine::end()).0);
        let content: Vec<u8> = (0..PAGE_BYTES).map(|index| u8::try_from(index * 7 % 251).unwrap()).collect();
        for place in [PAGE, HOME, VIEWS[0], VIEWS[1], PLAIN] {
            machine.write(place, &content);
        }
        machine.write(STACK, &vec![0x5a; usize::try_from(STACK_BYTES).unwrap()]);
        let mut state = WalkState { flags: 0x202, ..WalkState::default() };
        let frame = machine.at(STACK) + STACK_BYTES / 2;
        let slot = self.slot(program);
        machine.write(STACK + STACK_BYTES / 2 - 8, &slot.to_le_bytes());
        for (number, value) in [0, 1, 2, 3, 8, 9].into_iter().zip(program.data) {
            state.gpr[number] = value;
        }
        (state.gpr[4], state.gpr[5]) = (frame - 0x100, frame);
        (state.gpr[6], state.gpr[7]) = (machine.at(PLAIN), machine.at(PAGE) + RULES[0].start + program.cell * 8);
        (state.gpr[11], state.gpr[15]) = (slot, program.laps);
        state
    }

    /// What the slot holds when a program begins.
    fn slot(&self, program: &Program) -> u64 {
        match program.slot {
            0..=2 => self.machine.at(PAGE) + RULES[1].start,
            3 => self.machine.at(PAGE) + RULES[0].start,
            4 => self.machine.at(PAGE) + UNDERLAY,
            _ => self.machine.at(PLAIN),
        }
    }

    fn outcome(&self, state: &WalkState, page: Vec<u8>) -> Outcome {
        let machine = &self.machine;
        let stack =
            (state.gpr[4] - machine.at(STACK)).checked_sub(RED_ZONE).expect("the stack pointer is in the stack");
        let bytes = usize::try_from(STACK_BYTES - stack).unwrap();
        Outcome {
            gpr: state.gpr,
            flags: state.flags & FLAGS,
            page,
            plain: machine.bytes(PLAIN, PAGE_BYTES),
            stack: machine.bytes(STACK + stack, bytes),
        }
    }

    /// Where a program begins.
    fn head(&self, program: &Program) -> u64 {
        program.code(self.machine.at(CODE), &[]).1
    }

    /// As it is.
    fn plain(&self, program: &Program) -> Outcome {
        let state = self.begin(program);
        let mut agent = Agent::default();
        let state = self.machine.run(self.head(program), &state, &mut agent);
        assert_eq!(agent.lost.load(Ordering::SeqCst), 0, "the original itself faults: {program:?}");
        self.outcome(&state, self.machine.bytes(PAGE, PAGE_BYTES))
    }

    /// Rewritten, and how many faults there were.
    fn rewritten(&self, program: &Program, how: How) -> (Outcome, usize) {
        self.rewritten_with(program, how, |_| {})
    }

    /// Rewritten with redirects that were changed.
    fn rewritten_with(&self, program: &Program, how: How, change: impl FnOnce(&mut Vec<Redirect>)) -> (Outcome, usize) {
        let state = self.begin(program);
        let mut rewriting = Rewriting::new(self, self.head(program));
        if how == How::Patched {
            rewriting.displace_head();
        }
        rewriting.trampolines(how);
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

/// The supervisor's part.
struct Rewriting<'a> {
    bench: &'a Bench,
    flow: Flow,
    within: Loop,
    liveness: Liveness,
    /// The patch of the head, where there is one, and where it moves instructions to.
    patch: Option<HeadPatch>,
    moved: Vec<(u64, u64)>,
    agent: Agent,
    used: usize,
}

impl<'a> Rewriting<'a> {
    fn new(bench: &'a Bench, head: u64) -> Self {
        let flow = Flow::discover(&bench.machine, head).unwrap();
        // The last one is the largest.
        let within = flow.loops().pop().expect("a loop");
        assert_eq!(within.head, head);
        let liveness = Liveness::of(&flow);
        Self { bench, flow, within, liveness, patch: None, moved: Vec::new(), agent: Agent::default(), used: 0 }
    }

    /// Puts code where it was made for.
    fn place(&mut self, at: u64, code: &[u8]) {
        let offset = at - self.bench.machine.at(0);
        assert!(offset >= CACHE);
        self.bench.machine.write(offset, code);
        self.used = self.used.max(usize::try_from(offset - CACHE).unwrap() + code.len());
    }

    fn room(&self) -> u64 {
        self.bench.machine.room_from(self.used)
    }

    /// Rewritelets for all that could touch the page, of one form: for each piece, if the form tells pieces apart.
    fn trampolines(&mut self, how: How) {
        let mut factory = InstructionInfoFactory::new();
        let moved = self.moved.clone();
        let accesses: Vec<_> = self.flow.instructions_in(&self.within).copied().collect();
        for instruction in accesses.iter().filter(|instruction| Operand::of(instruction, &mut factory).is_ok()) {
            // Where little is known everything is saved; both are tried.
            let live = if self.used.is_multiple_of(2) { self.liveness.before(instruction.ip()) } else { LiveSet::ALL };
            let site = AccessSite { instruction, live, moved: &moved };
            let mut ladder = None;
            for piece in self.bench.page.pieces() {
                let PagePiece { bytes, delta } = piece.clone();
                let form = match how {
                    How::PerRule => RewriteletForm::PerRule(RemapRule::from(piece)),
                    How::Ladder => RewriteletForm::Ladder(self.bench.page.clone()),
                    _ => RewriteletForm::Displaced(delta),
                };
                let at = match (how, ladder) {
                    (How::Ladder, Some(at)) => at,
                    _ => {
                        let made = match Rewritelet::new(&site, &form, self.room()) {
                            // Its address is known, and lies in another piece.
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

    /// Those of the accesses that the program has chosen: each by the rule that its register is meant for.
    fn redirects(&self, program: &Program) -> Vec<Redirect> {
        let mut factory = InstructionInfoFactory::new();
        let mut redirects = Vec::new();
        for (index, instruction) in self.flow.instructions_in(&self.within).enumerate() {
            let Ok(operand) = Operand::of(instruction, &mut factory) else { continue };
            let rule = match operand.base {
                Register::RDI | Register::None => &self.bench.page.rules[0],
                Register::R11 => &self.bench.page.rules[1],
                _ => continue,
            };
            if program.redirected & (1 << (index % 32)) != 0 {
                // What the slot holds at first, as is likely in each lap; the program may turn it to something else.
                let is_expected = operand.base == Register::R11 && program.redirected & (1 << (index % 31 + 1)) != 0;
                let expected = is_expected.then(|| self.bench.slot(program).wrapping_add_signed(operand.displacement));
                redirects.push(Redirect { ip: instruction.ip(), rule: rule.clone(), expected });
            }
        }
        redirects
    }

    /// Copies what a jump at the head would overwrite, if there can be one.
    fn displace_head(&mut self) {
        let head = self.within.head - self.bench.machine.at(0);
        let original: [u8; 5] = self.bench.machine.bytes(head, 5).try_into().unwrap();
        let Ok(patch) = HeadPatch::new(&self.flow, self.within.head, original) else { return };
        let displaced = patch.displaced(self.room()).unwrap();
        self.place(displaced.at, &displaced.code);
        self.agent.map.extend(displaced.moved.iter().map(|(original, copy)| (*copy, *original)));
        (self.patch, self.moved) = (Some(patch), displaced.moved);
    }

    /// Makes the clone, and gives where the program is to begin: at the head if that leads to the clone.
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
            // The head leads to where it begins.
            aligned: false,
        };
        let clone = LoopClone::new(&plan).unwrap();
        assert_eq!(clone.entry, clone.at, "entered where it begins");
        self.place(clone.at, &clone.code);
        self.agent.map.extend(&clone.map);
        let Some(patch) = self.patch.as_ref().filter(|_| punned.is_some()) else { return clone.entry };
        for write in patch.writes(clone.entry).unwrap() {
            self.bench.machine.write(write.address - self.bench.machine.at(0), &write.bytes);
        }
        self.within.head
    }
}

fn check(program: &Program) -> Result<(), TestCaseError> {
    let bench = Bench::new();
    let plain = bench.plain(program);
    for how in ALL {
        let (rewritten, _) = bench.rewritten(program, how);
        prop_assert_eq!(&rewritten, &plain, "{:?}", how);
    }
    Ok(())
}

/// Programs of one seed.
const CASES: u32 = 400;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

/// As many programs as a seed is given.
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
fn rewritten_loops_do_what_the_original_does() {
    let (begun, seconds) = (std::time::Instant::now(), setting("FIELDSTONE_FUZZ_SECONDS").unwrap_or(0));
    // Who gives it time wants other programs than the last time.
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

/// Two counters in the bytes of two rules, one through a pointer that is loaded in each lap.
fn counters() -> Program {
    let memory = |kind, place| Step::Memory { kind, place, data: 1, wide: true };
    Program {
        other: Vec::new(),
        steps: vec![
            memory(Kind::AddTo, CounterPlace::Stays(1)),
            Step::Reload,
            memory(Kind::LockAdd, CounterPlace::Loaded(2)),
            memory(Kind::AddFrom, CounterPlace::Loaded(0)),
        ],
        laps: 1000,
        cell: 1,
        slot: 0,
        data: [1, 2, 3, 4, 5, 6],
        redirected: u32::MAX,
    }
}

#[test]
fn in_a_clone_nothing_faults() {
    let bench = Bench::new();
    let plain = bench.plain(&counters());
    assert_eq!(bench.rewritten(&counters(), How::Clone), (plain, 0));
}

#[test]
fn both_ways_round_a_head_are_in_its_clone() {
    let bench = Bench::new();
    let both = Program { other: counters().steps, ..counters() };
    let plain = bench.plain(&both);
    assert_eq!(bench.rewritten(&both, How::Clone), (plain, 0));
}

#[test]
fn without_a_clone_each_access_faults() {
    let bench = Bench::new();
    for how in [How::PerRule, How::Ladder, How::Displaced] {
        let (_, faults) = bench.rewritten(&counters(), how);
        assert_eq!(faults, 3 * 1000, "{how:?}");
    }
}

#[test]
fn a_patched_head_leads_to_the_clone() {
    // One long instruction at the head: its jump may lead anywhere.
    let mut program = counters();
    program.steps.insert(0, Step::Memory { kind: Kind::StoreNumber, place: CounterPlace::Stays(0), data: 0, wide: true });
    let bench = Bench::new();
    let plain = bench.plain(&program);
    assert_eq!(bench.rewritten(&program, How::Patched), (plain, 0));
}

#[test]
fn a_pointer_to_elsewhere_leaves_the_clone_and_comes_back() {
    let bench = Bench::new();
    let elsewhere = Program { slot: 4, ..counters() };
    let plain = bench.plain(&elsewhere);
    let (rewritten, faults) = bench.rewritten(&elsewhere, How::Clone);
    assert_eq!(rewritten, plain);
    assert!(faults > 0, "the check fails, and the original faults on the underlay's bytes");
}

#[test]
fn a_pointer_that_changes_in_the_lap_is_checked_again() {
    let memory = |kind| Step::Memory { kind, place: CounterPlace::Loaded(0), data: 1, wide: true };
    let steps = vec![Step::Reload, memory(Kind::AddTo), Step::Turn, memory(Kind::LockAdd)];
    let program = Program { steps, laps: 5, ..counters() };
    let bench = Bench::new();
    let plain = bench.plain(&program);
    // The second access lies outside the rule in each lap; in the first lap only does the clone run at all.
    let (rewritten, faults) = bench.rewritten(&program, How::Clone);
    assert_eq!(rewritten, plain);
    assert_eq!(faults, 1 + 4 * 2, "then there is no way back into it without a patch");
}

#[test]
fn a_wrong_displacement_is_found() {
    let bench = Bench::new();
    let plain = bench.plain(&counters());
    for wrong in 0..3 {
        let (rewritten, _) =
            bench.rewritten_with(&counters(), How::Clone, |redirects| redirects[wrong].rule.delta += 8);
        assert_ne!(rewritten, plain, "the redirect {wrong} leads eight bytes too far, and nobody sees it");
    }
}

#[test]
fn a_view_that_is_out_of_reach_is_reached_through_a_register() {
    let bench = Bench::new();
    let global = |load| Step::Global { cell: 2, data: 1, load };
    for (load, live) in [(true, true), (true, false), (false, true), (false, false)] {
        let program = Program { steps: vec![global(load)], laps: 1, ..counters() };
        let plain = bench.plain(&program);
        let state = bench.begin(&program);
        bench.machine.write(FAR, &bench.machine.bytes(PAGE, PAGE_BYTES));
        let mut rewriting = Rewriting::new(&bench, bench.head(&program));
        let instruction = rewriting.flow.instructions[&bench.machine.at(CODE)];
        let live = if live { LiveSet::ALL } else { rewriting.liveness.before(instruction.ip()) };
        let site = AccessSite { instruction: &instruction, live, moved: &[] };
        let made = Rewritelet::new(&site, &RewriteletForm::Displaced((FAR - PAGE).cast_signed()), rewriting.room()).unwrap();
        rewriting.place(made.at, &made.code);
        bench.machine.protect(false);
        let mut agent = Agent::default();
        let state = bench.machine.run(made.at, &state, &mut agent);
        assert_eq!(agent.lost.load(Ordering::SeqCst), 0);
        bench.machine.protect(true);
        assert_eq!(bench.outcome(&state, bench.machine.bytes(FAR, PAGE_BYTES)), plain);
    }
}

#[test]
fn a_ladder_leaves_what_straddles_as_it_was() {
    let bench = Bench::new();
    let steps = vec![Step::Memory { kind: Kind::AddTo, place: CounterPlace::Stays(0), data: 1, wide: true }];
    let program = Program { steps, laps: 1, cell: 0, ..counters() };
    let state = bench.begin(&program);
    let mut rewriting = Rewriting::new(&bench, bench.head(&program));
    let instruction = rewriting.flow.instructions[&bench.machine.at(CODE)];
    let site = AccessSite { instruction: &instruction, live: LiveSet::ALL, moved: &[] };
    let ladder = Rewritelet::new(&site, &RewriteletForm::Ladder(bench.page.clone()), rewriting.room()).unwrap();
    rewriting.place(ladder.at, &ladder.code);
    bench.machine.protect(false);
    let page = bench.machine.at(PAGE);
    for astride in [RULES[0].start - 4, RULES[1].start - 1, RULES[1].end - 7, PAGE_LENGTH - 1, 0_u64.wrapping_sub(1)] {
        let mut state = state;
        state.gpr[7] = page.wrapping_add(astride);
        let mut agent = Agent::default();
        let left = bench.machine.run(ladder.at, &state, &mut agent);
        let lost = agent.lost.load(Ordering::SeqCst) as u64;
        // It faults as the original does.
        assert!(ladder.map[1..].contains(&(lost, instruction.ip())), "{astride:#x}: at {lost:#x} of {:x?}", ladder.map);
        assert_eq!((left.gpr, left.flags & FLAGS), (state.gpr, state.flags & FLAGS), "all is as it was");
    }
}
