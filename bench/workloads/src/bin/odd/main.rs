//! Programs that behave badly, or oddly, each on purpose: what `profile` and `run` must tell plainly and survive.
//!
//! `odd MODE`; the modes are listed by `odd --help`. None is measured.

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

/// Behaves badly.
#[derive(Parser)]
#[command(name = "odd", version)]
struct Arguments {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// Prints a line, waits a moment, and dies by SIGSEGV, for real.
    Crash {
        /// Milliseconds to wait.
        #[arg(default_value_t = 100)]
        after_ms: u64,
    },
    /// Dies by SIGABRT.
    Abort,
    /// Dies by SIGKILL, its own.
    KillSelf,
    /// Exits with a code.
    Exit {
        /// The code.
        code: u8,
    },
    /// Prints `ready` and sleeps for ever.
    Hang,
    /// The same, deaf to SIGTERM.
    IgnoreSigterm,
    /// Prints something else each time.
    RandomOutput,
    /// Copies stdin to stdout.
    Echo,
    /// Prints its arguments, environment and open descriptors.
    Surroundings {
        /// Any.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<String>,
    },
    /// Fills memory and keeps it for some time.
    Hold {
        /// Bytes to keep, for example 64M.
        #[arg(value_parser = size::parse)]
        size: usize,
        /// Milliseconds to keep them for.
        ms: u64,
    },
    /// Fills memory and prints `ready`; four threads check and change every word of it, over and over, until stdin ends.
    Churn {
        /// Bytes to keep, for example 64M.
        #[arg(value_parser = size::parse)]
        size: usize,
    },
    /// A small parent that forks three children, named odd-first, odd-second, odd-third; the second has the memory.
    ForkTree {
        /// Bytes of the second child; the others have a sixteenth.
        #[arg(default_value = "128M", value_parser = size::parse)]
        size: usize,
    },
    /// Eight threads (and their malloc arenas) allocate, resize and free; every byte is checked.
    Threads {
        /// Steps of each thread.
        #[arg(default_value_t = 2000)]
        steps: usize,
    },
}

const SEED: u64 = 0x006f_6464;
const THREADS: u64 = 8;
/// Heap blocks of each thread.
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
