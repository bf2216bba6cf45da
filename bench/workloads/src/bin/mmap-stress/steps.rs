//! The steps, their weights, and the loop that takes them.

use crate::{
    advice, contents, execute, forking, heap, limits, mapping, probe, program_break, protection, refusals, remapping,
    reservation,
    test_thread::{CheckResult, TestThread},
};
use clap::ValueEnum;

/// The subject of a step; the names of `--skip`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum StepKind {
    Map,
    Unmap,
    Write,
    Protect,
    Discard,
    Advise,
    ForkAdvice,
    Remap,
    Keep,
    #[value(name = "reservation")]
    Reservation,
    Heap,
    Thread,
    Brk,
    Limit,
    Refusals,
    Execute,
    Fork,
}

/// One kind of step with its weight.
struct Step {
    kind: StepKind,
    name: &'static str,
    /// Relative frequency.
    weight: usize,
    /// Whether it disturbs, or is disturbed by, other threads.
    needs_only_thread: bool,
    take: fn(&mut TestThread) -> CheckResult,
}

const fn step(kind: StepKind, name: &'static str, weight: usize, take: fn(&mut TestThread) -> CheckResult) -> Step {
    Step { kind, name, weight, needs_only_thread: false, take }
}

const fn step_of_only_thread(
    kind: StepKind,
    name: &'static str,
    weight: usize,
    take: fn(&mut TestThread) -> CheckResult,
) -> Step {
    Step { kind, name, weight, needs_only_thread: true, take }
}

static STEPS: [Step; 24] = [
    step(StepKind::Map, "mmap", 120, mapping::map),
    step(StepKind::Map, "mmap fixed", 40, mapping::map_over),
    step(StepKind::Unmap, "munmap", 80, mapping::unmap),
    step(StepKind::Write, "write", 200, contents::write),
    step(StepKind::Write, "pread", 40, contents::kernel_write),
    step(StepKind::Protect, "mprotect", 80, protection::protect),
    step(StepKind::Discard, "MADV_DONTNEED", 50, advice::discard),
    step(StepKind::Discard, "MADV_FREE", 20, advice::free),
    step(StepKind::Advise, "madvise", 40, advice::advise),
    step(StepKind::ForkAdvice, "madvise for fork", 20, advice::advise_fork),
    step(StepKind::Remap, "mremap to more pages", 60, remapping::grow),
    step(StepKind::Remap, "mremap to fewer pages", 30, remapping::shrink),
    step(StepKind::Remap, "mremap to an address", 40, remapping::move_to),
    step(StepKind::Keep, "mremap, keeping", 20, remapping::move_and_keep),
    step(StepKind::Reservation, "reservation", 60, reservation::use_reservation),
    step(StepKind::Heap, "heap", 120, heap::heap),
    step(StepKind::Thread, "thread", 6, heap::thread),
    step_of_only_thread(StepKind::Brk, "sbrk", 30, program_break::sbrk),
    step_of_only_thread(StepKind::Limit, "setrlimit", 6, limits::limit),
    step(StepKind::Refusals, "refusals", 40, refusals::refusals),
    step(StepKind::Execute, "execute", if probe::arch::HAS_GENERATED_CODE { 10 } else { 0 }, execute::execute),
    step(StepKind::Fork, "fork", 15, forking::fork),
    step(StepKind::Write, "check", 10, |test| test.check_all()),
    step(StepKind::Heap, "heap check", 5, |test| test.heap.check().map_err(|error| error.to_string())),
];

/// Steps between two checks of all memory.
const CHECK_EVERY: usize = 32;

/// Takes `count` random steps; the first difference from the model ends the run.
pub(crate) fn run(test: &mut TestThread, count: usize) -> CheckResult {
    let steps: Vec<&Step> = STEPS
        .iter()
        .filter(|step| (test.is_only_thread || !step.needs_only_thread) && !test.skip.contains(&step.kind))
        .collect();
    let total: usize = steps.iter().map(|step| step.weight).sum();
    for number in 1..=count {
        let mut draw = test.random.below(total);
        let drawn = steps.iter().find(|step| {
            let found = draw < step.weight;
            draw = draw.saturating_sub(step.weight);
            found
        });
        let Some(step) = drawn else { return Ok(()) };
        probe::set_step(number, step.name);
        let mut verdict = (step.take)(test);
        if number.is_multiple_of(CHECK_EVERY) || number == count {
            verdict = verdict.and_then(|()| test.check_all());
        }
        verdict.map_err(|what| format!("step {number} ({}): {what}", step.name))?;
    }
    Ok(())
}
