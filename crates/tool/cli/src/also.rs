//! `--also`: kinds of memory that get the requested pages beside the default ones.

use clap::{Args, ValueEnum};
use fieldstone_launch::ExtraMemory;

/// The option `--also` of `run` and `profile`.
#[derive(Debug, Args)]
#[group(id = "extras")]
pub(crate) struct Arguments {
    /// Put other memory on the requested pages too, where it fills whole huge pages; default: heap
    /// and mmap only
    #[arg(long, value_name = "MEMORY", value_delimiter = ',')]
    also: Vec<AlsoMemory>,
}

/// A kind of memory that is not in the region by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AlsoMemory {
    /// Stacks: those of new threads in the region, that of the first thread in place
    Stacks,
    /// Zero-initialised data (.bss), in place
    Globals,
    /// Mappings hinted at an address above 64 GiB, as by mimalloc, in the region
    Hinted,
    /// Memory of a program that disables transparent huge pages for itself, as Ruby does; enabled
    /// again
    Disabled,
}

impl Arguments {
    /// Whether no kind is given.
    pub(crate) fn is_empty(&self) -> bool {
        self.also.is_empty()
    }

    /// The given kinds, as the libraries take them.
    pub(crate) fn chosen(&self) -> ExtraMemory {
        let has = |kind| self.also.contains(&kind);
        ExtraMemory {
            stacks: has(AlsoMemory::Stacks),
            globals: has(AlsoMemory::Globals),
            hinted: has(AlsoMemory::Hinted),
            disabled: has(AlsoMemory::Disabled),
        }
    }
}
