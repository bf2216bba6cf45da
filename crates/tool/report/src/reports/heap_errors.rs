//! The memory errors of a file of findings, and the counts of a run with guards.

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
    Document {
        kind: "guard".into(),
        subject: "Memory errors".into(),
        title: plural(errors.len() as u64, "memory error"),
        blocks: errors.iter().map(section).collect(),
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

/// Processes that are shown: those with the most allocations.
const MOST_PROCESSES: usize = 10;

/// A section for each of the largest processes, in the order of their starts.
pub(super) fn process_blocks(stats: &GuardStats) -> impl Iterator<Item = Block> {
    let mut counts: Vec<u64> = stats.processes.iter().map(|process| process.allocations).collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let least = counts.get(MOST_PROCESSES - 1).copied().unwrap_or(0);
    let section = |process: &GuardedProcess| {
        Block::section(format!("{} (process {})", process.name, process.pid), [facts(process)])
    };
    let shown = stats.processes.iter().filter(move |process| process.allocations >= least).take(MOST_PROCESSES);
    let rest = stats.processes.len().saturating_sub(MOST_PROCESSES) as u64;
    let rest = (rest > 0).then(|| format!("{} with fewer allocations are not shown.", plural(rest, "process record")));
    shown.map(section).chain([Block::paragraph(rest)])
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
