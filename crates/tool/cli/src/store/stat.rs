//! `fieldstone store stat`: sizes and counts of a file.

use std::path::PathBuf;

use clap::Args;
use fieldstone_report::document::{Block, Column, Document, Table, TableRow, Value};
use fieldstone_report::quantity::{bytes, count};
use fieldstone_report::{saved, text};
use fieldstone_store::{Stat, StoreFile, TableStat, TypeStat};
use serde_json::json;

use super::record::escaped;
use super::{Format, failed};
use crate::output::{print, style};

/// Print sizes and counts: version, live and free bytes, log, tables, bytes to disk a commit
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone store stat app.store
  fieldstone store stat --format json app.store | jq .tables

Exit code: 0 success, 2 an error, such as damage by which entries are lost. The file is not changed. All pages in use \
are read.")]
pub(crate) struct Arguments {
    /// Set the output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The file of the store
    file: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    let stat = StoreFile::open(&arguments.file).and_then(|file| file.stat());
    let stat = stat.map_err(|error| failed("measure", &arguments.file, &error))?;
    print(&match arguments.format {
        Format::Text => text::render(&document(&stat, arguments.file.display().to_string()), style()),
        Format::Json => json(&stat)?,
    })?;
    Ok(0)
}

/// Bytes to disk for each of the commits in the log; `None` if there are none.
fn bytes_a_commit(stat: &Stat) -> Option<u64> {
    let recent = &stat.recent_commits;
    (recent.log_bytes + recent.page_bytes).checked_div(recent.commits)
}

fn document(stat: &Stat, title: String) -> Document {
    let recent = &stat.recent_commits;
    let commit = bytes_a_commit(stat).map_or_else(String::new, |commit| {
        let [log, pages] = [recent.log_bytes, recent.page_bytes].map(|part| bytes(part / recent.commits));
        format!("{}: {log} log, {pages} pages (mean of {} commits in the log)", bytes(commit), count(recent.commits))
    });
    let recovery = match stat.unrecovered_commits {
        0 => "nothing to recover".to_owned(),
        commits => format!("{} commits to recover at the next opening", count(commits)),
    };
    let facts = [
        ("version", stat.version.to_string()),
        ("file", bytes(stat.file_bytes)),
        ("live", bytes(stat.live_bytes)),
        ("free", bytes(stat.free_bytes)),
        ("log", format!("{}, {recovery}", bytes(stat.log_bytes))),
        ("last commit", count(stat.last_commit)),
        ("to disk a commit", commit),
    ];
    let columns = [Column::text("table"), Column::text("key"), Column::text("value")];
    let numbers = ["entries", "keys and values", "pages", "levels"].map(Column::number);
    let table = Table::new(columns.into_iter().chain(numbers)).with_rows(stat.tables.iter().map(row));
    let mut blocks = vec![Block::facts(facts), table.into()];
    if !stat.types.is_empty() {
        blocks.push(types(&stat.types).into());
    }
    Document { title, blocks, ..Document::default() }
}

fn row(table: &TableStat) -> TableRow {
    let [name, key, value] =
        [&table.table.name, &table.table.key_type, &table.table.value_type].map(|text| escaped(text.as_bytes()));
    TableRow::new(vec![
        name.into(),
        key.into(),
        value.into(),
        Value::count(table.entries).into(),
        Value::bytes(table.entry_bytes).into(),
        Value::bytes(table.page_bytes).into(),
        Value::count(table.levels.into()).into(),
    ])
}

/// The table of the types of objects.
fn types(types: &[TypeStat]) -> Table {
    let columns = [Column::text("type of objects")];
    let numbers = ["objects", "size", "pages"].map(Column::number);
    Table::new(columns.into_iter().chain(numbers)).with_rows(types.iter().map(|found| {
        TableRow::new(vec![
            escaped(found.name.as_bytes()).into(),
            Value::count(found.objects).into(),
            Value::bytes(found.object_bytes).into(),
            Value::bytes(found.page_bytes).into(),
        ])
    }))
}

fn json(stat: &Stat) -> anyhow::Result<String> {
    let tables = stat.tables.iter().map(|table| {
        json!({
            "name": table.table.name,
            "key_type": table.table.key_type,
            "value_type": table.table.value_type,
            "entries": table.entries,
            "entry_bytes": table.entry_bytes,
            "page_bytes": table.page_bytes,
            "levels": table.levels,
        })
    });
    let types = stat.types.iter().map(|found| {
        json!({
            "name": found.name,
            "objects": found.objects,
            "object_bytes": found.object_bytes,
            "page_bytes": found.page_bytes,
        })
    });
    Ok(saved::to_json(&json!({
        "schema": "fieldstone-store-stat/1",
        "version": stat.version,
        "file_bytes": stat.file_bytes,
        "live_bytes": stat.live_bytes,
        "free_bytes": stat.free_bytes,
        "log_bytes": stat.log_bytes,
        "last_commit": stat.last_commit,
        "unrecovered_commits": stat.unrecovered_commits,
        "bytes_to_disk_a_commit": bytes_a_commit(stat),
        "recent_commits": {
            "commits": stat.recent_commits.commits,
            "log_bytes": stat.recent_commits.log_bytes,
            "page_bytes": stat.recent_commits.page_bytes,
        },
        "tables": tables.collect::<Vec<_>>(),
        "types": types.collect::<Vec<_>>(),
    }))?)
}
