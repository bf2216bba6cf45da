//! What the tests share.

use std::path::Path;
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
