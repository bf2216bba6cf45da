//! The files under test: the `fieldstone` command and the workloads, from the directory of this
//! build profile.
//!
//! ```text
//!   target/PROFILE/             fieldstone, fieldstone.d, gups, odd, …
//!   target/PROFILE/deps/        the running test
//! ```
//! Cargo builds a command for the tests of its own package only. So `cargo test -p
//! fieldstone-system-tests` finds the command of an earlier build, and [`command`] refuses one that
//! is older than its sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::SystemTime;

const BUILD: &str =
    "try: cargo build -p fieldstone -p fieldstone-workloads (with the --release or --target-dir of this test)";

/// The path of the command.
///
/// # Panics
/// The command is missing or older than one of its sources.
pub(crate) fn command() -> &'static str {
    static COMMAND: LazyLock<String> = LazyLock::new(|| {
        let file = workload("fieldstone");
        let Ok(built) = modified(&file) else { panic!("cannot find {}: it is not built\n{BUILD}", file.display()) };
        let newer = sources(&file).into_iter().find(|source| latest(source).is_some_and(|changed| changed > built));
        if let Some(source) = newer {
            panic!("cannot test {}: {} is newer\n{BUILD}", file.display(), source.display());
        }
        file.to_str().expect("the target directory has a UTF-8 name").to_owned()
    });
    &COMMAND
}

/// The path of a program that is built beside the command.
pub(crate) fn workload(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("/proc is mounted");
    test.ancestors().nth(2).expect("a test is below the directory of its profile").join(name)
}

/// The sources of `file`, from the dependency file that cargo writes beside it. A space in a path
/// is escaped by `\`.
fn sources(file: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string(file.with_extension("d")).unwrap_or_default();
    let text = text.trim_end().replace("\\ ", "\0");
    let paths = text.split_once(": ").map_or("", |(_, paths)| paths).split(' ');
    paths.map(|path| path.replace('\0', " ").into()).collect()
}

/// When a file, or the newest file below a directory, was modified. `None` if it is gone.
fn latest(path: &Path) -> Option<SystemTime> {
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().filter_map(|entry| latest(&entry.path())).max(),
        Err(_) => modified(path).ok(),
    }
}

fn modified(path: &Path) -> std::io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}
