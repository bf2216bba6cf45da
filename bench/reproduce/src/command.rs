//! The command line of `fieldstone reproduce`: selects cells, measures them or loads saved results,
//! and prints tables.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use fieldstone_report::text::{self, Style};
use fieldstone_report::{csv, html, markdown, saved};
use fieldstone_wire::Remedy;
use fieldstone_workloads::size;

use crate::cachekata::ladder_repair;
use crate::campaign::{Campaign, is_named};
use crate::catalog;
use crate::experiment::{Experiment, Scale};
use crate::layout::Layout;
use crate::summary::ExperimentSummary;
use crate::trial::{Task, Trial};
use crate::{child, show, store};

/// Measure the tables and figures of the papers on this machine and print them beside the published
/// numbers
#[derive(Debug, Parser)]
#[command(
    name = "fieldstone-reproduce",
    bin_name = "fieldstone reproduce",
    version,
    after_help = "\
Examples:
  fieldstone reproduce list
  fieldstone reproduce --quick --html table2.html table2
  fieldstone reproduce tree-walks/gups table2/paper-tree/4M

Each sample is a process with a random layout of code and data, because alignment alone changes results. Baseline and \
contenders are timed alternately within it. Numbers are medians over the processes, with 95 % intervals. Each finished \
sample is saved at once, so that --resume continues after Ctrl-C.

Exit code: 0 success, 2 an error."
)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
struct Arguments {
    /// `list`, names of experiments, or ids of cells, experiment/group/column, of which parts may be
    /// left out, as in tree-walks/gups; default with --saved: all experiments with saved samples
    #[arg(value_name = "NAME", required_unless_present_any = ["cell", "saved"])]
    names: Vec<String>,
    /// Measure small sizes in short rounds: a minute or two per experiment
    #[arg(long)]
    quick: bool,
    /// Set the number of samples of each cell [default: 10; 6 for cells of more than 1 GiB and with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Save samples in FOLDER, in a file of JSON lines per experiment. Without --resume, earlier
    /// samples of the named cells are deleted
    #[arg(long, value_name = "FOLDER", default_value = "build/reproduce")]
    out: PathBuf,
    /// Continue an earlier run that was interrupted
    #[arg(long)]
    resume: bool,
    /// Measure nothing and print the saved results
    #[arg(long, conflicts_with = "resume")]
    saved: bool,
    /// Use at most SIZE bytes of memory, for example 8G [default: the available memory minus 1 GiB]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    memory: Option<usize>,
    /// Also write the report to FILE as one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Set the output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// With `list`: also print the cells
    #[arg(long)]
    cells: bool,
    /// Measure one sample of this cell in this process
    #[arg(long, hide = true)]
    cell: Option<String>,
    /// Set the seed of the layout of this process
    #[arg(long, hide = true, default_value_t = 0)]
    layout: u64,
    /// Call only the kernel of this row
    #[arg(long, hide = true)]
    call: Option<String>,
    /// Call it this number of times
    #[arg(long, hide = true, default_value_t = 1)]
    times: u64,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables for a terminal
    Text,
    /// All data
    Json,
    /// A line per number
    Csv,
    /// A page for docs/results
    Markdown,
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(code) = ladder_repair::main() {
        return code;
    }
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fieldstone reproduce: {}", fieldstone_report::error::with_causes(error.as_ref()));
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let experiments = catalog::all();
    if let Some(cell) = &arguments.cell {
        return child::run(&experiments, &trial(arguments, cell));
    }
    if arguments.names.iter().any(|name| name == "list") {
        if arguments.names.len() > 1 {
            bail!(
                "cannot combine `list` with other names: it prints all experiments{}",
                Remedy(Some("fieldstone reproduce list --cells"))
            );
        }
        return write(&text::render(&show::list(&experiments, arguments.cells), style()));
    }
    let chosen = chosen(experiments, arguments)?;
    let campaign = Campaign {
        directory: arguments.out.clone(),
        quick: arguments.quick,
        runs: arguments.runs,
        resume: arguments.resume,
        memory_bytes: arguments.memory.map(|bytes| bytes as u64),
    };
    let mut summaries = Vec::new();
    for experiment in &chosen {
        let saved = if arguments.saved {
            let saved = store::load(&arguments.out, experiment.name)?;
            if saved.samples.is_empty() {
                bail!(
                    "cannot print {}: {} has no saved samples{}",
                    experiment.name,
                    arguments.out.display(),
                    Remedy(Some(format_args!("fieldstone reproduce {}", experiment.name)))
                );
            }
            saved
        } else {
            campaign.measure(experiment, &arguments.names)?
        };
        summaries.push(ExperimentSummary::of(experiment, &saved));
    }
    if let Some(path) = &arguments.html {
        saved::write(&html::render(&show::document(&summaries))?, path)?;
    }
    print(arguments, &summaries)
}

fn print(arguments: &Arguments, summaries: &[ExperimentSummary]) -> Result<()> {
    let names: String = arguments.names.iter().map(|name| format!(" {name}")).collect();
    let command = format!("fieldstone reproduce{names} --saved --format markdown");
    write(&match arguments.format {
        Format::Text => text::render(&show::document(summaries), style()),
        Format::Json => serde_json::to_string_pretty(summaries)? + "\n",
        Format::Csv => csv::render(&[show::records(summaries)]),
        Format::Markdown => markdown::render(&show::documentation(summaries, &command)),
    })
}

/// Writes to standard output. A reader that has closed it is no error.
fn write(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

fn trial(arguments: &Arguments, cell: &str) -> Trial {
    let task =
        arguments.call.as_ref().map_or(Task::Time, |row| Task::Call { row: row.clone(), calls: arguments.times });
    let memory_bytes = arguments.memory.map_or(u64::MAX, |bytes| bytes as u64);
    let layout = Layout::of_seed(arguments.layout);
    Trial { cell: cell.to_owned(), layout, quick: arguments.quick, memory_bytes, task }
}

/// The named experiments, or without names those with saved samples, in the order of [`all`].
fn chosen(experiments: Vec<Experiment>, arguments: &Arguments) -> Result<Vec<Experiment>> {
    let (names, folder) = (&arguments.names, &arguments.out);
    if names.is_empty() {
        let mut saved = Vec::new();
        for experiment in experiments {
            if !store::load(folder, experiment.name)?.samples.is_empty() {
                saved.push(experiment);
            }
        }
        if saved.is_empty() {
            let remedy = Remedy(Some("fieldstone reproduce list"));
            bail!("cannot print results: {} has no saved samples{remedy}", folder.display());
        }
        return Ok(saved);
    }
    for name in names {
        let first = name.split('/').next().unwrap_or_default();
        if !experiments.iter().any(|experiment| experiment.name == first) {
            let known: Vec<&str> = experiments.iter().map(|experiment| experiment.name).collect();
            let remedy = Remedy(Some(format!("`fieldstone reproduce list`, or one of {}", known.join(", "))));
            bail!("cannot find {name:?}: there is no experiment {first:?}{remedy}");
        }
        let cells = |scale| experiments.iter().flat_map(move |experiment| (experiment.cells)(scale));
        if !cells(Scale::Full).chain(cells(Scale::Quick)).any(|cell| is_named(&cell.id, std::slice::from_ref(name))) {
            let remedy = Remedy(Some("fieldstone reproduce list --cells"));
            bail!("cannot find {name:?}: {first} has no cell of this name{remedy}");
        }
    }
    let is_chosen = |experiment: &Experiment| names.iter().any(|name| is_named(name, &[experiment.name.to_owned()]));
    Ok(experiments.into_iter().filter(is_chosen).collect())
}

/// The style for standard output: the width of the terminal, or 160 columns.
fn style() -> Style {
    let output = std::io::stdout();
    let width = match rustix::termios::tcgetwinsize(&output) {
        Ok(size) if output.is_terminal() && size.ws_col > 0 => size.ws_col,
        _ => 160,
    };
    Style { width, colour: false }
}
