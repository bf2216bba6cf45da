//! Figure 3, and stack checking in the blog: the cost of stacks that are not contiguous for C
//! programs.
//!
//! ```text
//! source ── bundled, or a Debian package ──→ build ── objects once, linked per layout ──→ run
//!                                              │                                           │
//! programs ── names, arguments ────────────────┘      CPU time, or printed numbers ←───────┘
//! ```
//! Each program is built three times: with a plain stack, with a stack of blocks (`fieldstone-cc`),
//! and with gcc's `-fsplit-stack` and its own run time, as in the paper. A sample has one layout.
//! The three builds run in an order that alternates from sample to sample, and must print the same.
//!
//! Source: Zagieboylo, Suh and Myers, section 4.1, Figure 3; Zagieboylo's blog, "Dealing With The
//! Stack".

mod build;
mod programs;
mod run;
mod source;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use fieldstone_stats::order;
use fieldstone_wire::Remedy;

pub use build::{Builds, Kind, LINKERS, has_linker};
pub use programs::{BORDER, COROUTINES, FIB, FIB_ALONE, LUA, SQLITE, SUM, StackProgram};
pub use run::StackProgramRun;

use crate::campaign::ON_REQUEST;
use crate::experiment::{Cell, Experiment, MeasuredValue, Needs, Quantity, Row, Scale};
use crate::sibling_programs::{Missing, outcome};
use crate::trial::Trial;

const TIMES: &str = "Run time of whole programs, relative to a plain stack";
const CALLS: &str = "Micro-benchmarks: time per call, relative to a plain stack";
const COUNTS: &str = "How often the stack took memory";

const BLOCKS: &str = "stack of blocks";
const GCC: &str = "gcc's split stack";
const AVERAGE: &str = "average";
/// The word that replaces a number without the program's source.
const NO_SOURCE: &str = "no source";

/// The linker that supports calls of code without checks, which gcc's run time needs.
const GCC_LINKER: &str = "gold";
/// Number of code layouts.
const LAYOUTS: u64 = 20;

/// Figure 3.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "figure3",
        title: "Programs whose stacks are split",
        source: "Zagieboylo, Suh and Myers, section 4.1, Figure 3; Zagieboylo's blog, \"Overhead of Stack Checking\" and \"PARSEC Benchmarks\"",
        about: "C programs compiled by gcc -O2, with a stack of blocks or with the split stack of gcc's own run time, which \
                the papers measured. Ratios are CPU time relative to a plain stack. The programs are linked by bfd, gcc's own \
                split stacks by gold, because they are not safe without it. The average is the geometric mean. The bundled \
                programs correspond to those of PARSEC: `similar` to ferret, with frames of 618 KB; the others run with one \
                thread. Lua, SQLite, bzip2 and zstd correspond to those of SPEC. Their sources are Debian source packages, \
                which apt-get downloads once; `no source` means that this failed, or that SQLite's build lacks tclsh. \
                FIELDSTONE_SOURCES may name a directory with unpacked lua5.4, sqlite3, bzip2 and libzstd. fib and sum print the \
                time per call. The blog used fib(50) and a sum of 10^9; `figure3/on-request` measures the latter, which needs \
                20 GB and minutes. Our run time counts how often the stack took memory, and doubles the amount each time. For \
                gcc the calls of mmap are counted. The blog's number is for a sum of 10^9 in pieces of 1544 bytes.",
        needs: Needs { minutes: 8, memory_bytes: 256 << 20, disk_bytes: 200 << 20 },
        cells,
    }
}

/// A recursive program with its argument.
#[derive(Clone, Copy)]
struct Micro {
    id: &'static str,
    column: &'static str,
    program: StackProgram,
    n: u64,
    is_sum: bool,
}

impl Micro {
    const fn memory_bytes(&self) -> u64 {
        // A frame of sum has 16 bytes, with gcc's segments 20.
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
    let rows = [BLOCKS, GCC].into_iter().flat_map(|name| columns().map(move |column| row(name, column))).collect();
    Cell::new(format!("figure3/programs/{name}"), "", 256 << 20, rows, |trial| outcome(measure_programs(trial)))
}

fn micro_cell(micro: Micro) -> Cell {
    let is_fib = micro.id.starts_with("fib") && !micro.id.contains("alone");
    let gcc = Row::ratio(CALLS, GCC);
    let times = [Row::ratio(CALLS, BLOCKS), if is_fib { gcc.with_paper("figure3/fib") } else { gcc }];
    let count = Row::new(Quantity::Count, COUNTS, counted(GCC));
    let counts = [
        Row::new(Quantity::Count, COUNTS, counted(BLOCKS)),
        if micro.id == DEEP.id { count.with_paper("figure3/sum-allocations") } else { count },
    ];
    let id = format!("figure3/{}/{}", if micro.id == DEEP.id { ON_REQUEST } else { "calls" }, micro.id);
    let rows = times.into_iter().chain(counts.into_iter().filter(|_| micro.is_sum)).collect();
    Cell::new(id, micro.column, micro.memory_bytes(), rows, move |trial| outcome(measure_micro(trial, &micro)))
}

/// The name of the row of a count, different from that of a time.
fn counted(kind: &str) -> String {
    format!("{kind}: times")
}

/// The three builds of a program in the layout of a seed.
fn built(builds: &Builds, program: &StackProgram, seed: u64) -> Result<[PathBuf; 3]> {
    let layout = usize::try_from(seed % LAYOUTS)?;
    let gcc_linker = if has_linker(GCC_LINKER) { GCC_LINKER } else { "bfd" };
    let build = |kind, linker| builds.build(program, kind, linker, layout);
    Ok([build(Kind::Plain, "bfd")?, build(Kind::Blocks, "bfd")?, build(Kind::Gcc, gcc_linker)?])
}

/// Runs the three builds in the order of a seed. Returns their results.
fn run_each<R>(seed: u64, files: &[PathBuf; 3], mut run: impl FnMut(&PathBuf) -> Result<R>) -> Result<[R; 3]> {
    let mut results = [None, None, None];
    for at in order(3, usize::try_from(seed / LAYOUTS)?) {
        results[at] = Some(run(&files[at])?);
    }
    let [Some(plain), Some(blocks), Some(gcc)] = results else {
        anyhow::bail!("cannot compare three builds: one did not run")
    };
    Ok([plain, blocks, gcc])
}

fn measure_programs(trial: &Trial) -> Result<Vec<MeasuredValue>> {
    let builds = Builds::find()?;
    let (mut figures, mut ratios) = (Vec::new(), [Vec::new(), Vec::new()]);
    for program in programs::ALL {
        let files = match built(&builds, &program, trial.layout.seed) {
            Err(error) if error.is::<Missing>() => {
                figures.extend(
                    [BLOCKS, GCC].map(|row| MeasuredValue::word(format!("{row}: {}", program.name), NO_SOURCE)),
                );
                continue;
            }
            files => files?,
        };
        let runs = run_each(trial.layout.seed, &files, |file| builds.run(&program, file, trial.quick))?;
        for (at, (row, run)) in [(BLOCKS, &runs[1]), (GCC, &runs[2])].into_iter().enumerate() {
            ensure!(
                run.printed == runs[0].printed,
                "{}: {row} printed something else than a plain stack",
                program.name
            );
            ensure!(!run.printed.is_empty(), "{} printed nothing", program.name);
            let ratio = run.seconds / runs[0].seconds;
            ratios[at].push(ratio);
            figures.push(ratio_of(row, program.name, run.seconds * 1e9, ratio));
        }
    }
    for (row, ratios) in [BLOCKS, GCC].into_iter().zip(&ratios) {
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
        figures.push(ratio_of(row, AVERAGE, 0.0, mean));
    }
    Ok(figures)
}

fn ratio_of(row: &str, column: &str, nanoseconds: f64, ratio: f64) -> MeasuredValue {
    MeasuredValue { ratio: Some(ratio), ..MeasuredValue::of(format!("{row}: {column}"), nanoseconds) }
}

fn measure_micro(trial: &Trial, micro: &Micro) -> Result<Vec<MeasuredValue>> {
    let builds = Builds::find()?;
    let files = built(&builds, &micro.program, trial.layout.seed)?;
    let runs = run_each(trial.layout.seed, &files, |file| builds.run_with(file, &[&micro.n.to_string()])?.numbers())?;
    let [plain, blocks, gcc] = runs;
    let mut figures = Vec::new();
    for (row, numbers) in [(BLOCKS, blocks), (GCC, gcc)] {
        figures.push(MeasuredValue { ratio: Some(numbers[0] / plain[0]), ..MeasuredValue::of(row, numbers[0]) });
        if micro.is_sum {
            figures.push(MeasuredValue::of(counted(row), *numbers.get(1).context("sum printed no count")?));
        }
    }
    Ok(figures)
}

/// The user's cache directory for downloaded sources and compiled objects.
fn cache() -> Result<PathBuf> {
    let directories = fieldstone_sys::cache::directories();
    let usable = directories.into_iter().find(|directory| std::fs::create_dir_all(directory).is_ok());
    let remedy = Remedy(Some("set XDG_CACHE_HOME to a writable directory"));
    usable.with_context(|| format!("cannot create a cache directory{remedy}"))
}
