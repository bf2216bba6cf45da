//! Keep the last bytes that a run writes to its standard error.

use std::io::{self, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Bytes that are kept.
const MAX_BYTES: usize = 2048;
/// How long to wait for the end of the stream after the program ended: another process may hold the
/// pipe open.
const READ_TIMEOUT: Duration = Duration::from_millis(200);

/// The reader of a standard error; it keeps the end.
#[derive(Debug)]
pub(super) struct StderrTail {
    buffer: TailBuffer,
    reader: JoinHandle<()>,
}

impl StderrTail {
    /// Returns a standard error for a program, and its reader.
    pub(super) fn start() -> Result<(Stdio, Self)> {
        let (mut reader, writer) = io::pipe().map_err(Error::system("make a pipe for the standard error"))?;
        let buffer = TailBuffer::default();
        let mut sink = buffer.clone();
        let reader = spawn(move || drop(io::copy(&mut reader, &mut sink)));
        Ok((writer.into(), Self { buffer, reader }))
    }

    /// The last bytes as text. Call it after the program has ended.
    pub(super) fn finish(self) -> String {
        let until = Instant::now() + READ_TIMEOUT;
        while !self.reader.is_finished() && Instant::now() < until {
            sleep(Duration::from_millis(1));
        }
        let buffer = self.buffer.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&buffer).into_owned()
    }
}

#[derive(Clone, Debug, Default)]
struct TailBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for TailBuffer {
    fn write(&mut self, new: &[u8]) -> io::Result<usize> {
        let mut buffer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        buffer.extend_from_slice(new);
        let excess = buffer.len().saturating_sub(MAX_BYTES);
        buffer.drain(..excess);
        Ok(new.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn tail_of(script: &str) -> String {
        let (stderr, tail) = StderrTail::start().unwrap();
        assert!(Command::new("sh").args(["-c", script]).stderr(stderr).status().unwrap().success());
        tail.finish()
    }

    #[test]
    fn only_the_last_bytes_are_kept() {
        assert_eq!(tail_of("echo one >&2; echo two >&2"), "one\ntwo\n");
        let tail = tail_of("head -c 3000000 /dev/zero | tr '\\0' x >&2; echo end >&2");
        assert_eq!(tail.len(), MAX_BYTES);
        assert!(tail.ends_with("xend\n"));
    }

    #[test]
    fn a_background_process_that_holds_the_pipe_is_not_waited_for() {
        let begun = Instant::now();
        assert_eq!(tail_of("echo here >&2; sleep 30 &"), "here\n");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}
