//! The measurements of the virtual-memory primitives by Appel and Li, on today's Linux beside the
//! machines of 1991.
//!
//! ```text
//! machines      the machines of 1991, quoted             test_memory   units of memory, a second thread, medians
//! add           the time of an ADD                       traps         TRAP, PROT1, PROTN, MAP2
//! dirty         DIRTY                                    access        writes to protected pages
//! ```
//! Source: Appel and Li, *Virtual Memory Primitives for User Programs* (slides): "Performance
//! Analysis" (four measurements, the table of machines, Figure 2, whose image is lost and whose
//! bars follow from the table), and "Design Issues" for the access to protected pages.

mod access;
mod add;
mod dirty;
pub(crate) mod machines;
mod test_memory;
mod traps;

use std::sync::OnceLock;

use anyhow::Result;
use fieldstone_pages::Mechanism;

use crate::experiment::{Cell, Experiment, MeasuredValue, Needs, Quantity, Row, Scale};
use crate::trial::Trial;

pub(crate) use add::add_ns;

/// The four measurements, the table, Figure 2, page sizes, and access to protected pages.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "appel-li",
        title: "The primitives of virtual memory",
        source: "Appel and Li, Performance Analysis, the table of machines and Figure 2",
        about: "Times are microseconds of wall time per operation, as in the paper, because a handler may be another \
                thread. In a virtual machine most of that time is the wake-up of a sleeping thread. Our numbers are \
                medians of rounds of 100 repetitions. TRAP+PROT1+UNPROT writes to a random protected page, whose \
                handler unprotects it and protects the page that was unprotected before. TRAP+PROTN+UNPROT protects \
                100 pages and writes to each in random order. TRAP has a handler that changes nothing, so that the \
                access faults again; if a thread reads a userfaultfd, the kernel retries without a new fault of the \
                processor. ADD is one addition of a chain, in a loop of 20 times 18. With 2 threads, the second one \
                spins, so that its processor must be notified of each change of protection; a handler thread then \
                uses a third processor. MAP2 is yes if a page was written through a second view while the first view \
                was protected; its second column is the cost per page of the view. The paper did not measure DIRTY: \
                100 pages are written in random order, and then found. On larger pages each unit has one written page \
                of 4 KiB: the kernel records pages of that size and splits a huge page for them. Larger pages are \
                protected as one unit: folios of 64 KiB, and transparent huge pages of 2 MiB without --quick. \
                PAGESIZE is in bytes. An errno means that a call is refused; a dash means that the source has no \
                number. The image of Figure 2 is lost, so its bars of 1991 are computed from the table. The source \
                does not explain the marks * and †.",
        needs: Needs { minutes: 1, memory_bytes: 256 << 20, disk_bytes: 0 },
        cells,
    }
}

const TABLE: &str = "Microseconds, 1991 and now";
const FIGURE_2: &str = "Figure 2: ADDs per PROT+TRAP+UNPROT";
const SIZES: &str = "Microseconds by page size";
const DIRTY: &str = "DIRTY, microseconds per page";
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

/// A page or a group of pages that is protected as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProtectedUnit {
    /// Its name in ids.
    label: &'static str,
    /// The heading of its column.
    column: &'static str,
    bytes: usize,
}

const PAGE: ProtectedUnit = ProtectedUnit { label: "4K", column: "4 KiB", bytes: 4 << 10 };
const FOLIO: ProtectedUnit = ProtectedUnit { label: "64K", column: "64 KiB", bytes: 64 << 10 };
const HUGE: ProtectedUnit = ProtectedUnit { label: "2M", column: "2 MiB", bytes: 2 << 20 };

/// What one process measures.
#[derive(Clone, Copy, Debug)]
struct Setting {
    mechanism: Mechanism,
    /// 1, or 2 with one that spins.
    threads: u32,
    unit: ProtectedUnit,
}

impl Setting {
    fn name(self) -> String {
        let threads = if self.threads == 1 { "1 thread" } else { "2 threads" };
        format!("{}, {threads}", self.mechanism)
    }

    fn id(self, group: &str) -> String {
        format!("appel-li/{group}/{}-{}/{}", self.mechanism, self.threads, self.unit.label)
    }

    fn cell(self, group: &str, rows: Vec<Row>, measure: MeasureSetting) -> Cell {
        let memory_bytes = 2 * (test_memory::UNITS as u64 + 1) * self.unit.bytes as u64;
        Cell::new(self.id(group), self.unit.column, memory_bytes, rows, move |trial| {
            test_memory::outcome(measure(trial, self))
        })
    }
}

/// Measures the rows of a cell.
type MeasureSetting = fn(&Trial, Setting) -> Result<Vec<MeasuredValue>>;

/// Rounds of a measurement.
const fn rounds(trial: &Trial) -> usize {
    if trial.quick { 10 } else { 30 }
}

fn cells(scale: Scale) -> Vec<Cell> {
    let sizes: &[ProtectedUnit] = if scale == Scale::Full { &[FOLIO, HUGE] } else { &[FOLIO] };
    let settings = |mechanisms: &[Mechanism], units: &[ProtectedUnit]| -> Vec<Setting> {
        let each = |&unit| {
            mechanisms.iter().flat_map(move |&mechanism| [1, 2].map(|threads| Setting { mechanism, threads, unit }))
        };
        units.iter().flat_map(each).collect()
    };
    let group = |name: &'static str, settings: Vec<Setting>, rows: fn(Setting) -> Vec<Row>, measure: MeasureSetting| {
        settings.into_iter().map(move |setting| setting.cell(name, rows(setting), measure))
    };
    let scan = [Mechanism::Scan];
    let dirty = [settings(&[&scan[..], &TRAPS].concat(), &[PAGE]), settings(&scan, sizes)].concat();
    let access = TRAPS.map(|mechanism| Setting { mechanism, threads: 1, unit: PAGE });
    let access = access.map(|setting| Cell {
        column: setting.mechanism.to_string(),
        ..setting.cell("access", access::rows(), access::measure)
    });
    let mut cells = machines::cells();
    cells.extend(group("trap", settings(&TRAPS, &[PAGE]), trap_rows, traps::measure));
    cells.extend(group("trap", settings(&TRAPS, sizes), size_rows, traps::measure));
    cells.extend(group("dirty", dirty, dirty::rows, dirty::measure));
    cells.extend(access);
    cells
}

/// The rows of a line of the table, of its bars in Figure 2, and of the first column of the sizes.
fn trap_rows(setting: Setting) -> Vec<Row> {
    let system = format!("{}, {}", this_machine(), setting.name());
    let row = |column| Row::new(Quantity::Microseconds, TABLE, system.clone()).in_column(column);
    let bar = |column| Row::new(Quantity::Adds, FIGURE_2, system.clone()).in_column(column);
    let mut rows: Vec<Row> = [ADD, TRAP, PROT1, PROTN, MAP2, PAGE_BYTES, MAP2_PAGE].map(row).into();
    rows.extend([BLACK, WHITE].map(bar));
    rows.extend(size_rows(setting));
    rows
}

fn size_rows(setting: Setting) -> Vec<Row> {
    [PROT1, PROTN].map(|what| Row::new(Quantity::Microseconds, SIZES, size_row(what, setting))).into()
}

fn size_row(what: &str, setting: Setting) -> String {
    format!("{what}: {}", setting.name())
}

/// `Linux 6.18`.
pub(crate) fn this_machine() -> &'static str {
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
    use crate::trial::Task;
    use crate::{Layout, SampleOutcome};

    /// Each mechanism gives a number or a word for each of its rows. A mechanism that the machine
    /// lacks is skipped by name.
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
                SampleOutcome::Skipped { reason } => println!("SKIP {}: {reason}", cell.id),
                SampleOutcome::Measured { figures, .. } => {
                    measured += 1;
                    for row in &cell.rows {
                        let figure = figures.iter().find(|figure| figure.row == row.value_name());
                        let figure = figure.unwrap_or_else(|| panic!("{}: nothing for {}", cell.id, row.value_name()));
                        assert!(figure.instead.is_some() || figure.value.is_finite(), "{figure:?}");
                    }
                    assert_eq!(figures.len(), cell.rows.len(), "{}", cell.id);
                }
            }
        }
        assert!(measured >= 8, "mprotect(2) is there on every machine: {measured}");
    }
}
