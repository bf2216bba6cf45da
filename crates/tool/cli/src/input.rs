//! Text that a user gives in a file: rules, what is to be ignored, a processor.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};

/// All of it: from a pipe too, but from no device that goes on for ever, and from no database that was named by mistake.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    const MOST_BYTES: u64 = 1 << 20;
    let failed = || format!("cannot read {}", path.display());
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes)).with_context(failed)?;
    if bytes.len() as u64 == MOST_BYTES {
        bail!("{} is not what is written by hand: that takes less than 1 MiB", path.display());
    }
    String::from_utf8(bytes).with_context(failed)
}
