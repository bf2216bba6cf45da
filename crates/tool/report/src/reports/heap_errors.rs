//! The memory errors of a file of findings, and the counts of a run with guards.

use std::cmp::Reverse;

use crate::document::{Block, Document};
use crate::heap_error::{GuardStats, GuardedProcess, HeapError};
use crate::quantity::{bytes, count, plural};

/// The report on saved findings.
#[must_use]
pub fn document(errors: &[HeapError]) -> Document {
    let section = |error: &HeapError| {
        let text = error.text();
        let (_, rest) = text.split_once('\n').unwrap_or_default();
        Block::section(error.headline(), [Block::Listing(rest.to_owned())])
    };
    let empty = errors
        .is_empty()
        .then_some("The file is empty. After `run --guard-report`, this means that no error was found.");
    Document {
        kind: "guard".into(),
        subject: "Memory errors".into(),
        title: plural(errors.len() as u64, "memory error"),
        blocks: errors.iter().map(section).chain([Block::paragraph(empty.map(str::to_owned))]).collect(),
        ..Document::default()
    }
}

/// The report on the counts of a run.
#[must_use]
pub fn stats_document(stats: &GuardStats) -> Document {
    Document {
        kind: "guard".into(),
        subject: "Guarded allocations".into(),
        title: crate::shell::join(&stats.command),
        is_command: true,
        blocks: process_blocks(stats).collect(),
        tool_version: stats.tool_version.clone(),
        ..Document::default()
    }
}

/// Processes that are shown: the first one, those with findings, and those with the most allocations.
const MOST_PROCESSES: usize = 10;

/// A section for each of the shown processes, in the order of their starts.
pub(super) fn process_blocks(stats: &GuardStats) -> impl Iterator<Item = Block> {
    let mut shown: Vec<(usize, &GuardedProcess)> = stats.processes.iter().enumerate().collect();
    shown.sort_by_key(|(index, process)| Reverse((*index == 0, process.findings > 0, process.allocations)));
    shown.truncate(MOST_PROCESSES);
    shown.sort_by_key(|(index, _)| *index);
    let section = |process: &GuardedProcess| {
        Block::section(format!("{} (process {})", process.name, process.pid), [facts(process)])
    };
    let rest = stats.processes.len().saturating_sub(MOST_PROCESSES) as u64;
    let rest = (rest > 0).then(|| format!("{} with fewer allocations are not shown.", plural(rest, "process record")));
    let is_over_budget = shown.iter().any(|(_, process)| is_over_budget(process));
    let budget = is_over_budget.then_some(
        "The time budget was used up, so some sites may have no guarded object. `--guard=1/10` has no such budget.",
    );
    let sections = shown.into_iter().map(move |(_, process)| section(process));
    sections.chain([Block::paragraph(rest), Block::paragraph(budget.map(str::to_owned))])
}

fn is_over_budget(process: &GuardedProcess) -> bool {
    process.unguarded.iter().any(|unguarded| unguarded.reason.contains("time budget") && unguarded.allocations > 0)
}

/// The counts of a process.
fn facts(process: &GuardedProcess) -> Block {
    let unguarded = process.unguarded.iter().filter(|unguarded| unguarded.allocations > 0);
    let unguarded = unguarded.map(|unguarded| format!("{} {}", count(unguarded.allocations), unguarded.reason));
    Block::facts([
        ("guarded", format!("{} of {} allocations", count(process.guarded), count(process.allocations))),
        ("sites", count(process.sites)),
        ("not guarded", unguarded.collect::<Vec<_>>().join(", ")),
        (
            "memory",
            format!(
                "{} at its largest, in {} of address space",
                bytes(process.peak_memory_bytes),
                bytes(process.reserved_bytes)
            ),
        ),
        ("findings", count(u64::from(process.findings))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap_error::UnguardedCount;
    use crate::text::{self, Style};

    #[test]
    fn the_first_process_and_those_with_findings_are_shown() {
        let process = |pid: u32, allocations| GuardedProcess { pid, allocations, ..GuardedProcess::default() };
        let mut processes: Vec<_> = (100..150).map(|pid| process(pid, u64::from(pid))).collect();
        processes.insert(0, process(7, 1));
        processes.insert(20, GuardedProcess { findings: 1, ..process(8, 1) });
        let text = text::render(&stats_document(&GuardStats { processes, ..GuardStats::default() }), Style::default());
        for (pid, is_shown) in [(7, true), (8, true), (149, true), (142, true), (141, false), (100, false)] {
            assert_eq!(text.contains(&format!("(process {pid})")), is_shown, "{pid}: {text}");
        }
        assert!(text.contains("42 process records with fewer allocations are not shown"), "{text}");
    }

    #[test]
    fn findings_are_sections_and_counts_are_facts() {
        let error = HeapError {
            kind: "double-free".into(),
            program: "server".into(),
            object_bytes: 24,
            ..HeapError::default()
        };
        let text = text::render(&document(&[error]), Style::default());
        assert!(text.starts_with("1 memory error\n") && text.contains("double-free in server (process 0, thread 0)\n"));
        assert!(text.contains("second free of an object of 24 bytes"), "{text}");
        let process = GuardedProcess {
            pid: 7,
            allocations: 1204,
            guarded: 12,
            unguarded: vec![UnguardedCount { reason: "not sampled".into(), allocations: 1192 }],
            ..GuardedProcess::default()
        };
        let stats = GuardStats { processes: vec![process], ..GuardStats::default() };
        let text = text::render(&stats_document(&stats), Style::default());
        assert!(text.contains("12 of 1,204 allocations") && text.contains("1,192 not sampled"), "{text}");
    }
}
