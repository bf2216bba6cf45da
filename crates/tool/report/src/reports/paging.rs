//! The counts of a run with a bound on resident memory.

mod plots;

use crate::document::{Block, Document};
use crate::paging::{FaultFunction, PageStore, PagedProcess, PagingStats};
use crate::quantity::{bytes, count, plural};

/// Functions of a process that are shown.
const FUNCTIONS: usize = 4;

/// The report on the counts of a run.
#[must_use]
pub fn document(stats: &PagingStats) -> Document {
    let guard = stats.guard.iter().flat_map(super::heap_errors::process_blocks);
    let guard = Block::section("Guarded allocations", guard);
    Document {
        kind: "paging".into(),
        subject: "Memory with a bound".into(),
        title: crate::shell::join(&stats.command),
        is_command: true,
        blocks: process_blocks(stats).chain([guard]).collect(),
        tool_version: stats.tool_version.clone(),
        ..Document::default()
    }
}

/// A section for each process that was paged, and the number of the others.
pub(super) fn process_blocks(stats: &PagingStats) -> impl Iterator<Item = Block> {
    let has_section = |process: &&PagedProcess| process.evicted_pages > 0 || process.refused_errno > 0;
    let rest = stats.processes.iter().filter(|process| !has_section(process)).count();
    let rest = (rest > 0).then(|| format!("{} without pages that left memory.", plural(rest as u64, "process")));
    let sections = stats.processes.iter().filter(has_section).map(|process| section(process, stats.bound_bytes));
    sections.chain([Block::paragraph(rest), Block::Plots(plots::over_time(stats))])
}

fn section(process: &PagedProcess, bound: u64) -> Block {
    let title = format!("Paging of {} (process {})", process.name, process.pid);
    if process.refused_errno > 0 {
        let why = std::io::Error::from_raw_os_error(process.refused_errno.cast_signed());
        let why = format!("without a bound: {why}");
        return Block::section(title, [Block::facts([("resident", why)])]);
    }
    let of_faults = |store: &PageStore| {
        let microseconds = store.load_ns as f64 / 1000.0 / store.loaded_pages.max(1) as f64;
        format!("{} from {} ({microseconds:.1} µs each in the store)", plural(store.loaded_pages, "page"), store.name)
    };
    let loaded = process.stores.iter().filter(|store| store.loaded_pages > 0).map(of_faults);
    let first = format!("{} at pages that were stored nowhere", count(process.first_accesses));
    let faults = loaded.chain([first]).collect::<Vec<_>>().join(", ");
    let stored = process.stores.iter().filter(|store| store.bytes > 0);
    let stored = stored.map(|store| format!("{} {}", store.name, bytes(store.bytes))).collect::<Vec<_>>().join(", ");
    let problems = [
        (process.unmovable_pages, "attempts at pages that could not leave memory"),
        (process.refused_pages, "attempts at pages that no store took"),
        (process.lost_pages, "pages lost"),
    ];
    let problems = problems.into_iter().filter(|(pages, _)| *pages > 0);
    let problems = problems.map(|(pages, what)| format!("{} {what}", count(pages))).collect::<Vec<_>>().join(", ");
    let resident = format!("at most {} of paged memory; bound {}", bytes(process.peak_resident_bytes), bytes(bound));
    let evicted = format!(
        "{} pages, of them {} with zeros only, {} not changed since they came back",
        count(process.evicted_pages),
        count(process.evicted_zero_pages),
        count(process.evicted_unchanged_pages)
    );
    Block::section(
        title,
        [Block::facts([
            ("resident", resident),
            ("evicted", evicted),
            ("faults", format!("{}: {faults}", count(process.faults))),
            ("waits in", waits(&process.waits)),
            ("in stores", stored),
            ("not paged", bytes(process.unpaged_bytes)),
            ("not evicted", problems),
        ])],
    )
}

/// The functions with the most faults.
fn waits(functions: &[FaultFunction]) -> String {
    let name = |of: &FaultFunction| {
        let share = 100.0 * of.faults as f64 / of.of_faults.max(1) as f64;
        format!("{} ({}) {share:.0} %", of.function, of.place)
    };
    functions.iter().take(FUNCTIONS).map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{self, Style};

    #[test]
    fn a_process_that_was_paged_has_a_section() {
        let store = PageStore { name: "lz4".into(), loaded_pages: 1000, load_ns: 8_000_000, bytes: 1 << 20 };
        let paged = PagedProcess {
            pid: 7,
            name: "job".into(),
            evicted_pages: 1234,
            faults: 1100,
            first_accesses: 100,
            stores: vec![store],
            waits: vec![FaultFunction { function: "work".into(), place: "a.c:7".into(), faults: 30, of_faults: 40 }],
            ..PagedProcess::default()
        };
        let stats = PagingStats {
            processes: vec![paged, PagedProcess::default()],
            bound_bytes: 1 << 28,
            ..PagingStats::default()
        };
        let text = text::render(&document(&stats), Style::default());
        assert!(text.contains("Paging of job (process 7)") && text.contains("1,234 pages"), "{text}");
        assert!(text.contains("1,000 pages from lz4 (8.0 µs each in the store)"), "{text}");
        assert!(text.contains("work (a.c:7) 75 %"), "{text}");
        assert!(text.contains("1 process without pages that left memory."), "{text}");
    }
}
