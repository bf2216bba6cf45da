//! `fieldstone doctor`: what this machine, kernel, container and user allow, and a verdict for each command.
//!
//! The facts and the verdicts come from `fieldstone_sys::doctor`; this file only writes them down. Text is for people and may
//! change; JSON is the facts and verdicts as they are.

use std::fmt::{Display, Write as _};
use std::io::{self, Write as _};

use anyhow::Context as _;
use clap::ValueEnum;
use fieldstone_report::quantity::bytes;
use fieldstone_sys::doctor::{Doctor, Facts, Level};
use fieldstone_sys::limits::{Limits, Overcommit};
use fieldstone_sys::perf::Counter;

/// How the findings are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Short aligned lines
    #[default]
    Text,
    /// Facts and verdicts as one JSON object
    Json,
}

/// Examines the machine and prints what was found to stdout. Changes nothing.
///
/// Returns the exit code: 0 when every command works, if only within limits, 1 when one is unavailable.
///
/// # Errors
/// stdout cannot be written.
pub(crate) fn run(format: Format) -> anyhow::Result<u8> {
    let doctor = Doctor::examine();
    let text = match format {
        Format::Text => text(&doctor),
        Format::Json => serde_json::to_string_pretty(&doctor).context("the findings as JSON")? + "\n",
    };
    io::stdout().write_all(text.as_bytes()).context("cannot write to stdout")?;
    Ok(u8::from(doctor.worst() == Level::Unavailable))
}

fn text(doctor: &Doctor) -> String {
    let facts = &doctor.facts;
    let mut page = Page::default();
    machine(&mut page, facts);
    page_kinds(&mut page, facts);
    kernel(&mut page, facts);
    limits(&mut page, &facts.limits);
    page.section("Commands");
    let width = doctor.verdicts.iter().map(|verdict| verdict.command.len()).max().unwrap_or(0);
    for verdict in &doctor.verdicts {
        page.line(format_args!("{:width$}  {:11}  {}", verdict.command, verdict.level.name(), verdict.why));
        if let Some(remedy) = &verdict.remedy {
            page.line(format_args!("{:width$}  {:>11}  {remedy}", "", "better by"));
        }
    }
    page.0
}

fn machine(page: &mut Page, facts: &Facts) {
    let machine = &facts.machine;
    page.section("Machine");
    page.fact("cpu", format_args!("{}, {} to run on, {}", machine.cpu, machine.cpus, machine.architecture));
    let memory = (bytes(machine.memory_bytes), bytes(machine.memory_available_bytes));
    page.fact("memory", format_args!("{}, {} available", memory.0, memory.1));
    let levels = if machine.five_level_tables { ", five-level page tables" } else { "" };
    page.fact("base page", format_args!("{}{levels}", bytes(machine.page_bytes)));
    page.fact("kernel", &machine.kernel);
    page.fact("libc", machine.glibc.as_ref().map_or("not glibc".to_owned(), |version| format!("glibc {version}")));
    let below = if machine.virtual_machine { "virtual machine" } else { "no hypervisor seen" };
    let around = machine.container.as_deref().unwrap_or("no container seen");
    page.fact("runs in", format_args!("{below}, {around}"));
    page.fact("user", if machine.root { "root" } else { "not root" });
}

fn page_kinds(page: &mut Page, facts: &Facts) {
    page.section("Page kinds");
    let transparent = &facts.transparent;
    let mode = transparent.global.map_or("none in this kernel", |mode| mode.name());
    let defrag = transparent.defrag.as_ref().map_or(String::new(), |defrag| format!(", defrag {defrag}"));
    page.fact("transparent", format_args!("{mode}{defrag}"));
    // Sizes of one mode share a line: there are up to nine.
    let mut folios: Vec<(&str, Vec<String>)> = Vec::new();
    for folio in &transparent.folios {
        match folios.iter_mut().find(|(mode, _)| *mode == folio.mode.name()) {
            Some((_, sizes)) => sizes.push(bytes(folio.folio_bytes)),
            None => folios.push((folio.mode.name(), vec![bytes(folio.folio_bytes)])),
        }
    }
    for (mode, sizes) in folios {
        page.fact("  folios", format_args!("{mode}: {}", sizes.join(", ")));
    }
    if facts.pools.is_empty() {
        page.fact("hugetlb", "none in this kernel");
    }
    for pool in &facts.pools {
        let size = bytes(pool.page_bytes);
        page.fact(
            &format!("hugetlb {size}"),
            format_args!("{} pages, {} to be had, {} more on demand", pool.total, pool.available(), pool.overcommit),
        );
    }
    page.fact("seen exactly", if facts.frames_visible { "yes, page tables can be read" } else { "no, by smaps only" });
}

fn kernel(page: &mut Page, facts: &Facts) {
    page.section("Kernel");
    let userfault = &facts.userfault;
    let doors = [
        (userfault.user_faults, "user faults"),
        (userfault.kernel_faults, "kernel faults"),
        (userfault.device, "device"),
    ];
    let open: Vec<&str> = doors.iter().filter(|(open, _)| *open).map(|(_, name)| *name).collect();
    let refused = userfault.refused.as_deref().unwrap_or("none");
    page.fact("userfaultfd", if open.is_empty() { refused.to_owned() } else { open.join(", ") });
    for features in userfault.features.chunks(5) {
        page.fact("  features", features.join(" "));
    }
    let counters = &facts.counters;
    page.fact("cycles", counter(&counters.cycles));
    page.fact("dTLB misses", counter(&counters.dtlb_read_misses));
    page.fact("page faults", counter(&counters.page_faults));
    page.fact("perf_event_paranoid", counters.paranoid.map_or("none".to_owned(), |level| level.to_string()));
    let scope = facts.limits.ptrace_scope;
    page.fact("ptrace_scope", scope.map_or("none (no Yama)".to_owned(), |scope| scope.to_string()));
}

fn counter(counter: &Counter) -> String {
    match counter {
        Counter::Available => "counted".to_owned(),
        Counter::Absent(why) => format!("none here ({why})"),
        Counter::Denied(why) => format!("denied to this user ({why})"),
    }
}

fn limits(page: &mut Page, limits: &Limits) {
    page.section("Limits");
    let limit = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), bytes);
    match &limits.cgroup {
        None => page.fact("control group", "none for memory"),
        Some(group) => {
            let used = group.usage_bytes.map_or(String::new(), |used| format!(", {} used", bytes(used)));
            page.fact("control group", format_args!("{}{used} (v{})", limit(group.limit_bytes), group.version));
        }
    }
    page.fact("address space", limit(limits.address_space_bytes));
    page.fact("data", limit(limits.data_bytes));
    page.fact("locked memory", limit(limits.locked_bytes));
    page.fact("max_map_count", limits.max_map_count.map_or("unknown".to_owned(), |count| count.to_string()));
    let overcommit = match limits.overcommit {
        Some(Overcommit::Heuristic) => "heuristic",
        Some(Overcommit::Always) => "always",
        Some(Overcommit::Strict) => "strict",
        None => "unknown",
    };
    page.fact("overcommit", overcommit);
    let swap = match limits.swap_total_bytes {
        0 => "none".to_owned(),
        total => format!("{}, {} free", bytes(total), bytes(limits.swap_free_bytes)),
    };
    page.fact("swap", swap);
}

/// The text as it grows.
#[derive(Default)]
struct Page(String);

impl Page {
    fn section(&mut self, name: &str) {
        let gap = if self.0.is_empty() { "" } else { "\n" };
        self.write(format_args!("{gap}{name}\n"));
    }

    fn fact(&mut self, name: &str, value: impl Display) {
        self.line(format_args!("{name:20}{value}"));
    }

    fn line(&mut self, line: impl Display) {
        self.write(format_args!("  {line}\n"));
    }

    fn write(&mut self, text: impl Display) {
        // A String takes whatever is written to it.
        let _ = write!(self.0, "{text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_stand_in_order_and_each_verdict_has_its_line() {
        let mut doctor = Doctor::examine();
        doctor.verdicts.truncate(2);
        doctor.verdicts[0].remedy = Some("echo 7 | sudo tee /knob".to_owned());
        doctor.verdicts[0].level = Level::Unavailable;
        doctor.verdicts[1].remedy = None;
        let text = text(&doctor);
        let headings: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ') && !line.is_empty()).collect();
        assert_eq!(headings, ["Machine", "Page kinds", "Kernel", "Limits", "Commands"]);
        let commands: Vec<&str> = text.split_once("Commands\n").unwrap().1.lines().collect();
        let [first, remedy, second] = commands[..] else { panic!("{commands:?}") };
        assert!(first.starts_with("  profile         unavailable  "), "{first}");
        assert!(remedy.ends_with("better by  echo 7 | sudo tee /knob"), "{remedy}");
        assert!(second.starts_with("  profile --load  "), "{second}");
        assert_eq!(first.find("unavailable").unwrap() + "unavailable  ".len(), remedy.find("echo").unwrap(), "aligned");
    }

    #[test]
    fn facts_read_as_they_are() {
        let mut doctor = Doctor::examine();
        doctor.facts.machine.cpu = "Zen 4".to_owned();
        doctor.facts.machine.cpus = 3;
        doctor.facts.machine.glibc = None;
        doctor.facts.machine.container = Some("podman".to_owned());
        doctor.facts.pools.clear();
        doctor.facts.limits = Limits::default();
        doctor.facts.counters.cycles = Counter::Denied("Permission denied".to_owned());
        let text = text(&doctor);
        for line in [
            format!("  cpu                 Zen 4, 3 to run on, {}\n", std::env::consts::ARCH),
            "  libc                not glibc\n".to_owned(),
            "  hugetlb             none in this kernel\n".to_owned(),
            "  control group       none for memory\n".to_owned(),
            "  address space       unlimited\n".to_owned(),
            "  swap                none\n".to_owned(),
            "  cycles              denied to this user (Permission denied)\n".to_owned(),
        ] {
            assert!(text.contains(&line), "{line:?} in\n{text}");
        }
        assert!(text.contains(", podman\n"));
    }

    #[test]
    fn json_holds_the_same_findings() {
        let doctor = Doctor::examine();
        let json = serde_json::to_value(&doctor).unwrap();
        assert_eq!(json["facts"]["machine"]["page_bytes"], doctor.facts.machine.page_bytes);
        let verdicts = json["verdicts"].as_array().unwrap();
        assert_eq!(verdicts.len(), doctor.verdicts.len());
        assert_eq!(verdicts[0]["level"], doctor.verdicts[0].level.name());
        assert_eq!(verdicts[0]["why"], doctor.verdicts[0].why.as_str());
    }
}
