//! Which file a command names, and whether it can carry the region agent.
//!
//! A name without a slash is looked up as a shell would, then among the bundled workloads. The file decides what is
//! possible: the dynamic loader takes the agent along only into a 64-bit program of this machine that has a loader
//! (not static) of glibc, and never into a set-user-id one. A script is as good as its interpreter. What has no loader, or
//! another libc's, gets transparent huge pages from outside (see [`crate::collapse`]).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};

use crate::error::{Error, Result};
use crate::startable;

const PLAIN: &str = "`fieldstone run --region --pages thp` puts its memory on huge pages from outside, and `fieldstone profile --trace --pages 4k` needs no region";

/// How a program's memory can be put on other pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the agent: every kind of page, from the first byte on.
    Agent,
    /// From outside, while it runs: transparent huge pages only.
    Outside {
        /// Its file, or the interpreter's.
        file: PathBuf,
        /// Why there can be no agent.
        what: &'static str,
    },
}

/// A program to run: its file and its arguments.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file that is executed.
    pub file: PathBuf,
    /// The command as given, program name first.
    pub command: Vec<OsString>,
}

impl Program {
    /// Finds the file that `command` names.
    ///
    /// # Errors
    /// [`Error::NotFound`] and [`Error::NotRunnable`].
    pub fn find(command: &[OsString]) -> Result<Self> {
        let name = command.first().map(OsString::as_os_str).unwrap_or_default();
        let file = locate(name)?;
        startable::examine(&file)?;
        Ok(Self { file, command: command.to_vec() })
    }

    /// The command in words.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    /// How the program's memory can be put on other pages.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason where there is no way; [`Error::NotRunnable`] for a file that is no program.
    pub fn way(&self) -> Result<Way> {
        way_of(&self.file, 0)
    }

    /// Whether the program can carry the agent.
    ///
    /// # Errors
    /// As [`Self::way`]; [`Error::Refused`] where the only one is from outside.
    pub fn check_carries_agent(&self) -> Result<()> {
        match self.way()? {
            Way::Agent => Ok(()),
            Way::Outside { file, what } => Err(Error::Refused { path: file, what, remedy: PLAIN }),
        }
    }
}

fn locate(name: &OsStr) -> Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| is_executable(file));
    let bundled =
        || workload_directories().into_iter().map(|directory| directory.join(name)).find(|file| is_executable(file));
    in_path.or_else(bundled).ok_or_else(|| Error::NotFound {
        name: name.to_string_lossy().into_owned(),
        suggestion: is_executable(Path::new(name)).then(|| format!("./{}", name.to_string_lossy())),
    })
}

/// Where the bundled workloads may lie: beside the command in a build tree, or where `make install` puts them. Those for false sharing have a
/// directory of their own in both.
fn workload_directories() -> Vec<PathBuf> {
    let Ok(command) = std::env::current_exe() else { return Vec::new() };
    let directory = command.parent().unwrap_or(Path::new("/"));
    let places = [directory.to_owned(), directory.join("../lib/fieldstone/workloads")];
    places.into_iter().flat_map(|place| [place.join("sharing"), place]).collect()
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn way_of(file: &Path, depth: u32) -> Result<Way> {
    let refused = |what, remedy| Err(Error::Refused { path: file.to_owned(), what, remedy });
    let start = startable::head(file)?;
    if fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o6000 != 0) {
        return refused(
            "set-user-id or set-group-id",
            "The loader takes no agent into it; if it needs no privileges, run a copy without that bit",
        );
    }
    if start.starts_with(b"#!") {
        return match startable::interpreter(&start) {
            Some((path, _)) if depth < 4 => {
                startable::check_interpreter(file, &path)?;
                way_of(&path, depth + 1)
            }
            _ => refused("a script whose interpreter cannot be told", "Name the interpreter in the command"),
        };
    }
    let outside = |what| Ok(Way::Outside { file: file.to_owned(), what });
    match examine(&start) {
        Ok(()) => Ok(Way::Agent),
        Err(Unfit::NoProgram) => Err(startable::no_program(file, &start)),
        Err(Unfit::Bits32) => refused("a 32-bit program", "Only 64-bit programs have a region"),
        Err(Unfit::OtherMachine) => refused("a program for another processor", "Run it on its own kind of machine"),
        Err(Unfit::Static) => outside("statically linked"),
        Err(Unfit::OtherLibc) => outside("linked for another C library than glibc"),
    }
}

/// Why an ELF file cannot carry the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unfit {
    NoProgram,
    Bits32,
    OtherMachine,
    Static,
    OtherLibc,
}

fn examine(bytes: &[u8]) -> std::result::Result<(), Unfit> {
    if elf::FileHeader32::<object::Endianness>::parse(bytes).is_ok() {
        return Err(Unfit::Bits32);
    }
    let header = elf::FileHeader64::<object::Endianness>::parse(bytes).map_err(|_| Unfit::NoProgram)?;
    let endian = header.endian().map_err(|_| Unfit::NoProgram)?;
    let machine = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
    if header.e_machine(endian) != machine {
        return Err(Unfit::OtherMachine);
    }
    let segments = header.program_headers(endian, bytes).map_err(|_| Unfit::NoProgram)?;
    let loader = segments.iter().find_map(|segment| segment.interpreter(endian, bytes).ok().flatten());
    match loader.map(|path| Path::new(OsStr::from_bytes(path)).file_name().unwrap_or_default().as_bytes()) {
        None => Err(Unfit::Static),
        Some(name) if name.starts_with(b"ld-linux") => Ok(()),
        Some(_) => Err(Unfit::OtherLibc),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(words: &[&str]) -> Result<Program> {
        Program::find(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_shell_and_a_script_can_carry_the_agent() {
        find(&["sh"]).and_then(|program| program.check_carries_agent()).expect("sh is dynamic");
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        fs::write(&script, "#! /bin/sh -e\nexit 0\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        find(&[script.to_str().unwrap()]).and_then(|program| program.check_carries_agent()).expect("as good as sh");
    }

    #[test]
    fn what_cannot_be_run_is_told_apart() {
        assert!(matches!(find(&["no-such-program-anywhere"]), Err(Error::NotFound { .. })));
        assert!(matches!(find(&["/no/such/file"]), Err(Error::NotFound { .. })));
        assert!(matches!(find(&["/tmp"]), Err(Error::NotRunnable { .. })));
        assert!(matches!(find(&["/etc/passwd"]), Err(Error::NotRunnable { .. })));
    }

    #[test]
    fn a_set_user_id_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("set-id");
        fs::copy("/bin/true", &file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
        let refused = find(&[file.to_str().unwrap()]).unwrap().check_carries_agent().unwrap_err();
        assert!(refused.to_string().contains("set-user-id"), "{refused}");
    }

    #[test]
    fn a_broken_elf_file_is_no_program() {
        let mut bytes = fs::read("/bin/true").unwrap();
        assert_eq!(examine(&bytes), Ok(()));
        bytes[4] = 1;
        assert_eq!(examine(&bytes), Err(Unfit::Bits32));
        assert_eq!(examine(&bytes[..20]), Err(Unfit::NoProgram));
        bytes[4] = 2;
        bytes[18] = 3;
        assert_eq!(examine(&bytes), Err(Unfit::OtherMachine));
    }
}
