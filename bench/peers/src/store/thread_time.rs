//! The parts of the time of a thread, and the write that a durable commit cannot do without.
//!
//! ```text
//! time  =  processor time  +  wait for a processor  +  the rest: wait for the disk
//!          (its own clock)    (/proc/thread-self/schedstat)
//! ```
//! Nothing in a store is changed for that, so all stores are measured alike.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rustix::fs::OFlags;
use rustix::io::{ReadWriteFlags, pwritev2};
use rustix::time::{ClockId, clock_gettime};

/// Where the time of a thread went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTime {
    /// From the begin of the work to its end.
    pub total: Duration,
    /// On a processor, in the program and in the kernel.
    pub processor: Duration,
    /// The thread could run, and no processor was free.
    pub waiting: Duration,
}

impl ThreadTime {
    /// Runs `work` in this thread.
    ///
    /// # Errors
    /// If `work` fails, or the kernel does not measure waiting times.
    pub fn of(work: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let (waiting, processor, since) = (waiting_time()?, processor_time()?, Instant::now());
        work()?;
        let total = since.elapsed();
        let processor = processor_time()?.saturating_sub(processor);
        Ok(Self { total, processor, waiting: waiting_time()?.saturating_sub(waiting) })
    }

    /// The rest of the time: the thread slept. A durable commit sleeps until the disk has its bytes.
    #[must_use]
    pub fn asleep(self) -> Duration {
        self.total.saturating_sub(self.processor + self.waiting)
    }
}

fn processor_time() -> anyhow::Result<Duration> {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Ok(Duration::new(time.tv_sec.try_into()?, time.tv_nsec.try_into()?))
}

/// How long this thread has waited for a processor.
fn waiting_time() -> anyhow::Result<Duration> {
    const FILE: &str = "/proc/thread-self/schedstat";
    let text = fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    let nanoseconds = text.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok());
    nanoseconds.map(Duration::from_nanos).with_context(|| format!("{FILE} has no second number"))
}

/// Bytes that this thread has passed to write(2) and similar calls.
///
/// # Errors
/// If the kernel does not count them.
pub fn written_bytes() -> anyhow::Result<u64> {
    const FILE: &str = "/proc/thread-self/io";
    let text = fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    let bytes = text.lines().find_map(|line| line.strip_prefix("wchar: ")).and_then(|word| word.parse().ok());
    bytes.with_context(|| format!("{FILE} has no wchar"))
}

/// The unit of direct writes.
const BLOCK: usize = 512;
/// Bytes of the file that is overwritten in turn.
const FILE_BYTES: usize = 8 << 20;

/// Writes to the blocks of a file, each write durable when it returns (`O_DIRECT` and `RWF_DSYNC`). The file
/// was written before, so the writes change nothing else in the file system. It is the least that a durable
/// commit does.
#[derive(Debug)]
pub struct DirectWriter {
    file: File,
    position: usize,
}

impl DirectWriter {
    /// Makes its file in a directory.
    ///
    /// # Errors
    /// If the file cannot be written, or the file system has no direct writes.
    pub fn create(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join("direct-writes");
        let made = fs::write(&path, vec![0; FILE_BYTES]).and_then(|()| File::open(&path)?.sync_all());
        made.with_context(|| format!("cannot write {}", path.display()))?;
        let direct = OFlags::DIRECT.bits().cast_signed();
        let file = File::options().write(true).custom_flags(direct).open(&path);
        let file = file.with_context(|| format!("cannot open {} for direct writes", path.display()))?;
        Ok(Self { file, position: 0 })
    }

    /// Writes `bytes` bytes, rounded up to whole blocks, `count` times. Returns the time of all of them.
    ///
    /// # Errors
    /// If a write fails.
    pub fn time(&mut self, bytes: usize, count: usize) -> anyhow::Result<ThreadTime> {
        let bytes = bytes.clamp(1, FILE_BYTES).next_multiple_of(BLOCK);
        let mut buffer = vec![1; bytes + BLOCK];
        let start = buffer.as_ptr().align_offset(BLOCK);
        let blocks = &mut buffer[start..start + bytes];
        ThreadTime::of(|| {
            for number in 0..count {
                blocks[0] = number.to_le_bytes()[0];
                if self.position + bytes > FILE_BYTES {
                    self.position = 0;
                }
                let slices = [std::io::IoSlice::new(blocks)];
                let written = pwritev2(&self.file, &slices, self.position as u64, ReadWriteFlags::DSYNC)?;
                ensure!(written == bytes, "a direct write of {bytes} bytes wrote {written}");
                self.position += bytes;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::thread::sleep;

    use super::*;

    #[test]
    fn a_thread_that_sleeps_is_asleep() {
        let time = ThreadTime::of(|| {
            sleep(Duration::from_millis(50));
            Ok(())
        });
        let time = time.unwrap();
        assert!(time.total >= Duration::from_millis(50) && time.processor + time.waiting < time.total, "{time:?}");
        assert!(time.asleep() > time.processor, "{time:?}");
    }

    #[test]
    fn a_thread_that_computes_has_processor_time() {
        let time = ThreadTime::of(|| {
            let since = processor_time()?;
            while processor_time()? - since < Duration::from_millis(20) {}
            Ok(())
        });
        let time = time.unwrap();
        assert!(time.processor >= Duration::from_millis(20) && time.asleep() < time.total, "{time:?}");
    }

    #[test]
    fn direct_writes_are_counted_as_written_bytes() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut writer = DirectWriter::create(directory.path()).unwrap();
        let before = written_bytes().unwrap();
        writer.time(700, 3).unwrap();
        assert_eq!(written_bytes().unwrap() - before, 3 * 1024);
        let mut bytes = [0; BLOCK];
        let file = File::open(directory.path().join("direct-writes")).unwrap();
        file.read_exact_at(&mut bytes, 1024).unwrap();
        assert_eq!(bytes[..2], [1, 1], "the second of three writes");
    }
}
