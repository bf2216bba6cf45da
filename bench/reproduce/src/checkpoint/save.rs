//! A save of a heap beside a writer, by `fieldstone-checkpoint` or by fork(2) and its copy-on-write.
//!
//! ```text
//! checkpoint   rounds of copies ── writer stops ── the rest is copied ── writer goes on ── the end
//! fork         writer stops ── fork(2) ── writer goes on; the child writes all pages ── the end
//! ```
//! Both read and hash each page.

#![allow(unsafe_code, reason = "forks")]

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fieldstone_checkpoint::{Checkpointer, Result as SaveResult, Sink, SinkWriter};
use fieldstone_pages::Memory;
use fieldstone_sys::process::set_parent_death_signal;
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use super::writer::{PAGE, WORDS, WriteLock};

/// Pages that the child of a fork writes at once, as many as a chunk of a save has.
const CHUNK: usize = 64;

/// Times and cost of a save.
#[derive(Clone, Copy, Debug)]
pub struct SaveCost {
    /// The begin.
    pub begin: Instant,
    /// When the writer was stopped.
    pub stopped: Instant,
    /// When it could go on.
    pub resumed: Instant,
    /// The end: all pages were given to the sink.
    pub end: Instant,
    /// The time of the call of fork(2). Of a checkpoint: the stop, or the longest wait of one write if
    /// that was longer.
    pub pause: Duration,
    /// Bytes of all buffers of a checkpoint; bytes that this process copied after a fork.
    pub extra_bytes: u64,
    /// Whether a checkpoint was made by copy before write.
    pub is_copied_before_write: bool,
}

/// Saves by a checkpointer. `at_instant` runs while the writer is stopped.
///
/// # Errors
/// If the save fails.
pub fn checkpoint(
    saver: &mut Checkpointer,
    sink: &dyn Sink,
    lock: &WriteLock,
    at_instant: &dyn Fn(),
) -> Result<SaveCost> {
    let begin = Instant::now();
    let (stopped, resumed) = (Cell::new(begin), Cell::new(begin));
    let report = saver.save(sink, || {
        let guard = lock.stop_writer();
        stopped.set(Instant::now());
        at_instant();
        (Stop { resumed: &resumed, _guard: guard }, 0)
    })?;
    Ok(SaveCost {
        begin,
        stopped: stopped.get(),
        resumed: resumed.get(),
        end: Instant::now(),
        pause: report.stop.max(report.longest_wait),
        extra_bytes: report.peak_buffer_bytes,
        is_copied_before_write: report.fell_back,
    })
}

/// A stop of the writer, whose end is recorded.
struct Stop<'a> {
    resumed: &'a Cell<Instant>,
    _guard: MutexGuard<'a, ()>,
}

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.resumed.set(Instant::now());
    }
}

/// Saves by a forked child, which writes the whole memory to `output`. `at_instant` runs while the writer
/// is stopped.
///
/// # Errors
/// If fork(2) fails, or the child.
pub fn fork(memory: &Memory, output: &File, lock: &WriteLock, at_instant: &dyn Fn()) -> Result<SaveCost> {
    let mut buffer = vec![0_u8; CHUNK * PAGE];
    let begin = Instant::now();
    let guard = lock.stop_writer();
    let stopped = Instant::now();
    at_instant();
    let (faults, before) = (minor_faults(), Instant::now());
    // SAFETY: other threads of this process may hold locks, of the allocator for example. The child takes
    // none: it makes system calls, and accesses memory that was allocated before. It ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_written = write_all(memory, output, &mut buffer);
        // SAFETY: ends the child without the destructors and exit functions of its parent.
        unsafe { libc::_exit(i32::from(!is_written)) };
    }
    let pause = before.elapsed();
    drop(guard);
    let resumed = Instant::now();
    let child = Pid::from_raw(child).filter(|_| child > 0);
    let child = child.with_context(|| format!("cannot fork: {}", std::io::Error::last_os_error()))?;
    let status = waitpid(Some(child), WaitOptions::empty()).context("cannot wait for the child")?;
    let end = Instant::now();
    let is_success = status.is_some_and(|(_, status)| status.exit_status() == Some(0));
    ensure!(is_success, "cannot save in the child: {status:?}");
    let extra_bytes = (minor_faults() - faults) * PAGE as u64;
    Ok(SaveCost { begin, stopped, resumed, end, pause, extra_bytes, is_copied_before_write: false })
}

/// Reads, hashes and writes the whole memory. Takes no lock and allocates nothing.
fn write_all(memory: &Memory, mut output: &File, buffer: &mut [u8]) -> bool {
    // The child ends with its parent.
    let _ = set_parent_death_signal(Some(Signal::KILL.as_raw()));
    let mut hash = 0;
    for words in memory.words().chunks(CHUNK * WORDS) {
        for (bytes, word) in buffer.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.load(Relaxed).to_le_bytes();
        }
        let chunk = &buffer[..words.len() * 8];
        hash ^= xxhash_rust::xxh3::xxh3_64(chunk);
        if output.write_all(chunk).is_err() {
            return false;
        }
    }
    std::hint::black_box(hash);
    true
}

/// Page faults of this process that needed no I/O. After a fork, each is the copy of a page.
fn minor_faults() -> u64 {
    // SAFETY: zeros are a valid value of this structure of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes to this structure only, a live local.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    u64::try_from(usage.ru_minflt).unwrap_or(0)
}

/// `/dev/null`, to write to.
///
/// # Errors
/// If it cannot be opened.
pub fn null_file() -> Result<File> {
    File::options().write(true).open("/dev/null").context("cannot open /dev/null")
}

/// A sink that writes to `/dev/null`.
#[derive(Debug)]
pub struct NullSink;

struct NullWriter(File);

impl Sink for NullSink {
    fn begin(&self, _id: u64) -> SaveResult<Box<dyn SinkWriter>> {
        Ok(Box::new(NullWriter(null_file().expect("every Linux has /dev/null"))))
    }

    fn continued(&self) -> SaveResult<Option<(u64, u64)>> {
        Ok(None)
    }
}

impl SinkWriter for NullWriter {
    fn write(&mut self, bytes: &[u8]) -> SaveResult<()> {
        self.0.write_all(bytes).expect("/dev/null accepts all bytes");
        Ok(())
    }

    fn finish(mut self: Box<Self>, manifest: &[u8]) -> SaveResult<()> {
        self.write(manifest)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::thread::sleep;

    use super::*;
    use crate::checkpoint::writer::{Writer, filled_heap};

    const PAGES: usize = 1000;

    /// Saves beside a writer; returns the contents at the instant and the saved ones.
    fn saved_beside_writer(save: impl Fn(&Memory, &WriteLock, &dyn Fn()) -> Vec<u8>) -> (Vec<u8>, Vec<u8>) {
        let (heap, lock) = (filled_heap(PAGES * PAGE).unwrap(), WriteLock::default());
        let at_instant = RefCell::new(Vec::new());
        let keep = || *at_instant.borrow_mut() = bytes(&heap);
        let writer = Writer { heap: &heap, lock: &lock, pages: PAGES, seed: 7 };
        let around = Duration::from_millis(5);
        let beside_writer = || {
            sleep(around);
            let saved = save(&heap, &lock, &keep);
            sleep(around);
            Ok(saved)
        };
        let (saved, _) = writer.run_beside(beside_writer).unwrap();
        assert_ne!(bytes(&heap), saved, "the writer goes on");
        (at_instant.into_inner(), saved)
    }

    fn bytes(memory: &Memory) -> Vec<u8> {
        memory.words().iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect()
    }

    #[test]
    fn a_checkpoint_contains_the_memory_of_its_instant() {
        let folder = tempfile::tempdir().unwrap();
        let sink = fieldstone_checkpoint::File::at(folder.path().join("heap.save"));
        let (at_instant, saved) = saved_beside_writer(|heap, lock, keep| {
            let mut saver = Checkpointer::builder([heap]).build().unwrap();
            let cost = checkpoint(&mut saver, &sink, lock, keep).unwrap();
            assert!(cost.begin <= cost.stopped && cost.stopped <= cost.resumed && cost.resumed <= cost.end);
            assert!(cost.extra_bytes > 0 && !cost.pause.is_zero());
            let restored = sink.last().unwrap().restore().unwrap();
            bytes(&restored[0])
        });
        assert_eq!(at_instant, saved);
    }

    #[test]
    fn a_fork_contains_the_memory_of_its_instant() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("heap");
        let (at_instant, saved) = saved_beside_writer(|heap, lock, keep| {
            let cost = fork(heap, &File::create(&path).unwrap(), lock, keep).unwrap();
            assert!(cost.begin <= cost.stopped && cost.stopped <= cost.resumed && cost.resumed <= cost.end);
            assert!(!cost.pause.is_zero());
            std::fs::read(&path).unwrap()
        });
        assert_eq!(at_instant, saved);
    }

    #[test]
    fn a_child_that_cannot_write_is_an_error() {
        let (heap, lock) = (filled_heap(PAGE).unwrap(), WriteLock::default());
        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = fork(&heap, &full, &lock, &|| ()).unwrap_err();
        assert!(error.to_string().contains("cannot save in the child"), "{error}");
    }
}
