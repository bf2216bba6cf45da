//! The memory of a save, at once or page by page.

#![allow(unsafe_code, reason = "writes to memory that was just mapped")]

use std::cell::RefCell;
use std::sync::Arc;

use fieldstone_pages::{Fault, Filling, Memory, Outcome};

use crate::error::Result;
use crate::format::PAGE;
use crate::saved::{Buffers, Part, Places, Saved};

impl Saved {
    /// Reads all pages into new memories, one for each that was saved, at addresses of the kernel's choice.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] at the first page that is not what was saved, and
    /// [`crate::Error::Memory`].
    pub fn restore(&self) -> Result<Vec<Memory>> {
        let memories = self.memories()?;
        let mut buffers = Buffers::new();
        for part in &self.parts {
            for chunk in &part.manifest.chunks {
                let contents = part.read(chunk, &mut buffers)?;
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
    /// memories are mapped: [`Filling::memory`]. This memory can never be tracked or saved; a program that
    /// saves on restores by [`Saved::restore`].
    ///
    /// A page that cannot be read, or is not what was saved, raises `SIGBUS` in the thread that accesses
    /// it, after a message.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] without userfaultfd.
    pub fn restore_lazily(self) -> Result<Vec<Filling>> {
        let memories = self.memories()?;
        let parts = Arc::new(self.parts);
        let fill = |(region, memory): (usize, Memory)| {
            let places = Places::of(&parts, region, memory.bytes() / PAGE);
            let parts = Arc::clone(&parts);
            Ok(Filling::new(memory, move |fault| fill(&places, &parts, fault))?)
        };
        memories.into_iter().enumerate().map(fill).collect()
    }

    fn memories(&self) -> Result<Vec<Memory>> {
        self.sizes().into_iter().map(|bytes| Ok(Memory::anonymous(bytes)?)).collect()
    }
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::new(Buffers::new());
}

/// Fills the page of a fault.
fn fill(places: &Places, parts: &[Part], fault: &Fault<'_>) -> Outcome {
    let page = fault.offset() / PAGE;
    let filled = match places.from(page, 1)[0] {
        (0, _) => fault.zero(),
        (part, chunk) => {
            let part = &parts[part as usize - 1];
            let chunk = &part.manifest.chunks[chunk as usize];
            BUFFERS.with_borrow_mut(|buffers| match part.read(chunk, buffers) {
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
