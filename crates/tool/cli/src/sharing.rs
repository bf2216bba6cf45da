//! `fieldstone sharing`: which cache lines a program's threads fight for with different bytes.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use fieldstone_report::{Sharing, html, profile, reports, saved, text};
use fieldstone_sharing::{Ignore, Settings};
use fieldstone_supervise::sharing::{Look, Looked, check_repair, check_run_repair, look_on, look_on_program};
use fieldstone_supervise::signals::asked_to_end;
use fieldstone_supervise::{Program, outcome};

use crate::input;
use crate::output::{check_files, deliver, style, tell_at_terminal};

/// Tells which cache lines a program's threads fight for with different bytes, and how to part these
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone sharing -- ./linear_regression points
  fieldstone sharing --pid 4242 --duration 10 --html sharing.html
  fieldstone sharing --ignore known.txt --json found.json -- ./server --benchmark

The program is sampled from outside and not changed. Only the process itself is looked at, not what it starts.
Exit code: 0 nothing found, or nothing could be seen (it says which), 1 a finding, 2 an error. Ctrl-C ends the looking on, not in an error.")]
pub(crate) struct Arguments {
    /// Look at a process that already runs
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// For how many seconds; to the program's end without it, or Ctrl-C
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,
    /// Samples a second of each thread that runs
    #[arg(long, value_name = "HERTZ", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=10_000))]
    hertz: u32,
    /// Count pairs of lines, which some processors fetch together
    #[arg(long)]
    pairs: bool,
    /// Findings that are known and not to be told, a line each: `object:NAME`, `function:NAME` or `module:NAME`, with `*` for any characters
    #[arg(long, value_name = "FILE")]
    ignore: Option<PathBuf>,
    /// What is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Save what was found to FILE, for `fieldstone report`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write one self-contained page to FILE
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

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Text,
    /// What was found, as it is, behind what the program itself prints
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
    let settings = Settings { pairs: arguments.pairs, ..Look::default().settings };
    let look = Look { hertz: arguments.hertz, settings, duration: arguments.duration };
    let taken_at_unix_s = now_unix_s();
    let repairable = arguments.pid.map_or_else(check_run_repair, check_repair);
    let (program, looked, ending) = match arguments.pid {
        Some(pid) => {
            let command = command_of(pid)?;
            let stop = asked_to_end()?;
            tell_at_terminal(sampling(pid, arguments.duration));
            (command, look_on(pid, &look, &stop)?, None)
        }
        None => {
            let program = Program::find(&arguments.command)?;
            let (status, looked) = look_on_program(&program, &look)?;
            (program.words(), looked, Some(status).filter(|status| !status.success()))
        }
    };
    let mut sharing = sharing(program, looked);
    sharing.repair_unavailable = repairable.err().map(|error| error.to_string());
    (sharing.taken_at_unix_s, sharing.pid) = (taken_at_unix_s, arguments.pid);
    sharing.unseen.extend(ending.map(|status| format!("the program ended with {}", outcome::words(status))));
    if let Some(ignore) = &ignore {
        keep_back(&mut sharing, ignore);
        sharing.ignore_file = arguments.ignore.as_ref().map(|path| path.display().to_string());
    }
    write(arguments, &sharing)?;
    Ok(u8::from(sharing.has_findings()))
}

fn read_ignore(path: &std::path::Path) -> anyhow::Result<Ignore> {
    Ignore::parse(&input::read(path)?).with_context(|| path.display().to_string())
}

/// The command of a running process, as the system tells it.
fn command_of(pid: u32) -> anyhow::Result<Vec<String>> {
    let line = fs::read(format!("/proc/{pid}/cmdline"));
    let line = line.with_context(|| format!("there is no process {pid}, or it is another user's"))?;
    let words = line.split(|&byte| byte == 0).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    if words.is_empty() {
        bail!("process {pid} has no command: it has ended, or is a thread of the kernel");
    }
    Ok(words)
}

/// What goes on until the report is printed, and how it ends.
fn sampling(pid: u32, duration: Option<Duration>) -> String {
    let limit = duration.map(|limit| format!(" for {} s", limit.as_secs_f64())).unwrap_or_default();
    format!("process {pid} is sampled{limit}; Ctrl-C ends that, and the report follows")
}

fn now_unix_s() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

fn sharing(command: Vec<String>, looked: Looked) -> Sharing {
    Sharing {
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        machine: fieldstone_supervise::profile::describe_machine(),
        program: profile::Program { command, ..profile::Program::default() },
        duration_s: looked.duration_s,
        sampling: looked.sampling,
        threads: looked.threads,
        findings: looked.findings,
        others: looked.others,
        unseen: looked.unseen,
        ..Sharing::default()
    }
}

/// Takes out what the ignore file names.
fn keep_back(sharing: &mut Sharing, ignore: &Ignore) {
    let before = sharing.findings.len();
    sharing.findings.retain(|found| ignore.find(found.names()).is_none());
    sharing.ignored = (before - sharing.findings.len()) as u64;
}

fn write(arguments: &Arguments, sharing: &Sharing) -> anyhow::Result<()> {
    let json = || saved::to_json(sharing);
    let document = reports::sharing::document(sharing);
    let words = match arguments.format {
        Format::Text => text::render(&document, style()),
        Format::Json => json()?,
    };
    deliver(&words, [(arguments.json.as_deref(), &json), (arguments.html.as_deref(), &|| html::render(&document))])
}
