//! Programs that misbehave on purpose: `profile` and `run` must report each clearly and survive it.
//!
//! | file | what it decides or does |
//! |---|---|
//! | `churn` | memory that is written all the time |
//! | `ending` | ways to end, and a program that does not end |
//! | `surroundings` | the environment at the start |
//! | `tree` | a parent with three children |
//!
//! `odd MODE`; `odd --help` lists the modes. None is measured.

mod churn;
mod ending;
mod surroundings;
mod tree;

use clap::{Parser, Subcommand};
use fieldstone_workloads::{
    Error,
    blocks::Blocks,
    fill::fill,
    phase::timed,
    random::{SplitMix64, mix},
    size,
    verdict::conclude,
};
use std::{process::ExitCode, time::Duration};

/// Misbehave in one way.
#[derive(Parser)]
#[command(name = "odd", version)]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// Print a line, wait, and die by a real SIGSEGV.
    Crash {
        /// Milliseconds to wait.
        #[arg(default_value_t = 100)]
        after_ms: u64,
    },
    /// Die by SIGABRT.
    Abort,
    /// Die by the process's own SIGKILL.
    KillSelf,
    /// Exit with a code.
    Exit {
        /// The exit code.
        code: u8,
    },
    /// Print `ready` and sleep without end.
    Hang,
    /// Print `ready` and sleep without end, ignoring SIGTERM.
    IgnoreSigterm,
    /// Print different output each time.
    RandomOutput,
    /// Copy stdin to stdout.
    Echo,
    /// Print the arguments, environment and open descriptors.
    Surroundings {
        /// Any arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Fill memory and keep it for some time.
    Hold {
        /// Bytes to keep, for example 64M.
        #[arg(value_parser = size::parse)]
        size: usize,
        /// Milliseconds to keep them.
        ms: u64,
    },
    /// Fill memory and print `ready`; four threads check and change every word in a loop until
    /// stdin ends.
    Churn {
        /// Bytes to keep, for example 64M.
        #[arg(value_parser = size::parse)]
        size: usize,
    },
    /// A small parent forks three children, named odd-first, odd-second, odd-third; the second has
    /// the most memory.
    ForkTree {
        /// Bytes of the second child; each other child has a sixteenth.
        #[arg(default_value = "128M", value_parser = size::parse)]
        size: usize,
    },
    /// Eight threads (and their malloc arenas) allocate, resize and free; every byte is checked.
    Threads {
        /// Steps per thread.
        #[arg(default_value_t = 2000)]
        steps: usize,
    },
}

const SEED: u64 = 0x006f_6464;
const THREADS: u64 = 8;
/// Maximum bytes of each thread's heap blocks.
const HEAP_BYTES: usize = 16 << 20;

fn threads(steps: usize) -> Result<u64, Error> {
    let one = |thread: u64| {
        let mut random = SplitMix64::new(mix(SEED ^ thread));
        let mut blocks = Blocks::new(HEAP_BYTES);
        (0..steps).try_for_each(|_| blocks.step(&mut random))?;
        blocks.check()?;
        Ok(random.draw())
    };
    timed("kernel", || {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || one(thread))).collect();
            threads.into_iter().try_fold(0, |checksum, thread| {
                let result = thread.join().unwrap_or_else(|_| Err(Error::wrong("a thread panicked")));
                result.map(|value| checksum ^ value)
            })
        })
    })
}

fn hold(size: usize, ms: u64) -> Result<u64, Error> {
    let memory = timed("init", || fill(size / 8, |i| mix(i as u64)))?;
    std::thread::sleep(Duration::from_millis(ms));
    timed("verify", || match memory.iter().zip(0_u64..).find(|(word, i)| **word != mix(*i)) {
        Some((_, i)) => Err(Error::wrong(format!("word {i} has changed"))),
        None => Ok(memory.len() as u64),
    })
}

fn main() -> ExitCode {
    let result = match Arguments::parse().mode {
        Mode::Crash { after_ms } => ending::crash(Duration::from_millis(after_ms)),
        Mode::Abort => std::process::abort(),
        Mode::KillSelf => ending::kill_self(),
        Mode::Exit { code } => return ExitCode::from(code),
        Mode::Hang => ending::hang(),
        Mode::IgnoreSigterm => {
            ending::ignore_sigterm();
            ending::hang()
        }
        Mode::RandomOutput => return surroundings::random_output(),
        Mode::Echo => return surroundings::echo(),
        Mode::Surroundings { rest } => return surroundings::print(&rest),
        Mode::Hold { size, ms } => hold(size, ms),
        Mode::Churn { size } => churn::churn(size),
        Mode::ForkTree { size } => tree::fork_tree(size),
        Mode::Threads { steps } => threads(steps),
    };
    conclude("odd", result)
}
