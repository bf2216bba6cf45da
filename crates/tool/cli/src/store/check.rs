//! `fieldstone store check`: verifies a file.

use std::path::PathBuf;

use clap::Args;
use fieldstone_report::quantity::{count, plural};
use fieldstone_report::saved;
use fieldstone_store::{Checked, Scope, check};
use serde_json::json;

use super::findings::{self, line};
use super::{Format, failed};
use crate::output::print;

/// Verify a file: header, log, trees of all tables, objects, and maps of the pages in use
///
/// Prints a line for each finding: the page, its offset in bytes, what is wrong, and what is lost.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone store check app.store
  fieldstone store check --quick --format json app.store

Exit code: 0 nothing is wrong, 1 a finding, 2 an error. The file is not changed.")]
pub(crate) struct Arguments {
    /// Verify the header, the log and the size of the file only; default: everything
    #[arg(long)]
    quick: bool,
    /// Set the output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The file of the store
    file: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let scope = if arguments.quick { Scope::Quick } else { Scope::All };
    let (mut all, mut printed) = (Vec::new(), Ok(()));
    let checked = check(&arguments.file, scope, |finding| match arguments.format {
        Format::Json => all.push(findings::json(&finding)),
        Format::Text if printed.is_ok() => printed = print(&(line(&finding) + "\n")),
        Format::Text => {}
    });
    let checked = checked.map_err(|error| failed("check", &arguments.file, &error))?;
    printed?;
    print(&match arguments.format {
        Format::Text => summary(&checked, scope),
        Format::Json => saved::to_json(&json!({
            "schema": "fieldstone-store-check/1",
            "file": arguments.file.display().to_string(),
            "quick": arguments.quick,
            "tables": checked.tables,
            "entries": checked.entries,
            "pages": checked.pages,
            "objects": checked.objects,
            "findings": all,
        }))?,
    })?;
    Ok(u8::from(checked.findings > 0))
}

/// The last line: what was read, and the number of findings.
fn summary(checked: &Checked, scope: Scope) -> String {
    let found = if checked.findings == 0 { "no findings".to_owned() } else { plural(checked.findings, "finding") };
    match scope {
        Scope::Quick => format!("header and log: {found}\n"),
        Scope::All => {
            let [tables, entries, pages] = [checked.tables, checked.entries, checked.pages].map(count);
            let objects = match checked.objects {
                0 => String::new(),
                objects => format!(", objects {}", count(objects)),
            };
            format!("tables {tables}, entries {entries}, pages of trees {pages}{objects}: {found}\n")
        }
    }
}
