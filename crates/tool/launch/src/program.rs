//! Finds the file of a command, and determines whether it can carry the region agent.
//!
//! A name without a slash is looked up in PATH, then among the bundled workloads.
//!
//! | file | method |
//! |---|---|
//! | 64-bit, for this machine, dynamically linked with glibc | the agent |
//! | statically linked, or with another C library | huge pages from outside, see [`crate::collapse`] |
//! | script | that of its interpreter |
//! | 32-bit, for another machine, set-user-id or set-group-id | none |

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};

use crate::error::{Error, Result};
use crate::exec_check;

/// The remedy for a program that cannot carry the agent.
const WITHOUT_AGENT: &str = "`fieldstone run --region --pages thp`, which puts its memory on huge pages from outside, or `fieldstone profile --trace --pages 4k`, which needs no region";

/// How a program's memory can be put on pages of another kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlacementMethod {
    /// By the agent, from the start: every page kind.
    Agent,
    /// By another process, while the program runs: transparent huge pages only.
    Outside {
        /// The file of the program or of its interpreter.
        file: PathBuf,
        /// The property that prevents the agent.
        property: &'static str,
    },
}

/// A program to start.
#[derive(Clone, Debug)]
pub struct Program {
    /// The file that is executed.
    pub file: PathBuf,
    /// The command as given: name and arguments.
    pub command: Vec<OsString>,
}

impl Program {
    /// Finds the file of `command`.
    ///
    /// # Errors
    /// [`Error::NotFound`] and [`Error::NotRunnable`].
    pub fn find(command: &[OsString]) -> Result<Self> {
        let name = command.first().map(OsString::as_os_str).unwrap_or_default();
        let file = locate(name)?;
        exec_check::check(&file)?;
        Ok(Self { file, command: command.to_vec() })
    }

    /// The command as text; invalid UTF-8 is replaced.
    #[must_use]
    pub fn command_line(&self) -> Vec<String> {
        self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    /// The name of its file.
    #[must_use]
    pub fn name(&self) -> String {
        self.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// How the program's memory can be put on pages of another kind.
    ///
    /// # Errors
    /// [`Error::NoRegion`] if there is no method, [`Error::NotRunnable`] if the file is no program.
    pub fn placement_method(&self) -> Result<PlacementMethod> {
        placement_method_of(&self.file, 0)
    }

    /// Checks that the program can load the guard agent.
    ///
    /// # Errors
    /// [`Error::NoAgent`], or [`Error::NotRunnable`] if the file is no program.
    pub fn check_guardable(&self) -> Result<()> {
        self.check_preload("guard", "link it dynamically with glibc, or compile it with -fsanitize=address")
    }

    /// Checks that the program can load the paging agent.
    ///
    /// # Errors
    /// As [`Self::check_guardable`].
    pub fn check_pageable(&self) -> Result<()> {
        self.check_preload("bound the memory of", "link it dynamically with glibc")
    }

    fn check_preload(&self, operation: &'static str, remedy: &'static str) -> Result<()> {
        match self.placement_method() {
            Ok(PlacementMethod::Agent) => Ok(()),
            Ok(PlacementMethod::Outside { file: path, property }) => {
                Err(Error::NoAgent { operation, path, property, remedy })
            }
            Err(Error::NoRegion { path, property, remedy: other }) => {
                Err(Error::NoAgent { operation, path, property, remedy: other.unwrap_or(remedy) })
            }
            Err(error) => Err(error),
        }
    }

    /// Checks that the program can carry the agent.
    ///
    /// # Errors
    /// As [`Self::placement_method`]; [`Error::NoRegion`] also for [`PlacementMethod::Outside`].
    pub fn check_carries_agent(&self) -> Result<()> {
        match self.placement_method()? {
            PlacementMethod::Agent => Ok(()),
            PlacementMethod::Outside { file, property } => {
                Err(Error::NoRegion { path: file, property, remedy: Some(WITHOUT_AGENT) })
            }
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

/// Directories of the bundled workloads: that of the command (build tree) and that of `make
/// install`. In each, the workloads for false sharing are in the subdirectory `sharing`.
fn workload_directories() -> Vec<PathBuf> {
    let Ok(command) = std::env::current_exe() else { return Vec::new() };
    let directory = command.parent().unwrap_or(Path::new("/"));
    let places = [directory.to_owned(), directory.join("../lib/fieldstone/workloads")];
    places.into_iter().flat_map(|place| [place.join("sharing"), place]).collect()
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Whether this user gets capabilities from the file; root has them anyway.
fn gives_capabilities(file: &Path) -> bool {
    let mut value = [0_u8; 64];
    !rustix::process::geteuid().is_root() && rustix::fs::getxattr(file, "security.capability", &mut value[..]).is_ok()
}

fn placement_method_of(file: &Path, depth: u32) -> Result<PlacementMethod> {
    let refused = |property, remedy| Err(Error::NoRegion { path: file.to_owned(), property, remedy });
    let start = exec_check::head(file)?;
    if fs::metadata(file).is_ok_and(|metadata| metadata.permissions().mode() & 0o6000 != 0) {
        return refused(
            "set-user-id or set-group-id (the loader preloads nothing into it)",
            Some("run a copy without that bit, if it needs no privileges"),
        );
    }
    if gives_capabilities(file) {
        return refused(
            "a file with capabilities (the loader preloads nothing into it)",
            Some("sudo with the same command, or a copy of the file, which has no capabilities"),
        );
    }
    if start.starts_with(b"#!") {
        return match exec_check::interpreter(&start) {
            Some((path, _)) if depth < 4 => {
                exec_check::check_interpreter(file, &path)?;
                placement_method_of(&path, depth + 1)
            }
            _ => {
                refused("a script whose interpreter cannot be determined", Some("name the interpreter in the command"))
            }
        };
    }
    let outside = |property| Ok(PlacementMethod::Outside { file: file.to_owned(), property });
    match check_elf(&start) {
        Ok(()) => Ok(PlacementMethod::Agent),
        Err(Incompatibility::NotElf) => Err(exec_check::no_program(file, &start)),
        Err(Incompatibility::Bits32) => refused("a 32-bit program, and only 64-bit programs have a region", None),
        Err(Incompatibility::OtherMachine) => {
            refused("a program for another processor architecture", Some("run it on a machine of that architecture"))
        }
        Err(Incompatibility::Static) => outside("statically linked"),
        Err(Incompatibility::OtherLibc) => outside("linked for another C library than glibc"),
    }
}

/// `e_machine` of the ELF files that this machine runs.
const ELF_MACHINE: elf::Machine = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };

/// Why an ELF file cannot carry the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Incompatibility {
    NotElf,
    Bits32,
    OtherMachine,
    Static,
    OtherLibc,
}

fn check_elf(bytes: &[u8]) -> std::result::Result<(), Incompatibility> {
    if elf::FileHeader32::<object::Endianness>::parse(bytes).is_ok() {
        return Err(Incompatibility::Bits32);
    }
    let header = elf::FileHeader64::<object::Endianness>::parse(bytes).map_err(|_| Incompatibility::NotElf)?;
    let endian = header.endian().map_err(|_| Incompatibility::NotElf)?;
    if header.e_machine(endian) != ELF_MACHINE {
        return Err(Incompatibility::OtherMachine);
    }
    let segments = header.program_headers(endian, bytes).map_err(|_| Incompatibility::NotElf)?;
    let loader = segments.iter().find_map(|segment| segment.interpreter(endian, bytes).ok().flatten());
    match loader.map(|path| Path::new(OsStr::from_bytes(path)).file_name().unwrap_or_default().as_bytes()) {
        None => Err(Incompatibility::Static),
        Some(name) if name.starts_with(b"ld-linux") => Ok(()),
        Some(_) => Err(Incompatibility::OtherLibc),
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
        find(&[script.to_str().unwrap()]).and_then(|program| program.check_carries_agent()).expect("sh can carry it");
    }

    #[test]
    fn each_file_that_cannot_be_started_has_its_error() {
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
        assert_eq!(check_elf(&bytes), Ok(()));
        bytes[4] = 1;
        assert_eq!(check_elf(&bytes), Err(Incompatibility::Bits32));
        assert_eq!(check_elf(&bytes[..20]), Err(Incompatibility::NotElf));
        bytes[4] = 2;
        bytes[18] = 3;
        assert_eq!(check_elf(&bytes), Err(Incompatibility::OtherMachine));
    }
}
