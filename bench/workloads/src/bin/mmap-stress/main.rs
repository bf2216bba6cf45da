//! Random memory calls whose every byte is checked against a naive model: a test of any layer
//! between a program and the kernel. It passes on the bare kernel; a difference is reported with
//! its step.
//!
//! `mmap-stress SEED STEPS` takes STEPS random steps of mmap, munmap (parts, holes), mprotect,
//! madvise, mremap, sbrk, fork, setrlimit, malloc, threads and calls that must fail, all through
//! the C library. With `--threads N`, each of N threads does so with its own model and forks while
//! the others write. Steps that disturb other threads (sbrk, setrlimit, probes of unmapped memory)
//! are then left out. The same seed draws the same steps. It needs Linux 5.7 (MREMAP_DONTUNMAP).
//!
//! | file | what it does |
//! |---|---|
//! | `steps` | lists the steps with their weights, and takes them |
//! | `model` | the expected memory |
//! | `memory` | makes the calls |
//! | `probe` | accesses addresses that may fault |
//! | `test_thread` | compares memory and model |
//! | `mapping`, `remapping`, `reservation`, `program_break` | steps that map and unmap memory |
//! | `protection`, `advice`, `contents`, `execute` | steps that change or use mapped memory |
//! | `forking`, `heap`, `limits`, `refusals` | fork; malloc; RLIMIT_AS; calls that must fail |

mod advice;
mod contents;
mod execute;
mod forking;
mod heap;
mod limits;
mod mapping;
mod memory;
mod model;
mod probe;
mod program_break;
mod protection;
mod refusals;
mod remapping;
mod reservation;
mod steps;
mod test_thread;

use clap::Parser;
use fieldstone_workloads::{Error, fill::fill, random::mix, verdict::exit};
use memory::MemoryCalls;
use std::{fs::File, io::Write, os::fd::AsRawFd, process::ExitCode};
use test_thread::{FILE_PAGES, TestThread};

/// Check memory calls against a model.
#[derive(Parser)]
#[command(name = "mmap-stress", version)]
struct Arguments {
    /// Seed of the random steps.
    seed: u64,
    /// Number of steps per thread.
    steps: usize,
    /// Number of threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Leave out steps of these kinds, to isolate a failure.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    skip: Vec<steps::StepKind>,
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    refuse_other_page_sizes()?;
    let file = pattern_file()?;
    probe::install();
    let is_only_thread = arguments.threads == 1;
    let one = |thread: u64| {
        #[allow(unsafe_code, reason = "the caller guarantees the addresses of all calls")]
        // SAFETY: a test passes only addresses of its model, which come from mmap, mremap and sbrk,
        // or addresses that it has just unmapped as the only thread.
        let memory = unsafe { MemoryCalls::claim() };
        let mut test = TestThread::new(
            memory,
            file.as_raw_fd(),
            mix(arguments.seed) ^ mix(thread),
            is_only_thread,
            &arguments.skip,
        );
        steps::run(&mut test, arguments.steps)
            .map_err(|what| Error::wrong(format!("seed {}, thread {thread}, {what}", arguments.seed)))
    };
    if is_only_thread {
        one(0)?;
    } else {
        std::thread::scope(|scope| {
            let threads = fill(usize::from(arguments.threads), |thread| scope.spawn(move || one(thread as u64)))?;
            threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(Error::wrong("a thread panicked"))))
        })?;
    }
    println!(
        "all steps match the model: {} steps of {} threads, seed {}",
        arguments.steps, arguments.threads, arguments.seed
    );
    Ok(())
}

/// Fails unless pages have 4096 bytes, as in the model.
fn refuse_other_page_sizes() -> Result<(), Error> {
    #[allow(unsafe_code, reason = "sysconf")]
    // SAFETY: sysconf only reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    if usize::try_from(bytes) == Ok(model::PAGE) {
        return Ok(());
    }
    Err(Error::Argument {
        what: format!("this kernel has pages of {bytes} bytes, but the model supports only {}", model::PAGE),
    })
}

/// An unnamed file of [`FILE_PAGES`] known pages.
fn pattern_file() -> Result<File, Error> {
    #[allow(unsafe_code, reason = "memfd_create")]
    // SAFETY: the name is a C string; the new descriptor has no other owner.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"mmap-stress".as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 {
            return Err(Error::system("memfd_create"));
        }
        <File as std::os::fd::FromRawFd>::from_raw_fd(fd)
    };
    for page in 0..FILE_PAGES {
        file.write_all(&model::file_page(page)).map_err(|source| Error::System { call: "write", source })?;
    }
    Ok(file)
}

fn main() -> ExitCode {
    exit("mmap-stress", run(&Arguments::parse()))
}
