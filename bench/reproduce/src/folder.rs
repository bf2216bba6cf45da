//! A temporary folder for a workload's files. It is removed at the end of this process, even after
//! a kill.
//!
//! A shell waits for the end of a pipe whose other side this process holds. The kernel closes that
//! side in any case, and the shell removes the folder. It repeats this while the folder exists,
//! because a server may end later than this process.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// The script of the shell. It ignores the signals of a terminal, which reach all its processes.
const GUARD: &str = "trap '' HUP INT TERM; read -r end; while [ -e \"$1\" ]; do rm -rf -- \"$1\"; sleep 1; done";

/// A folder that only this user can access.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    guard: Child,
}

impl Folder {
    /// Creates it in the directory of temporary files.
    pub(crate) fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("fieldstone-reproduce-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot create {}", path.display()))?;
        let guard = Command::new("sh")
            .args(["-c", GUARD, "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start sh, which removes the temporary folder")?;
        Ok(Self { path, guard })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The guard retries what fails here, and ends when the folder is removed.
        let _ = std::fs::remove_dir_all(&self.path);
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_dropped_folder_is_removed_with_its_files() {
        let folder = Folder::new().unwrap();
        let path = folder.path().to_owned();
        std::fs::write(path.join("file"), "contents").unwrap();
        drop(folder);
        assert!(!path.exists());
    }

    /// As after a kill of this process: only the guard removes the folder.
    #[test]
    fn the_guard_removes_it_when_the_pipe_closes() {
        let path = tempfile::tempdir().unwrap().keep();
        std::fs::write(path.join("file"), "contents").unwrap();
        let mut guard = Command::new("sh").args(["-c", GUARD, "sh"]).arg(&path).stdin(Stdio::piped()).spawn().unwrap();
        assert!(path.join("file").exists());
        drop(guard.stdin.take());
        let since = Instant::now();
        while path.exists() && since.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!path.exists());
        assert!(guard.wait().unwrap().success());
    }
}
