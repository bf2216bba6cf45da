//! Stores that keep pages at numbered places elsewhere: in a file, on a server.
//!
//! ```text
//! page ─→ DeviceStore: a free number ─→ Device: writes it there        a key is the number
//! used    a bit for each number
//! ```
//! Pages that leave memory together get adjacent numbers, so that they are read together. A number
//! that is freed is used again; the device keeps the old page until then.

#![allow(unsafe_code, reason = "takes a table of the arena")]

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::kernel::PAGE;
use crate::lock::Lock;
use crate::store::{MAX_KEY, Page, Store, StoreError};

const WORDS: usize = (MAX_KEY as usize + 1) / 64;

/// Numbered places for pages, outside of memory.
pub trait Device: Send + Sync {
    /// The name of its store.
    fn name(&self) -> &'static str;

    /// Writes pages to adjacent places from `first` on. Returns how many were written: the first ones.
    ///
    /// # Errors
    /// Why not even the first page was written.
    fn write(&self, first: u32, pages: &[&Page]) -> core::result::Result<usize, StoreError>;

    /// Reads pages.
    ///
    /// # Errors
    /// Why a page cannot be read.
    fn read(&self, numbers: &[u32], pages: &mut [Page]) -> core::result::Result<(), StoreError>;

    /// Deletes all pages. Dropping the device does it too, without a result.
    ///
    /// # Errors
    /// Where pages were left, and the command that deletes them.
    #[cfg(feature = "std")]
    fn delete_all(&self) -> core::result::Result<(), PagesLeft> {
        Ok(())
    }
}

/// Pages that were left on a server.
#[cfg(feature = "std")]
#[derive(Debug, thiserror::Error)]
#[error("pages were left on {place} as {names}: it cannot be reached\ntry: {remedy}")]
pub struct PagesLeft {
    pub(crate) place: String,
    pub(crate) names: String,
    pub(crate) remedy: String,
}

/// A store whose pages are on a device.
#[derive(Debug)]
pub struct DeviceStore<D> {
    device: D,
    used: &'static [AtomicU64; WORDS],
    /// No number below this one is free.
    lowest: Lock<usize>,
    pages: AtomicU64,
    /// The memory of a store that a program made; unmapped last.
    _arena: Option<Arena>,
}

impl<D: Device> DeviceStore<D> {
    /// A store in the pager's own memory.
    pub(crate) fn in_arena(arena: &Arena, device: D) -> Result<Self> {
        // SAFETY: an array of numbers may have any bytes, zeros included.
        let used = unsafe { arena.place() }.ok_or(Error::Full { bytes: arena.range().len() })?;
        Ok(Self { device, used, lowest: Lock::new(0), pages: AtomicU64::new(0), _arena: None })
    }

    /// A store that a program makes.
    #[cfg(feature = "std")]
    pub(crate) fn new(device: D) -> Result<Self> {
        let arena = Arena::reserve(WORDS * size_of::<AtomicU64>())?;
        let store = Self::in_arena(&arena, device)?;
        Ok(Self { _arena: Some(arena), ..store })
    }

    /// A run of at most `wanted` free numbers, which are used from now on.
    fn take(&self, wanted: usize) -> Option<(usize, usize)> {
        let mut lowest = self.lowest.acquire();
        let start = self.first_free(*lowest)?;
        let is_free = |&page: &usize| self.used[page / 64].load(Ordering::Relaxed) >> (page % 64) & 1 == 0;
        let count = (start..=MAX_KEY as usize).take(wanted).take_while(is_free).count();
        for page in start..start + count {
            self.used[page / 64].fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
        self.pages.fetch_add(count as u64, Ordering::Relaxed);
        *lowest = start + count;
        Some((start, count))
    }

    /// The first free number from `from` on.
    fn first_free(&self, from: usize) -> Option<usize> {
        let mut below = (1 << (from % 64)) - 1;
        for (index, word) in self.used.iter().enumerate().skip(from / 64) {
            let used = word.load(Ordering::Relaxed) | core::mem::take(&mut below);
            if used != u64::MAX {
                return Some(index * 64 + used.trailing_ones() as usize);
            }
        }
        None
    }

    fn release(&self, pages: impl Iterator<Item = usize>) {
        let mut lowest = self.lowest.acquire();
        for page in pages {
            self.used[page / 64].fetch_and(!(1 << (page % 64)), Ordering::Relaxed);
            self.pages.fetch_sub(1, Ordering::Relaxed);
            *lowest = (*lowest).min(page);
        }
    }
}

impl<D: Device> Store for DeviceStore<D> {
    fn name(&self) -> &'static str {
        self.device.name()
    }

    fn put(&self, pages: &[&Page], keys: &mut [u32]) -> core::result::Result<usize, StoreError> {
        let mut done = 0;
        while done < pages.len() {
            let Some((start, count)) = self.take(pages.len() - done) else {
                return if done == 0 { Err(StoreError::Full) } else { Ok(done) };
            };
            let result = self.device.write(start as u32, &pages[done..done + count]);
            let written = *result.as_ref().unwrap_or(&0);
            keys[done..].iter_mut().zip(start..start + written).for_each(|(key, number)| *key = number as u32);
            done += written;
            if written < count {
                self.release(start + written..start + count);
                return if done == 0 { result } else { Ok(done) };
            }
        }
        Ok(done)
    }

    fn get(&self, keys: &[u32], pages: &mut [Page]) -> core::result::Result<(), StoreError> {
        self.device.read(keys, pages)
    }

    fn forget(&self, keys: &[u32]) {
        self.release(keys.iter().map(|&key| key as usize));
    }

    fn bytes(&self) -> u64 {
        self.pages.load(Ordering::Relaxed) * PAGE as u64
    }
}
