//! Reads text files that a user writes by hand: rules, ignore lists, processor descriptions.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};

/// The text of a regular file or a pipe, less than 1 MiB. The limit ends reads of endless devices
/// and of large files that were named by mistake.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    const MAX_BYTES: u64 = 1 << 20;
    let failed = || format!("cannot read {}", path.display());
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)).with_context(failed)?;
    if bytes.len() as u64 == MAX_BYTES {
        bail!("cannot read {}: it holds 1 MiB or more, and a file written by hand is smaller", path.display());
    }
    String::from_utf8(bytes).with_context(failed)
}
