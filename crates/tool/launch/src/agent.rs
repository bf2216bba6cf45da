//! Installs an agent's file where the dynamic loader can load it.
//!
//! The command carries the agent's bytes (see the command's `build.rs`), but the loader needs a
//! file. The file name contains a hash of the bytes, so two versions never use one file. The file
//! is written under a temporary name and renamed, so concurrent installations are safe. A directory
//! mounted noexec is skipped: the loader only warns, and the program would run without its region.

#![allow(unsafe_code, reason = "maps a file to check whether it can be mapped")]

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;

use fieldstone_wire::Cause;
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Error, Result};

/// An installed agent.
#[derive(Clone, Debug)]
pub struct AgentFile {
    path: PathBuf,
}

impl AgentFile {
    /// Installs the `bytes` of the agent `name` in the first usable directory:
    /// `$FIELDSTONE_AGENT_DIR` alone if it is set, else the user's cache directory,
    /// else a private directory below the temporary one.
    ///
    /// # Errors
    /// [`Error::Agent`] if no directory is writable and executable, or `LD_PRELOAD` cannot hold the
    /// path.
    pub fn install(name: &str, bytes: &[u8]) -> Result<Self> {
        let name = format!("{name}-{:016x}.so", hash(bytes));
        let mut problems = Vec::new();
        for directory in directories() {
            match install_in(&directory, &name, bytes) {
                Ok(path) => return Ok(Self { path }),
                Err(problem) => problems.push(format!("{}: {problem}", directory.display())),
            }
        }
        Err(Error::Agent { why: problems.join("; ") })
    }

    /// The absolute path of the file.
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

fn install_in(directory: &Path, name: &str, bytes: &[u8]) -> std::result::Result<PathBuf, String> {
    let path = directory.join(name);
    // The loader splits LD_PRELOAD at these characters, and QEMU the plugin option. Neither has
    // quoting.
    if !directory.is_absolute() || path.as_os_str().as_bytes().iter().any(|byte| b" :,\t\n".contains(byte)) {
        return Err("the loader needs an absolute path without spaces, colons and commas".to_owned());
    }
    let text = |error: std::io::Error| Cause(error).to_string();
    fs::DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(text)?;
    let metadata = fs::symlink_metadata(directory).map_err(text)?;
    if !metadata.is_dir() || !is_private(&metadata) {
        return Err("it is a link, or other users can replace files in it".to_owned());
    }
    if !is_trusted(&path, bytes) {
        // No other user can have created this name: only this user and root can write to the
        // directory.
        let partial = directory.join(format!("{name}.{}", std::process::id()));
        let _ = fs::remove_file(&partial);
        let written = write_whole(&partial, bytes).and_then(|()| fs::rename(&partial, &path));
        if written.is_err() {
            let _ = fs::remove_file(&partial);
        }
        written.map_err(text)?;
    }
    check_executable(&path).map_err(|error| format!("files in it cannot be executed ({})", Cause(error)))?;
    Ok(path)
}

/// Whether only this user and root can write to the file or directory.
fn is_private(metadata: &fs::Metadata) -> bool {
    (metadata.uid() == rustix::process::getuid().as_raw() || metadata.uid() == 0) && metadata.mode() & 0o022 == 0
}

/// Whether the file has exactly these bytes and no other user can change it.
fn is_trusted(path: &Path, bytes: &[u8]) -> bool {
    let private = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && is_private(&metadata));
    private && fs::read(path).is_ok_and(|content| content == bytes)
}

/// Maps the file with the loader's permissions, read and execute.
fn check_executable(path: &Path) -> std::io::Result<()> {
    let file = fs::File::open(path)?;
    let access = ProtFlags::READ | ProtFlags::EXEC;
    // SAFETY: the kernel chooses the address, so no existing mapping changes. The new mapping is
    // never read, and this function unmaps it before it returns.
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

/// Distinguishes builds. It need not be collision-free: `is_trusted` compares the bytes.
fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_installed_once_and_replaced_if_broken() {
        let directory = tempfile::tempdir().unwrap();
        let path = install_in(directory.path(), "region.so", b"agent").unwrap();
        let first = fs::metadata(&path).unwrap().ino();
        assert_eq!(install_in(directory.path(), "region.so", b"agent").unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), first, "an intact file is kept");
        fs::write(&path, "cut off").unwrap();
        install_in(directory.path(), "region.so", b"agent").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"agent");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no partial file remains");
    }

    #[test]
    fn a_noexec_directory_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let run = |program: &str, arguments: &[&str]| {
            let mut command = std::process::Command::new(program);
            command.args(arguments).arg(directory.path()).output().is_ok_and(|output| output.status.success())
        };
        if !run("mount", &["-t", "tmpfs", "-o", "noexec,mode=755", "none"]) {
            println!("SKIP no tmpfs can be mounted here");
            return;
        }
        let installed = install_in(directory.path(), "region.so", b"agent");
        assert!(run("umount", &[]));
        assert!(installed.unwrap_err().contains("cannot be executed"));
        install_in(directory.path(), "region.so", b"agent").expect("the directory below the mount is executable");
    }

    #[test]
    fn a_file_that_other_users_can_replace_is_not_used() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let directory = tempfile::tempdir().unwrap();
        let open = directory.path().join("open");
        fs::create_dir(&open).unwrap();
        for mode in [0o777, 0o1777, 0o775] {
            fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
            assert!(install_in(&open, "a.so", b"agent").is_err(), "{mode:o}");
        }
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        let link = directory.path().join("link");
        symlink(&open, &link).unwrap();
        assert!(install_in(&link, "a.so", b"agent").is_err(), "a link can be redirected");
        fs::write(open.join("elsewhere"), b"agent").unwrap();
        symlink(open.join("elsewhere"), open.join("a.so")).unwrap();
        let path = install_in(&open, "a.so", b"agent").unwrap();
        assert!(fs::symlink_metadata(path).unwrap().is_file(), "a link of that name is replaced");
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(install_in(&directory.path().join("with space"), "a.so", b"").is_err());
        assert!(install_in(&directory.path().join("with:colon"), "a.so", b"").is_err());
        assert!(install_in(&directory.path().join("with,comma"), "a.so", b"").is_err());
        assert!(install_in(Path::new("relative"), "a.so", b"").is_err());
    }
}
