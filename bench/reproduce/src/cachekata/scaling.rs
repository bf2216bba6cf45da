//! Figures 4.2, 6.2 and 6.3: performance relative to linear speedup, of programs as they are, repaired, and padded by hand.
//!
//! Each thread has as much to do as one thread alone: performance is the time of that by the time of all.

use anyhow::Result;

use crate::beside::outcome;
use crate::experiment::{Cell, Figure, Row, Scale, Shows};
use crate::trial::Trial;

use super::program::{ALL, Form, LINEAR_REGRESSION, Program, memory_bytes, threads_column};
use super::race::{Race, Round};

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
const APART: &str = "without, padded by hand";
const FASTER: &str = "times as fast by the repair";
const OF_HAND: &str = "time repaired, times that by hand";
const MOVED: &str = "pages that the repair moved";

/// Figure 4.2: without a repair.
pub(super) fn by_cores(scale: Scale) -> Vec<Cell> {
    let threads: &[u64] = if scale == Scale::Full { &[1, 2, 4, 8, 16, 32] } else { &[1, 2] };
    let cell = |&threads: &u64| Cell {
        id: format!("cachekata/cores/{threads}"),
        column: threads_column(threads),
        memory_bytes: memory_bytes(threads),
        rows: [SHARED, APART].map(|row| Row::showing(Shows::Share, FIGURE_4_2, row)).into(),
        measure: Box::new(move |trial| {
            outcome(measure(trial, LINEAR_REGRESSION, threads, &[Form::Alone, Form::Shared, Form::Apart]))
        }),
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
    let is_quick = |program: &&Program| ["synthetic-O2", "linear-regression-O0", "histogram-O2"].contains(&program.id);
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
    program: Program,
    threads: u64,
    paper: Option<&str>,
) -> Cell {
    let share = |row| Row::showing(Shows::Share, table, row);
    let faster = Row::ratio(table, FASTER);
    let mut rows = vec![share(SHARED), share(REPAIRED)];
    let mut forms = vec![Form::Alone, Form::Shared, Form::Repaired];
    if program.apart.is_some() {
        rows.push(share(APART));
        forms.push(Form::Apart);
    }
    rows.push(if let Some(paper) = paper { faster.with_paper(paper) } else { faster });
    if program.apart.is_some() {
        rows.push(Row::ratio(table, OF_HAND));
    }
    rows.push(Row::showing(Shows::Count, table, MOVED));
    Cell {
        id,
        column: column.to_owned(),
        memory_bytes: memory_bytes(threads),
        rows,
        measure: Box::new(move |trial| outcome(measure(trial, program, threads, &forms))),
    }
}

/// The paper's "strawman".
fn ladder(threads: u64) -> Cell {
    Cell {
        id: format!("cachekata/ladder/{threads}"),
        column: threads_column(threads),
        memory_bytes: memory_bytes(threads),
        rows: vec![Row::showing(Shows::Share, FIGURE_6_2, LADDER)],
        measure: Box::new(move |trial| {
            outcome(measure(trial, LINEAR_REGRESSION, threads, &[Form::Alone, Form::Ladder]))
        }),
    }
}

fn measure(trial: &Trial, program: Program, threads: u64, forms: &[Form]) -> Result<Vec<Figure>> {
    Ok(figures(&Race::new(trial, program, threads)?.round(trial, forms)?))
}

/// What the runs of a round come to; nothing where a form did not run.
pub(super) fn figures(round: &Round) -> Vec<Figure> {
    let share = |row, form| Some(Figure::of(row, round.ratio(Form::Alone, form)?));
    let moved = || Some(Figure::of(MOVED, round.of(Form::Repaired)?.count("moved") as f64));
    let all = [
        share(SHARED, Form::Shared),
        share(REPAIRED, Form::Repaired),
        share(LADDER, Form::Ladder),
        share(APART, Form::Apart),
        round.times(FASTER, Form::Shared, Form::Repaired),
        round.times(OF_HAND, Form::Repaired, Form::Apart),
        moved(),
    ];
    all.into_iter().flatten().collect()
}
