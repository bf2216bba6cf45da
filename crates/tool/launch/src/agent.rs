//! Where the agent's file lies.
//!
//! The command carries the agent's bytes (see the `build.rs` of the command). The loader needs a file, so they are put
//! in place once, atomically, under a name that holds a hash of them: two versions never meet, two processes that do it
//! at once end with the same file. A directory that nothing can be executed from (mounted noexec) is passed over: the
//! loader would only warn, and the program run without its region.

#![allow(unsafe_code, reason = "maps a file to see whether it can be mapped")]

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, Result};

/// An agent, placed where the dynamic loader can take it from.
#[derive(Clone, Debug)]
pub struct AgentFile {
    path: PathBuf,
}

impl AgentFile {
    /// Puts the `bytes` of the agent called `name` in place: in `$FIELDSTONE_AGENT_DIR`, else in the user's cache directory, else in a private
    /// directory below the temporary one.
    ///
    /// # Errors
    /// [`Error::Agent`] when none of them can be written, or the loader could not read their path.
    pub fn place(name: &str, bytes: &[u8]) -> Result<Self> {
        let name = format!("{name}-{:016x}.so", hash(bytes));
        let mut problems = Vec::new();
        for directory in directories() {
            match place_in(&directory, &name, bytes) {
                Ok(path) => return Ok(Self { path }),
                Err(problem) => problems.push(format!("{}: {problem}", directory.display())),
            }
        }
        Err(Error::Agent { why: problems.join("; ") })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn directories() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os("FIELDSTONE_AGENT_DIR") {
        return vec![PathBuf::from(named)];
    }
    fieldstone_sys::cache::directories()
}

fn place_in(directory: &Path, name: &str, bytes: &[u8]) -> std::result::Result<PathBuf, String> {
    let path = directory.join(name);
    // LD_PRELOAD is a list, and so is what QEMU is told of a plugin: they are split at these, and know no way to quote them.
    if !directory.is_absolute() || path.as_os_str().as_bytes().iter().any(|byte| b" :,\t\n".contains(byte)) {
        return Err("the loader needs an absolute path without spaces, colons and commas".to_owned());
    }
    let text = |error: std::io::Error| error.to_string();
    fs::DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(text)?;
    let found = fs::symlink_metadata(directory).map_err(text)?;
    if !found.is_dir() || !is_ours_alone(&found) {
        return Err("it is a link, or others could replace what is loaded from it".to_owned());
    }
    if !is_trusted(&path, bytes) {
        // A name that nobody else can have taken: the directory is ours alone.
        let partial = directory.join(format!("{name}.{}", std::process::id()));
        let _ = fs::remove_file(&partial);
        let written = write_whole(&partial, bytes).and_then(|()| fs::rename(&partial, &path));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written.map_err(text)?;
    }
    check_executable(&path).map_err(|error| format!("nothing can be executed from there ({error})"))?;
    Ok(path)
}

/// Whether nobody but this user and root can write to it.
fn is_ours_alone(found: &fs::Metadata) -> bool {
    (found.uid() == rustix::process::getuid().as_raw() || found.uid() == 0) && found.mode() & 0o022 == 0
}

fn is_trusted(path: &Path, bytes: &[u8]) -> bool {
    let whose = fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && is_ours_alone(&found));
    whose && fs::read(path).is_ok_and(|there| there == bytes)
}

/// Maps the file as the loader will.
fn check_executable(path: &Path) -> std::io::Result<()> {
    let file = fs::File::open(path)?;
    let access = ProtFlags::READ | ProtFlags::EXEC;
    // SAFETY: no address is named, so nothing that exists is touched; the mapping is never read, and ends at once.
    unsafe {
        let mapped = rustix::mm::mmap(ptr::null_mut(), 1, access, MapFlags::PRIVATE, &file, 0)?;
        rustix::mm::munmap(mapped, 1)?;
    }
    Ok(())
}

fn write_whole(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o755).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Tells builds apart; the bytes themselves are compared before a file is trusted.
fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_placed_once_and_mended_if_broken() {
        let directory = tempfile::tempdir().unwrap();
        let path = place_in(directory.path(), "region.so", b"agent").unwrap();
        let first = fs::metadata(&path).unwrap().ino();
        assert_eq!(place_in(directory.path(), "region.so", b"agent").unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), first, "a good file is left alone");
        fs::write(&path, "cut off").unwrap();
        place_in(directory.path(), "region.so", b"agent").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"agent");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no partial file stays");
    }

    #[test]
    fn a_directory_that_nothing_is_executed_from_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let mut command = std::process::Command::new(program);
            command.args(arguments).arg(directory.path()).output().is_ok_and(|output| output.status.success())
        };
        if !run("mount", &["-t", "tmpfs", "-o", "noexec,mode=755", "none"]) {
            println!("SKIP no tmpfs can be mounted here");
            return;
        }
        let placed = place_in(directory.path(), "region.so", b"agent");
        assert!(run("umount", &[]));
        assert!(placed.unwrap_err().contains("nothing can be executed"));
        place_in(directory.path(), "region.so", b"agent").expect("below the mount things can be executed");
    }

    #[test]
    fn what_others_could_replace_is_not_used() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let directory = tempfile::tempdir().unwrap();
        let open = directory.path().join("open");
        fs::create_dir(&open).unwrap();
        for mode in [0o777, 0o1777, 0o775] {
            fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
            assert!(place_in(&open, "a.so", b"agent").is_err(), "{mode:o}");
        }
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        let link = directory.path().join("link");
        symlink(&open, &link).unwrap();
        assert!(place_in(&link, "a.so", b"agent").is_err(), "a link can be turned");
        fs::write(open.join("elsewhere"), b"agent").unwrap();
        symlink(open.join("elsewhere"), open.join("a.so")).unwrap();
        let path = place_in(&open, "a.so", b"agent").unwrap();
        assert!(fs::symlink_metadata(path).unwrap().is_file(), "a link in the file's place is replaced");
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(place_in(&directory.path().join("with space"), "a.so", b"").is_err());
        assert!(place_in(&directory.path().join("with:colon"), "a.so", b"").is_err());
        assert!(place_in(&directory.path().join("with,comma"), "a.so", b"").is_err());
        assert!(place_in(Path::new("relative"), "a.so", b"").is_err());
    }
}
