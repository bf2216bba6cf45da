//! Where this user keeps what can be made again.

use std::path::{Path, PathBuf};

/// The directories for it, best first: `$XDG_CACHE_HOME/fieldstone` or `~/.cache/fieldstone`, and one of this user's among the temporary
/// files. None is made, nor looked at.
#[must_use]
pub fn directories() -> Vec<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
    let uid = rustix::process::getuid().as_raw();
    let temporary = std::env::temp_dir().join(format!("fieldstone-{uid}"));
    cache.into_iter().map(|cache| cache.join("fieldstone")).chain([temporary]).collect()
}
