//! Directories for files that can be regenerated.

use std::path::{Path, PathBuf};

/// Candidate directories, best first: `$XDG_CACHE_HOME/fieldstone` or `~/.cache/fieldstone`, then a
/// per-user directory among the temporary files. Neither creates nor checks them.
#[must_use]
pub fn directories() -> Vec<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let uid = rustix::process::getuid().as_raw();
    let temporary = std::env::temp_dir().join(format!("fieldstone-{uid}"));
    cache.into_iter().map(|cache| cache.join("fieldstone")).chain([temporary]).collect()
}
