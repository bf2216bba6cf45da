//! A program whose memory is bounded by one of the compared methods, and a run of the workload
//! `bounded-memory`.
//!
//! ```text
//! start ─→ the program fills its memory ─→ lower_limit ─→ operations ─→ remove_limit ─→ check of all pages
//! ```
//! `run --resident` bounds the memory from the start. A control group gets its limit after the
//! memory is filled, in steps. All methods bound the same: pages that are not compressed. Compressed
//! pages take memory in addition, both of zram and of lz4.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fieldstone_report::PagingStats;
use tempfile::TempDir;

use super::RunFailure;
use super::memory_group::{MemoryGroup, SwapSpace, disk_directory};
use crate::sibling_programs::{Missing, end_with_parent, fieldstone, last_message, no_fieldstone, sibling};

/// How memory is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundMethod {
    /// Not at all.
    Unbounded,
    /// `run --resident` with a store that holds all pages, compressed by lz4.
    PagedLz4,
    /// The same, compressed by zstd.
    PagedZstd,
    /// `run --resident` with a file, in a control group, so that the page cache of the file counts.
    PagedFile,
    /// A control group with a zram device that compresses by lz4.
    Zram,
    /// A control group with a swap file.
    SwapFile,
    /// A control group without swap space, for memory that is a mapped file.
    MappedFile,
}

impl BoundMethod {
    /// Its name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unbounded => "no bound",
            Self::PagedLz4 => "run --resident, lz4",
            Self::PagedZstd => "run --resident, zstd",
            Self::PagedFile => "run --resident, file",
            Self::Zram => "zram swap (lz4)",
            Self::SwapFile => "swap file",
            Self::MappedFile => "mapped file",
        }
    }

    /// The swap space of its control group; `None` without a group.
    const fn swap(self) -> Option<SwapSpace> {
        match self {
            Self::Unbounded | Self::PagedLz4 | Self::PagedZstd => None,
            Self::PagedFile | Self::MappedFile => Some(SwapSpace::None),
            Self::Zram => Some(SwapSpace::Zram),
            Self::SwapFile => Some(SwapSpace::File),
        }
    }

    /// The bound of `run --resident` with its store; `None` if it is not used.
    fn paging(self, bound_bytes: u64) -> Option<(u64, String)> {
        match self {
            // A store that is never full: zram has no limit here either.
            Self::PagedLz4 => Some((bound_bytes, format!("lz4:{STORE_BYTES}"))),
            Self::PagedZstd => Some((bound_bytes, format!("zstd:{STORE_BYTES}"))),
            // An eighth of the group's limit is left for the page cache of the file.
            Self::PagedFile => Some((bound_bytes / 8 * 7, format!("file:{}", disk_directory().display()))),
            _ => None,
        }
    }
}

/// Space for pages that are not resident.
const STORE_BYTES: u64 = 2 << 30;
/// By how much the peak that `run --resident` reports may exceed the bound.
const PEAK_TOLERANCE: f64 = 1.03;
/// Time limit of a run; a longer run hangs.
const RUN_TIME_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(2);

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct BoundedProgram {
    child: std::process::Child,
    method: BoundMethod,
    bound_bytes: u64,
    since: Instant,
    files: TempDir,
    // Dropped last: it removes the swap space.
    group: Option<MemoryGroup>,
}

impl BoundedProgram {
    /// Starts a program. Its standard input is a pipe.
    ///
    /// # Errors
    /// [`Missing`] if this machine lacks the method.
    pub fn start(method: BoundMethod, bound_bytes: u64, program: &[OsString]) -> Result<Self> {
        let group = method.swap().map(|swap| MemoryGroup::new(swap, STORE_BYTES)).transpose()?;
        let files = TempDir::new()?;
        let mut words = Vec::new();
        if let Some((bound_bytes, store)) = method.paging(bound_bytes) {
            words.push(fieldstone().into_os_string());
            words.extend(["run", "--resident", &bound_bytes.to_string(), "--page-store", &store].map(OsString::from));
            words.extend(["--stats".into(), files.path().join("stats").into_os_string(), "--".into()]);
        }
        words.extend(program.iter().cloned());
        let mut command = group.as_ref().map_or_else(|| Command::new(&words[0]), |group| group.command(&words[0]));
        let file = |name| fs::File::create(files.path().join(name));
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(file("output")?).stderr(file("errors")?);
        let child = end_with_parent(&mut command).spawn().map_err(|error| no_fieldstone(&error))?;
        Ok(Self { child, method, bound_bytes, since: Instant::now(), files, group })
    }

    /// The process that was started: the program, or `fieldstone run`.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What the program has written to standard error.
    ///
    /// # Errors
    /// An error of the file.
    pub fn errors(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.files.path().join("errors"))?).into_owned())
    }

    /// Lowers the limit of the group to the bound; nothing without a group.
    ///
    /// # Errors
    /// As [`MemoryGroup::lower_limit`].
    pub fn lower_limit(&self) -> Result<()> {
        self.group.as_ref().map_or(Ok(()), |group| group.lower_limit(self.bound_bytes))
    }

    /// Removes the limit of the group; nothing without a group.
    ///
    /// # Errors
    /// As [`MemoryGroup::remove_limit`].
    pub fn remove_limit(&self) -> Result<()> {
        self.group.as_ref().map_or(Ok(()), MemoryGroup::remove_limit)
    }

    /// Waits until `happens`.
    ///
    /// # Errors
    /// [`RunFailure`], or an error if the program ends first.
    pub fn wait_until(&mut self, mut happens: impl FnMut(&Self) -> Result<bool>) -> Result<()> {
        while !happens(self)? {
            if let Some(status) = self.child.try_wait()? {
                self.check(status)?;
                bail!("it ended early: {}", self.errors()?);
            }
            ensure!(self.since.elapsed() < RUN_TIME_LIMIT, RunFailure::Hung);
            sleep(POLL);
        }
        Ok(())
    }

    /// Writes a line to standard input and closes it.
    ///
    /// # Errors
    /// If the program has ended.
    pub fn resume(&mut self) -> Result<()> {
        let mut input = self.child.stdin.take().context("the input is piped")?;
        Ok(input.write_all(b"\n")?)
    }

    /// Waits for the end, which must be a success.
    ///
    /// # Errors
    /// [`RunFailure`] if it hangs or is killed; [`Missing`] if `run --resident` could not bound it; an
    /// error if it failed or exceeded the bound.
    pub fn wait(mut self) -> Result<String> {
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None => ensure!(self.since.elapsed() < RUN_TIME_LIMIT, RunFailure::Hung),
            }
            sleep(POLL);
        };
        self.check(status)?;
        if let Some((bound_bytes, _)) = self.method.paging(self.bound_bytes) {
            self.check_bound(bound_bytes)?;
        }
        self.errors()
    }

    fn check(&self, status: ExitStatus) -> Result<()> {
        use std::os::unix::process::ExitStatusExt;
        let errors = self.errors()?;
        let is_paged = self.method.paging(self.bound_bytes).is_some();
        // The exit code of a shell after a killed program.
        if status.signal() == Some(9) || status.code() == Some(137) {
            ensure!(self.method == BoundMethod::Unbounded || is_paged, RunFailure::Killed);
        }
        if is_paged && status.code() == Some(2) {
            return Err(Missing(format!("not bounded: {}", last_message(&errors))).into());
        }
        ensure!(status.success(), "{}: {status}: {}", self.method.name(), errors.trim());
        Ok(())
    }

    /// Checks that `run --resident` kept the bound.
    fn check_bound(&self, bound_bytes: u64) -> Result<()> {
        let stats: PagingStats = serde_json::from_slice(&fs::read(self.files.path().join("stats"))?)?;
        for process in &stats.processes {
            if process.refused_errno != 0 {
                return Err(Missing(format!("not bounded: {}", last_message(&self.errors()?))).into());
            }
            let (peak_bytes, bound) = (process.peak_resident_bytes, bound_bytes as f64);
            ensure!(
                peak_bytes as f64 <= bound * PEAK_TOLERANCE,
                "{bound} bytes were the bound, and {peak_bytes} the peak"
            );
        }
        Ok(())
    }
}

impl Drop for BoundedProgram {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The work of the workload `bounded-memory`.
#[derive(Clone, Copy, Debug)]
pub struct PageAccesses {
    /// `random`, `zipf` or `sequential`.
    pub pattern: &'static str,
    /// Size of its memory.
    pub bytes: u64,
    /// Number of measured operations; half of them write.
    pub operations: u64,
    /// Number of threads.
    pub threads: u64,
}

impl PageAccesses {
    /// Runs the workload once. Returns the seconds of its operations.
    ///
    /// # Errors
    /// [`Missing`], [`RunFailure`], or an error if a page has wrong contents.
    pub fn run(&self, method: BoundMethod, bound_bytes: u64) -> Result<f64> {
        let directory = TempDir::new_in(disk_directory())?;
        let mut words = vec![workload()?.into_os_string()];
        let [bytes, operations, threads] = [self.bytes, self.operations, self.threads].map(|number| number.to_string());
        let warm_up = (self.operations / 2).to_string();
        words.extend([&bytes, &operations, "--pattern", self.pattern, "--threads", &threads].map(OsString::from));
        words.extend(["--warm-up", &warm_up, "--wait"].map(OsString::from));
        if method == BoundMethod::MappedFile {
            words.extend(["--file".into(), directory.path().join("memory").into_os_string()]);
        }
        let mut program = BoundedProgram::start(method, bound_bytes, &words)?;
        program.wait_until(|program| Ok(program.errors()?.contains("init: ")))?;
        program.lower_limit()?;
        program.resume()?;
        program.wait_until(|program| Ok(program.errors()?.contains("kernel: ")))?;
        // The check of all pages is not measured, and takes less time without a limit.
        program.remove_limit()?;
        let errors = program.wait()?;
        let seconds = errors.lines().find_map(|line| line.strip_prefix("kernel: ")?.parse().ok());
        seconds.with_context(|| format!("the workload did not print its time: {errors}"))
    }
}

/// The file of the workload, in a build directory or where `make install` puts it.
fn workload() -> Result<PathBuf> {
    let places = ["bounded-memory", "../lib/fieldstone/workloads/bounded-memory"];
    let file = places.iter().filter_map(|place| sibling(place)).find(|file| file.is_file());
    Ok(file.ok_or_else(|| Missing("bounded-memory is not built: make build".into()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(method: BoundMethod, script: &str) -> Result<BoundedProgram> {
        BoundedProgram::start(method, 64 << 20, &["sh", "-c", script].map(OsString::from))
    }

    #[test]
    fn a_program_is_resumed_by_its_input_and_its_messages_are_returned() {
        let mut program = shell(BoundMethod::Unbounded, "echo init: >&2; read -r line; echo done >&2").unwrap();
        program.wait_until(|program| Ok(program.errors()?.contains("init:"))).unwrap();
        program.lower_limit().unwrap();
        program.resume().unwrap();
        assert_eq!(program.wait().unwrap(), "init:\ndone\n");
    }

    #[test]
    fn failures_have_their_cause() {
        let failed = shell(BoundMethod::Unbounded, "echo wrong result >&2; exit 1").unwrap().wait().unwrap_err();
        assert!(failed.to_string().contains("wrong result") && !failed.is::<RunFailure>(), "{failed}");
        let early = shell(BoundMethod::Unbounded, "exit 0").unwrap().wait_until(|_| Ok(false)).unwrap_err();
        assert!(early.to_string().contains("ended early"), "{early}");
        match shell(BoundMethod::MappedFile, "kill -9 $$") {
            Ok(program) => {
                let killed = program.wait().unwrap_err();
                assert_eq!(killed.downcast::<RunFailure>().unwrap(), RunFailure::Killed);
            }
            Err(error) => println!("SKIP no control group with swap space: {error}"),
        }
    }
}
