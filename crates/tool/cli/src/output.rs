//! How results and talk are written: results to standard output in the format that was asked for, talk to standard error.

use std::fmt::Display;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, bail};
use clap::ValueEnum;
use fieldstone_report::{Error, saved, text::Style};

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Tables for people
    Text,
    /// The measurements as they are
    Json,
    /// The summary, a line for each kind of page
    Csv,
}

/// Whether results can be written to these files, before anything is measured: a path that cannot be written must not cost an hour.
pub(crate) fn check_files(json: Option<&Path>, html: Option<&Path>) -> anyhow::Result<()> {
    if json.is_some() && json == html {
        bail!("--json and --html name the same file: give each one of its own");
    }
    [json, html].into_iter().flatten().try_for_each(check_writable)
}

fn check_writable(path: &Path) -> anyhow::Result<()> {
    // Who reads from a pipe would take the look for all there is.
    if fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        return Ok(());
    }
    let new = fs::symlink_metadata(path).is_err();
    let opened = fs::OpenOptions::new().append(true).create(true).open(path);
    opened.with_context(|| format!("cannot write {}", path.display()))?;
    // What is never measured leaves no empty file.
    if new {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// A result, to standard output. A reader that has seen enough is no error.
pub(crate) fn print(words: &str) -> anyhow::Result<()> {
    printed(io::stdout().write_all(words.as_bytes()))
}

/// Flushes what was `written` to standard output. A reader that has seen enough is no error.
pub(crate) fn printed(written: io::Result<()>) -> anyhow::Result<()> {
    match written.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

/// A file that was asked for, if it was, and what goes there.
type ToFile<'a> = (Option<&'a Path>, &'a dyn Fn() -> Result<String, Error>);

/// A result to standard output, and what is made of it to the files that were asked for: shown though it cannot be saved, and saved though it
/// cannot be shown.
pub(crate) fn deliver(words: &str, files: [ToFile<'_>; 2]) -> anyhow::Result<()> {
    let shown = print(words);
    for (path, text) in files {
        if let Some(path) = path {
            saved::write(&text()?, path)?;
        }
    }
    shown
}

/// A line of talk, in the command's name.
pub(crate) fn tell(words: impl Display) {
    talk(&format!("fieldstone: {words}\n"));
}

/// A line about what goes on, for a user who watches a terminal.
#[cfg(target_arch = "x86_64")]
pub(crate) fn tell_at_terminal(words: impl Display) {
    if io::stderr().is_terminal() {
        tell(words);
    }
}

/// Talk, to standard error. Where that is closed or full it is lost: talk never ends what it is about.
pub(crate) fn talk(words: &str) {
    let _ = io::stderr().write_all(words.as_bytes());
}

/// The width and colours of the terminal that `output` is, or plain text of 100 columns.
pub(crate) fn style_of(output: impl AsFd + IsTerminal) -> Style {
    match rustix::termios::tcgetwinsize(&output) {
        Ok(size) if output.is_terminal() && size.ws_col > 0 => {
            Style { width: size.ws_col, colour: std::env::var_os("NO_COLOR").is_none() }
        }
        _ => Style::default(),
    }
}

/// That of standard output.
pub(crate) fn style() -> Style {
    style_of(io::stdout())
}
