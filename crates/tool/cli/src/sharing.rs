//! `fieldstone sharing`: finds false sharing, cache lines whose different bytes several threads
//! access.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use fieldstone_launch::signals::termination_flag;
use fieldstone_launch::{Program, outcome};
use fieldstone_repair::{DetectOptions, Detection, check_repair, check_run_repair, detect, detect_in_program};
use fieldstone_report::{Sharing, html, profile, reports, saved, text};
use fieldstone_sharing::{Ignore, Settings};

use crate::output::{check_files, message, style, write_results};
use crate::target_process::{check_exists, command_line};
use crate::text_file;

/// Find false sharing between the threads of a program, and report how to change its data
/// structures
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone sharing -- ./linear_regression points
  fieldstone sharing --pid 4242 --duration 10 --html sharing.html
  fieldstone sharing --ignore known.txt --json found.json -- ./server --bench

The program is sampled from outside and not changed. Processes that it starts are not sampled. Ctrl-C ends the \
sampling and prints the report.

Exit code: 0 nothing found, undecided, or nothing could be sampled (the report says which), 1 a finding, 2 an \
error.")]
pub(crate) struct Arguments {
    /// Sample a running process
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Sample for SECONDS; default: until the program ends or Ctrl-C. The program is not ended: without
    /// --pid, the report is printed when the program has ended by itself
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Set the samples per second of each running thread
    #[arg(long, value_name = "HERTZ", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    hertz: u32,
    /// Treat pairs of lines as one: some processors fetch both
    #[arg(long)]
    pairs: bool,
    /// Omit known findings, listed in FILE as `object:NAME`, `function:NAME` or `module:NAME`, one
    /// a line; `*` matches any text
    #[arg(long, value_name = "FILE")]
    ignore: Option<PathBuf>,
    /// Set the output format
    #[arg(long, value_enum, default_value_t = SharingFormat::Text)]
    format: SharingFormat,
    /// Also write the findings to FILE as JSON, for `fieldstone report`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the report to FILE as one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The program and its arguments
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "pid",
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// The format on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SharingFormat {
    /// A report
    Text,
    /// All findings, after the output of the program itself
    Json,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "give a number of seconds, like 10 or 0.5".to_owned())?;
    if seconds > 0.0 && seconds <= 1e7 {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("give a number of seconds above 0, at most 10000000".to_owned())
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    check_files(arguments.json.as_deref(), arguments.html.as_deref())?;
    let ignore = arguments.ignore.as_deref().map(read_ignore).transpose()?;
    let settings = Settings { pairs: arguments.pairs, ..DetectOptions::default().settings };
    let look = DetectOptions { hertz: arguments.hertz, settings, duration: arguments.duration };
    let taken_at_unix_s = now_unix_s();
    let repairable = arguments.pid.map_or_else(check_run_repair, check_repair);
    let (program, looked, ending) = match arguments.pid {
        Some(pid) => {
            let command = command_of(pid)?;
            let stop = termination_flag()?;
            message(sampling_message(pid, arguments.duration));
            (command, detect(pid, &look, &stop)?, None)
        }
        None => {
            let program = Program::find(&arguments.command)?;
            let (status, looked) = detect_in_program(&program, &look)?;
            (program.command_line(), looked, Some(status).filter(|status| !status.success()))
        }
    };
    let mut sharing = sharing(program, looked);
    sharing.repair_unavailable = repairable.err().map(|error| error.to_string());
    (sharing.taken_at_unix_s, sharing.pid) = (taken_at_unix_s, arguments.pid);
    sharing.unseen.extend(ending.map(|status| format!("the program ended with {}", outcome::describe(status))));
    if let Some(ignore) = &ignore {
        remove_ignored(&mut sharing, ignore);
        sharing.ignore_file = arguments.ignore.as_ref().map(|path| path.display().to_string());
    }
    write_report(arguments, &sharing)?;
    Ok(u8::from(sharing.has_findings()))
}

fn read_ignore(path: &std::path::Path) -> anyhow::Result<Ignore> {
    Ok(Ignore::parse(&path.to_string_lossy(), &text_file::read(path)?)?)
}

/// The command line of a running process.
fn command_of(pid: u32) -> anyhow::Result<Vec<String>> {
    check_exists("sample", pid)?;
    let words = command_line(pid);
    if words.is_empty() {
        bail!("cannot sample process {pid}: it has ended or is a kernel thread");
    }
    Ok(words)
}

/// The message during sampling.
fn sampling_message(pid: u32, duration: Option<Duration>) -> String {
    let limit = duration.map(|limit| format!(" for {} s", limit.as_secs_f64())).unwrap_or_default();
    format!("process {pid} is sampled{limit}; Ctrl-C ends the sampling and prints the report")
}

fn now_unix_s() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

fn sharing(command: Vec<String>, looked: Detection) -> Sharing {
    Sharing {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: fieldstone_profile::describe_machine(),
        program: profile::ProfiledProgram { command, ..profile::ProfiledProgram::default() },
        duration_s: looked.duration_s,
        sampling: looked.sampling,
        threads: looked.threads,
        findings: looked.findings,
        others: looked.others,
        unseen: looked.unseen,
        ..Sharing::default()
    }
}

/// Removes the findings that the ignore file names and counts them.
fn remove_ignored(sharing: &mut Sharing, ignore: &Ignore) {
    let before = sharing.findings.len();
    sharing.findings.retain(|found| ignore.find(found.names()).is_none());
    sharing.ignored = (before - sharing.findings.len()) as u64;
}

fn write_report(arguments: &Arguments, sharing: &Sharing) -> anyhow::Result<()> {
    let json = || saved::to_json(sharing);
    let document = reports::sharing::document(sharing);
    let words = match arguments.format {
        SharingFormat::Text => text::render(&document, style()),
        SharingFormat::Json => json()?,
    };
    write_results(
        &words,
        [(arguments.json.as_deref(), &json), (arguments.html.as_deref(), &|| html::render(&document))],
    )
}
