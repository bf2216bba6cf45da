//! The fixture of the tests: the command, and a store with several tables.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fieldstone_store::{Store, Table};
use tempfile::TempDir;

use crate::binaries;

pub(crate) const BYTES: Table<[u8], [u8]> = Table::new("bytes");
pub(crate) const NUMBERS: Table<i32, u64> = Table::new("numbers");
pub(crate) const WORDS: Table<str, str> = Table::new("words\tand \\ names");
pub(crate) const EMPTY: Table<u8, str> = Table::new("zero");
/// Entries of [`NUMBERS`].
pub(crate) const COUNT: i32 = 5000;

/// A folder with a store.
pub(crate) struct Fixture {
    folder: TempDir,
}

impl Fixture {
    /// A store that was closed: four tables, one of them empty.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::builder(folder.path().join("a.store")).log_bytes(64 << 10).open().unwrap();
        fill(&store);
        drop(store);
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The store.
    pub(crate) fn store(&self) -> PathBuf {
        self.path("a.store")
    }
}

/// Inserts keys of all byte values, numbers and words.
pub(crate) fn fill(store: &Store) {
    let all: Vec<u8> = (0..=255).collect();
    let filled = store.write(|tx| {
        tx.table(EMPTY)?;
        tx.table(BYTES)?.insert(b"", b"")?;
        for start in 0..all.len() {
            tx.table(BYTES)?.insert(&all[start..], &all[..start])?;
        }
        for word in ["", "a\tb", "line\nline\r", "\u{85}ü\u{1F600}", "\\x41"] {
            tx.table(WORDS)?.insert(word, word)?;
        }
        Ok(())
    });
    filled.unwrap();
    for block in 0..COUNT / 100 {
        let numbers = block * 100 - COUNT / 2..block * 100 + 100 - COUNT / 2;
        store
            .write(|tx| {
                numbers.into_iter().try_for_each(|number| tx.table(NUMBERS)?.insert(&number, &u64::MAX).map(drop))
            })
            .unwrap();
    }
}

/// `fieldstone store`, with options split at spaces.
pub(crate) fn command(options: &str, file: &Path) -> Command {
    let mut command = Command::new(binaries::command());
    command.arg("store").args(options.split_whitespace()).arg(file).stdin(Stdio::null());
    command
}

pub(crate) fn run(options: &str, file: &Path) -> Output {
    command(options, file).output().unwrap()
}

/// The output of a command that succeeds.
pub(crate) fn stdout(options: &str, file: &Path) -> String {
    let output = run(options, file);
    assert_eq!(output.status.code(), Some(0), "{options}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command with a text on its standard input.
pub(crate) fn with_input(options: &str, file: &Path, input: &[u8]) -> Output {
    let mut child =
        command(options, file).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A command that refuses the input closes the pipe.
    let _ = stdin.write_all(input);
    drop(stdin);
    child.wait_with_output().unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
