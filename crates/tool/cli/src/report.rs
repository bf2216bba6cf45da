//! `fieldstone report` and `fieldstone diff`: saved measurements, opened again.

use std::path::PathBuf;

#[cfg(target_arch = "x86_64")]
use anyhow::Context;
use anyhow::bail;
use clap::Args;
use fieldstone_report::{Diff, Document, Saved, Summary, csv, html, reports, saved, text};
#[cfg(target_arch = "x86_64")]
use fieldstone_supervise::sharing::RepairStats;
use serde::Serialize;

use crate::output::{Format, print, style};

/// Opens measurements that `profile --json`, `sharing --json`, `run --region --stats`, `run --repair --stats` or `run --pid --stats` saved
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone report profile.json
  fieldstone report --html report.html profile.json")]
pub(crate) struct Arguments {
    /// What is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Also write one self-contained page to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The saved measurements
    #[arg(value_name = "FILE.json")]
    file: PathBuf,
}

/// Compares two saved profiles of one program
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  fieldstone diff before.json after.json

Exit code: 0 when nothing got slower, 1 when something did, 2 when they cannot be compared.")]
pub(crate) struct DiffArguments {
    /// What is printed
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// The earlier profile
    before: PathBuf,
    /// The later profile
    after: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    match Saved::load(&arguments.file)? {
        Saved::Profile(profile) => {
            let summary = Summary::of(&profile);
            if let Some(path) = &arguments.html {
                saved::write(&html::render(&reports::profile::document(&profile, &summary))?, path)?;
            }
            print(&crate::profile::words(&profile, &summary, arguments.format)?)?;
        }
        Saved::Sharing(found) => {
            if arguments.format == Format::Csv {
                bail!(
                    "{} holds what `fieldstone sharing` found: it is shown as text, JSON or HTML",
                    arguments.file.display()
                );
            }
            if let Some(path) = &arguments.html {
                saved::write(&html::render(&reports::sharing::document(&found))?, path)?;
            }
            let words = match arguments.format {
                Format::Json => saved::to_json(&found)?,
                _ => text::render(&reports::sharing::document(&found), style()),
            };
            print(&words)?;
        }
        #[cfg(target_arch = "x86_64")]
        Saved::Repair(saved) => repair(arguments, *saved)?,
        #[cfg(not(target_arch = "x86_64"))]
        Saved::Repair(_) => bail!("{} holds a repair, which is shown on x86-64 only", arguments.file.display()),
        Saved::RunStats(stats) => statistics(arguments, &*stats, reports::run::document)?,
        Saved::Collapse(done) => statistics(arguments, &*done, reports::collapse::document)?,
    }
    Ok(0)
}

/// What `run --repair --stats` wrote.
#[cfg(target_arch = "x86_64")]
fn repair(arguments: &Arguments, saved: serde_json::Value) -> anyhow::Result<()> {
    let file = arguments.file.display();
    if arguments.format == Format::Csv {
        bail!("cannot show {file} as CSV: it holds the events of a repair\ntry: fieldstone report {file}");
    }
    let stats: RepairStats = serde_json::from_value(saved)
        .with_context(|| format!("cannot read the repair in {file}: it was cut short or edited"))?;
    let report = reports::repair::document(&crate::repair::report(&stats));
    if let Some(path) = &arguments.html {
        saved::write(&html::render(&report)?, path)?;
    }
    print(&if arguments.format == Format::Json { saved::to_json(&stats)? } else { text::render(&report, style()) })?;
    Ok(())
}

/// What `run --stats` wrote.
fn statistics<T: Serialize>(arguments: &Arguments, of: &T, document: fn(&T) -> Document) -> anyhow::Result<()> {
    match arguments.format {
        Format::Text if arguments.html.is_none() => print(&text::render(&document(of), style())),
        Format::Json if arguments.html.is_none() => print(&saved::to_json(of)?),
        _ => bail!("{} holds the statistics of one run: they are shown as text or JSON", arguments.file.display()),
    }
}

pub(crate) fn diff(arguments: &DiffArguments) -> anyhow::Result<u8> {
    let (before, after) = (Saved::load_profile(&arguments.before)?, Saved::load_profile(&arguments.after)?);
    let diff = Diff::between(&before, &after);
    let words = match arguments.format {
        Format::Text => text::render(&reports::diff::document(&diff), style()),
        Format::Json => saved::to_json(&diff)?,
        Format::Csv => csv::render(&reports::diff::records(&diff)),
    };
    print(&words)?;
    Ok(u8::from(diff.has_slower()))
}
