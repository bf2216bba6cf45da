//! Frames that watch what is taken and given, and fail when they are told to.

#![allow(unsafe_code, reason = "passes raw chunks on")]

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fieldstone_blocks::{CHUNK_BYTES, Error, Frames, HeapFrames, Result};

/// Chunks from the heap: at most so many at once. A chunk that comes back is poisoned, and must have been taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched(Arc<State>);

#[derive(Debug, Default)]
struct State {
    most: AtomicUsize,
    out: Mutex<HashSet<usize>>,
}

impl Watched {
    pub(crate) fn with_most(chunks: usize) -> Self {
        let watched = Self::default();
        watched.set_most(chunks);
        watched
    }

    pub(crate) fn set_most(&self, chunks: usize) {
        self.0.most.store(chunks, Ordering::Relaxed);
    }

    /// Chunks that are out.
    pub(crate) fn out(&self) -> usize {
        self.0.out.lock().unwrap().len()
    }
}

// SAFETY: chunks are those of `HeapFrames`.
unsafe impl Frames for Watched {
    fn take(&self, chunks: usize) -> Result<NonNull<u8>> {
        let mut out = self.0.out.lock().unwrap();
        if out.len() >= self.0.most.load(Ordering::Relaxed) {
            return Err(Error::System { operation: "a test", bytes: chunks * CHUNK_BYTES, errno: 12 });
        }
        let start = HeapFrames.take(chunks)?;
        assert!(out.insert(start.addr().get()), "the heap gives nothing twice");
        Ok(start)
    }

    unsafe fn give(&self, start: NonNull<u8>, chunks: usize) {
        assert_eq!(chunks, 1, "chunks were taken one by one");
        assert!(self.0.out.lock().unwrap().remove(&start.addr().get()), "a chunk came back that was not out");
        // SAFETY: nobody uses the chunk any more, and it was taken from the heap's frames.
        unsafe {
            start.write_bytes(0xee, if cfg!(miri) { 64 } else { 4096 });
            HeapFrames.give(start, 1);
        }
    }
}
