//! `fieldstone profile`: measures the cost of virtual memory for a program by running it on several
//! page kinds.

pub(crate) mod trace;

use std::ffi::OsString;
use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use fieldstone_launch::Program;
use fieldstone_launch::signals::Interrupt;
use fieldstone_profile::{ProfileEvent, ProfilePlan, ServerLoad, profile};
use fieldstone_report::{KindVerdict, Metric, Profile, Summary, csv, html, quantity, reports, saved, shell, text};
use fieldstone_sys::knob::Restorer;
use fieldstone_wire::{Mixture, PageKind, Remedy};
use indicatif::{ProgressBar, ProgressStyle};

use crate::also;
use crate::output::{MeasurementFormat, check_files, message, style, write_results};
use crate::run::place_agent;

/// Measure what virtual memory costs a program, and what huge pages save
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone profile -- gups 2G
  fieldstone profile --runs 10 --html page.html -- sqlite3 t.db '.read job.sql'
  fieldstone profile --load 'redis-benchmark -q -n 200000 -t set,get' \\
      --ready 6379 -- redis-server --save ''

The program runs once on each page kind to warm up, then alternately on all kinds. Its standard output is discarded. \
A server that does not end by itself needs --load and --ready.

Exit code: 0 measured, 1 measured with a finding (a crash, a hang, output that differs), 2 not measured.")]
pub(crate) struct Arguments {
    /// Set the number of measured runs on each page kind; a confidence interval needs 6
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Set the seconds after which a run counts as hanging; a traced run may take 50 times as long
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    timeout: f64,
    /// Read the standard input of each run from FILE; default: empty
    #[arg(long, value_name = "FILE")]
    stdin: Option<PathBuf>,
    /// Compare wall time, processor time or the duration of the load [default: time; with --load,
    /// throughput]
    #[arg(long, value_enum, value_name = "METRIC")]
    metric: Option<MetricName>,
    /// Also compare the standard output of all runs; a difference is a finding
    #[arg(long)]
    check_output: bool,
    /// Set the page kinds to compare with 4k: thp, hugetlb, hugetlb-1g, folio-64k; thp:25% puts a
    /// quarter on huge pages
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "thp,hugetlb,hugetlb-1g")]
    pages: Vec<Mixture>,
    /// Measure only the process whose program file is called NAME; default: the process with the most memory
    #[arg(long, value_name = "NAME")]
    process: Option<String>,
    #[command(flatten)]
    also: also::Arguments,
    /// Run this shell command, a fixed amount of work for the server PROGRAM
    #[arg(long, value_name = "COMMAND", requires = "ready")]
    load: Option<String>,
    /// Start the load when the server has opened this TCP port
    #[arg(long, value_name = "PORT", requires = "load")]
    ready: Option<u16>,
    /// Set the number of requests of the load, to report the cost of one
    #[arg(long, value_name = "N", requires = "load")]
    requests: Option<u64>,
    /// Also trace one run under QEMU, and report by models what page walks cost and what avoids
    /// them. Programs that it starts by exec are not traced
    #[arg(long)]
    trace: bool,
    #[command(flatten)]
    tracing: trace::Arguments,
    /// Set the output format
    #[arg(long, value_enum, default_value_t = MeasurementFormat::Text)]
    format: MeasurementFormat,
    /// Also write the measurements to FILE as JSON, for `fieldstone report` and `fieldstone diff`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the report to FILE as one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// The measured quantity that is compared.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum MetricName {
    /// Wall time from start to end
    Time,
    /// User and system time
    Cpu,
    /// Duration of the load
    Throughput,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let plan = plan(arguments)?;
    check_files(arguments.json.as_deref(), arguments.html.as_deref())?;
    let agent = place_agent()?;
    let restorer = Restorer::start()?;
    let interrupt = Interrupt::listen()?;
    let mut progress = ProfileProgress::new(&plan);
    let result = profile(&plan, &agent, &restorer, &interrupt, &mut |event| progress.update(&event));
    progress.bar.finish_and_clear();
    drop(restorer);
    if let (Err(error), Some(code)) = (&result, interrupt.shell_code())
        && error.is_interrupt()
    {
        message(error);
        return Ok(code);
    }
    let measured = result?;
    let summary = Summary::of(&measured);
    let json = || saved::to_json(&measured);
    let page = || html::render(&reports::profile::document(&measured, &summary));
    write_results(
        &render(&measured, &summary, arguments.format)?,
        [(arguments.json.as_deref(), &json), (arguments.html.as_deref(), &page)],
    )?;
    if let Some(code) = interrupt.shell_code() {
        return Ok(code);
    }
    // The report lists the unavailable kinds and their remedies.
    if summary.measured_nothing() {
        return Ok(2);
    }
    let failed = summary.kinds.iter().any(|kind| kind.verdict == Some(KindVerdict::Failed));
    Ok(u8::from(failed || !measured.findings.is_empty()))
}

/// A profile as text in a format.
pub(crate) fn render(
    profile: &Profile,
    summary: &Summary,
    format: MeasurementFormat,
) -> Result<String, fieldstone_report::Error> {
    match format {
        MeasurementFormat::Text => Ok(text::render(&reports::profile::document(profile, summary), style())),
        MeasurementFormat::Json => saved::to_json(profile),
        MeasurementFormat::Csv => Ok(csv::render(&reports::profile::records(summary))),
    }
}

fn plan(arguments: &Arguments) -> anyhow::Result<ProfilePlan> {
    if !arguments.timeout.is_finite() || arguments.timeout <= 0.0 || arguments.timeout > 1e7 {
        let remedy = Remedy(Some("a number of seconds, like --timeout 90"));
        bail!("cannot use --timeout {}: it is not a positive time{remedy}", arguments.timeout);
    }
    let load = match (&arguments.load, arguments.ready) {
        (Some(command), Some(port)) => {
            Some(ServerLoad { command: command.clone(), port, requests: arguments.requests })
        }
        _ => None,
    };
    let metric = match arguments.metric {
        None if load.is_some() => Metric::Throughput,
        None | Some(MetricName::Time) => Metric::Time,
        Some(MetricName::Cpu) => Metric::Cpu,
        Some(MetricName::Throughput) if load.is_some() => Metric::Throughput,
        Some(MetricName::Throughput) => {
            bail!("cannot compare throughput without a load{}", Remedy(Some("--load with --ready, or --metric time")))
        }
    };
    let program = Program::find(&arguments.command)?;
    if let Some(path) = &arguments.stdin {
        fs::File::open(path)
            .map_err(|cause| fieldstone_report::Error::Read { path: path.clone(), cause })
            .context("cannot provide the standard input")?;
    }
    let mosaics = if arguments.trace { trace::mosaics(&arguments.tracing, &arguments.pages) } else { Vec::new() };
    let mut kinds = vec![Mixture::from(PageKind::Small4k)];
    for &kind in arguments.pages.iter().chain(&mosaics) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    // The baseline needs no agent, and a trace uses a different one.
    if kinds.len() > 1 {
        program.check_carries_agent()?;
    }
    Ok(ProfilePlan {
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

/// Progress on standard error: a bar on a terminal, otherwise a few lines.
struct ProfileProgress {
    bar: ProgressBar,
}

impl ProfileProgress {
    fn new(plan: &ProfilePlan) -> Self {
        let command = shell::join(&plan.program.command_line());
        match plan.kinds.as_slice() {
            [kind] => message(format_args!(
                "{command} on {kind} pages; one page kind has nothing to compare with{}",
                Remedy(Some("--pages thp"))
            )),
            kinds => message(format_args!(
                "{command} on {} kinds of pages; one warm-up run on each gives an estimate of the time",
                kinds.len()
            )),
        }
        let need = fieldstone_stats::FEWEST_FOR_INTERVAL;
        if plan.kinds.len() > 1 && (plan.runs as usize) < need {
            message(format_args!(
                "--runs {} gives no verdict: that takes {need} runs on each page kind{}",
                plan.runs,
                Remedy(Some(format_args!("--runs {need}")))
            ));
        }
        // A spinner until the number of runs is known. It is drawn below the messages above.
        let bar = if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        bar.set_message("warming up");
        Self { bar }
    }

    fn update(&mut self, event: &ProfileEvent) {
        match event {
            ProfileEvent::WarmUp(kind) => self.bar.set_message(format!("warming up on {kind}")),
            ProfileEvent::Unavailable(kind, why) => self.bar.suspend(|| message(format_args!("without {kind}: {why}"))),
            ProfileEvent::Estimate(runs, time) => {
                let time = quantity::seconds(time.as_secs_f64());
                self.bar
                    .suspend(|| message(format_args!("{}, about {time}", quantity::plural(u64::from(*runs), "run"))));
                self.bar.set_length(u64::from(*runs));
                if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {eta} left") {
                    self.bar.set_style(style);
                }
            }
            ProfileEvent::Trace => {
                self.bar.finish_and_clear();
                message("the timed runs are done; one more run is traced, many times slower");
            }
            ProfileEvent::Run(position, kind) => {
                self.bar.set_position(u64::from(*position));
                self.bar.set_message(kind.to_string());
            }
        }
    }
}
