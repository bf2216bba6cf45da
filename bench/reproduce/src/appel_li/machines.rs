//! The machines of 1991: the paper's table as it stands, and the bars of Figure 2 that follow from it.
//!
//! Figure 2 is an image that the text lost. Its black bars are the table's TRAP+PROTN+UNPROT by its ADD, its white ones what
//! TRAP+PROT1+UNPROT takes beyond that.

use crate::experiment::{Cell, Row, Shows};
use crate::quotation;
use crate::trial::Trial;

use super::{ADD, BLACK, FIGURE_2, MAP2, PAGE_BYTES, PROT1, PROTN, TABLE, TRAP, WHITE};

/// The quotations' table.
const PAPER: &str = "appel-li";

/// A cell for each column, in the paper's order. Nothing is measured in them.
pub(super) fn cells() -> Vec<Cell> {
    let machines = quotation::lines(PAPER);
    let columns = [ADD, TRAP, PROT1, PROTN, MAP2, PAGE_BYTES].map(|column| {
        let row = |machine: &String| {
            let row = Row::showing(Shows::Published, TABLE, machine.clone());
            let id = id(machine, column);
            if quotation::find(&id).is_some() { row.with_paper(id) } else { row }
        };
        published(column, machines.iter().map(row).collect())
    });
    let bars = [(BLACK, black as fn(&str) -> Option<f64>), (WHITE, white)].map(|(column, adds)| {
        let row = |machine: &String| Row::showing(Shows::Adds, FIGURE_2, machine.clone()).with_computed(adds(machine));
        published(column, machines.iter().map(row).collect())
    });
    columns.into_iter().chain(bars).collect()
}

fn published(column: &str, rows: Vec<Row>) -> Cell {
    let id = format!("appel-li/published/{}", column.replace(' ', ""));
    let outcome = |_: &Trial| anyhow::bail!("the paper's numbers are quoted, not measured");
    Cell { id, column: column.to_owned(), memory_bytes: 0, rows, measure: Box::new(outcome) }
}

fn id(machine: &str, column: &str) -> String {
    format!("{PAPER}/{machine}/{column}")
}

fn number(machine: &str, column: &str) -> Option<f64> {
    quotation::find(&id(machine, column))?.number()
}

/// ADDs in the time of TRAP+PROTN+UNPROT.
fn black(machine: &str) -> Option<f64> {
    Some(number(machine, PROTN)? / number(machine, ADD)?)
}

/// ADDs that TRAP+PROT1+UNPROT takes beyond that.
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
        // *839 by 0.05: a footnote's mark is no digit.
        assert!((black("SparcStn 1 SunOS 4.0.3c").unwrap() - 16780.0).abs() < 0.01);
        let cells = cells();
        assert_eq!((cells.len(), cells[0].rows.len()), (8, 13));
        assert!(cells.iter().all(Cell::is_published));
    }
}
