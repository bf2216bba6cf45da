//! `fieldstone report` and `fieldstone diff`: print saved measurements, and compare two profiles.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use fieldstone_report::{Diff, SavedFile, Summary, csv, html, reports, saved, text};
use fieldstone_wire::Remedy;

use crate::output::{MeasurementFormat, print, style};
use crate::repair;

/// Print measurements saved by `profile --json`, `sharing --json`, `run --stats`, `run
/// --guard-report` or `attach --stats`
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

Exit code: 0 nothing is slower, 1 something is slower, 2 the profiles cannot be compared, because the programs or \
the measured quantities differ.")]
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
    let file = arguments.file.display();
    let (document, json, csv) = match SavedFile::load(&arguments.file)? {
        SavedFile::Profile(profile) => {
            let summary = Summary::of(&profile);
            let csv = csv::render(&reports::profile::records(&summary));
            (reports::profile::document(&profile, &summary), saved::to_json(&profile)?, Some(csv))
        }
        SavedFile::Sharing(found) => (reports::sharing::document(&found), saved::to_json(&found)?, None),
        SavedFile::Repair(saved) => {
            let (json, report) = repair::read_saved(*saved, &arguments.file)?;
            (reports::repair::document(&report), json, None)
        }
        SavedFile::HeapErrors(errors) => (reports::heap_errors::document(&errors), saved::to_json(&errors)?, None),
        SavedFile::GuardStats(stats) => (reports::heap_errors::stats_document(&stats), saved::to_json(&*stats)?, None),
        SavedFile::PagingStats(stats) => (reports::paging::document(&stats), saved::to_json(&*stats)?, None),
        SavedFile::RunStats(stats) => (reports::run::document(&stats), saved::to_json(&stats)?, None),
        SavedFile::Collapse(collapse) => (reports::collapse::document(&collapse), saved::to_json(&collapse)?, None),
    };
    let text = match arguments.format {
        MeasurementFormat::Text => text::render(&document, style()),
        MeasurementFormat::Json => json,
        MeasurementFormat::Csv => csv.with_context(|| {
            let remedy = Remedy(Some(format!("fieldstone report --format json {file}")));
            format!("cannot print {file} as CSV: only profiles have this format{remedy}")
        })?,
    };
    if let Some(path) = &arguments.html {
        saved::write(&html::render(&document)?, path)?;
    }
    print(&text)?;
    Ok(0)
}

pub(crate) fn diff(arguments: &DiffArguments) -> anyhow::Result<u8> {
    let (before, after) = (SavedFile::load_profile(&arguments.before)?, SavedFile::load_profile(&arguments.after)?);
    let diff = Diff::between(&before, &after);
    let names = [&arguments.before, &arguments.after].map(|file| file.display().to_string());
    let text = match arguments.format {
        MeasurementFormat::Text => {
            text::render(&reports::diff::document(&diff, names.each_ref().map(String::as_str)), style())
        }
        MeasurementFormat::Json => saved::to_json(&diff)?,
        MeasurementFormat::Csv => csv::render(&reports::diff::records(&diff)),
    };
    print(&text)?;
    Ok(if diff.not_comparable.is_empty() { u8::from(diff.has_slower()) } else { 2 })
}
