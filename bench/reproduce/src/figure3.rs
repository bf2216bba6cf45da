//! Figure 3, and the blog's figures of stack checking: what stacks that are not contiguous cost C programs.
//!
//! ```text
//! programs   which there are: bundled ones in PARSEC's roles, real ones in SPEC's
//! source     where their sources come from                 build   objects once, linked again for each layout
//! run        processor time of a run, or the numbers that a program prints
//! ```
//! Each program is built with a plain stack, with one of blocks (`fieldstone-cc`), and as the paper did it, by gcc's `-fsplit-stack` with
//! the run time that comes with gcc. A sample is one layout, the three run one after the other, in an order that turns round from sample
//! to sample. They have to print the same.
//!
//! Source: Zagieboylo, Suh and Myers, section 4.1, Figure 3; Zagieboylo's blog, "Dealing With The Stack".

mod build;
mod programs;
mod run;
mod source;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use fieldstone_stats::order;

pub use build::{Builds, Kind, LINKERS, has_linker};
pub use programs::{BORDER, COROUTINES, FIB, FIB_ALONE, LUA, Program, SQLITE, SUM};
pub use run::Ran;

use crate::beside::{Missing, outcome};
use crate::campaign::ON_REQUEST;
use crate::experiment::{Cell, Experiment, Figure, Needs, Row, Scale, Shows};
use crate::trial::Trial;

const TIMES: &str = "Run time of whole programs, times that with a plain stack";
const CALLS: &str = "Micro-benchmarks: time of a call, times that with a plain stack";
const COUNTS: &str = "How often the stack took memory";

const BLOCKS: &str = "stack of blocks";
const GCC: &str = "gcc's split stack";
const AVERAGE: &str = "average";
/// In the place of a number.
const NO_SOURCE: &str = "no source";

/// The linker that has code without checks provided for, as gcc's run time needs it.
const GCC_LINKER: &str = "gold";
/// As many layouts as samples are over.
const LAYOUTS: u64 = 20;

/// Figure 3.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "figure3",
        title: "Programs whose stacks are split",
        source: "Zagieboylo, Suh and Myers, section 4.1, Figure 3; Zagieboylo's blog, \"Overhead of Stack Checking\" and \"PARSEC Benchmarks\"",
        about: "C programs by gcc -O2, their stack of blocks or split by gcc's own run time, which is what the papers measured; ratios are to \
                a plain stack, of processor time, linked by bfd, and gcc's own by gold, without which it is not safe. The average is the \
                geometric mean. The bundled programs are in the roles of PARSEC's: `similar` in ferret's, with frames of 618 KB; \
                the others run with one thread. Lua, SQLite, bzip2 and zstd are in the roles of SPEC's: their sources are Debian's source \
                packages, which apt-get fetches once; `no source` stands where it cannot, or where SQLite's lacks tclsh \
                (FIELDSTONE_SOURCES names the directory where they are kept unpacked, as lua5.4, sqlite3, bzip2 and libzstd). fib and sum print the time of \
                a call themselves; the blog took fib(50) and a sum of 10^9, \
                which `figure3/on-request` measures, since it takes 20 GB and minutes. How often the stack took memory is counted by our run time, which \
                doubles what it takes, and counted for gcc's as its calls of mmap; the blog's number is of its sum of 10^9, in pieces of 1544 bytes.",
        needs: Needs { minutes: 8, memory_bytes: 256 << 20, disk_bytes: 200 << 20 },
        cells,
    }
}

/// A recursion, in a column.
#[derive(Clone, Copy)]
struct Micro {
    id: &'static str,
    column: &'static str,
    program: Program,
    n: u64,
    is_sum: bool,
}

impl Micro {
    const fn memory_bytes(&self) -> u64 {
        // A frame of sum has 16 bytes, and gcc's segments four more of each.
        if self.is_sum { self.n * 21 + (64 << 20) } else { 16 << 20 }
    }
}

const DEEP: Micro = Micro { id: "sum-1e9", column: "sum of 10^9", program: SUM, n: 1_000_000_000, is_sum: true };
const MICROS: [Micro; 4] = [
    Micro { id: "fib", column: "fib(40)", program: FIB, n: 40, is_sum: false },
    Micro { id: "fib-alone", column: "fib(40), a call each", program: FIB_ALONE, n: 40, is_sum: false },
    Micro { id: "sum-1e7", column: "sum of 10^7", program: SUM, n: 10_000_000, is_sum: true },
    DEEP,
];
const QUICK: [Micro; 3] = [
    Micro { id: "fib-quick", column: "fib(32)", n: 32, ..MICROS[0] },
    Micro { id: "fib-alone-quick", column: "fib(32), a call each", n: 32, ..MICROS[1] },
    Micro { id: "sum-1e6", column: "sum of 10^6", n: 1_000_000, ..MICROS[2] },
];

fn cells(scale: Scale) -> Vec<Cell> {
    let micros = if scale == Scale::Quick { &QUICK[..] } else { &MICROS[..] };
    std::iter::once(programs_cell(scale)).chain(micros.iter().map(|&micro| micro_cell(micro))).collect()
}

fn programs_cell(scale: Scale) -> Cell {
    let columns = || programs::ALL.iter().map(|program| program.name).chain([AVERAGE]);
    let row = |name: &str, column| {
        let row = Row::ratio(TIMES, name).in_column(column);
        if name == GCC && column == AVERAGE { row.with_paper("figure3/average") } else { row }
    };
    let name = if scale == Scale::Quick { "quick" } else { "full" };
    Cell {
        id: format!("figure3/programs/{name}"),
        column: String::new(),
        memory_bytes: 256 << 20,
        rows: [BLOCKS, GCC].into_iter().flat_map(|name| columns().map(move |column| row(name, column))).collect(),
        measure: Box::new(move |trial| outcome(measure_programs(trial))),
    }
}

fn micro_cell(micro: Micro) -> Cell {
    let is_fib = micro.id.starts_with("fib") && !micro.id.contains("alone");
    let gcc = Row::ratio(CALLS, GCC);
    let times = [Row::ratio(CALLS, BLOCKS), if is_fib { gcc.with_paper("figure3/fib") } else { gcc }];
    let count = Row::showing(Shows::Count, COUNTS, counted(GCC));
    let counts = [
        Row::showing(Shows::Count, COUNTS, counted(BLOCKS)),
        if micro.id == DEEP.id { count.with_paper("figure3/sum-allocations") } else { count },
    ];
    Cell {
        id: format!("figure3/{}/{}", if micro.id == DEEP.id { ON_REQUEST } else { "calls" }, micro.id),
        column: micro.column.to_owned(),
        memory_bytes: micro.memory_bytes(),
        rows: times.into_iter().chain(counts.into_iter().filter(|_| micro.is_sum)).collect(),
        measure: Box::new(move |trial| outcome(measure_micro(trial, &micro))),
    }
}

/// The row of a count: its name is not that of a time.
fn counted(kind: &str) -> String {
    format!("{kind}: times")
}

/// The three builds of a program, in the layout that was drawn.
fn built(builds: &Builds, program: &Program, seed: u64) -> Result<[PathBuf; 3]> {
    let layout = usize::try_from(seed % LAYOUTS)?;
    let gcc_linker = if has_linker(GCC_LINKER) { GCC_LINKER } else { "bfd" };
    let build = |kind, linker| builds.build(program, kind, linker, layout);
    Ok([build(Kind::Plain, "bfd")?, build(Kind::Blocks, "bfd")?, build(Kind::Gcc, gcc_linker)?])
}

/// Runs the three, and gives what each came to. What they print first has to be the same where they print results.
fn in_turns<R>(seed: u64, files: &[PathBuf; 3], mut run: impl FnMut(&PathBuf) -> Result<R>) -> Result<[R; 3]> {
    let mut results = [None, None, None];
    for at in order(3, usize::try_from(seed / LAYOUTS)?) {
        results[at] = Some(run(&files[at])?);
    }
    let [Some(plain), Some(blocks), Some(gcc)] = results else { anyhow::bail!("a turn was left out") };
    Ok([plain, blocks, gcc])
}

fn measure_programs(trial: &Trial) -> Result<Vec<Figure>> {
    let builds = Builds::find()?;
    let (mut figures, mut ratios) = (Vec::new(), [Vec::new(), Vec::new()]);
    for program in programs::ALL {
        let files = match built(&builds, &program, trial.layout.seed) {
            Err(error) if error.is::<Missing>() => {
                figures.extend([BLOCKS, GCC].map(|row| Figure::word(format!("{row}: {}", program.name), NO_SOURCE)));
                continue;
            }
            files => files?,
        };
        let runs = in_turns(trial.layout.seed, &files, |file| builds.run(&program, file, trial.quick))?;
        for (at, (row, ran)) in [(BLOCKS, &runs[1]), (GCC, &runs[2])].into_iter().enumerate() {
            ensure!(
                ran.printed == runs[0].printed,
                "{}: {row} printed something else than a plain stack",
                program.name
            );
            ensure!(!ran.printed.is_empty(), "{} printed nothing", program.name);
            let ratio = ran.seconds / runs[0].seconds;
            ratios[at].push(ratio);
            figures.push(ratio_of(row, program.name, ran.seconds * 1e9, ratio));
        }
    }
    for (row, ratios) in [BLOCKS, GCC].into_iter().zip(&ratios) {
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        figures.push(ratio_of(row, AVERAGE, 0.0, mean));
    }
    Ok(figures)
}

fn ratio_of(row: &str, column: &str, nanoseconds: f64, ratio: f64) -> Figure {
    Figure { ratio: Some(ratio), ..Figure::of(format!("{row}: {column}"), nanoseconds) }
}

fn measure_micro(trial: &Trial, micro: &Micro) -> Result<Vec<Figure>> {
    let builds = Builds::find()?;
    let files = built(&builds, &micro.program, trial.layout.seed)?;
    let runs = in_turns(trial.layout.seed, &files, |file| builds.run_with(file, &[&micro.n.to_string()])?.numbers())?;
    let [plain, blocks, gcc] = runs;
    let mut figures = Vec::new();
    for (row, numbers) in [(BLOCKS, blocks), (GCC, gcc)] {
        figures.push(Figure { ratio: Some(numbers[0] / plain[0]), ..Figure::of(row, numbers[0]) });
        if micro.is_sum {
            figures.push(Figure::of(counted(row), *numbers.get(1).context("sum printed no count")?));
        }
    }
    Ok(figures)
}

/// Where this user keeps what is fetched and compiled for this figure.
fn cache() -> Result<PathBuf> {
    let directories = fieldstone_sys::cache::directories();
    let usable = directories.into_iter().find(|directory| std::fs::create_dir_all(directory).is_ok());
    usable.context("no directory for what is fetched: set XDG_CACHE_HOME to one that can be written")
}
