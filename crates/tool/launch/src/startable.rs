//! Explain why a program cannot be started: one place for every command that starts one.
//!
//! ```text
//! before the start   examine(file)         what the file system shows; nothing is opened
//! after a refusal    explain(file, errno)  what the first bytes of the file and of its interpreter show
//! ```
//! Both name the file that the user gave, and a script's interpreter where that is the cause. Only a regular file is ever
//! opened: to open a FIFO without a writer blocks.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::read::elf::{FileHeader, ProgramHeader};
use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags, accessat, statvfs};

use crate::error::{Error, Result};

/// Number of bytes read to examine a file: linkers put the program headers and the loader's name at the start.
const HEAD_BYTES: u64 = 64 << 10;

/// Checks what the file system shows of `file`, without opening it.
///
/// # Errors
/// [`Error::NotFound`], and [`Error::NotRunnable`] with the cause.
pub(crate) fn examine(file: &Path) -> Result<()> {
    let found = match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::NotFound { name: file.to_string_lossy().into_owned(), suggestion: None });
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(obstacle(file, "this user may not search a directory of its path", None));
        }
        Err(error) => return Err(obstacle(file, &words(&error), None)),
        Ok(found) => found,
    };
    match unfit(&found) {
        Some(why) => Err(obstacle(file, &why, None)),
        None => check_permitted(file, &found),
    }
}

/// Why it is no file that can be executed.
fn unfit(found: &Metadata) -> Option<String> {
    let kind = found.file_type();
    if kind.is_dir() {
        return Some("it is a directory".to_owned());
    }
    let names = [(kind.is_fifo(), "a FIFO"), (kind.is_socket(), "a socket"), (!kind.is_file(), "a device")];
    let name = names.into_iter().find(|name| name.0)?.1;
    Some(format!("it is {name}, not a regular file"))
}

fn check_permitted(file: &Path, found: &Metadata) -> Result<()> {
    if found.permissions().mode() & 0o111 == 0 {
        return Err(obstacle(file, "it is not executable", Some(format!("chmod +x {}", quoted(file)))));
    }
    if accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok() {
        return Ok(());
    }
    let no_exec = statvfs(file).is_ok_and(|mounted| mounted.f_flag.contains(StatVfsMountFlags::NOEXEC));
    if no_exec {
        return Err(obstacle(file, "its file system is mounted noexec; copy it to another one", None));
    }
    let remedy = format!("chmod a+x {}", quoted(file));
    Err(obstacle(file, "this user may not execute it", Some(remedy)))
}

/// The first bytes of a regular file.
///
/// # Errors
/// As [`examine`]; [`Error::NotRunnable`] where this user may not read it.
pub fn head(file: &Path) -> Result<Vec<u8>> {
    examine(file)?;
    read_head(file).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let why = "this user may execute it but not read it, which shows what kind of program it is";
            obstacle(file, why, Some(format!("chmod a+r {}", quoted(file))))
        }
        _ => obstacle(file, &words(&error), None),
    })
}

fn read_head(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(HEAD_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Why the kernel refused to execute `file` with the error `source`.
pub(crate) fn explain(file: &Path, source: io::Error) -> Error {
    if let Err(error) = examine(file) {
        return error;
    }
    let start = read_head(file).unwrap_or_default();
    match source.raw_os_error() {
        Some(libc::ENOEXEC) if !start.starts_with(b"#!") => no_program(file, &start),
        Some(libc::ENOENT | libc::EACCES | libc::ENOEXEC | libc::ELOOP) => {
            requirement(file, &start).unwrap_or_else(|| obstacle(file, &words(&source), None))
        }
        _ => obstacle(file, &words(&source), None),
    }
}

/// What is wrong with the interpreter or the loader that `file` names.
fn requirement(file: &Path, start: &[u8]) -> Option<Error> {
    match interpreter(start) {
        Some((interpreter, _)) => check_interpreter(file, &interpreter).err(),
        None => loader(start).filter(|path| !path.exists()).map(|path| {
            obstacle(
                file,
                &format!("its loader {} does not exist: install the C library that it needs", path.display()),
                None,
            )
        }),
    }
}

/// Checks that the interpreter of a script can be executed.
///
/// # Errors
/// [`Error::NotRunnable`] of the script, with what is wrong with the interpreter.
pub fn check_interpreter(script: &Path, interpreter: &Path) -> Result<()> {
    let Err(error) = examine(interpreter) else { return Ok(()) };
    if interpreter.as_os_str().as_bytes().ends_with(b"\r") {
        let remedy = format!("sed -i 's/\\r$//' {}", quoted(script));
        return Err(obstacle(script, "its first line ends with a carriage return", Some(remedy)));
    }
    let (why, remedy) = match error {
        Error::NotFound { .. } => ("it does not exist".to_owned(), None),
        Error::NotRunnable { why, remedy, .. } => (why, remedy),
        other => (other.to_string(), None),
    };
    let why = format!("its interpreter {} cannot be executed: {why}", interpreter.display());
    let remedy =
        remedy.or_else(|| Some(format!("name another interpreter in the command, as in `sh {}`", quoted(script))));
    Err(obstacle(script, &why, remedy))
}

/// Why a file with these first bytes is neither an ELF program nor a script with an interpreter.
pub(crate) fn no_program(file: &Path, start: &[u8]) -> Error {
    let remedy = Some(format!("name the shell in the command: `sh {}`", quoted(file)));
    if start.is_empty() {
        return obstacle(file, "it is empty: no ELF program and no script with a #! line", remedy);
    }
    let line = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
    // As shells do: a first line with a zero byte is no text.
    if start.starts_with(b"\x7fELF") || line.contains(&0) {
        return obstacle(file, "it is no ELF program of this machine and no script", None);
    }
    obstacle(file, "it is no ELF program and no script with a #! line", remedy)
}

/// The interpreter of a script that starts so, and all that follows it on the line as one word, as the kernel takes it.
pub fn interpreter(start: &[u8]) -> Option<(PathBuf, Option<&OsStr>)> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let line = &line[line.iter().position(|byte| !is_blank(byte))?..];
    let end = line.iter().position(is_blank).unwrap_or(line.len());
    let (path, rest) = line.split_at(end);
    let rest = rest.trim_ascii();
    Some((PathBuf::from(OsStr::from_bytes(path)), (!rest.is_empty()).then(|| OsStr::from_bytes(rest))))
}

/// The loader that an ELF program names.
fn loader(start: &[u8]) -> Option<PathBuf> {
    fn of<Elf: FileHeader<Endian = object::Endianness>>(start: &[u8]) -> Option<PathBuf> {
        let header = Elf::parse(start).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, start).ok()?;
        let name = segments.iter().find_map(|segment| segment.interpreter(endian, start).ok().flatten())?;
        Some(PathBuf::from(OsStr::from_bytes(name)))
    }
    use object::elf::{FileHeader32, FileHeader64};
    of::<FileHeader64<object::Endianness>>(start).or_else(|| of::<FileHeader32<object::Endianness>>(start))
}

fn obstacle(file: &Path, why: &str, remedy: Option<String>) -> Error {
    Error::NotRunnable { path: file.to_owned(), why: why.to_owned(), remedy }
}

/// The kernel's words for an error, without its number.
fn words(error: &io::Error) -> String {
    let words = error.to_string();
    words.split(" (os error").next().unwrap_or_default().to_owned()
}

/// A path as a word of a shell command.
fn quoted(file: &Path) -> String {
    fieldstone_report::shell::join(&[file.to_string_lossy().into_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// An executable file with these contents, in a directory of its own.
    fn file(contents: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, contents).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        (directory, file)
    }

    /// What is explained when the kernel refuses a file with these contents.
    fn explained(contents: &[u8]) -> String {
        let (_directory, file) = file(contents);
        // Not `Command`, whose fallback runs a text by the shell on some systems.
        let name = std::ffi::CString::new(file.as_os_str().as_bytes()).unwrap();
        explain(&file, refusal(&name)).to_string()
    }

    /// The kernel's error for this file, from a process that tries to become it.
    fn refusal(name: &std::ffi::CStr) -> io::Error {
        Command::new(OsStr::from_bytes(name.to_bytes())).spawn().expect_err("it cannot be executed")
    }

    #[test]
    fn a_line_is_read_as_the_kernel_reads_it() {
        let words = |line: &'static str| interpreter(line.as_bytes());
        let env = (PathBuf::from("/usr/bin/env"), Some(OsStr::new("-S python3 -u")));
        assert_eq!(words("#! /bin/sh\nrest"), Some((PathBuf::from("/bin/sh"), None)));
        assert_eq!(words("#!/usr/bin/env -S python3 -u\n"), Some(env));
        assert_eq!(words("#!/bin/sh\r\n"), Some((PathBuf::from("/bin/sh\r"), None)), "to the kernel it is a letter");
        assert_eq!(words("#! \n/bin/sh"), None);
    }

    #[test]
    fn what_the_kernel_refuses_is_explained_with_a_remedy() {
        let said = explained(b"exit 3\n");
        assert!(said.contains("no script with a #! line") && said.contains("`sh /"), "{said}");
        assert!(explained(b"").contains("it is empty"));
        assert!(!explained(b"\x00\x01\x02").contains("try:"));
        let said = explained(b"#!/nonexistent -x\n");
        assert!(said.contains("/file: its interpreter /nonexistent") && said.contains("does not exist"), "{said}");
        let said = explained(b"#!/bin/sh\r\n");
        assert!(said.contains("carriage return") && said.contains("try: sed -i"), "{said}");
        let said = explained(b"#!/etc/passwd\n");
        assert!(said.contains("its interpreter /etc/passwd") && said.contains("try: chmod +x /etc/passwd"), "{said}");
    }

    #[test]
    fn a_loader_that_is_not_there_is_named() {
        let mut bytes = fs::read("/bin/true").unwrap();
        let at = memchr::memmem::find(&bytes, b"/ld-linux").unwrap();
        bytes[at + 1] = b'X';
        let said = explained(&bytes);
        assert!(said.contains("its loader /") && said.contains("Xd-linux"), "{said}");
    }

    #[test]
    fn what_is_no_regular_file_is_never_opened() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, 0o755.into(), 0).unwrap();
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, word) in [(&*fifo, "FIFO"), (&*socket, "socket"), (Path::new("/dev/null"), "device")] {
            let said = head(path).unwrap_err().to_string();
            assert!(said.contains(word) && said.contains("not a regular file"), "{said}");
            let (_directory, script) = file(format!("#!{}\n", path.display()).as_bytes());
            let said = check_interpreter(&script, path).unwrap_err().to_string();
            assert!(said.contains(word) && said.contains(script.to_str().unwrap()), "{said}");
        }
    }

    #[test]
    fn a_loop_of_links_is_named_as_one() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        let said = examine(&link).unwrap_err().to_string();
        assert!(said.to_lowercase().contains("too many levels of symbolic links"), "{said}");
    }
}
