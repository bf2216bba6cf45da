//! The rules: from facts to a verdict for each command.
//!
//! A rule lowers a verdict and gives a reason. The remedy is a command that can be pasted into a
//! shell. Rules do not query the system.

use fieldstone_wire::PageKind;

use super::page_kinds::kind;
use super::sharing::{self, ALLOW_KERNEL_FAULTS, NO_KERNEL_FAULTS};
use super::size::size;
use super::{CommandVerdict, Facts, Level};
use crate::huge_pages::ThpMode;
use crate::limits::Overcommit;
use crate::perf::Counter;

/// The kernel's default; with fewer mappings, programs with many arenas run out.
const USUAL_MAP_COUNT: u64 = 65530;

/// A verdict for each command, in the order in which a new user meets them.
#[must_use]
pub fn verdicts(facts: &Facts) -> Vec<CommandVerdict> {
    let mut verdicts = vec![profile(facts, "profile"), profile_load(facts), trace(facts)];
    verdicts.extend(PageKind::ALL.iter().rev().map(|page_kind| region(facts, *page_kind)));
    verdicts.push(page_kind_report(facts));
    verdicts.push(running(facts));
    verdicts.push(guard(facts));
    verdicts.push(resident(facts));
    let verdicts = verdicts.into_iter().map(|verdict| verdict.for_user(facts.machine.root));
    verdicts.chain(sharing::verdicts(facts)).collect()
}

/// Profiling compares run times on different pages, so it needs two page kinds.
fn profile(facts: &Facts, command: &str) -> CommandVerdict {
    let huge_kinds = [PageKind::Thp, PageKind::Hugetlb2m, PageKind::Hugetlb1g];
    let (possible, lacking): (Vec<_>, Vec<_>) = huge_kinds
        .map(|page_kind| kind(facts, page_kind, ""))
        .into_iter()
        .partition(|kind| kind.level < Level::Unavailable);
    let (level, why, remedy) = match &facts.counters.cycles {
        Counter::Available => (Level::Works, "by run times; `perf stat` can also count page walks here", None),
        Counter::Absent(_) => (Level::Limited, "run times only: no hardware counters on this machine", None),
        Counter::Denied(_) => {
            let remedy = "echo 1 | sudo tee /proc/sys/kernel/perf_event_paranoid".to_owned();
            (Level::Limited, "run times only: this user may not use the hardware counters", Some(remedy))
        }
    };
    let mut verdict = CommandVerdict::new(command, level, why, remedy);
    if facts.machine.virtual_machine {
        verdict.lower(Level::Works, "in a virtual machine the host's page size affects the times too", None);
    }
    if facts.transparent.global == Some(ThpMode::Always) && !facts.thp_can_be_refused {
        verdict.lower(Level::Limited, "the 4 KiB run cannot avoid transparent huge pages", None);
    }
    if possible.is_empty() {
        let remedy = lacking.into_iter().find_map(|kind| kind.remedy);
        verdict.lower(Level::Unavailable, "there are no huge pages to compare with", remedy);
    }
    verdict
}

fn profile_load(facts: &Facts) -> CommandVerdict {
    let mut verdict = profile(facts, "profile --load");
    if facts.machine.cpus < 2 {
        verdict.lower(Level::Limited, "one CPU: the server and its load share it", None);
    }
    verdict
}

fn trace(facts: &Facts) -> CommandVerdict {
    let why = "counts page walks by models, and measures the time of a walk by replaying accesses";
    let mut verdict = CommandVerdict::new("profile --trace", Level::Works, why, None);
    if !facts.emulator {
        let remedy = Some("sudo apt-get install qemu-user".to_owned());
        verdict.lower(Level::Unavailable, "qemu-x86_64, which runs the trace, is missing", remedy);
    }
    if facts.machine.architecture != "x86_64" {
        verdict.lower(Level::Unavailable, format!("not on {} yet", facts.machine.architecture), None);
    }
    if facts.machine.cpus < 2 {
        verdict.lower(Level::Limited, "one CPU: the program and the models share it", None);
    }
    verdict
}

/// Collapsing memory of a running process.
fn running(facts: &Facts) -> CommandVerdict {
    let mut verdict = CommandVerdict::new("attach --huge", Level::Works, "huge pages for a running program", None);
    if !facts.may_collapse {
        // Root without the capability, for instance in a container, gains nothing by sudo.
        let remedy = (!facts.machine.root).then(|| "sudo fieldstone attach --huge PID".to_owned());
        verdict.lower(Level::Unavailable, "this user lacks CAP_SYS_NICE", remedy);
    }
    if facts.transparent.huge_bytes.is_none() {
        verdict.lower(Level::Unavailable, "this kernel has no transparent huge pages", None);
    }
    verdict
}

/// Guarding heap objects of a program that is started.
fn guard(facts: &Facts) -> CommandVerdict {
    let why = "finds memory errors of the heap, in programs linked dynamically with glibc 2.34 or later";
    let mut verdict = CommandVerdict::new("run --guard", Level::Works, why, None);
    if facts.machine.architecture != "x86_64" {
        verdict.lower(Level::Unavailable, format!("not on {} yet", facts.machine.architecture), None);
    }
    verdict
}

/// Paging the memory of a program that is started.
fn resident(facts: &Facts) -> CommandVerdict {
    let why = "bounds the resident memory of programs linked dynamically with glibc 2.35 or later";
    let mut verdict = CommandVerdict::new("run --resident", Level::Works, why, None);
    if facts.machine.architecture != "x86_64" {
        verdict.lower(Level::Unavailable, format!("not on {} yet", facts.machine.architecture), None);
    }
    // The kernel lists its features only to a user who can open some userfaultfd.
    if !facts.userfault.features.is_empty() && !facts.userfault.has("MOVE") {
        verdict.lower(Level::Unavailable, "this kernel has no UFFDIO_MOVE (Linux 6.8)", None);
    }
    if !facts.userfault.kernel_faults && !facts.userfault.device {
        verdict.lower(Level::Unavailable, NO_KERNEL_FAULTS, Some(ALLOW_KERNEL_FAULTS.to_owned()));
    }
    verdict
}

fn region(facts: &Facts, page_kind: PageKind) -> CommandVerdict {
    let mut verdict = kind(facts, page_kind, &format!("run --region --pages {page_kind}"));
    if facts.machine.architecture != "x86_64" {
        verdict.lower(
            Level::Unavailable,
            format!("not on {} yet: libc's entries are patched in x86-64 code", facts.machine.architecture),
            None,
        );
    }
    let limits = &facts.limits;
    if let Some(bytes) = limits.address_space_bytes {
        let why = format!("the region counts against the address space limit of {}", size(bytes));
        verdict.lower(Level::Limited, why, Some("ulimit -v unlimited".to_owned()));
    }
    if limits.overcommit == Some(Overcommit::Strict) {
        let remedy = "echo 0 | sudo tee /proc/sys/vm/overcommit_memory".to_owned();
        verdict.lower(
            Level::Limited,
            "strict overcommit may refuse memory that is reserved but never touched",
            Some(remedy),
        );
    }
    if let Some(count) = limits.max_map_count.filter(|count| *count < USUAL_MAP_COUNT) {
        let remedy = format!("echo {USUAL_MAP_COUNT} | sudo tee /proc/sys/vm/max_map_count");
        verdict.lower(Level::Limited, format!("at most {count} mappings per process"), Some(remedy));
    }
    // A control group does not charge hugetlb pages.
    let group = limits.cgroup.as_ref().and_then(|group| group.limit_bytes);
    if let (Some(limit), false) = (group, matches!(page_kind, PageKind::Hugetlb2m | PageKind::Hugetlb1g)) {
        verdict.lower(Level::Works, format!("the control group has a limit of {}", size(limit)), None);
    }
    verdict
}

fn page_kind_report(facts: &Facts) -> CommandVerdict {
    let command = "run --region --stats";
    if facts.frames_visible {
        let why = "page kinds and physical contiguity exactly, from the kernel's page tables";
        return CommandVerdict::new(command, Level::Works, why, None);
    }
    let why = "page kinds from smaps: without folios below the huge page, without physical contiguity";
    let remedy = "sudo fieldstone run --region --stats FILE -- PROGRAM".to_owned();
    // As for `attach --huge`.
    CommandVerdict::new(command, Level::Limited, why, (!facts.machine.root).then_some(remedy))
}
