//! Appel and Li's measurements of the primitives, on today's Linux beside the machines of 1991.
//!
//! Source: Appel and Li, *Virtual Memory Primitives for User Programs* (slides), "Performance Analysis": four measurements, the table
//! of machines, Figure 2 (a lost image: its bars follow from the table), and "Design Issues" for the access to protected pages.

mod access;
mod add;
mod dirty;
mod machines;
mod stage;
mod traps;

use std::sync::OnceLock;

use anyhow::Result;
use fieldstone_pages::Mechanism;

use crate::experiment::{Cell, Experiment, Needs, Outcome, Row, Scale, Shows};
use crate::trial::Trial;

/// The four measurements, the table, Figure 2, and what the paper says of page sizes and of access to protected pages.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "appel-li",
        title: "The primitives of virtual memory",
        source: "Appel and Li, Performance Analysis, the table of machines and Figure 2",
        about: "Times are microseconds an operation of wall time, as in the paper, since a handler may be another thread; where a \
                thread sleeps on another processor, waking it is most of the time in a virtual machine. Ours are medians of rounds \
                of 100 repetitions. TRAP+PROT1+UNPROT writes to a random protected page, whose handler opens it and protects the \
                page that was opened before. TRAP+PROTN+UNPROT protects 100 pages and writes to each in random order. TRAP is a \
                handler that changes nothing, so that the access faults again; where a thread reads a userfaultfd the kernel tries \
                again by itself, without a new fault of the processor. ADD is one of a chain, in a loop of 20 times 18. With 2 \
                threads the other one spins, so that its processor has to be notified of each change of protection; a handler in a \
                thread takes a third processor then. MAP2 says yes where a page was written through a second view while the first \
                one was protected, and what a page of the view costs. DIRTY, which the paper did not measure: 100 pages are written \
                in random order, and then found; on larger pages each unit has one written page of 4 KiB, as the kernel notes those, and \
                splits a huge page for it. Larger pages are protected as one: folios of 64 KiB, transparent huge pages of 2 \
                MiB, the latter not with --quick. PAGESIZE is in bytes. An errno stands where a call is refused, a dash where the \
                source has no number. The image of Figure 2 is lost: its bars of 1991 are computed from the table. The marks * and \
                † stand there without a word.",
        needs: Needs { minutes: 1, memory_bytes: 256 << 20, disk_bytes: 0 },
        cells,
    }
}

const TABLE: &str = "Microseconds, 1991 and now";
const FIGURE_2: &str = "Figure 2: ADDs a PROT+TRAP+UNPROT";
const SIZES: &str = "Microseconds by page size";
const DIRTY: &str = "DIRTY, microseconds a page";
const ACCESS: &str = "Write to a protected page, µs";

const ADD: &str = "ADD";
const TRAP: &str = "TRAP";
const PROT1: &str = "TRAP +PROT1 +UNPROT";
const PROTN: &str = "TRAP +PROTN +UNPROT";
const MAP2: &str = "MAP2";
const MAP2_PAGE: &str = "MAP2, a page";
const PAGE_BYTES: &str = "PAGESIZE";
const BLACK: &str = "PROTN";
const WHITE: &str = "additional with PROT1";

const TRAPS: [Mechanism; 4] =
    [Mechanism::UserfaultThread, Mechanism::UserfaultSignal, Mechanism::ProtectThread, Mechanism::ProtectSignal];

/// Pages, or groups of pages, that are protected as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    /// In ids.
    label: &'static str,
    /// The column's heading.
    column: &'static str,
    bytes: usize,
}

const PAGE: Unit = Unit { label: "4K", column: "4 KiB", bytes: 4 << 10 };
const FOLIO: Unit = Unit { label: "64K", column: "64 KiB", bytes: 64 << 10 };
const HUGE: Unit = Unit { label: "2M", column: "2 MiB", bytes: 2 << 20 };

/// What one process measures.
#[derive(Clone, Copy, Debug)]
struct Setting {
    mechanism: Mechanism,
    /// 1, or 2 of which one spins.
    threads: u32,
    unit: Unit,
}

impl Setting {
    fn name(self) -> String {
        let threads = if self.threads == 1 { "1 thread" } else { "2 threads" };
        format!("{}, {threads}", self.mechanism)
    }

    fn id(self, group: &str) -> String {
        format!("appel-li/{group}/{}-{}/{}", self.mechanism, self.threads, self.unit.label)
    }

    fn cell(self, group: &str, rows: Vec<Row>, measure: fn(&Trial, Setting) -> Result<Outcome>) -> Cell {
        Cell {
            id: self.id(group),
            column: self.unit.column.to_owned(),
            memory_bytes: 2 * (stage::UNITS as u64 + 1) * self.unit.bytes as u64,
            rows,
            measure: Box::new(move |trial| measure(trial, self)),
        }
    }
}

fn cells(scale: Scale) -> Vec<Cell> {
    let sizes: &[Unit] = if scale == Scale::Full { &[FOLIO, HUGE] } else { &[FOLIO] };
    let settings = |mechanisms: &[Mechanism], units: &[Unit]| -> Vec<Setting> {
        let each = |&unit| {
            mechanisms.iter().flat_map(move |&mechanism| [1, 2].map(|threads| Setting { mechanism, threads, unit }))
        };
        units.iter().flat_map(each).collect()
    };
    let mut cells = machines::cells();
    cells.extend(
        settings(&TRAPS, &[PAGE]).into_iter().map(|setting| setting.cell("trap", trap_rows(setting), traps::measure)),
    );
    cells.extend(
        settings(&TRAPS, sizes).into_iter().map(|setting| setting.cell("trap", size_rows(setting), traps::measure)),
    );
    let all = [&[Mechanism::Scan][..], &TRAPS].concat();
    let dirty = settings(&all, &[PAGE]).into_iter().chain(settings(&[Mechanism::Scan], sizes));
    cells.extend(dirty.map(|setting| setting.cell("dirty", dirty::rows(setting), dirty::measure)));
    let access = TRAPS.map(|mechanism| Setting { mechanism, threads: 1, unit: PAGE });
    cells.extend(access.map(|setting| Cell {
        column: setting.mechanism.to_string(),
        ..setting.cell("access", access::rows(), access::measure)
    }));
    cells
}

/// A line of the table, its bars in Figure 2, and the first column of the sizes.
fn trap_rows(setting: Setting) -> Vec<Row> {
    let system = format!("{}, {}", this_machine(), setting.name());
    let row = |column| Row::showing(Shows::Microseconds, TABLE, system.clone()).in_column(column);
    let bar = |column| Row::showing(Shows::Adds, FIGURE_2, system.clone()).in_column(column);
    let mut rows: Vec<Row> = [ADD, TRAP, PROT1, PROTN, MAP2, PAGE_BYTES, MAP2_PAGE].map(row).into();
    rows.extend([BLACK, WHITE].map(bar));
    rows.extend(size_rows(setting));
    rows
}

fn size_rows(setting: Setting) -> Vec<Row> {
    [PROT1, PROTN].map(|what| Row::showing(Shows::Microseconds, SIZES, size_row(what, setting))).into()
}

fn size_row(what: &str, setting: Setting) -> String {
    format!("{what}: {}", setting.name())
}

/// `Linux 6.18`.
fn this_machine() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let release = fieldstone_sys::machine::machine().kernel;
        let mut parts = release.split(['.', '-']);
        format!("Linux {}.{}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;
    use crate::trial::Task;

    /// Every mechanism gives a number for each of its rows, or a word; what a machine lacks is skipped by name.
    #[test]
    fn each_cell_on_small_pages_fills_its_rows() {
        let cells = cells(Scale::Quick).into_iter().filter(|cell| !cell.is_published() && cell.id.ends_with("/4K"));
        let mut measured = 0;
        for cell in cells {
            let trial = Trial {
                cell: cell.id.clone(),
                layout: Layout::of_seed(1),
                quick: true,
                memory_bytes: 1 << 30,
                task: Task::Time,
            };
            match (cell.measure)(&trial).unwrap() {
                Outcome::Skipped { reason } => println!("SKIP {}: {reason}", cell.id),
                Outcome::Measured { figures, .. } => {
                    measured += 1;
                    for row in &cell.rows {
                        let figure = figures.iter().find(|figure| figure.row == row.figure());
                        let figure = figure.unwrap_or_else(|| panic!("{}: nothing for {}", cell.id, row.figure()));
                        assert!(figure.instead.is_some() || figure.value.is_finite(), "{figure:?}");
                    }
                    assert_eq!(figures.len(), cell.rows.len(), "{}", cell.id);
                }
            }
        }
        assert!(measured >= 8, "mprotect(2) is there on every machine: {measured}");
    }
}
