//! `fieldstone store dump`: prints all entries.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use clap::Args;
use fieldstone_report::saved;
use fieldstone_report::shell;
use fieldstone_store::{Finding, RawItem, StoreFile};
use fieldstone_wire::Remedy;

use super::findings::{line, lost};
use super::record::{Extent, Last, Line};
use super::{Format, failed};
use crate::output::{flush_stdout, message};

/// Print all entries, a line for each, in the order of tables and keys
///
/// A line has five fields with tabs between them: table, type of keys, type of values, key, value.
/// A line of three fields stands before the entries of a table. Numbers are decimal. In other
/// fields, \\ \t \n \r and \xNN stand for a backslash, a tab, the ends of lines, and other bytes
/// that cannot be printed. `fieldstone store load` reads these lines. With `--format json`, a line
/// is an object with the same fields. The last line is `complete`, a tab and the number of entries,
/// or `salvaged` instead of `complete` if something is missing. In JSON it is an object with the
/// fields `end` and `entries`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone store dump app.store | fieldstone store load copy.store
  fieldstone store dump --salvage damaged.store > entries

Exit code: 0 success, 1 something is missing (with --salvage), 2 an error, such as damage without --salvage: the \
output then ends before it, without its last line. The file is not changed.")]
pub(crate) struct Arguments {
    /// Leave out what cannot be read, and print to standard error what is missing; default: stop
    #[arg(long)]
    salvage: bool,
    /// Set the output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The file of the store
    file: PathBuf,
}

/// Why a dump has ended early.
enum End {
    Write(io::Error),
    Damage(anyhow::Error),
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let file = StoreFile::open(&arguments.file).map_err(|error| failed("print", &arguments.file, &error))?;
    let mut output =
        Output { stdout: BufWriter::new(io::stdout().lock()), format: arguments.format, line: None, entries: 0 };
    let mut findings = 0_u64;
    let dumped = if arguments.salvage {
        file.salvage(|item| match item {
            RawItem::Missing(finding) => {
                findings += 1;
                message(line(&finding));
                Ok(())
            }
            item => output.write(&item).map_err(End::Write),
        })
    } else {
        file.read_all(|item| match item {
            RawItem::Missing(finding) => Err(End::Damage(damage(&arguments.file, &finding))),
            item => output.write(&item).map_err(End::Write),
        })
    };
    let written = match dumped {
        Ok(()) => output.finish(if findings == 0 { Extent::Complete } else { Extent::Salvaged }),
        Err(End::Write(error)) => Err(error),
        Err(End::Damage(error)) => {
            let _ = output.stdout.flush();
            return Err(error);
        }
    };
    drop(output);
    flush_stdout(written)?;
    Ok(u8::from(findings > 0))
}

fn damage(file: &Path, finding: &Finding) -> anyhow::Error {
    let remedy = format!("fieldstone store dump --salvage {}", shell::quote(&file.to_string_lossy()));
    let (place, lost) = (finding.page(), lost(&finding.lost));
    anyhow!("cannot print {}: page {place}: {}; lost: {lost}{}", file.display(), finding.what, Remedy(Some(remedy)))
}

/// Writes lines.
struct Output<W: Write> {
    stdout: W,
    format: Format,
    /// The line of the table whose entries follow.
    line: Option<Line<'static>>,
    /// Entries that were written.
    entries: u64,
}

impl<W: Write> Output<W> {
    fn write(&mut self, item: &RawItem<'_>) -> io::Result<()> {
        match item {
            RawItem::Table(table) => {
                let line = Line::of_table(table);
                write_line(&mut self.stdout, self.format, &line)?;
                self.line = Some(line);
            }
            RawItem::Entry(table, key, value) => {
                if let Some(line) = &self.line {
                    write_line(&mut self.stdout, self.format, &line.with_entry(table, key, value))?;
                    self.entries += 1;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes the last line.
    fn finish(&mut self, end: Extent) -> io::Result<()> {
        let last = Last { end, entries: Some(self.entries) };
        match self.format {
            Format::Text => writeln!(self.stdout, "{}", last.text())?,
            Format::Json => self.stdout.write_all(saved::to_json_line(&last).map_err(io::Error::other)?.as_bytes())?,
        }
        self.stdout.flush()
    }
}

fn write_line(output: &mut impl Write, format: Format, line: &Line<'_>) -> io::Result<()> {
    match format {
        Format::Text => writeln!(output, "{}", line.text()),
        Format::Json => output.write_all(saved::to_json_line(line).map_err(io::Error::other)?.as_bytes()),
    }
}
