//! `fieldstone store load`: inserts the entries of a dump.

use std::collections::HashSet;
use std::io::{self, BufRead, IsTerminal};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use clap::Args;
use fieldstone_report::quantity::count;
use fieldstone_report::saved;
use fieldstone_store::{RecoveryProgress, Result, Store, Transaction};
use fieldstone_wire::Remedy;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::record::{Extent, Last, Line, Record};
use super::{Format, failed};
use crate::output::{message, print};

/// A recovery that takes longer shows a progress bar.
const BAR_DELAY: Duration = Duration::from_secs(1);
/// A transaction is committed when its keys and values have this many bytes.
const TRANSACTION_BYTES: usize = 1 << 20;
/// A transaction is committed when it has this many records.
const TRANSACTION_RECORDS: usize = 10_000;

/// Insert entries from standard input, in the form that `dump` prints
///
/// The store is made if the file is absent. An entry that is there already is replaced. A
/// transaction has up to 10,000 lines, or about 1 MiB of keys and values. The last line must be
/// that of `dump`: without it, the input has ended early. An input that another program writes ends
/// with the line `complete`, or with `{"end":"complete"}` in JSON.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fieldstone store dump old.store | fieldstone store load new.store
  fieldstone store load --format json app.store < entries.json

Exit code: 0 success, 2 an error. After an error, earlier transactions are in the file; the message says how many \
lines they had.")]
pub(crate) struct Arguments {
    /// Set the format of standard input and of the result
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The file of the store
    file: PathBuf,
}

/// What is wrong with an empty input.
const NO_INPUT: &str = "standard input has no entry and no table, not even the last line of a dump";
/// What to do about an input without a last line.
const NO_END: &str = "look for an error of the program that writes the input; end an input of your own with the line \
                      `complete`, or {\"end\":\"complete\"} in JSON";

/// Lines that are read and not committed.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    bytes: usize,
}

/// What was loaded.
#[derive(Default)]
struct Loaded {
    /// Lines in committed transactions.
    lines: u64,
    entries: u64,
    tables: HashSet<String>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<u8> {
    // A file that is not there is not made for an input that has nothing.
    if !arguments.file.exists() && io::stdin().lock().fill_buf().is_ok_and(<[u8]>::is_empty) {
        bail!("cannot load into {}: {NO_INPUT}; no file was made{}", arguments.file.display(), Remedy(Some(NO_END)));
    }
    let opened = Store::builder(&arguments.file).on_recovery(show_recovery()).open();
    let store = opened.map_err(|error| failed("load into", &arguments.file, &error))?;
    let mut loaded = Loaded::default();
    if let Err(error) = load(&store, arguments, &mut loaded) {
        let text = error.to_string();
        let (cause, remedy) = Remedy::split(&text);
        bail!(
            "{cause}; {} lines before are in the store, with {} entries{remedy}",
            count(loaded.lines),
            count(loaded.entries)
        );
    }
    let tables = loaded.tables.len();
    print(&match arguments.format {
        Format::Text => format!("loaded: {} entries of {} tables\n", count(loaded.entries), count(tables as u64)),
        Format::Json => saved::to_json(&json!({
            "schema": "fieldstone-store-load/1",
            "entries": loaded.entries,
            "tables": tables,
        }))?,
    })?;
    Ok(0)
}

/// Shows the recovery of a store that was not closed, on a terminal, if it takes long.
fn show_recovery() -> impl Fn(RecoveryProgress) + Send + Sync {
    let (began, bar) = (Instant::now(), OnceLock::<ProgressBar>::new());
    move |progress| {
        if began.elapsed() > BAR_DELAY && io::stderr().is_terminal() {
            let bar = bar.get_or_init(|| {
                let bar = ProgressBar::new(progress.pages);
                match ProgressStyle::with_template("recovering {bar:30} {pos}/{len} pages, {eta} left") {
                    Ok(style) => bar.with_style(style),
                    Err(_) => bar,
                }
            });
            bar.set_position(progress.written_pages);
            if progress.written_pages == progress.pages {
                bar.finish_and_clear();
            }
        }
    }
}

/// Commits all lines of standard input.
///
/// # Errors
/// For a line that cannot be read or inserted, and for an input without its last line. What was committed before
/// stays.
fn load(store: &Store, arguments: &Arguments, loaded: &mut Loaded) -> anyhow::Result<()> {
    let (mut input, mut line, mut batch) = (io::stdin().lock(), Vec::new(), Batch::default());
    // Entries since the last line of a dump, and whether that was the last line of the input.
    let (mut entries, mut is_complete) = (0, false);
    for number in 1_u64.. {
        line.clear();
        let read = input.read_until(b'\n', &mut line);
        if read.map_err(|error| anyhow!("cannot read standard input: {error}"))? == 0 {
            break;
        }
        if let Some(last) = parse_last(&line, arguments.format) {
            batch.commit(store, arguments, loaded)?;
            if last.entries.is_some_and(|expected| expected != entries) {
                let expected = count(last.entries.unwrap_or_default());
                let remedy = Remedy(Some("dump the store again"));
                let found = count(entries);
                bail!(
                    "cannot load all of standard input: line {number} says {expected} entries, and it has {found}{remedy}"
                );
            }
            if last.end == Extent::Salvaged {
                message("the input is a dump of a damaged store: entries are missing in it");
            }
            (entries, is_complete) = (0, true);
            continue;
        }
        is_complete = false;
        let record = parse(&line, arguments.format).map_err(|what| {
            let remedy = Remedy(Some("correct this line, or leave it out"));
            anyhow!("cannot load line {number} of standard input: {what}{remedy}")
        })?;
        entries += u64::from(record.entry.is_some());
        batch.add(record);
        if batch.is_full() {
            batch.commit(store, arguments, loaded)?;
        }
    }
    batch.commit(store, arguments, loaded)?;
    match (is_complete, loaded.lines) {
        (true, _) => Ok(()),
        (false, 0) => Err(anyhow!("cannot load standard input: {NO_INPUT}{}", Remedy(Some(NO_END)))),
        (false, _) => {
            let what = "cannot load all of standard input: it ends without the last line of a dump";
            Err(anyhow!("{what}{}", Remedy(Some(NO_END))))
        }
    }
}

/// The last line of a dump; `None` for another line.
fn parse_last(line: &[u8], format: Format) -> Option<Last> {
    let text = std::str::from_utf8(line.strip_suffix(b"\n").unwrap_or(line)).ok()?;
    match format {
        Format::Text => Last::parse(text),
        Format::Json if text.contains("\"end\"") => serde_json::from_str(text).ok(),
        Format::Json => None,
    }
}

/// The record of a line with its end.
fn parse(line: &[u8], format: Format) -> std::result::Result<Record, String> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let text = std::str::from_utf8(line).map_err(|_| "it is no UTF-8".to_owned())?;
    match format {
        Format::Text => Line::parse(text)?.record(),
        Format::Json => serde_json::from_str::<Line<'_>>(text).map_err(|error| error.to_string())?.record(),
    }
}

impl Batch {
    fn add(&mut self, record: Record) {
        self.bytes += record.entry.as_ref().map_or(0, |(key, value)| key.len() + value.len());
        self.records.push(record);
    }

    fn is_full(&self) -> bool {
        self.bytes >= TRANSACTION_BYTES || self.records.len() >= TRANSACTION_RECORDS
    }

    fn commit(&mut self, store: &Store, arguments: &Arguments, loaded: &mut Loaded) -> anyhow::Result<()> {
        let committed = store.write(|tx| self.records.iter().try_for_each(|record| insert(tx, record)));
        committed.map_err(|error| failed("load into", &arguments.file, &error))?;
        loaded.lines += self.records.len() as u64;
        for record in self.records.drain(..) {
            loaded.entries += u64::from(record.entry.is_some());
            if !loaded.tables.contains(&record.table.name) {
                loaded.tables.insert(record.table.name);
            }
        }
        self.bytes = 0;
        Ok(())
    }
}

fn insert(tx: &mut Transaction, record: &Record) -> Result<()> {
    let mut table = tx.raw_table(&record.table)?;
    if let Some((key, value)) = &record.entry {
        table.insert(key, value)?;
    }
    Ok(())
}
