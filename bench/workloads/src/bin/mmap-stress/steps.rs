//! The steps, how often each is taken, and the loop that takes them.

use crate::{
    advice, breaks, contents, execute, forking, giant, heap, limits, mapping, probe, protection, refusals, remapping,
    world::{Verdict, World},
};
use clap::ValueEnum;

/// What a step is about; what `--skip` names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Kind {
    Map,
    Unmap,
    Write,
    Protect,
    Discard,
    Advise,
    ForkAdvice,
    Remap,
    Keep,
    Giant,
    Heap,
    Thread,
    Brk,
    Limit,
    Refusals,
    Execute,
    Fork,
}

/// One step.
struct Step {
    kind: Kind,
    name: &'static str,
    /// How often it is taken, in proportion.
    weight: usize,
    /// Whether it disturbs, or is disturbed by, other threads.
    alone: bool,
    take: fn(&mut World) -> Verdict,
}

const fn step(kind: Kind, name: &'static str, weight: usize, take: fn(&mut World) -> Verdict) -> Step {
    Step { kind, name, weight, alone: false, take }
}

const fn step_alone(kind: Kind, name: &'static str, weight: usize, take: fn(&mut World) -> Verdict) -> Step {
    Step { kind, name, weight, alone: true, take }
}

static STEPS: [Step; 24] = [
    step(Kind::Map, "mmap", 120, mapping::map),
    step(Kind::Map, "mmap fixed", 40, mapping::map_over),
    step(Kind::Unmap, "munmap", 80, mapping::unmap),
    step(Kind::Write, "write", 200, contents::write),
    step(Kind::Write, "pread", 40, contents::kernel_write),
    step(Kind::Protect, "mprotect", 80, protection::protect),
    step(Kind::Discard, "MADV_DONTNEED", 50, advice::discard),
    step(Kind::Discard, "MADV_FREE", 20, advice::free),
    step(Kind::Advise, "madvise", 40, advice::advise),
    step(Kind::ForkAdvice, "madvise for fork", 20, advice::advise_fork),
    step(Kind::Remap, "mremap to more", 60, remapping::grow),
    step(Kind::Remap, "mremap to less", 30, remapping::shrink),
    step(Kind::Remap, "mremap to a place", 40, remapping::move_to),
    step(Kind::Keep, "mremap, keeping", 20, remapping::move_and_keep),
    step(Kind::Giant, "giant", 60, giant::giant),
    step(Kind::Heap, "heap", 120, heap::heap),
    step(Kind::Thread, "thread", 6, heap::thread),
    step_alone(Kind::Brk, "sbrk", 30, breaks::sbrk),
    step_alone(Kind::Limit, "setrlimit", 6, limits::limit),
    step(Kind::Refusals, "refusals", 40, refusals::refusals),
    step(Kind::Execute, "execute", if cfg!(target_arch = "x86_64") { 10 } else { 0 }, execute::execute),
    step(Kind::Fork, "fork", 15, forking::fork),
    step(Kind::Write, "check", 10, |world| world.check_all()),
    step(Kind::Heap, "heap check", 5, |world| world.heap.check().map_err(|error| error.to_string())),
];

/// All is checked so often, in steps.
const CHECK_EVERY: usize = 32;

/// Takes `count` random steps; the first that differs from the model ends it.
pub(crate) fn run(world: &mut World, count: usize) -> Verdict {
    let steps: Vec<&Step> =
        STEPS.iter().filter(|step| (world.alone || !step.alone) && !world.skip.contains(&step.kind)).collect();
    let total: usize = steps.iter().map(|step| step.weight).sum();
    for number in 1..=count {
        let mut draw = world.random.below(total);
        let drawn = steps.iter().find(|step| {
            let found = draw < step.weight;
            draw = draw.saturating_sub(step.weight);
            found
        });
        let Some(step) = drawn else { return Ok(()) };
        probe::at_step(number, step.name);
        let mut verdict = (step.take)(world);
        if number.is_multiple_of(CHECK_EVERY) || number == count {
            verdict = verdict.and_then(|()| world.check_all());
        }
        verdict.map_err(|what| format!("step {number} ({}): {what}", step.name))?;
    }
    Ok(())
}
