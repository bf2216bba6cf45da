//! Whether cache lines that threads fight for can be seen, and parted while the program runs.
//!
//! To be seen takes samples: perf events, or ptrace in their place. To be parted takes ptrace, and a userfaultfd that sees the kernel's
//! accesses too.

use super::{Facts, Level, Verdict};
use crate::limits::{self, Limits};
use crate::machine::{self, Machine};
use crate::perf::{self, Counter, Counters};
use crate::userfault::{self, Userfault};

/// The words of the command that starts a program and repairs it.
pub const RUN_REPAIR: &str = "run --repair";
/// Those of the command that repairs a running process.
pub const REPAIR: &str = "attach --repair";

/// The facts that these verdicts need.
#[derive(Clone, Copy)]
struct Rights<'a> {
    machine: &'a Machine,
    userfault: &'a Userfault,
    counters: &'a Counters,
    limits: &'a Limits,
}

/// Whose process is traced. Yama lets a program that we start allow it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Traced {
    Started,
    Running,
}

/// The verdicts on `sharing`, `run --repair` and `attach --repair`.
pub(super) fn verdicts(facts: &Facts) -> [Verdict; 3] {
    let Facts { machine, userfault, counters, limits, .. } = facts;
    judged(Rights { machine, userfault, counters, limits })
}

/// The verdict on [`RUN_REPAIR`] or [`REPAIR`]; `None` for another command. Gathers only the facts that it needs, since a program waits for
/// it before it starts.
#[must_use]
pub fn repair_verdict(command: &str) -> Option<Verdict> {
    let (machine, userfault) = (machine::machine(), userfault::userfault());
    let (counters, limits) = (perf::counters(), limits::limits());
    let rights = Rights { machine: &machine, userfault: &userfault, counters: &counters, limits: &limits };
    judged(rights).into_iter().find(|verdict| verdict.command == command && [RUN_REPAIR, REPAIR].contains(&command))
}

fn judged(facts: Rights<'_>) -> [Verdict; 3] {
    let sharing = seen(facts, "sharing", "cache lines that threads fight for, from samples", Traced::Started);
    [sharing, parted(facts, RUN_REPAIR, Traced::Started), parted(facts, REPAIR, Traced::Running)]
}

fn seen(facts: Rights<'_>, command: &str, why: &str, traced: Traced) -> Verdict {
    let mut verdict = Verdict::new(command, Level::Works, why, None);
    if facts.machine.architecture != "x86_64" {
        verdict.lower(Level::Unavailable, format!("not on {} yet", facts.machine.architecture), None);
    }
    if facts.machine.cpus < 2 {
        verdict.lower(Level::Limited, "one CPU: threads take turns on it, and fight for nothing", None);
    }
    let (lacking, remedy) = match facts.counters.page_faults {
        Counter::Available => return verdict,
        Counter::Absent(_) => ("this kernel has no perf events", None),
        Counter::Denied(_) => {
            ("this user may not use perf events", Some("sudo sysctl kernel.perf_event_paranoid=2".to_owned()))
        }
    };
    if may_trace(facts, traced) {
        verdict.lower(Level::Limited, format!("{lacking}: each sample stops its thread for a moment"), remedy);
    } else {
        verdict.lower(Level::Unavailable, format!("{lacking}, nor ptrace"), remedy);
    }
    verdict
}

fn parted(facts: Rights<'_>, command: &str, traced: Traced) -> Verdict {
    let mut verdict = seen(facts, command, "bytes that threads fight for are parted while the program runs", traced);
    if !facts.userfault.kernel_faults {
        let remedy = "sudo sysctl vm.unprivileged_userfaultfd=1".to_owned();
        verdict.lower(Level::Unavailable, "no userfaultfd that sees the kernel's accesses", Some(remedy));
    }
    if !may_trace(facts, traced) {
        let scope = facts.limits.ptrace_scope.unwrap_or(0);
        // What 3 forbids is forbidden until the machine starts anew.
        let remedy = (scope < 3).then(|| "sudo sysctl kernel.yama.ptrace_scope=0".to_owned());
        verdict.lower(
            Level::Unavailable,
            format!("no ptrace for this user (kernel.yama.ptrace_scope is {scope})"),
            remedy,
        );
    }
    verdict
}

fn may_trace(facts: Rights<'_>, traced: Traced) -> bool {
    match facts.limits.ptrace_scope {
        None | Some(0) => true,
        Some(1) => facts.machine.root || traced == Traced::Started,
        Some(2) => facts.machine.root,
        Some(_) => false,
    }
}
