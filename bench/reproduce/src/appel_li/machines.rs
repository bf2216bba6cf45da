//! The machines of 1991: the table of the paper, and the bars of Figure 2 that follow from it.
//!
//! The image of Figure 2 is lost. Its black bars are TRAP+PROTN+UNPROT divided by ADD. Its white
//! bars are the difference to TRAP+PROT1+UNPROT, divided by ADD.

use crate::experiment::{Cell, Quantity, Row};
use crate::quotation;
use crate::trial::Trial;

use super::{ADD, BLACK, FIGURE_2, MAP2, PAGE_BYTES, PROT1, PROTN, TABLE, TRAP, WHITE};

/// The table in `quotations.toml`.
const PAPER: &str = "appel-li";

/// A cell for each column, in the order of the paper. Nothing is measured in them.
pub(super) fn cells() -> Vec<Cell> {
    let machines = quotation::lines(PAPER);
    let columns = [ADD, TRAP, PROT1, PROTN, MAP2, PAGE_BYTES].map(|column| {
        let row = |machine: &String| {
            let row = Row::new(Quantity::Published, TABLE, machine.clone());
            let id = id(machine, column);
            if quotation::find(&id).is_some() { row.with_paper(id) } else { row }
        };
        published(PAPER, column, machines.iter().map(row).collect())
    });
    let bars = [(BLACK, black as fn(&str) -> Option<f64>), (WHITE, white)].map(|(column, adds)| {
        let row = |machine: &String| Row::new(Quantity::Adds, FIGURE_2, machine.clone()).with_computed(adds(machine));
        published(PAPER, column, machines.iter().map(row).collect())
    });
    columns.into_iter().chain(bars).collect()
}

/// A column of an experiment in which nothing is measured.
pub(crate) fn published(experiment: &str, column: &str, rows: Vec<Row>) -> Cell {
    let id = format!("{experiment}/published/{}", column.replace(' ', ""));
    let outcome = |_: &Trial| anyhow::bail!("cannot measure this cell: its numbers are quoted from the paper");
    Cell::new(id, column, 0, rows, outcome)
}

fn id(machine: &str, column: &str) -> String {
    format!("{PAPER}/{machine}/{column}")
}

fn number(machine: &str, column: &str) -> Option<f64> {
    quotation::find(&id(machine, column))?.number()
}

/// The machines whose TRAP alone the paper has.
pub(crate) fn with_trap() -> Vec<String> {
    quotation::lines(PAPER).into_iter().filter(|machine| number(machine, TRAP).is_some()).collect()
}

/// The id of the quotation of a machine's TRAP.
pub(crate) fn trap_id(machine: &str) -> String {
    id(machine, TRAP)
}

/// Number of ADDs in the time of TRAP.
pub(crate) fn trap_adds(machine: &str) -> Option<f64> {
    Some(number(machine, TRAP)? / number(machine, ADD)?)
}

/// Number of ADDs in the time of TRAP+PROTN+UNPROT.
fn black(machine: &str) -> Option<f64> {
    Some(number(machine, PROTN)? / number(machine, ADD)?)
}

/// Number of ADDs in the additional time of TRAP+PROT1+UNPROT.
fn white(machine: &str) -> Option<f64> {
    Some((number(machine, PROT1)? - number(machine, PROTN)?) / number(machine, ADD)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_follow_from_the_table() {
        // 1016 by 0.12, and 1238 - 1016 by 0.12.
        assert!((black("Sun 3/60 SunOS 4.0").unwrap() - 8466.67).abs() < 0.01);
        assert!((white("Sun 3/60 SunOS 4.0").unwrap() - 1850.0).abs() < 0.01);
        // *839 by 0.05: the mark of a footnote is no digit.
        assert!((black("SparcStn 1 SunOS 4.0.3c").unwrap() - 16780.0).abs() < 0.01);
        let cells = cells();
        assert_eq!((cells.len(), cells[0].rows.len()), (8, 13));
        assert!(cells.iter().all(Cell::is_published));
    }
}
