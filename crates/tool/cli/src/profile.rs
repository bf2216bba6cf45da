//! `fieldstone profile`: what virtual memory costs a program, by running it on several kinds of pages.

pub(crate) mod trace;

use std::ffi::OsString;
use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use fieldstone_report::{Metric, Profile, Summary, Verdict, csv, html, quantity, reports, saved, shell, text};
use fieldstone_supervise::profile::{Event, Load, Plan, profile};
use fieldstone_supervise::signals::Interrupt;
use fieldstone_supervise::{Error, Program};
use fieldstone_sys::knob::Restorer;
use fieldstone_wire::{Mixture, PageKind};
use indicatif::{ProgressBar, ProgressStyle};

use crate::also;
use crate::output::{Format, check_files, deliver, style, tell};
use crate::run::place_agent;

/// Tells what virtual memory costs a program, and how to get it back
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone profile -- gups 2G
  fieldstone profile --runs 10 --html report.html -- sqlite3 test.db '.read job.sql'
  fieldstone profile --load 'redis-benchmark -q -n 200000 -r 1000000 -t set,get' --ready 6379 -- redis-server --save ''

The program runs once on each kind of page to warm up, then alternately. Its standard output is thrown away.
A program that never ends needs --load and --ready. Exit code: 0 measured, 1 measured with a finding (a crash, a hang,
output that differs), 2 not measured.")]
pub(crate) struct Arguments {
    /// Measured runs on each kind of page; an interval needs 6
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Seconds after which a run is taken for hanging; a traced one may take 50 times as long
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    timeout: f64,
    /// Standard input of each run (empty without it)
    #[arg(long, value_name = "FILE")]
    stdin: Option<PathBuf>,
    /// What is compared: time of a run, its processor time, or the time that the load takes [default: time; with --load, throughput]
    #[arg(long, value_enum, value_name = "METRIC")]
    metric: Option<MetricName>,
    /// Compare the standard output of all runs too
    #[arg(long)]
    check_output: bool,
    /// Kinds of pages to compare with 4k, separated by commas: thp, hugetlb, hugetlb-1g, folio-64k; thp:25% for a mosaic
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "thp,hugetlb,hugetlb-1g")]
    pages: Vec<Mixture>,
    /// Serve and look at only the process whose program file is called NAME
    #[arg(long, value_name = "NAME")]
    process: Option<String>,
    #[command(flatten)]
    also: also::Arguments,
    /// A shell command that loads the server PROGRAM with a fixed piece of work
    #[arg(long, value_name = "COMMAND", requires = "ready")]
    load: Option<String>,
    /// The port that the server opens when it is ready
    #[arg(long, value_name = "PORT", requires = "load")]
    ready: Option<u16>,
    /// Requests that the load makes, to tell the cost of one
    #[arg(long, value_name = "N", requires = "load")]
    requests: Option<u64>,
    /// Also run it once under QEMU, and tell by models what its page walks cost and what would take them away. What it starts by exec
    /// is not traced: give that program itself
    #[arg(long)]
    trace: bool,
    #[command(flatten)]
    tracing: trace::Arguments,
    /// What is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Also write the measurements to FILE, for `fieldstone report` and `fieldstone diff`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write one self-contained page to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// What is compared.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum MetricName {
    /// From start to end
    Time,
    /// User and system time
    Cpu,
    /// How long the load takes
    Throughput,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let plan = plan(arguments)?;
    check_files(arguments.json.as_deref(), arguments.html.as_deref())?;
    let agent = place_agent()?;
    let restorer = Restorer::start()?;
    let interrupt = Interrupt::listen()?;
    let mut progress = Progress::new(&plan);
    let taken = profile(&plan, &agent, &restorer, &interrupt, &mut |event| progress.tell(&event));
    progress.bar.finish_and_clear();
    drop(restorer);
    if let (Err(error @ Error::Interrupted { .. }), Some(code)) = (&taken, interrupt.shell_code()) {
        tell(error);
        return Ok(code);
    }
    let taken = taken?;
    let summary = Summary::of(&taken);
    let json = || saved::to_json(&taken);
    let page = || html::render(&reports::profile::document(&taken, &summary));
    deliver(
        &words(&taken, &summary, arguments.format)?,
        [(arguments.json.as_deref(), &json), (arguments.html.as_deref(), &page)],
    )?;
    if let Some(code) = interrupt.shell_code() {
        return Ok(code);
    }
    // The report says which kinds were unavailable, and what allows them.
    if summary.measured_nothing() {
        return Ok(2);
    }
    let failed = summary.kinds.iter().any(|kind| kind.verdict == Some(Verdict::Failed));
    Ok(u8::from(failed || !taken.findings.is_empty()))
}

/// A profile as it is printed.
pub(crate) fn words(profile: &Profile, summary: &Summary, format: Format) -> Result<String, fieldstone_report::Error> {
    match format {
        Format::Text => Ok(text::render(&reports::profile::document(profile, summary), style())),
        Format::Json => saved::to_json(profile),
        Format::Csv => Ok(csv::render(&reports::profile::records(summary))),
    }
}

fn plan(arguments: &Arguments) -> anyhow::Result<Plan> {
    if !arguments.timeout.is_finite() || arguments.timeout <= 0.0 || arguments.timeout > 1e7 {
        bail!("--timeout takes a number of seconds, like 90 or 0.5");
    }
    let load = match (&arguments.load, arguments.ready) {
        (Some(command), Some(port)) => Some(Load { command: command.clone(), port, requests: arguments.requests }),
        _ => None,
    };
    let metric = match arguments.metric {
        None if load.is_some() => Metric::Throughput,
        None | Some(MetricName::Time) => Metric::Time,
        Some(MetricName::Cpu) => Metric::Cpu,
        Some(MetricName::Throughput) if load.is_some() => Metric::Throughput,
        Some(MetricName::Throughput) => {
            bail!("throughput is that of a load: give --load and --ready, or use --metric time")
        }
    };
    let program = Program::find(&arguments.command)?;
    if let Some(path) = &arguments.stdin {
        fs::File::open(path).with_context(|| format!("cannot read {} for the standard input", path.display()))?;
    }
    let mosaics = if arguments.trace { trace::mosaics(&arguments.tracing, &arguments.pages) } else { Vec::new() };
    let mut kinds = vec![Mixture::from(PageKind::Small4k)];
    for &kind in arguments.pages.iter().chain(&mosaics) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    // The baseline needs no agent, and a trace brings its own.
    if kinds.len() > 1 {
        program.check_carries_agent()?;
    }
    Ok(Plan {
        program,
        kinds,
        runs: arguments.runs,
        timeout: Duration::from_secs_f64(arguments.timeout),
        stdin: arguments.stdin.clone(),
        metric,
        check_output: arguments.check_output,
        process: arguments.process.clone(),
        also: arguments.also.chosen(),
        load,
        trace: arguments.trace.then(|| trace::plan(&arguments.tracing, arguments.timeout)).transpose()?,
    })
}

/// Tells on standard error how far it has come: a bar on a terminal, else a line now and then.
struct Progress {
    bar: ProgressBar,
}

impl Progress {
    fn new(plan: &Plan) -> Self {
        let words = shell::join(&plan.program.words());
        match plan.kinds.as_slice() {
            [kind] => tell(format_args!(
                "{words} on {kind} pages; one kind alone leaves nothing to compare with: name another too, \
                 as in --pages thp"
            )),
            kinds => tell(format_args!(
                "{words} on {} kinds of pages; one warm-up run each tells how long it will take",
                kinds.len()
            )),
        }
        let need = fieldstone_report::stats::FEWEST_FOR_INTERVAL;
        if plan.kinds.len() > 1 && (plan.runs as usize) < need {
            tell(format_args!(
                "--runs {} gives no verdict: it takes {need} runs on each kind of pages\ntry: --runs {need}",
                plan.runs
            ));
        }
        // No bar before there is a length, and none above what was said: a spinner, drawn from now on.
        let bar = if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        bar.set_message("warming up");
        Self { bar }
    }

    fn tell(&mut self, event: &Event) {
        match event {
            Event::WarmUp(kind) => self.bar.set_message(format!("warming up on {kind}")),
            Event::Unavailable(kind, why) => self.bar.suspend(|| tell(format_args!("without {kind}: {why}"))),
            Event::Estimate(runs, time) => {
                let time = quantity::seconds(time.as_secs_f64());
                self.bar.suspend(|| tell(format_args!("{}, about {time}", quantity::plural(u64::from(*runs), "run"))));
                self.bar.set_length(u64::from(*runs));
                if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {eta} left") {
                    self.bar.set_style(style);
                }
            }
            Event::Trace => {
                self.bar.finish_and_clear();
                tell("the timed runs are done; one more is traced, many times slower");
            }
            Event::Run(position, kind) => {
                self.bar.set_position(u64::from(*position));
                self.bar.set_message(kind.to_string());
            }
        }
    }
}
