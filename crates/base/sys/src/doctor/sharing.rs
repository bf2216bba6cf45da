//! Availability of detecting false sharing, and of repairing it in a running program.
//!
//! Detection needs samples: perf events, or ptrace instead. Repair needs ptrace, and a userfaultfd
//! that receives the kernel's faults too.

use super::{CommandVerdict, Facts, Level};
use crate::limits::{self, Limits};
use crate::machine::{self, Machine};
use crate::perf::{self, Counter, Counters};
use crate::userfault::{self, UserfaultSupport};

/// The command that starts a program and repairs it, without `fieldstone`.
pub const RUN_REPAIR: &str = "run --repair";
/// The command that repairs a running process, without `fieldstone`.
pub const REPAIR: &str = "attach --repair";

/// The obstacle of a user whose userfaultfd receives the faults of user code only.
pub(super) const NO_KERNEL_FAULTS: &str = "no userfaultfd that receives the kernel's faults";
/// The command that removes [`NO_KERNEL_FAULTS`].
pub(super) const ALLOW_KERNEL_FAULTS: &str = "sudo sysctl vm.unprivileged_userfaultfd=1";

/// The facts that these verdicts need.
#[derive(Clone, Copy)]
struct Rights<'a> {
    machine: &'a Machine,
    userfault: &'a UserfaultSupport,
    counters: &'a Counters,
    limits: &'a Limits,
}

/// The traced process. Yama lets a program that Fieldstone starts permit tracing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TracedProcess {
    Started,
    Running,
}

/// The verdicts on `sharing`, `run --repair` and `attach --repair`.
pub(super) fn verdicts(facts: &Facts) -> [CommandVerdict; 3] {
    let Facts { machine, userfault, counters, limits, .. } = facts;
    all(Rights { machine, userfault, counters, limits })
}

/// The verdict on [`RUN_REPAIR`] or [`REPAIR`]; `None` for another command. Gathers only the facts
/// that it needs, because a program's start waits for it.
#[must_use]
pub fn repair_verdict(command: &str) -> Option<CommandVerdict> {
    let (machine, userfault) = (machine::machine(), userfault::userfault());
    let (counters, limits) = (perf::counters(), limits::limits());
    let rights = Rights { machine: &machine, userfault: &userfault, counters: &counters, limits: &limits };
    all(rights).into_iter().find(|verdict| verdict.command == command && [RUN_REPAIR, REPAIR].contains(&command))
}

fn all(facts: Rights<'_>) -> [CommandVerdict; 3] {
    let sharing = detection(facts, "sharing", "false sharing, detected from samples", TracedProcess::Started);
    let verdicts =
        [sharing, repair(facts, RUN_REPAIR, TracedProcess::Started), repair(facts, REPAIR, TracedProcess::Running)];
    verdicts.map(|verdict| verdict.for_user(facts.machine.root))
}

fn detection(facts: Rights<'_>, command: &str, why: &str, traced: TracedProcess) -> CommandVerdict {
    let mut verdict = CommandVerdict::new(command, Level::Works, why, None);
    if facts.machine.architecture != "x86_64" {
        verdict.lower(Level::Unavailable, format!("not on {} yet", facts.machine.architecture), None);
    }
    if facts.machine.cpus < 2 {
        verdict.lower(Level::Limited, "one CPU: threads do not run in parallel, so no line is contended", None);
    }
    let (lacking, remedy) = match facts.counters.page_faults {
        Counter::Available => return verdict,
        Counter::Absent(_) => ("this kernel has no perf events", None),
        Counter::Denied(_) => {
            ("this user may not use perf events", Some("sudo sysctl kernel.perf_event_paranoid=2".to_owned()))
        }
    };
    if may_trace(facts, traced) {
        verdict.lower(Level::Limited, format!("{lacking}: each sample stops its thread briefly"), remedy);
    } else {
        verdict.lower(Level::Unavailable, format!("{lacking}, and ptrace is denied"), remedy);
    }
    verdict
}

fn repair(facts: Rights<'_>, command: &str, traced: TracedProcess) -> CommandVerdict {
    let mut verdict = detection(facts, command, "repairs false sharing while the program runs", traced);
    if !facts.userfault.kernel_faults {
        verdict.lower(Level::Unavailable, NO_KERNEL_FAULTS, Some(ALLOW_KERNEL_FAULTS.to_owned()));
    }
    if !may_trace(facts, traced) {
        let scope = facts.limits.ptrace_scope.unwrap_or(0);
        // A reboot is the only way out of 3.
        let remedy = (scope < 3).then(|| "sudo sysctl kernel.yama.ptrace_scope=0".to_owned());
        verdict.lower(
            Level::Unavailable,
            format!("no ptrace for this user (kernel.yama.ptrace_scope is {scope})"),
            remedy,
        );
    }
    verdict
}

fn may_trace(facts: Rights<'_>, traced: TracedProcess) -> bool {
    match facts.limits.ptrace_scope {
        None | Some(0) => true,
        Some(1) => facts.machine.root || traced == TracedProcess::Started,
        Some(2) => facts.machine.root,
        Some(_) => false,
    }
}
