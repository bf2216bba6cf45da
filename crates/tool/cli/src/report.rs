//! `fieldstone report` and `fieldstone diff`: print saved measurements, and compare two profiles.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use fieldstone_report::{Diff, Document, SavedFile, Summary, csv, html, reports, saved, text};
use serde::Serialize;

use crate::output::{MeasurementFormat, print, style};
use crate::repair;

/// Print measurements saved by `profile --json`, `sharing --json`, `run --stats`, `run
/// --guard-report` or `attach --huge --stats`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone report profile.json
  fieldstone report --html report.html profile.json")]
pub(crate) struct Arguments {
    /// Set the output format
    #[arg(long, value_enum, default_value_t = MeasurementFormat::Text)]
    format: MeasurementFormat,
    /// Also write the report to FILE as one self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The file of measurements
    #[arg(value_name = "FILE.json")]
    file: PathBuf,
}

/// Compare two saved profiles of one program
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone diff before.json after.json
  fieldstone diff --format csv before.json after.json

Exit code: 0 nothing is slower, 1 something is slower, 2 the profiles cannot be compared.")]
pub(crate) struct DiffArguments {
    /// Set the output format
    #[arg(long, value_enum, default_value_t = MeasurementFormat::Text)]
    format: MeasurementFormat,
    /// The earlier profile
    before: PathBuf,
    /// The later profile
    after: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    match SavedFile::load(&arguments.file)? {
        SavedFile::Profile(profile) => {
            let summary = Summary::of(&profile);
            if let Some(path) = &arguments.html {
                saved::write(&html::render(&reports::profile::document(&profile, &summary))?, path)?;
            }
            print(&crate::profile::render(&profile, &summary, arguments.format)?)?;
        }
        SavedFile::Sharing(found) => {
            if arguments.format == MeasurementFormat::Csv {
                bail!(
                    "cannot print {} as CSV: findings of `fieldstone sharing` have the formats text, JSON and HTML",
                    arguments.file.display()
                );
            }
            if let Some(path) = &arguments.html {
                saved::write(&html::render(&reports::sharing::document(&found))?, path)?;
            }
            let text = match arguments.format {
                MeasurementFormat::Json => saved::to_json(&found)?,
                _ => text::render(&reports::sharing::document(&found), style()),
            };
            print(&text)?;
        }
        SavedFile::Repair(saved) => print_repair(arguments, *saved)?,
        SavedFile::HeapErrors(errors) => {
            print_statistics(arguments, &errors, |errors| reports::heap_errors::document(errors))?;
        }
        SavedFile::GuardStats(stats) => print_statistics(arguments, &*stats, reports::heap_errors::stats_document)?,
        SavedFile::RunStats(stats) => print_statistics(arguments, &*stats, reports::run::document)?,
        SavedFile::Collapse(collapse) => print_statistics(arguments, &*collapse, reports::collapse::document)?,
    }
    Ok(0)
}

/// Prints the file of `run --repair --stats`.
fn print_repair(arguments: &Arguments, saved: serde_json::Value) -> anyhow::Result<()> {
    let file = arguments.file.display();
    if arguments.format == MeasurementFormat::Csv {
        bail!("cannot print {file} as CSV: it holds the events of a repair\ntry: fieldstone report {file}");
    }
    let (json, report) = repair::read_saved(saved, &arguments.file)?;
    let report = reports::repair::document(&report);
    if let Some(path) = &arguments.html {
        saved::write(&html::render(&report)?, path)?;
    }
    print(&if arguments.format == MeasurementFormat::Json { json } else { text::render(&report, style()) })?;
    Ok(())
}

/// Prints the file of `run --region --stats` or `attach --huge --stats`.
fn print_statistics<T: Serialize>(arguments: &Arguments, of: &T, document: fn(&T) -> Document) -> anyhow::Result<()> {
    match arguments.format {
        MeasurementFormat::Text if arguments.html.is_none() => print(&text::render(&document(of), style())),
        MeasurementFormat::Json if arguments.html.is_none() => print(&saved::to_json(of)?),
        _ => bail!(
            "cannot print {} in this format: statistics of a run have the formats text and JSON",
            arguments.file.display()
        ),
    }
}

pub(crate) fn diff(arguments: &DiffArguments) -> anyhow::Result<u8> {
    let (before, after) = (SavedFile::load_profile(&arguments.before)?, SavedFile::load_profile(&arguments.after)?);
    let diff = Diff::between(&before, &after);
    let text = match arguments.format {
        MeasurementFormat::Text => text::render(&reports::diff::document(&diff), style()),
        MeasurementFormat::Json => saved::to_json(&diff)?,
        MeasurementFormat::Csv => csv::render(&reports::diff::records(&diff)),
    };
    print(&text)?;
    Ok(u8::from(diff.has_slower()))
}
