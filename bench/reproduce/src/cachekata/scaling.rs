//! Figures 4.2, 6.2 and 6.3: performance relative to linear speedup, for programs plain, repaired
//! and padded by hand.
//!
//! Each thread has the work of one thread alone. So the performance is the time of one thread alone
//! divided by the time of all threads.

use anyhow::Result;

use crate::experiment::{Cell, MeasuredValue, Quantity, Row, Scale};
use crate::sibling_programs::outcome;
use crate::trial::Trial;

use super::program::{ALL, Form, LINEAR_REGRESSION, SharingProgram, memory_bytes, threads_column};
use super::sized_program::{Round, SizedProgram};

const FIGURE_4_2: &str = "Figure 4.2: linear regression -O0, performance relative to linear speedup";
const FIGURE_6_2: &str = "Figure 6.2: linear regression -O0 under repair, performance relative to linear speedup";
const FIGURE_6_3: [(u64, &str); 3] = [
    (2, "Figure 6.3: programs on two processors, performance relative to linear speedup"),
    (4, "Figure 6.3: programs on four processors, performance relative to linear speedup"),
    (8, "Figure 6.3: programs on eight processors, performance relative to linear speedup"),
];

const SHARED: &str = "with false sharing";
const REPAIRED: &str = "with false sharing, repaired";
const LADDER: &str = "with false sharing, repaired by a single ladder";
const PADDED: &str = "padded by hand";
const SPEEDUP: &str = "speedup by the repair";
const RELATIVE_TO_PADDED: &str = "time repaired, relative to padded by hand";
const MOVED: &str = "pages that the repair moved";

/// Figure 4.2: without a repair.
pub(super) fn by_cores(scale: Scale) -> Vec<Cell> {
    let threads: &[u64] = if scale == Scale::Full { &[1, 2, 4, 8, 16, 32] } else { &[1, 2] };
    let cell = |&threads: &u64| {
        let rows = [SHARED, PADDED].map(|row| Row::new(Quantity::Share, FIGURE_4_2, row)).into();
        let forms = vec![Form::Alone, Form::Shared, Form::Padded];
        program_cell(
            format!("cachekata/cores/{threads}"),
            &threads_column(threads),
            rows,
            LINEAR_REGRESSION,
            threads,
            forms,
        )
    };
    threads.iter().map(cell).collect()
}

/// Figure 6.2: the same program under repair, by threads.
pub(super) fn repaired(scale: Scale) -> Vec<Cell> {
    let threads: &[u64] = if scale == Scale::Full { &[1, 2, 4, 8] } else { &[2] };
    let cells = threads.iter().flat_map(|&threads| {
        let paper = (threads > 1).then_some("cachekata/linear-regression");
        let id = format!("cachekata/repair/{threads}");
        let column = threads_column(threads);
        [repaired_cell(FIGURE_6_2, id, &column, LINEAR_REGRESSION, threads, paper), ladder(threads)]
    });
    cells.collect()
}

/// Figure 6.3: all programs.
pub(super) fn programs(scale: Scale) -> Vec<Cell> {
    let is_quick =
        |program: &&SharingProgram| ["synthetic-O2", "linear-regression-O0", "histogram-O2"].contains(&program.id);
    let full = scale == Scale::Full;
    let tables = FIGURE_6_3.iter().filter(move |(threads, _)| full || *threads == 2);
    let cells = tables.flat_map(|&(threads, table)| {
        ALL.iter().filter(move |program| full || is_quick(program)).map(move |program| {
            let paper = program.is_known.then_some("cachekata/known-examples");
            let id = format!("cachekata/{}/{threads}", program.id);
            repaired_cell(table, id, program.column, *program, threads, paper)
        })
    });
    cells.collect()
}

fn repaired_cell(
    table: &'static str,
    id: String,
    column: &str,
    program: SharingProgram,
    threads: u64,
    paper: Option<&str>,
) -> Cell {
    let share = |row| Row::new(Quantity::Share, table, row);
    let speedup = Row::ratio(table, SPEEDUP);
    let mut rows = vec![share(SHARED), share(REPAIRED)];
    let mut forms = vec![Form::Alone, Form::Shared, Form::Repaired];
    if program.padded.is_some() {
        rows.push(share(PADDED));
        forms.push(Form::Padded);
    }
    rows.push(if let Some(paper) = paper { speedup.with_paper(paper) } else { speedup });
    if program.padded.is_some() {
        rows.push(Row::ratio(table, RELATIVE_TO_PADDED));
    }
    rows.push(Row::new(Quantity::Count, table, MOVED));
    program_cell(id, column, rows, program, threads, forms)
}

/// A cell that runs a program in each of `forms`.
fn program_cell(
    id: String,
    column: &str,
    rows: Vec<Row>,
    program: SharingProgram,
    threads: u64,
    forms: Vec<Form>,
) -> Cell {
    Cell::new(id, column, memory_bytes(threads), rows, move |trial| outcome(measure(trial, program, threads, &forms)))
}

/// The "strawman" of the paper.
fn ladder(threads: u64) -> Cell {
    let rows = vec![Row::new(Quantity::Share, FIGURE_6_2, LADDER)];
    let forms = vec![Form::Alone, Form::Ladder];
    program_cell(
        format!("cachekata/ladder/{threads}"),
        &threads_column(threads),
        rows,
        LINEAR_REGRESSION,
        threads,
        forms,
    )
}

fn measure(trial: &Trial, program: SharingProgram, threads: u64, forms: &[Form]) -> Result<Vec<MeasuredValue>> {
    Ok(figures(&SizedProgram::new(trial, program, threads)?.round(trial, forms)?))
}

/// The values of a round; no value for a form that did not run.
pub(super) fn figures(round: &Round) -> Vec<MeasuredValue> {
    let share = |row, form| Some(MeasuredValue::of(row, round.ratio(Form::Alone, form)?));
    let moved = || Some(MeasuredValue::of(MOVED, round.of(Form::Repaired)?.count("moved") as f64));
    let all = [
        share(SHARED, Form::Shared),
        share(REPAIRED, Form::Repaired),
        share(LADDER, Form::Ladder),
        share(PADDED, Form::Padded),
        round.times(SPEEDUP, Form::Shared, Form::Repaired),
        round.times(RELATIVE_TO_PADDED, Form::Repaired, Form::Padded),
        moved(),
    ];
    all.into_iter().flatten().collect()
}
