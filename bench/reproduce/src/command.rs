//! The command line: what is measured, where it is kept, how it is shown.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use fieldstone_report::text::{self, Style};
use fieldstone_report::{csv, html, markdown};
use fieldstone_workloads::size;

use crate::campaign::{Campaign, is_named};
use crate::experiment::{Experiment, Scale, all};
use crate::layout::Layout;
use crate::summary::Summary;
use crate::trial::{Task, Trial};
use crate::{child, show, store};

/// Runs the papers' tables and figures on this machine, beside the published numbers.
///
/// Each sample is measured in a process of its own, whose code and data lie elsewhere each time: alignment alone moves results. Baseline
/// and contender are timed alternately within it. Numbers are medians over the processes, with 95 % intervals.
///
/// Finished samples are kept in a folder as they come, so that --resume goes on after Ctrl-C.
#[derive(Debug, Parser)]
#[command(
    name = "fieldstone-reproduce",
    bin_name = "fieldstone reproduce",
    version,
    after_help = "\
Examples:
  fieldstone reproduce list                        what there is, and what it takes
  fieldstone reproduce table2 --quick              small sizes, in less than a minute
  fieldstone reproduce table2 blog --html all.html
  fieldstone reproduce table2/paper-tree/4M        one cell
  fieldstone reproduce table2 --saved --format csv what was measured before

Exit code: 0 fine, 2 an error."
)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a command line")]
struct Arguments {
    /// `list`, or experiments, or cells of them (experiment/group/column, or its beginning)
    #[arg(required_unless_present = "cell")]
    names: Vec<String>,
    /// Small sizes and short rounds: a minute or two for each experiment
    #[arg(long)]
    quick: bool,
    /// Samples of each cell [default: 10; 6 for cells of more than 1 GiB and with --quick]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Folder of the results: a file of JSON lines for each experiment, truncated unless --resume is given (of an experiment that is named in part, only those cells)
    #[arg(long, default_value = "build/reproduce")]
    out: PathBuf,
    /// Go on where an earlier run was ended
    #[arg(long)]
    resume: bool,
    /// Measure nothing: show what is saved
    #[arg(long, conflicts_with = "resume")]
    saved: bool,
    /// Memory that may be used, for example 8G [default: what is free, but for 1 GiB]
    #[arg(long, value_parser = size::parse)]
    memory: Option<usize>,
    /// Write one page with all tables and plots, too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// What is printed
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// With `list`: the cells, too
    #[arg(long)]
    cells: bool,
    /// Measure one sample of this cell, here
    #[arg(long, hide = true)]
    cell: Option<String>,
    /// The seed of this process's layout
    #[arg(long, hide = true, default_value_t = 0)]
    layout: u64,
    /// Only call the kernel of this row
    #[arg(long, hide = true)]
    call: Option<String>,
    /// How often it is called
    #[arg(long, hide = true, default_value_t = 1)]
    times: u64,
}

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables for people
    Text,
    /// All that is known
    Json,
    /// A line for each number
    Csv,
    /// Tables for a page of documentation
    Markdown,
}

/// Reads the command line and does what it says.
#[must_use]
pub fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fieldstone reproduce: {}", fieldstone_report::error::with_causes(error.as_ref()));
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let experiments = all();
    if let Some(cell) = &arguments.cell {
        return child::run(&experiments, &trial(arguments, cell));
    }
    if arguments.names.iter().any(|name| name == "list") {
        if arguments.names.len() > 1 {
            bail!("`list` stands alone: it names every experiment, and with --cells every cell");
        }
        return write(&text::render(&show::list(&experiments, arguments.cells), style()));
    }
    let chosen = chosen(experiments, &arguments.names)?;
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
                    "nothing is saved of {} in {}: leave --saved out to measure",
                    experiment.name,
                    arguments.out.display()
                );
            }
            saved
        } else {
            campaign.measure(experiment, &arguments.names)?
        };
        summaries.push(Summary::of(experiment, &saved));
    }
    if let Some(path) = &arguments.html {
        std::fs::write(path, html::render(&show::document(&summaries))?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(arguments, &summaries)
}

fn print(arguments: &Arguments, summaries: &[Summary]) -> Result<()> {
    let command = format!("fieldstone reproduce {} --saved --format markdown", arguments.names.join(" "));
    write(&match arguments.format {
        Format::Text => text::render(&show::document(summaries), style()),
        Format::Json => serde_json::to_string_pretty(summaries)? + "\n",
        Format::Csv => csv::render(&[show::records(summaries)]),
        Format::Markdown => markdown::render(&show::documentation(summaries, &command)),
    })
}

/// A reader that has seen enough is no error.
fn write(words: &str) -> Result<()> {
    match std::io::stdout().write_all(words.as_bytes()) {
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

/// The experiments that are named, in their own order.
fn chosen(experiments: Vec<Experiment>, names: &[String]) -> Result<Vec<Experiment>> {
    for name in names {
        let first = name.split('/').next().unwrap_or_default();
        if !experiments.iter().any(|experiment| experiment.name == first) {
            let known: Vec<&str> = experiments.iter().map(|experiment| experiment.name).collect();
            bail!("there is no experiment {first:?}; there are {}, and `list`", known.join(", "));
        }
        let cells = |scale| experiments.iter().flat_map(move |experiment| (experiment.cells)(scale));
        if !cells(Scale::Full).chain(cells(Scale::Quick)).any(|cell| is_named(&cell.id, std::slice::from_ref(name))) {
            bail!("{first} has no cell named {name}: `list --cells` names them");
        }
    }
    let is_chosen = |experiment: &Experiment| names.iter().any(|name| is_named(name, &[experiment.name.to_owned()]));
    Ok(experiments.into_iter().filter(is_chosen).collect())
}

/// The width of the terminal, or 160 columns.
fn style() -> Style {
    let output = std::io::stdout();
    let width = match rustix::termios::tcgetwinsize(&output) {
        Ok(size) if output.is_terminal() && size.ws_col > 0 => size.ws_col,
        _ => 160,
    };
    Style { width, colour: false }
}
