//! `fieldstone doctor`: prints what this machine, kernel, container and user allow, and a verdict
//! for each command.
//!
//! The facts and verdicts come from `fieldstone_sys::doctor`, the page primitives and their costs
//! from `fieldstone_pages`. This file formats them. The text may change between versions; JSON
//! holds all facts.

use std::fmt::Display;

use clap::{Args, ValueEnum};
use fieldstone_pages::{Limitation, Primitive};
use fieldstone_report::quantity::bytes;
use fieldstone_report::{saved, text::Style};
use fieldstone_sys::doctor::{CommandVerdict, Doctor, Facts};
use fieldstone_sys::huge_pages::ThpMode;
use fieldstone_sys::limits::{Limits, Overcommit};
use fieldstone_sys::perf::Counter;
use fieldstone_sys::sampling::HardwareSource;
use serde::Serialize;

use crate::output::{print, style};

/// Check what this machine, its kernel and this user allow, and what each command can do here
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone doctor
  fieldstone doctor --format json | jq '.verdicts[] | {command, level}'

Exit code: 1 if a line of the section Commands says unavailable, 2 after an error, otherwise 0.")]
pub(crate) struct Arguments {
    /// Set the output format
    #[arg(long, value_enum, default_value_t)]
    format: DoctorFormat,
}

/// The format on standard output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DoctorFormat {
    /// Short aligned lines
    #[default]
    Text,
    /// Facts, verdicts and primitives as one JSON object
    Json,
}

/// Everything that `doctor` reports.
#[derive(Serialize)]
struct Findings {
    #[serde(flatten)]
    doctor: Doctor,
    primitives: Vec<Primitive>,
}

/// Examines the machine and prints the findings. Changes no setting; the page primitives are tried
/// on its own memory.
///
/// Returns the exit code: 1 if a line of the section Commands says unavailable, otherwise 0.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let findings = Findings { doctor: Doctor::examine(), primitives: fieldstone_pages::survey() };
    let text = match arguments.format {
        DoctorFormat::Text => text(&findings, style()),
        DoctorFormat::Json => saved::to_json(&findings)?,
    };
    print(&text)?;
    Ok(u8::from(findings.doctor.has_unavailable()))
}

fn text(findings: &Findings, style: Style) -> String {
    let doctor = &findings.doctor;
    let facts = &doctor.facts;
    let mut page = TextWriter { text: String::new(), style };
    machine(&mut page, facts);
    page_kinds(&mut page, facts);
    kernel(&mut page, facts);
    limits(&mut page, &facts.limits);
    primitives(&mut page, &findings.primitives);
    commands(&mut page, &doctor.verdicts);
    page.text
}

/// Writes the verdicts. A remedy is a command to copy, so it is never wrapped; one that does not
/// fit gets its own line.
fn commands(page: &mut TextWriter, verdicts: &[CommandVerdict]) {
    page.section("Commands");
    let width = verdicts.iter().map(|verdict| verdict.command.len()).max().unwrap_or(0);
    for CommandVerdict { command, level, why, remedy, .. } in verdicts {
        page.line(&format!("{command:width$}  {:11}  ", level.name()), why);
        let Some(remedy) = remedy else { continue };
        let lead = format!("{:width$}  {:>11}  ", "", "try");
        if INDENT.len() + lead.len() + remedy.len() <= page.style.width.into() {
            page.text += &format!("{INDENT}{lead}{remedy}\n");
        } else {
            page.text += &format!("{INDENT}{}\n{INDENT}{INDENT}{remedy}\n", lead.trim_end());
        }
    }
}

fn machine(page: &mut TextWriter, facts: &Facts) {
    let machine = &facts.machine;
    page.section("Machine");
    page.fact("cpu", format_args!("{}, {} usable, {}", machine.cpu, machine.cpus, machine.architecture));
    let memory = (bytes(machine.memory_bytes), bytes(machine.memory_available_bytes));
    page.fact("memory", format_args!("{}, {} available", memory.0, memory.1));
    let levels = if machine.five_level_tables { ", five-level page tables" } else { "" };
    page.fact("base page", format_args!("{}{levels}", bytes(machine.page_bytes)));
    page.fact("kernel", &machine.kernel);
    page.fact("libc", machine.glibc.as_ref().map_or("not glibc".to_owned(), |version| format!("glibc {version}")));
    let hypervisor = if machine.virtual_machine { "virtual machine" } else { "no hypervisor found" };
    let container = machine.container.as_deref().unwrap_or("no container found");
    page.fact("runs in", format_args!("{hypervisor}, {container}"));
    page.fact("user", if machine.root { "root" } else { "not root" });
}

fn page_kinds(page: &mut TextWriter, facts: &Facts) {
    page.section("Page kinds");
    let transparent = &facts.transparent;
    page.fact("transparent", transparent.global.map_or("none in this kernel", mode_words));
    if let Some(defrag) = &transparent.defrag {
        page.fact("  defrag", defrag_words(defrag));
    }
    // Sizes with the same mode share a line; a kernel has up to nine sizes.
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
            format_args!(
                "{} pages in the pool, {} of them free; the kernel adds up to {} on demand",
                pool.total,
                pool.available(),
                pool.overcommit
            ),
        );
    }
    page.fact("page frames", if facts.frames_visible { "readable from page tables" } else { "hidden, smaps only" });
}

/// The mode of transparent huge pages, and the memory that it concerns.
const fn mode_words(mode: ThpMode) -> &'static str {
    match mode {
        ThpMode::Always => "always: for all memory",
        ThpMode::Madvise => "madvise: for memory that requests them",
        ThpMode::Never => "never",
    }
}

/// The kernel's setting `defrag`: when a page fault finds no free huge page, whether the kernel
/// moves other memory to make one.
fn defrag_words(setting: &str) -> String {
    let meaning = match setting {
        "always" => "a page fault waits until the kernel has made a huge page from smaller ones",
        "defer" => "the kernel makes huge pages from smaller ones in the background",
        "defer+madvise" => "as madvise, and for all other memory in the background",
        "madvise" => "a page fault in memory that requests huge pages waits until the kernel has made one",
        "never" => "the kernel makes no huge pages from smaller ones at a page fault",
        _ => return setting.to_owned(),
    };
    format!("{setting}: {meaning}")
}

fn kernel(page: &mut TextWriter, facts: &Facts) {
    page.section("Kernel");
    let userfault = &facts.userfault;
    let sources = [
        (userfault.user_faults, "user faults"),
        (userfault.kernel_faults, "kernel faults"),
        (userfault.device, "device"),
    ];
    let open: Vec<&str> = sources.iter().filter(|(open, _)| *open).map(|(_, name)| *name).collect();
    let refused = userfault.refused.as_deref().unwrap_or("none");
    page.fact("userfaultfd", if open.is_empty() { refused.to_owned() } else { open.join(", ") });
    if !userfault.features.is_empty() {
        page.fact("  features", userfault.features.join(" "));
    }
    let counters = &facts.counters;
    page.fact("cycles", counter(&counters.cycles));
    page.fact("dTLB misses", counter(&counters.dtlb_read_misses));
    page.fact("page faults", counter(&counters.page_faults));
    page.fact("access records", access_records(&facts.hardware_sources));
    page.fact("perf_event_paranoid", counters.paranoid.map_or("none".to_owned(), |level| level.to_string()));
    let scope = facts.limits.ptrace_scope;
    page.fact("ptrace_scope", scope.map_or("none (no Yama)".to_owned(), |scope| scope.to_string()));
}

/// The hardware sources of access records that work here, otherwise those that are denied,
/// otherwise a note that there are none.
fn access_records(kinds: &[(HardwareSource, Counter)]) -> String {
    let names = |is_wanted: fn(&Counter) -> bool| {
        let wanted = kinds.iter().filter(|(_, counter)| is_wanted(counter)).map(|(kind, _)| kind.to_string());
        wanted.collect::<Vec<_>>().join(", ")
    };
    let denied = names(|counter| matches!(counter, Counter::Denied(_)));
    match names(Counter::is_available) {
        available if !available.is_empty() => available,
        _ if !denied.is_empty() => format!("denied to this user: {denied}"),
        _ => "none here: no IBS, PEBS, branch records".to_owned(),
    }
}

fn counter(counter: &Counter) -> String {
    match counter {
        Counter::Available => "counted".to_owned(),
        Counter::Absent(why) => format!("none here ({why})"),
        Counter::Denied(why) => format!("denied to this user ({why})"),
    }
}

fn limits(page: &mut TextWriter, limits: &Limits) {
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

/// The meaning of each primitive.
const MEANINGS: [&str; 5] = [
    "TRAP: an access to a protected page calls a handler, which runs in a thread or in a signal",
    "PROT1, PROTN, UNPROT: protect one page, protect many pages in one call, remove the protection",
    "DIRTY: find the pages that were written",
    "MAP2: map a page at a second address",
    "guard, fill: make a page inaccessible; let a handler fill a page at its first access",
];

/// Writes the table of primitives, the meaning of each, and that of each word in the last column.
fn primitives(page: &mut TextWriter, primitives: &[Primitive]) {
    page.section("Page primitives");
    page.line(&format!("{:20}{:20}{:20}{:>8}  ", "primitive", "mechanism", "fallback", "cost"), "limits");
    let mut limitations: Vec<&Limitation> = Vec::new();
    for primitive in primitives {
        let (mechanism, fallback) = (primitive.mechanism.unwrap_or("none"), primitive.fallback.unwrap_or("none"));
        let cost = primitive.cost_ns.map_or_else(|| "-".to_owned(), nanoseconds);
        let lost: Vec<&str> = primitive.lost.iter().map(|lost| lost.name).collect();
        let lost = if lost.is_empty() { "-".to_owned() } else { lost.join(", ") };
        page.line(&format!("{:20}{mechanism:20}{fallback:20}{cost:>8}  ", primitive.name), &lost);
        limitations.extend(&primitive.lost);
    }
    page.line("", "Cost is the time per page. Limits are what the mechanism does not notice or do.");
    MEANINGS.iter().for_each(|meaning| page.line("", meaning));
    limitations.sort_by_key(|lost| (lost.name, &lost.meaning));
    limitations.dedup();
    for lost in limitations {
        page.line(&format!("{}: ", lost.name), &lost.meaning);
    }
}

/// The cost of one page.
fn nanoseconds(cost: f64) -> String {
    if cost < 1000.0 { format!("{cost:.1} ns") } else { format!("{:.1} us", cost / 1000.0) }
}

const INDENT: &str = "  ";

/// Collects the text, wrapped to the width of the terminal.
struct TextWriter {
    text: String,
    style: Style,
}

impl TextWriter {
    fn section(&mut self, name: &str) {
        let gap = if self.text.is_empty() { "" } else { "\n" };
        self.text += &format!("{gap}{name}\n");
    }

    fn fact(&mut self, name: &str, value: impl Display) {
        self.line(&format!("{name:20}"), &value.to_string());
    }

    fn line(&mut self, lead: &str, text: &str) {
        self.text += &self.style.hanging(&format!("{INDENT}{lead}"), text);
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_sys::doctor::Level;

    use super::*;

    /// Wide enough that nothing is wrapped.
    const WIDE: Style = Style { width: u16::MAX, colour: false };

    fn findings() -> Findings {
        Findings { doctor: Doctor::examine(), primitives: fieldstone_pages::survey() }
    }

    #[test]
    fn sections_are_in_order_and_each_verdict_has_its_line() {
        let mut findings = findings();
        let doctor = &mut findings.doctor;
        doctor.verdicts.truncate(2);
        doctor.verdicts[0].remedy = Some("echo 7 | sudo tee /knob".to_owned());
        doctor.verdicts[0].level = Level::Unavailable;
        doctor.verdicts[1].remedy = None;
        let text = text(&findings, WIDE);
        let headings: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ') && !line.is_empty()).collect();
        assert_eq!(headings, ["Machine", "Page kinds", "Kernel", "Limits", "Page primitives", "Commands"]);
        let commands: Vec<&str> = text.split_once("Commands\n").unwrap().1.lines().collect();
        let [first, remedy, second] = commands[..] else { panic!("{commands:?}") };
        assert!(first.starts_with("  profile         unavailable  "), "{first}");
        assert!(remedy.ends_with("try  echo 7 | sudo tee /knob"), "{remedy}");
        assert!(second.starts_with("  profile --load  "), "{second}");
        assert_eq!(first.find("unavailable").unwrap() + "unavailable  ".len(), remedy.find("echo").unwrap(), "aligned");
    }

    #[test]
    fn no_line_but_a_command_to_copy_is_wider_than_the_terminal() {
        let mut findings = findings();
        let (knob, verdict) = ("k".repeat(80), &mut findings.doctor.verdicts[0]);
        (verdict.remedy, verdict.why) = (Some(knob.clone()), "words ".repeat(40));
        for width in [80, 100] {
            let text = text(&findings, Style { width, colour: false });
            let long = text.lines().filter(|line| line.chars().count() > width.into());
            assert!(long.clone().all(|line| line.starts_with("    ")), "{:?}", long.collect::<Vec<_>>());
            assert!(text.contains(&format!("try\n    {knob}\n")), "{text}");
        }
    }

    #[test]
    fn facts_are_printed_in_words() {
        let mut findings = findings();
        let doctor = &mut findings.doctor;
        doctor.facts.machine.cpu = "Zen 4".to_owned();
        doctor.facts.machine.cpus = 3;
        doctor.facts.machine.glibc = None;
        doctor.facts.machine.container = Some("podman".to_owned());
        doctor.facts.pools.clear();
        doctor.facts.limits = Limits::default();
        doctor.facts.counters.cycles = Counter::Denied("Permission denied".to_owned());
        let text = text(&findings, WIDE);
        for line in [
            format!("  cpu                 Zen 4, 3 usable, {}\n", std::env::consts::ARCH),
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
    fn primitives_are_a_table_and_each_loss_is_explained_once() {
        let mut findings = findings();
        let [first, second, ..] = &mut findings.primitives[..] else { panic!("{:?}", findings.primitives) };
        (first.mechanism, first.fallback, first.cost_ns) = (Some("one-way"), None, Some(2345.0));
        (second.mechanism, second.cost_ns) = (None, None);
        let text = text(&findings, WIDE);
        let table: Vec<&str> = text.split_once("Page primitives\n").unwrap().1.lines().collect();
        let columns = ["primitive", "mechanism", "fallback", "limits"].map(|name| table[0].find(name).unwrap());
        let [_, mechanism, fallback, _] = columns;
        assert!(
            table[1][mechanism..].starts_with("one-way") && table[1][fallback..].starts_with("none"),
            "{}",
            table[1]
        );
        assert!(table[1].contains("  2.3 us  ") && table[2].contains("none") && table[2].contains("  -  "), "{text}");
        for lost in findings.primitives.iter().flat_map(|primitive| &primitive.lost) {
            assert_eq!(text.matches(&lost.meaning).count(), 1, "{text}");
        }
    }

    #[test]
    fn json_holds_the_same_findings() {
        let findings = findings();
        let json = serde_json::to_value(&findings).unwrap();
        let doctor = &findings.doctor;
        assert_eq!(json["facts"]["machine"]["page_bytes"], doctor.facts.machine.page_bytes);
        let verdicts = json["verdicts"].as_array().unwrap();
        assert_eq!(verdicts.len(), doctor.verdicts.len());
        assert_eq!(verdicts[0]["level"], doctor.verdicts[0].level.name());
        assert_eq!(verdicts[0]["why"], doctor.verdicts[0].why.as_str());
        let (printed, primitives) = (json["primitives"].as_array().unwrap(), &findings.primitives);
        assert_eq!(printed.len(), primitives.len());
        assert_eq!(
            (&printed[0]["name"], &printed[0]["mechanism"]),
            (&primitives[0].name.into(), &primitives[0].mechanism.into())
        );
    }
}
