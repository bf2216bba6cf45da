//! The memory of a save, at once or page by page.

#![allow(unsafe_code, reason = "writes to memory that was just mapped")]

use std::cell::RefCell;

use fieldstone_pages::{Fault, Filling, Memory, Outcome};

use crate::error::Result;
use crate::format::PAGE;
use crate::saved::{Buffers, Saved, SavedFile};

impl Saved {
    /// Reads all pages into new memories, one for each that was saved, at addresses of the kernel's choice.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] at the first page that is not what was saved, and
    /// [`crate::Error::Memory`].
    pub fn restore(&self) -> Result<Vec<Memory>> {
        let memories = self.memories()?;
        let mut buffers = Buffers::new();
        for file in &self.files {
            for chunk in &file.manifest.chunks {
                let contents = file.read(chunk, &mut buffers)?;
                let memory = &memories[chunk.region as usize];
                // SAFETY: the manifest was checked: the pages are inside the memory, which was just
                // mapped, and no other code has its address.
                unsafe {
                    let at = memory.as_ptr().add(chunk.first as usize * PAGE);
                    at.copy_from_nonoverlapping(contents.as_ptr(), contents.len());
                }
            }
        }
        Ok(memories)
    }

    /// As [`Saved::restore`], but a page is read and verified at its first access. Returns as soon as the
    /// memories are mapped. They must be dropped before memory may be tracked or saved again.
    ///
    /// A page that cannot be read, or is not what was saved, raises `SIGBUS` in the thread that accesses
    /// it, after a message.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] without userfaultfd.
    pub fn restore_lazily(self) -> Result<Vec<Filling>> {
        let memories = self.memories()?;
        let files = std::sync::Arc::new(self.files);
        let fill = |(region, memory): (usize, Memory)| {
            let places = Places::of(&files, region, memory.bytes() / PAGE);
            let files = std::sync::Arc::clone(&files);
            Ok(Filling::new(memory, move |fault| places.fill(&files, fault))?)
        };
        memories.into_iter().enumerate().map(fill).collect()
    }

    fn memories(&self) -> Result<Vec<Memory>> {
        self.sizes().into_iter().map(|bytes| Ok(Memory::anonymous(bytes)?)).collect()
    }
}

/// Where the pages of a memory are: the file and the chunk of each, plus one; 0 for a page of zeros.
struct Places(Vec<(u32, u32)>);

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers::new());
}

impl Places {
    fn of(files: &[SavedFile], region: usize, pages: usize) -> Self {
        let mut places = vec![(0, 0); pages];
        for (file, saved) in (1..).zip(files) {
            for (index, chunk) in (0..).zip(&saved.manifest.chunks) {
                if chunk.region as usize == region {
                    places[chunk.first as usize..][..chunk.pages as usize].fill((file, index));
                }
            }
        }
        Self(places)
    }

    /// Fills the page of a fault.
    fn fill(&self, files: &[SavedFile], fault: &Fault<'_>) -> Outcome {
        let page = fault.offset() / PAGE;
        let filled = match self.0[page] {
            (0, _) => fault.zero(),
            (file, chunk) => {
                let file = &files[file as usize - 1];
                let chunk = &file.manifest.chunks[chunk as usize];
                BUFFERS.with_borrow_mut(|buffers| match file.read(chunk, buffers) {
                    Ok(contents) => fault.fill(&contents[(page - chunk.first as usize) * PAGE..][..PAGE]),
                    Err(error) => {
                        eprintln!("fieldstone: a page cannot be restored, its thread gets SIGBUS: {error}");
                        fault.poison()
                    }
                })
            }
        };
        if filled.is_ok() { Outcome::Resolved } else { Outcome::Chain }
    }
}
