//! Memory calls at random, every byte checked against a naive model: the oracle for whatever stands between a program and the
//! kernel. It passes on the bare kernel; where it does not, the difference is named with its step.
//!
//! `mmap-stress SEED STEPS` takes STEPS random steps of mmap, munmap (parts, holes), mprotect, madvise, mremap, sbrk, fork,
//! setrlimit, malloc's family, threads and calls that must fail, through the C library. With `--threads N` each of N threads
//! does so with a model of its own, forking while the others write; what would disturb the others (sbrk, setrlimit, probes of
//! what was just unmapped) is then left out. The same seed draws the same steps. It needs Linux 5.7 (MREMAP_DONTUNMAP).
//!
//! Files: `model` says what memory holds, `memory` makes the calls, `probe` touches what may fault, `world` checks one against
//! the other, `steps` lists the steps, and each of the others makes one family of them.

mod advice;
mod breaks;
mod contents;
mod execute;
mod forking;
mod giant;
mod heap;
mod limits;
mod mapping;
mod memory;
mod model;
mod probe;
mod protection;
mod refusals;
mod remapping;
mod steps;
mod world;

use clap::Parser;
use fieldstone_workloads::{Error, fill::fill, random::mix, verdict::exit};
use memory::Memory;
use std::{fs::File, io::Write, os::fd::AsRawFd, process::ExitCode};
use world::{FILE_PAGES, World};

/// Checks memory calls against a model.
#[derive(Parser)]
#[command(name = "mmap-stress", version)]
struct Arguments {
    /// What the steps are drawn from.
    seed: u64,
    /// How many steps each thread takes.
    steps: usize,
    /// Number of threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Leaves out steps of these kinds, to narrow down a deviation.
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    skip: Vec<steps::Kind>,
}

fn run(arguments: &Arguments) -> Result<(), Error> {
    refuse_other_page_sizes()?;
    let file = pattern_file()?;
    probe::install();
    let alone = arguments.threads == 1;
    let one = |thread: u64| {
        #[allow(unsafe_code, reason = "the promise that makes the calls safe to make")]
        // SAFETY: a world passes only addresses that its model holds, which come from mmap, mremap and sbrk, or that it has
        // just unmapped as the only thread.
        let memory = unsafe { Memory::claim() };
        let mut world = World::new(memory, file.as_raw_fd(), mix(arguments.seed) ^ mix(thread), alone, &arguments.skip);
        steps::run(&mut world, arguments.steps)
            .map_err(|what| Error::wrong(format!("seed {}, thread {thread}, {what}", arguments.seed)))
    };
    if alone {
        one(0)?;
    } else {
        std::thread::scope(|scope| {
            let threads = fill(usize::from(arguments.threads), |thread| scope.spawn(move || one(thread as u64)))?;
            threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(Error::wrong("a thread panicked"))))
        })?;
    }
    println!(
        "as the model has it: {} steps of {} threads, seed {}",
        arguments.steps, arguments.threads, arguments.seed
    );
    Ok(())
}

/// The model counts in pages of 4096 bytes.
fn refuse_other_page_sizes() -> Result<(), Error> {
    #[allow(unsafe_code, reason = "sysconf")]
    // SAFETY: sysconf reads a constant of the system.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    if usize::try_from(bytes) == Ok(model::PAGE) {
        return Ok(());
    }
    Err(Error::Argument {
        what: format!("this kernel's pages are {bytes} bytes, the model knows only {}", model::PAGE),
    })
}

/// An unnamed file of [`FILE_PAGES`] known pages.
fn pattern_file() -> Result<File, Error> {
    #[allow(unsafe_code, reason = "memfd_create")]
    // SAFETY: the name is a C string; the descriptor is new and has no other owner.
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
