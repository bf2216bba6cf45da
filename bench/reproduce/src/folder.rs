//! A folder for a workload's files that is removed with us, however we end.
//!
//! A shell waits for the end of a pipe of which this process has the other side: the kernel closes it when we are killed, too, and
//! the shell removes what is left. It removes again while there is something, since a server may end a little later than we do.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

/// Signals of a terminal go to all of its processes: this one has to stay.
const GUARD: &str = "trap '' HUP INT TERM; read -r gone; while [ -e \"$1\" ]; do rm -rf -- \"$1\"; sleep 1; done";

/// A folder that only this user can enter.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    guard: Child,
}

impl Folder {
    /// Makes one among the temporary files.
    pub(crate) fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("fieldstone-reproduce-{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot make the folder {}", path.display()))?;
        let guard = Command::new("sh")
            .args(["-c", GUARD, "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start sh, which removes temporary files")?;
        Ok(Self { path, guard })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed here is tried again by the guard, which ends when it is gone.
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
    fn it_is_gone_with_what_is_in_it() {
        let folder = Folder::new().unwrap();
        let path = folder.path().to_owned();
        std::fs::write(path.join("file"), "contents").unwrap();
        drop(folder);
        assert!(!path.exists());
    }

    /// As when this process is killed: nobody removes it but the guard.
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
