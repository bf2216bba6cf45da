//! The command line.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

/// Shown after the options.
const EXAMPLES: &str = "Examples:\n  \
    kv --port 6399 --dir saves --save checkpoint\n  \
    kv --port 6400 --dir other-saves --save fork --memory 4G";

/// Serve keys and values to Redis clients from memory that is saved while it is written.
#[derive(Debug, Parser)]
#[command(name = "kv", after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Listen at this port of 127.0.0.1; 0: a free one, which is printed
    #[arg(long, default_value_t = 6399)]
    pub(crate) port: u16,
    /// Load the last save from this directory, and save there
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Save by this method
    #[arg(long, default_value = "checkpoint")]
    pub(crate) save: Method,
    /// Size of the heap for keys and values, in bytes, or with K, M or G
    #[arg(long, default_value = "1G", value_parser = size)]
    pub(crate) memory: usize,
}

/// How a background save is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Method {
    /// A thread copies the pages that changed
    Checkpoint,
    /// A forked child writes all pages
    Fork,
}

/// The units of a size, largest first.
const UNITS: [(char, usize); 3] = [('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

fn size(text: &str) -> Result<usize, String> {
    let upper = text.to_ascii_uppercase();
    let unit = UNITS.iter().find_map(|&(letter, bytes)| Some((upper.strip_suffix(letter)?, bytes)));
    let (number, unit) = unit.unwrap_or((&upper, 1));
    let bytes = number.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| "a size is a number such as 512M or 2G".to_owned())
}

/// A size in the largest unit that divides it.
pub(crate) fn size_text(bytes: usize) -> String {
    let unit = UNITS.iter().find(|(_, unit)| bytes.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{bytes} bytes"), |(letter, unit)| format!("{}{letter}", bytes / unit))
}

#[test]
fn a_size_is_read_and_printed() {
    assert_eq!((size("512m"), size("2G"), size("4096")), (Ok(512 << 20), Ok(2 << 30), Ok(4096)));
    assert!(["", "G", "-1G", "1T", "0", "99999999999G"].iter().all(|text| size(text).is_err()));
    assert_eq!([1 << 30, 3 << 19, 5].map(size_text), ["1G", "1536K", "5 bytes"]);
}
