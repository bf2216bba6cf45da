//! Accesses to memory with a bound: reads and writes pages at random, by a zipfian distribution, or
//! in order. Measures paging.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `pages` | the contents of a page, an access, and the check of all pages |
//! | `accesses` | the pages that a thread accesses |
//! | `mapped_file` | memory from a file instead of anonymous memory |
//!
//! ```text
//! init → wait for input (--wait) → warm-up → kernel → verify
//!              │ meanwhile the caller lowers a limit
//! ```
//! An operation reads one word of a page, or adds to the counter of the page. The operations are
//! divided among the threads. A read is checked at once; all pages are checked at the end.

mod accesses;
mod mapped_file;
mod pages;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use accesses::{Accesses, Pattern};
use clap::Parser;
use fieldstone_workloads::{
    Error,
    fill::fill,
    phase::timed,
    size,
    verdict::{conclude, expect_equal},
};
use mapped_file::MappedFile;
use pages::{PAGE, Page, Writes, access, check};

/// Read and write pages of a large memory, to measure how fast they are paged.
#[derive(Parser)]
#[command(name = "bounded-memory", version)]
struct Arguments {
    /// Size of the memory in bytes, for example 512M.
    #[arg(value_parser = size::parse)]
    size: usize,
    /// Number of measured operations of all threads.
    #[arg(default_value_t = 1 << 20, value_parser = clap::value_parser!(u64).range(1..))]
    operations: u64,
    /// Which pages are accessed; zipf has the exponent 0.99.
    #[arg(long, value_enum, default_value_t = Pattern::Random)]
    pattern: Pattern,
    /// Number of threads.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
    /// Number of operations before the measured ones.
    #[arg(long, value_name = "N", default_value_t = 0)]
    warm_up: u64,
    /// Percentage of operations that write.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u64).range(..=100))]
    writes: u64,
    /// Take the memory from a new file at PATH, which is removed at once.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Wait for a line on standard input when the memory is filled.
    #[arg(long)]
    wait: bool,
}

/// The memory of the program.
enum Memory {
    Heap(Vec<Page>),
    File(MappedFile),
}

impl Memory {
    fn filled(arguments: &Arguments) -> Result<Self, Error> {
        let count = arguments.size / PAGE;
        let Some(path) = &arguments.file else { return Ok(Self::Heap(fill(count, Page::filled)?)) };
        let file = MappedFile::create(path, count)?;
        for (number, page) in file.pages().iter().enumerate() {
            page.fill(number);
        }
        file.write_back()?;
        file.expect(arguments.pattern != Pattern::Sequential)?;
        Ok(Self::File(file))
    }

    fn pages(&self) -> &[Page] {
        match self {
            Self::Heap(pages) => pages,
            Self::File(file) => file.pages(),
        }
    }
}

/// Runs the operations of each thread; returns the number of wrong reads.
fn operate(pages: &[Page], threads: &mut [Accesses], operations: u64, writes: Writes) -> u64 {
    let count = threads.len() as u64;
    thread::scope(|scope| {
        let running: Vec<_> = threads
            .iter_mut()
            .zip(0..)
            .map(|(accesses, thread)| {
                let own = share(operations, thread, count);
                scope.spawn(move || accesses.take(own).map(|one| access(pages, one, writes)).sum::<u64>())
            })
            .collect();
        running.into_iter().map(|thread| thread.join().unwrap_or(1)).sum()
    })
}

/// The operations of one of `count` threads.
fn share(operations: u64, thread: u64, count: u64) -> usize {
    usize::try_from(operations / count + u64::from(thread < operations % count)).unwrap_or(usize::MAX)
}

fn run(arguments: &Arguments) -> Result<u64, Error> {
    let count = arguments.size / PAGE;
    if count == 0 {
        return Err(Error::Argument { what: format!("SIZE is less than one page of {PAGE} bytes") });
    }
    let memory = timed("init", || Memory::filled(arguments))?;
    let pages = memory.pages();
    let streams =
        || (0..arguments.threads).map(|thread| Accesses::new(arguments.pattern, count, thread, arguments.threads));
    let (mut threads, writes) = (streams().collect::<Vec<_>>(), Writes::percent(arguments.writes));
    if arguments.wait {
        // The end of the input continues too.
        std::io::stdin().read_line(&mut String::new()).map_err(|source| Error::System { call: "read", source })?;
    }
    let mut wrong = timed("warm-up", || operate(pages, &mut threads, arguments.warm_up, writes));
    let since = std::time::Instant::now();
    wrong += timed("kernel", || operate(pages, &mut threads, arguments.operations, writes));
    // This line is a rate, not a phase.
    eprintln!("{:.0} operations per second", arguments.operations as f64 / since.elapsed().as_secs_f64());
    expect_equal("the number of wrong reads", &wrong, &0)?;
    if let Memory::File(file) = &memory {
        file.expect(false)?;
    }
    timed("verify", || {
        let operations = |thread| {
            let all = [arguments.warm_up, arguments.operations];
            all.map(|operations| share(operations, thread, arguments.threads)).iter().sum()
        };
        let replayed = streams().zip(0..).flat_map(|(accesses, thread)| accesses.take(operations(thread)));
        check(pages, replayed, writes)
    })
}

fn main() -> ExitCode {
    conclude("bounded-memory", run(&Arguments::parse()))
}
