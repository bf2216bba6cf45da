//! Determines why a program cannot be started, for every command that starts one.
//!
//! ```text
//! before the start   check(file)           reads metadata only
//! after a refusal    explain(file, errno)  reads the first bytes of the file and of its interpreter
//! ```
//! Errors name the user's file, and a script's interpreter if that is the cause. Only regular files
//! are opened, because opening a FIFO without a writer blocks.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fieldstone_wire::Cause;
use object::read::elf::{FileHeader, ProgramHeader};
use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags, accessat, statvfs};

use crate::error::{Error, Result};

/// Bytes read from a file. Linkers put the program headers and the loader's name at the start.
const HEAD_BYTES: u64 = 64 << 10;

/// Checks that `file` is an executable regular file, without opening it.
///
/// # Errors
/// [`Error::NotFound`], and [`Error::NotRunnable`] with the cause.
pub(crate) fn check(file: &Path) -> Result<()> {
    let metadata = match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::NotFound { name: file.to_string_lossy().into_owned(), suggestion: None });
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(not_runnable(file, "this user may not search a directory of its path", None));
        }
        Err(error) => return Err(not_runnable(file, &Cause(&error).to_string(), None)),
        Ok(metadata) => metadata,
    };
    match wrong_file_type(&metadata) {
        Some(why) => Err(not_runnable(file, &why, None)),
        None => check_permitted(file, &metadata),
    }
}

/// The cause if the file is not a regular file.
fn wrong_file_type(metadata: &Metadata) -> Option<String> {
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Some("it is a directory".to_owned());
    }
    let names = [(kind.is_fifo(), "a FIFO"), (kind.is_socket(), "a socket"), (!kind.is_file(), "a device")];
    let name = names.into_iter().find(|name| name.0)?.1;
    Some(format!("it is {name}, not a regular file"))
}

fn check_permitted(file: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(not_runnable(file, "it is not executable", Some(format!("chmod +x {}", quoted(file)))));
    }
    if accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok() {
        return Ok(());
    }
    let no_exec = statvfs(file).is_ok_and(|mounted| mounted.f_flag.contains(StatVfsMountFlags::NOEXEC));
    if no_exec {
        return Err(not_runnable(file, "its file system is mounted noexec; copy it to another one", None));
    }
    let remedy = format!("chmod a+x {}", quoted(file));
    Err(not_runnable(file, "this user may not execute it", Some(remedy)))
}

/// The first bytes of an executable file, 64 KiB at most.
///
/// # Errors
/// [`Error::NotFound`]; [`Error::NotRunnable`] also if this user may not read the file.
pub fn head(file: &Path) -> Result<Vec<u8>> {
    check(file)?;
    read_head(file).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let why = "this user may execute it but not read it, which shows what kind of program it is";
            not_runnable(file, why, Some(format!("chmod a+r {}", quoted(file))))
        }
        _ => not_runnable(file, &Cause(&error).to_string(), None),
    })
}

fn read_head(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(HEAD_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Why the kernel refused to execute `file` with the error `source`.
pub(crate) fn explain(file: &Path, source: io::Error) -> Error {
    if let Err(error) = check(file) {
        return error;
    }
    let start = read_head(file).unwrap_or_default();
    match source.raw_os_error() {
        Some(libc::ENOEXEC) if !start.starts_with(b"#!") => no_program(file, &start),
        Some(libc::ENOENT | libc::EACCES | libc::ENOEXEC | libc::ELOOP) => {
            check_requirement(file, &start).unwrap_or_else(|| not_runnable(file, &Cause(&source).to_string(), None))
        }
        _ => not_runnable(file, &Cause(&source).to_string(), None),
    }
}

/// The error of the interpreter or the loader that `file` names; `None` if it can be executed.
fn check_requirement(file: &Path, start: &[u8]) -> Option<Error> {
    match interpreter(start) {
        Some((interpreter, _)) => check_interpreter(file, &interpreter).err(),
        None => loader(start).filter(|path| !path.exists()).map(|path| {
            not_runnable(
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
/// [`Error::NotRunnable`] for the script, with the defect of the interpreter.
pub fn check_interpreter(script: &Path, interpreter: &Path) -> Result<()> {
    let Err(error) = check(interpreter) else { return Ok(()) };
    if interpreter.as_os_str().as_bytes().ends_with(b"\r") {
        let remedy = format!("sed -i 's/\\r$//' {}", quoted(script));
        return Err(not_runnable(script, "its first line ends with a carriage return", Some(remedy)));
    }
    let (why, remedy) = match error {
        Error::NotFound { .. } => ("it does not exist".to_owned(), None),
        Error::NotRunnable { why, remedy, .. } => (why, remedy),
        other => (other.to_string(), None),
    };
    let why = format!("its interpreter {} cannot be executed: {why}", interpreter.display());
    let remedy =
        remedy.or_else(|| Some(format!("name another interpreter in the command, as in `sh {}`", quoted(script))));
    Err(not_runnable(script, &why, remedy))
}

/// The error for a file with these first bytes, which is neither an ELF program nor a `#!` script.
pub(crate) fn no_program(file: &Path, start: &[u8]) -> Error {
    let remedy = Some(format!("name the shell in the command: `sh {}`", quoted(file)));
    if start.is_empty() {
        return not_runnable(file, "it is empty: no ELF program and no script with a #! line", remedy);
    }
    let line = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
    // Shells treat a first line with a zero byte as binary.
    if start.starts_with(b"\x7fELF") || line.contains(&0) {
        return not_runnable(file, "it is no ELF program of this machine and no script", None);
    }
    not_runnable(file, "it is no ELF program and no script with a #! line", remedy)
}

/// The interpreter of a script with these first bytes. The second item is the rest of the line,
/// which the kernel passes as one argument; `None` if it is empty.
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

fn not_runnable(file: &Path, why: &str, remedy: Option<String>) -> Error {
    Error::NotRunnable { path: file.to_owned(), why: why.to_owned(), remedy }
}

/// A path quoted for a shell.
fn quoted(file: &Path) -> String {
    fieldstone_report::shell::join(&[file.to_string_lossy().into_owned()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::Command;

    /// An executable file with these contents, in a temporary directory. A child process writes it: other tests
    /// of this process fork, and a fork that inherits a descriptor for writing makes execve fail with ETXTBSY.
    fn file(contents: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let mut shell = Command::new("sh")
            .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
            .arg(&file)
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // Dropped at the end of the statement, which ends the input of the shell.
        shell.stdin.take().unwrap().write_all(contents).unwrap();
        assert!(shell.wait().unwrap().success());
        (directory, file)
    }

    /// The message for a file with these contents that the kernel refuses.
    fn explanation(contents: &[u8]) -> String {
        let (_directory, file) = file(contents);
        let name = std::ffi::CString::new(file.as_os_str().as_bytes()).unwrap();
        explain(&file, refusal(&name)).to_string()
    }

    /// The kernel's error for executing this file.
    fn refusal(name: &std::ffi::CStr) -> io::Error {
        Command::new(OsStr::from_bytes(name.to_bytes())).spawn().expect_err("it cannot be executed")
    }

    #[test]
    fn an_interpreter_line_is_parsed_like_the_kernel_does() {
        let parsed = |line: &'static str| interpreter(line.as_bytes());
        let env = (PathBuf::from("/usr/bin/env"), Some(OsStr::new("-S python3 -u")));
        assert_eq!(parsed("#! /bin/sh\nrest"), Some((PathBuf::from("/bin/sh"), None)));
        assert_eq!(parsed("#!/usr/bin/env -S python3 -u\n"), Some(env));
        assert_eq!(parsed("#!/bin/sh\r\n"), Some((PathBuf::from("/bin/sh\r"), None)), "the kernel does not trim it");
        assert_eq!(parsed("#! \n/bin/sh"), None);
    }

    #[test]
    fn a_refusal_of_the_kernel_is_explained_with_a_remedy() {
        let message = explanation(b"exit 3\n");
        assert!(message.contains("no script with a #! line") && message.contains("`sh /"), "{message}");
        assert!(explanation(b"").contains("it is empty"));
        assert!(!explanation(b"\x00\x01\x02").contains("try:"));
        let message = explanation(b"#!/nonexistent -x\n");
        assert!(
            message.contains("/file: its interpreter /nonexistent") && message.contains("does not exist"),
            "{message}"
        );
        let message = explanation(b"#!/bin/sh\r\n");
        assert!(message.contains("carriage return") && message.contains("try: sed -i"), "{message}");
        let message = explanation(b"#!/etc/passwd\n");
        assert!(
            message.contains("its interpreter /etc/passwd") && message.contains("try: chmod +x /etc/passwd"),
            "{message}"
        );
    }

    #[test]
    fn a_missing_loader_is_named() {
        let mut bytes = fs::read("/bin/true").unwrap();
        let at = memchr::memmem::find(&bytes, b"/ld-linux").unwrap();
        bytes[at + 1] = b'X';
        let message = explanation(&bytes);
        assert!(message.contains("its loader /") && message.contains("Xd-linux"), "{message}");
    }

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, rustix::fs::FileType::Fifo, 0o755.into(), 0).unwrap();
        let socket = directory.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, word) in [(&*fifo, "FIFO"), (&*socket, "socket"), (Path::new("/dev/null"), "device")] {
            let message = head(path).unwrap_err().to_string();
            assert!(message.contains(word) && message.contains("not a regular file"), "{message}");
            let (_directory, script) = file(format!("#!{}\n", path.display()).as_bytes());
            let message = check_interpreter(&script, path).unwrap_err().to_string();
            assert!(message.contains(word) && message.contains(script.to_str().unwrap()), "{message}");
        }
    }

    #[test]
    fn a_loop_of_symbolic_links_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&link, &link).unwrap();
        let message = check(&link).unwrap_err().to_string();
        assert!(message.to_lowercase().contains("too many levels of symbolic links"), "{message}");
    }
}
