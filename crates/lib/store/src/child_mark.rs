//! Whether this process is a forked child of the one that has opened the store.
//!
//! A child has copies of locks that threads of its parent may have held, and its parent goes on to write pages to
//! their places. So a child reads only what is in its memory.

use std::sync::atomic::Ordering::Relaxed;

use fieldstone_pages::Memory;

use crate::page::PAGE;

/// A word that the kernel clears in children (`MADV_WIPEONFORK`): it costs less than the number of the process.
#[derive(Debug)]
pub(crate) struct ChildMark {
    word: Option<Memory>,
    process: u32,
}

impl ChildMark {
    pub(crate) fn new() -> Self {
        let word = Memory::anonymous(PAGE).ok().filter(|memory| memory.clear_in_child().is_ok());
        if let Some(word) = &word {
            word.words()[0].store(1, Relaxed);
        }
        Self { word, process: std::process::id() }
    }

    #[inline]
    pub(crate) fn is_child(&self) -> bool {
        match &self.word {
            Some(word) => word.words()[0].load(Relaxed) == 0,
            None => self.process != std::process::id(),
        }
    }
}
