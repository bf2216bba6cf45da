//! Test frames that record chunks in use and fail at a limit.

#![allow(unsafe_code, reason = "forwards raw chunks")]

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fieldstone_blocks::{CHUNK_BYTES, Error, Frames, HeapFrames, Result};

/// Supplies chunks from the heap, up to a limit. Checks that a released chunk was in use, and
/// overwrites it.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestFrames(Arc<LimitedState>);

#[derive(Debug, Default)]
struct LimitedState {
    limit: AtomicUsize,
    in_use: Mutex<HashSet<usize>>,
}

impl TestFrames {
    pub(crate) fn with_limit(chunks: usize) -> Self {
        let frames = Self::default();
        frames.set_limit(chunks);
        frames
    }

    pub(crate) fn set_limit(&self, chunks: usize) {
        self.0.limit.store(chunks, Ordering::Relaxed);
    }

    /// The number of chunks in use.
    pub(crate) fn in_use(&self) -> usize {
        self.0.in_use.lock().unwrap().len()
    }
}

// SAFETY: the chunks come from `HeapFrames`, which meets the contract.
unsafe impl Frames for TestFrames {
    fn take(&self, chunks: usize) -> Result<NonNull<u8>> {
        let mut in_use = self.0.in_use.lock().unwrap();
        if in_use.len() >= self.0.limit.load(Ordering::Relaxed) {
            return Err(Error::System { operation: "a test", bytes: chunks * CHUNK_BYTES, errno: 12 });
        }
        let start = HeapFrames.take(chunks)?;
        assert!(in_use.insert(start.addr().get()), "the heap returns no chunk twice");
        Ok(start)
    }

    unsafe fn release(&self, start: NonNull<u8>, chunks: usize) {
        assert_eq!(chunks, 1, "chunks were taken one by one");
        assert!(self.0.in_use.lock().unwrap().remove(&start.addr().get()), "a released chunk was not in use");
        // SAFETY: by contract nothing uses the chunk, and it came from the heap's frames.
        unsafe {
            start.write_bytes(0xee, if cfg!(miri) { 64 } else { 4096 });
            HeapFrames.release(start, 1);
        }
    }
}
