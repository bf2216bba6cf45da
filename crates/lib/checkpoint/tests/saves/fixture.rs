//! What the tests share.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_checkpoint::{Checkpointer, Error};
use fieldstone_pages::Memory;

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const PAGE: usize = 4096;
/// Words of a page.
pub(crate) const WORDS: usize = PAGE / 8;

pub(crate) fn contents(memory: &Memory) -> Vec<u64> {
    memory.words().iter().map(|word| word.load(Relaxed)).collect()
}

/// Memory of which every word of every second page is its index.
pub(crate) fn filled(bytes: usize) -> Memory {
    let memory = Memory::anonymous(bytes).unwrap();
    let pages = memory.words().chunks(WORDS).enumerate().step_by(2);
    pages.for_each(|(page, words)| {
        words.iter().enumerate().for_each(|(word, place)| place.store((page * WORDS + word) as u64, Relaxed));
    });
    memory
}

pub(crate) fn checkpointer(memory: &Memory) -> Checkpointer {
    Checkpointer::builder([memory]).build().unwrap()
}

/// The names in a directory.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The message of an error, which names a remedy or the object.
pub(crate) fn message<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    result.unwrap_err().to_string()
}

/// Ends the thread that writes, also when an assertion fails.
pub(crate) struct EndOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Set in the process of one test alone.
const ALONE: &str = "FIELDSTONE_TEST_ALONE";

/// Whether this process runs one test only. If not, that test is run in a process of its own, and must
/// succeed.
pub(crate) fn is_alone(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    false
}
