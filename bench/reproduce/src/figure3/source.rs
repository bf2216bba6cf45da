//! The sources of the programs: bundled with this program, or Debian source packages.
//!
//! Downloaded sources stay in the user's cache, or in the directory `FIELDSTONE_SOURCES`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::sibling_programs::Missing;

/// The bundled sources by name.
const BUNDLED: [(&str, &str); 13] = [
    ("fieldstone/stacks.h", include_str!("../../../../crates/lib/stacks/include/fieldstone/stacks.h")),
    ("clock.h", include_str!("../../../workloads/src/stacks/clock.h")),
    ("fib.c", include_str!("../../../workloads/src/stacks/fib.c")),
    ("sum.c", include_str!("../../../workloads/src/stacks/sum.c")),
    ("border.c", include_str!("../../../workloads/src/stacks/border.c")),
    ("coroutines.c", include_str!("../../../workloads/src/stacks/coroutines.c")),
    ("similar.c", include_str!("../../../workloads/src/stacks/similar.c")),
    ("bench.lua", include_str!("../../../workloads/src/stacks/bench.lua")),
    ("threads.h", include_str!("../../../workloads/src/sharing/threads.h")),
    ("streamcluster.c", include_str!("../../../workloads/src/sharing/streamcluster.c")),
    ("histogram.c", include_str!("../../../workloads/src/sharing/histogram.c")),
    ("string_match.c", include_str!("../../../workloads/src/sharing/string_match.c")),
    ("word_count.c", include_str!("../../../workloads/src/sharing/word_count.c")),
];

/// The script that downloads and unpacks a package; its first lines describe it.
const FETCH: &str = include_str!("../../../../scripts/packages/source");

/// The origin of a program's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Bundled with this program.
    Bundled,
    /// The Debian source package of this name.
    Package(&'static str),
}

/// Writes the bundled sources to a directory in `place` and returns it.
pub(super) fn bundled(place: &Path) -> Result<PathBuf> {
    let sources = place.join("bundled");
    std::fs::create_dir_all(sources.join("fieldstone"))?;
    for (name, text) in BUNDLED {
        std::fs::write(sources.join(name), text)?;
    }
    Ok(sources)
}

/// The unpacked source of a package.
///
/// # Errors
/// [`Missing`] if it cannot be downloaded.
pub(super) fn package(name: &str) -> Result<PathBuf> {
    let directory = match std::env::var_os("FIELDSTONE_SOURCES") {
        Some(named) => PathBuf::from(named),
        None => super::cache()?.join("sources"),
    };
    let mut fetch = Command::new("sh");
    fetch.args(["-c", FETCH, "scripts/packages/source", name]).arg(&directory).stdin(Stdio::null());
    let fetched = fetch.output().context("cannot start sh")?;
    if !fetched.status.success() {
        let errors = String::from_utf8_lossy(&fetched.stderr);
        let why = errors.lines().last().unwrap_or("the download failed without a message");
        let place = directory.join(name);
        return Err(Missing(format!(
            "no source of {name} ({why}): unpack it as {}, or name another directory in FIELDSTONE_SOURCES",
            place.display()
        ))
        .into());
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&fetched.stdout).trim()))
}
