//! Samples on disk: a file of JSON lines per experiment, so that an interrupted run can continue.
//!
//! ```text
//! {"session": {…provenance…}}                         a run of the command began
//! {"sample": {"cell": …, "run": 3, "outcome": …}}     one of its samples is finished
//! ```
//! Each line is appended by one write. An incomplete last line, left by a kill, is removed when the
//! file is reopened.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fieldstone_wire::Remedy;
use serde::{Deserialize, Serialize};

use crate::experiment::SampleOutcome;
use crate::provenance::Provenance;

/// The names of rows in earlier versions, which saved samples have, with the current names.
const RENAMED_ROWS: [(&str, &str); 22] = [
    ("times as fast by the repair", "speedup by the repair"),
    ("time repaired, times that by hand", "time repaired, relative to padded by hand"),
    ("without, padded by hand", "padded by hand"),
    ("time, times that of elements apart", "time, relative to separate elements"),
    ("last access led to its new place", "last access redirected"),
    ("accesses led to their new place", "accesses redirected"),
    ("pages put back", "pages moved back"),
    ("records a second, of those padded by hand", "speed, relative to padded by hand"),
    ("bytes before the first, the allocator's", "bytes of the allocator before the first"),
    ("lines that several threads' loops use", "lines used by the loops of several threads"),
    ("the same, if the array began with a line", "the same, for an array at the start of a line"),
    ("lines that both threads' loops use", "lines used by the loops of both threads"),
    ("each adds to a word of its own, on lines apart", "each adds to its own word, on separate lines"),
    ("each adds to a word of its own, on one line", "each adds to its own word, on one line"),
    ("all read one line, nobody writes", "all read one line, without writes"),
    ("2 MiB, as transparent huge pages got for 64 MiB", "2 MiB, as transparent huge pages for 64 MiB"),
    ("64 KiB, contiguous: free memory that serves", "64 KiB, contiguous: share of the free memory that fits"),
    ("64 KiB, free memory in pieces so large", "64 KiB, free memory in pieces of this size"),
    ("618 KB, contiguous: free memory that serves", "618 KB, contiguous: share of the free memory that fits"),
    ("618 KB, free memory in pieces so large", "618 KB, free memory in pieces of this size"),
    ("16 MB, contiguous: free memory that serves", "16 MB, contiguous: share of the free memory that fits"),
    ("16 MB, free memory in pieces so large", "16 MB, free memory in pieces of this size"),
];

/// A finished sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellSample {
    /// The id of the cell.
    pub cell: String,
    /// The number of the sample in its cell, from 0.
    pub run: u32,
    /// The seed of its layout ([`crate::Layout::of_seed`]).
    pub seed: u64,
    /// Seconds of its process.
    pub took_s: f64,
    /// The result.
    pub outcome: SampleOutcome,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SavedLine {
    Session(Provenance),
    Sample(CellSample),
}

/// The content of an experiment's file.
#[derive(Clone, Debug, Default)]
pub struct SavedSamples {
    /// The sessions, first to last.
    pub sessions: Vec<Provenance>,
    /// The samples, in the order of their ends.
    pub samples: Vec<CellSample>,
}

impl SavedSamples {
    /// The measured samples of a cell by run, the last one of each run.
    #[must_use]
    pub fn measured(&self, cell: &str) -> BTreeMap<u32, &CellSample> {
        let measured =
            |sample: &&CellSample| sample.cell == cell && matches!(sample.outcome, SampleOutcome::Measured { .. });
        self.samples.iter().filter(measured).map(|sample| (sample.run, sample)).collect()
    }

    /// Why the last sample of a cell was skipped; `None` if it was measured.
    #[must_use]
    pub fn skipped(&self, cell: &str) -> Option<&str> {
        let last = self.samples.iter().rfind(|sample| sample.cell == cell)?;
        match &last.outcome {
            SampleOutcome::Skipped { reason } => Some(reason),
            SampleOutcome::Measured { .. } => None,
        }
    }
}

/// An experiment's file, open for further samples.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    file: File,
    /// Its content.
    pub saved: SavedSamples,
}

impl Store {
    /// Creates an experiment's file, or empties it.
    ///
    /// # Errors
    /// If the folder cannot be created or written.
    pub fn begin(directory: &Path, experiment: &str) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let path = path_of(directory, experiment);
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, file, saved: SavedSamples::default() })
    }

    /// Opens an experiment's file, or creates it if there is none.
    ///
    /// # Errors
    /// If it cannot be read or written, has an invalid line, or was measured at the other scale.
    pub fn resume(directory: &Path, experiment: &str, quick: bool) -> Result<Self> {
        let path = path_of(directory, experiment);
        if !path.exists() {
            return Self::begin(directory, experiment);
        }
        let (saved, whole_bytes) = read(&path)?;
        if let Some(session) = saved.sessions.iter().find(|session| session.quick != quick) {
            let (was, remedy) = if session.quick { ("with", "add --quick") } else { ("without", "omit --quick") };
            bail!(
                "cannot resume {}: it was measured {was} --quick{}",
                path.display(),
                Remedy(Some(format_args!("{remedy}, or another folder with --out")))
            );
        }
        let cannot = || format!("cannot write {}", path.display());
        let file = OpenOptions::new().append(true).open(&path).with_context(cannot)?;
        file.set_len(whole_bytes).with_context(cannot)?;
        Ok(Self { path, file, saved })
    }

    /// Deletes the samples of some cells of an experiment, and keeps the others.
    ///
    /// # Errors
    /// As [`Store::resume`].
    pub fn begin_cells(directory: &Path, experiment: &str, quick: bool, cells: &[&str]) -> Result<Self> {
        let mut kept = Self::resume(directory, experiment, quick)?.saved;
        kept.samples.retain(|sample| !cells.contains(&sample.cell.as_str()));
        let mut store = Self::begin(directory, experiment)?;
        kept.sessions.into_iter().try_for_each(|session| store.add_session(session))?;
        kept.samples.into_iter().try_for_each(|sample| store.add_sample(sample))?;
        Ok(store)
    }

    /// Appends a session.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn add_session(&mut self, session: Provenance) -> Result<()> {
        self.write(&SavedLine::Session(session.clone()))?;
        self.saved.sessions.push(session);
        Ok(())
    }

    /// Appends a finished sample.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn add_sample(&mut self, sample: CellSample) -> Result<()> {
        self.write(&SavedLine::Sample(sample.clone()))?;
        self.saved.samples.push(sample);
        Ok(())
    }

    fn write(&mut self, line: &SavedLine) -> Result<()> {
        let text = serde_json::to_string(line)? + "\n";
        self.file.write_all(text.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// The content of an experiment's file; empty if there is none.
///
/// # Errors
/// If it cannot be read, or has an invalid line.
pub fn load(directory: &Path, experiment: &str) -> Result<SavedSamples> {
    let path = path_of(directory, experiment);
    if path.exists() { Ok(read(&path)?.0) } else { Ok(SavedSamples::default()) }
}

fn path_of(directory: &Path, experiment: &str) -> PathBuf {
    directory.join(format!("{experiment}.jsonl"))
}

/// The complete lines of a file, and their number of bytes.
fn read(path: &Path) -> Result<(SavedSamples, u64)> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let mut saved = SavedSamples::default();
    for (at, line) in bytes[..whole].split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        let line = serde_json::from_slice(line).with_context(|| {
            let remedy = Remedy(Some("delete the line, or the file"));
            format!("cannot read line {} of {}{remedy}", at + 1, path.display())
        })?;
        match line {
            SavedLine::Session(session) => saved.sessions.push(session),
            SavedLine::Sample(sample) => saved.samples.push(with_current_rows(sample)),
        }
    }
    Ok((saved, whole as u64))
}

/// Replaces earlier names of rows.
fn with_current_rows(mut sample: CellSample) -> CellSample {
    if let SampleOutcome::Measured { figures, .. } = &mut sample.outcome {
        for figure in figures {
            // A row with its own column is saved as `row: column`.
            let renamed = RENAMED_ROWS.iter().find_map(|(earlier, current)| {
                let column = figure.row.strip_prefix(earlier)?;
                (column.is_empty() || column.starts_with(": ")).then(|| format!("{current}{column}"))
            });
            if let Some(row) = renamed {
                figure.row = row;
            }
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::experiment::{MeasuredValue, Scale};

    fn sample(cell: &str, run: u32) -> CellSample {
        let outcome = SampleOutcome::measured(Vec::new());
        CellSample { cell: cell.into(), run, seed: u64::MAX, took_s: 0.1, outcome }
    }

    #[test]
    fn rows_of_earlier_versions_have_their_current_names() {
        let experiments = crate::catalog::all();
        let cells = experiments.iter().flat_map(|experiment| (experiment.cells)(Scale::Full));
        let rows: BTreeSet<String> = cells.flat_map(|cell| cell.rows).map(|row| row.name).collect();
        for (earlier, current) in RENAMED_ROWS {
            assert!(rows.contains(current) && !rows.contains(earlier), "{earlier}: {current}");
        }
        let names = ["pages put back: 20 ms", "times as fast by the repair", "pages put back and more"];
        let outcome = SampleOutcome::measured(names.map(|row| MeasuredValue::of(row, 1.0)).into());
        let SampleOutcome::Measured { figures, .. } =
            with_current_rows(CellSample { outcome, ..sample("t/a", 0) }).outcome
        else {
            unreachable!()
        };
        let renamed: Vec<&str> = figures.iter().map(|figure| figure.row.as_str()).collect();
        assert_eq!(renamed, ["pages moved back: 20 ms", "speedup by the repair", "pages put back and more"]);
    }

    #[test]
    fn other_cells_are_kept_when_one_is_restarted() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::begin(folder.path(), "t").unwrap();
        for (cell, run) in [("t/a", 0), ("t/b", 0), ("t/a", 1)] {
            store.add_sample(sample(cell, run)).unwrap();
        }
        drop(Store::begin_cells(folder.path(), "t", true, &["t/a"]).unwrap());
        let kept = load(folder.path(), "t").unwrap();
        assert_eq!(kept.samples.iter().map(|sample| sample.cell.as_str()).collect::<Vec<_>>(), ["t/b"]);
    }

    #[test]
    fn an_incomplete_line_is_removed_and_the_run_continues() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::begin(folder.path(), "t").unwrap();
        store.add_session(Provenance::here(true)).unwrap();
        store.add_sample(sample("t/a", 0)).unwrap();
        store.file.write_all(b"{\"sample\":{\"cell\":\"t/a\",\"ru").unwrap();
        drop(store);
        let mut store = Store::resume(folder.path(), "t", true).unwrap();
        assert_eq!(store.saved.measured("t/a").len(), 1);
        store.add_sample(sample("t/a", 1)).unwrap();
        drop(store);
        let saved = load(folder.path(), "t").unwrap();
        assert_eq!((saved.sessions.len(), saved.measured("t/a").len()), (1, 2));
        assert_eq!(saved.samples[0], sample("t/a", 0));
    }

    #[test]
    fn scales_are_not_mixed_and_a_skip_is_not_measured() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = Store::begin(folder.path(), "t").unwrap();
        store.add_session(Provenance::here(true)).unwrap();
        let outcome = SampleOutcome::Skipped { reason: "no".into() };
        store.add_sample(CellSample { outcome, ..sample("t/b", 0) }).unwrap();
        assert_eq!((store.saved.measured("t/b").len(), store.saved.skipped("t/b")), (0, Some("no")));
        let error = Store::resume(folder.path(), "t", false).unwrap_err();
        assert!(error.to_string().contains("add --quick"), "{error}");
        std::fs::write(folder.path().join("t.jsonl"), "invalid\n").unwrap();
        assert!(load(folder.path(), "t").unwrap_err().to_string().contains("line 1"));
    }
}
