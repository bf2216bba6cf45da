//! `--also`: what else lies on the pages asked for.

use clap::{Args, ValueEnum};
use fieldstone_launch::ExtraMemory;

/// The option, as `run` and `profile` have it.
#[derive(Debug, Args)]
#[group(id = "extras")]
pub(crate) struct Arguments {
    /// Put these too on the pages asked for, where they fill whole huge ones; the heap is in the region by default
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    also: Vec<What>,
}

/// What else can lie on the pages asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Threads' stacks, in the region; the first thread's where it is
    Stacks,
    /// Zero-initialised data, where it is
    Globals,
    /// Memory for which the program hints at an address above 64 GiB, as mimalloc does: in the region
    Hinted,
    /// Memory of a program that switches transparent huge pages off for itself, as Ruby does: switched on again
    Disabled,
}

impl Arguments {
    /// Whether nothing is asked for.
    pub(crate) fn is_empty(&self) -> bool {
        self.also.is_empty()
    }

    /// What is asked for.
    pub(crate) fn chosen(&self) -> ExtraMemory {
        let has = |what| self.also.contains(&what);
        ExtraMemory {
            stacks: has(What::Stacks),
            globals: has(What::Globals),
            hinted: has(What::Hinted),
            disabled: has(What::Disabled),
        }
    }
}
