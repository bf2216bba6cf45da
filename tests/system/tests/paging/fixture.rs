//! The fixture of the tests: the command, and C programs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fieldstone_report::paging::PagedProcess;
use fieldstone_report::{PagingStats, SavedFile};
use tempfile::TempDir;

use crate::binaries;

/// `fieldstone run`, with options split at spaces.
pub(crate) fn paged(options: &str, program: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(binaries::command());
    command.arg("run").args(options.split_whitespace()).arg("--").args(program);
    command.env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).stdin(Stdio::null());
    command
}

/// Runs a program with a bound; its output and the counts.
pub(crate) fn counted(options: &str, program: &[impl AsRef<OsStr>]) -> (Output, PagingStats) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stats.json");
    let output = paged(&format!("{options} --stats {}", file.display()), program).output().unwrap();
    assert!(file.exists(), "{}", stderr(&output));
    (output, load_stats(&file))
}

/// The counts that `--stats` has written.
pub(crate) fn load_stats(file: &Path) -> PagingStats {
    match SavedFile::load(file) {
        Ok(SavedFile::PagingStats(stats)) => *stats,
        other => panic!("{other:?}"),
    }
}

/// 1 KiB for a key, of letters; half of it compresses.
pub(crate) fn record(key: u32) -> Vec<u8> {
    let mut state = key | 1;
    let letter = |at: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let number = if at.is_multiple_of(2) { state >> 24 } else { key >> (at % 16) };
        b'a' + (number % 26) as u8
    };
    (0..1024).map(letter).collect()
}

/// The process that evicted the most pages; it has evicted some and lost none.
pub(crate) fn largest(stats: &PagingStats) -> &PagedProcess {
    assert!(stats.processes.iter().all(|process| process.lost_pages == 0), "{stats:?}");
    let largest = stats.processes.iter().max_by_key(|process| process.evicted_pages).unwrap();
    assert!(largest.evicted_pages > 0, "{stats:?}");
    largest
}

/// The bytes that a program may have resident for moments: the pager looks for memory that the program
/// has mapped every 2 ms, or later on a busy machine, and counts its pages then.
pub(crate) const fn with_new_memory(bound_mib: u64) -> u64 {
    (bound_mib << 20) / 4 * 5 + (4 << 20)
}

/// Whether this user may page programs; prints why a test is skipped.
pub(crate) fn can_page() -> bool {
    let support = fieldstone_sys::userfault::userfault();
    let can = (support.kernel_faults || support.device) && support.has("MOVE");
    if !can {
        println!("SKIP no userfaultfd for faults of the kernel, or no UFFDIO_MOVE");
    }
    can
}

/// A C program, compiled from its source.
pub(crate) struct Program {
    _directory: TempDir,
    pub(crate) path: PathBuf,
}

impl Program {
    /// Compiles a source; `None` without a C compiler.
    pub(crate) fn compile(source: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let (file, path) = (directory.path().join("program.c"), directory.path().join("program"));
        std::fs::write(&file, source).unwrap();
        let status = Command::new("gcc").args(["-O1", "-pthread", "-o"]).args([&path, &file]).status();
        match status {
            Ok(status) => assert!(status.success(), "the program compiles"),
            Err(_) => {
                println!("SKIP no gcc");
                return None;
            }
        }
        Some(Self { _directory: directory, path })
    }
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
