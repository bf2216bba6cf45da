//! Output: results go to standard output in the chosen format, messages to standard error.

use std::fmt::Display;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, bail};
use clap::ValueEnum;
use fieldstone_report::{Error, saved, text::Style};
use fieldstone_sys::doctor::without_sudo;
use fieldstone_wire::Remedy;

use crate::stats_file::{OutputFile, is_pipe};

/// The format of a measurement on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeasurementFormat {
    /// Tables
    Text,
    /// All measurements
    Json,
    /// The summary, one line for each kind of page
    Csv,
}

/// Checks that results can be written to these files before anything is measured: a measurement may
/// take an hour.
pub(crate) fn check_files(json: Option<&Path>, html: Option<&Path>) -> anyhow::Result<()> {
    if json.is_some() && json == html {
        bail!(
            "cannot write JSON and HTML to the same file{}",
            Remedy(Some("two different files for --json and --html"))
        );
    }
    [json, html].into_iter().flatten().try_for_each(check_writable)
}

fn check_writable(path: &Path) -> anyhow::Result<()> {
    // Opening and closing a pipe would look like the end of the data to its reader.
    if fs::metadata(path).is_ok_and(|found| is_pipe(&found)) {
        return Ok(());
    }
    let is_new = fs::symlink_metadata(path).is_err();
    OutputFile::open(path, fs::OpenOptions::new().append(true))?;
    // A measurement that fails must not leave an empty file.
    if is_new {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Prints a result to standard output. A reader that closes the pipe early is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    flush_stdout(io::stdout().write_all(text.as_bytes()))
}

/// Flushes standard output if `written` succeeded. A reader that closes the pipe early is not an
/// error.
pub(crate) fn flush_stdout(written: io::Result<()>) -> anyhow::Result<()> {
    match written.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// The path of a result file, if the user gave one, and the function that makes its text.
type ResultFile<'a> = (Option<&'a Path>, &'a dyn Fn() -> Result<String, Error>);

/// Prints `text` even if a file cannot be written, and writes the files even if printing fails.
pub(crate) fn write_results(text: &str, files: [ResultFile<'_>; 2]) -> anyhow::Result<()> {
    let printed = print(text);
    for (path, render) in files {
        if let Some(path) = path {
            saved::write(&render()?, path)?;
        }
    }
    printed
}

/// Prints one message to standard error, prefixed with `fieldstone: `. Root gets its remedy without
/// sudo.
pub(crate) fn message(text: impl Display) {
    let text = text.to_string();
    let (cause, remedy) = Remedy::split(&text);
    let is_root = rustix::process::geteuid().is_root();
    let command = remedy.0.map(|command| if is_root { without_sudo(command) } else { command.to_owned() });
    write_stderr(&format!("fieldstone: {cause}{}\n", Remedy(command)));
}

/// Prints that a command line of an older version has a new form. The old form still works.
pub(crate) fn renamed(old: &str, new: &str) {
    message(format_args!("`fieldstone {old}` is an old form{}", Remedy(Some(format_args!("fieldstone {new}")))));
}

/// Writes to standard error. Errors are ignored: a closed or full standard error must not stop the
/// command.
pub(crate) fn write_stderr(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}

/// The width and colours of the terminal `output`; plain text of 100 columns if it is no terminal.
pub(crate) fn style_of(output: impl AsFd + IsTerminal) -> Style {
    match rustix::termios::tcgetwinsize(&output) {
        Ok(size) if output.is_terminal() && size.ws_col > 0 => {
            Style { width: size.ws_col, colour: std::env::var_os("NO_COLOR").is_none() }
        }
        _ => Style::default(),
    }
}

/// The style of standard output.
pub(crate) fn style() -> Style {
    style_of(io::stdout())
}
