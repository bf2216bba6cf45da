//! The end of what a run writes to its standard error: read as it comes, and no more of it kept than is told.

use std::io::{self, Write};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// What last words may be long.
const MOST_BYTES: usize = 2048;
/// How long whoever still holds the other end, when the program has ended, is waited for.
const PATIENCE: Duration = Duration::from_millis(200);

/// What is kept of a standard error.
#[derive(Debug)]
pub(super) struct LastWords {
    kept: Tail,
    reader: JoinHandle<()>,
}

impl LastWords {
    /// A standard error for a program, and what listens to it.
    pub(super) fn listen() -> Result<(Stdio, Self)> {
        let (mut reader, writer) = io::pipe().map_err(Error::system("make a pipe for the standard error"))?;
        let kept = Tail::default();
        let mut sink = kept.clone();
        let reader = spawn(move || drop(io::copy(&mut reader, &mut sink)));
        Ok((writer.into(), Self { kept, reader }))
    }

    /// The end of what was written; the program has ended.
    pub(super) fn finish(self) -> String {
        let until = Instant::now() + PATIENCE;
        while !self.reader.is_finished() && Instant::now() < until {
            sleep(Duration::from_millis(1));
        }
        let kept = self.kept.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).into_owned()
    }
}

#[derive(Clone, Debug, Default)]
struct Tail(Arc<Mutex<Vec<u8>>>);

impl Write for Tail {
    fn write(&mut self, new: &[u8]) -> io::Result<usize> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(new);
        let over = kept.len().saturating_sub(MOST_BYTES);
        kept.drain(..over);
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

    fn words_of(script: &str) -> String {
        let (stderr, words) = LastWords::listen().unwrap();
        assert!(Command::new("sh").args(["-c", script]).stderr(stderr).status().unwrap().success());
        words.finish()
    }

    #[test]
    fn the_end_is_kept_and_no_more() {
        assert_eq!(words_of("echo one >&2; echo two >&2"), "one\ntwo\n");
        let words = words_of("head -c 3000000 /dev/zero | tr '\\0' x >&2; echo end >&2");
        assert_eq!(words.len(), MOST_BYTES);
        assert!(words.ends_with("xend\n"));
    }

    #[test]
    fn who_stays_behind_is_not_waited_for() {
        let begun = Instant::now();
        assert_eq!(words_of("echo here >&2; sleep 30 &"), "here\n");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
}
