//! Reads text files that a user writes by hand: rules, ignore lists, processor descriptions.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::bail;
use fieldstone_report::Error;

/// The text of a regular file or a pipe, less than 1 MiB. The limit ends reads of endless devices
/// and of large files that were named by mistake.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    const MAX_BYTES: u64 = 1 << 20;
    let failed = |cause| Error::Read { path: path.to_owned(), cause };
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 == MAX_BYTES {
        bail!("cannot read {}: it holds 1 MiB or more, and a file written by hand is smaller", path.display());
    }
    Ok(String::from_utf8(bytes).map_err(|error| failed(io::Error::other(error)))?)
}
