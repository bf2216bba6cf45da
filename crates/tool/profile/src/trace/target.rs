//! Which file QEMU has to run for a program: itself, or the interpreter of a script, which only the kernel knows.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::FileHeader;

use crate::error::{Error, Result};
use fieldstone_launch::program::Program;
use fieldstone_launch::startable;

/// Scripts whose interpreter is a script.
const DEPTH: usize = 4;

/// The file of `program` for QEMU, and what stands behind it in the command.
///
/// # Errors
/// [`Error::Tracer`] for what QEMU cannot run as this user would.
pub(super) fn of(program: &Program) -> Result<(PathBuf, Vec<OsString>)> {
    let mut file = program.file.clone();
    let mut arguments: Vec<OsString> = program.command.iter().skip(1).cloned().collect();
    for _ in 0..DEPTH {
        let head = startable::head(&file)?;
        if !head.starts_with(b"#!") {
            return check(&file, &head).map(|()| (file, arguments));
        }
        let Some((interpreter, option)) = startable::interpreter(&head) else { break };
        startable::check_interpreter(&file, &interpreter)?;
        arguments.insert(0, file.into_os_string());
        if let Some(option) = option {
            arguments.insert(0, option.to_owned());
        }
        file = interpreter;
    }
    Err(refused(&program.file, "a script whose interpreter cannot be told; name the interpreter in the command"))
}

fn check(file: &Path, head: &[u8]) -> Result<()> {
    let mode = fs::metadata(file).map_or(0, |found| found.permissions().mode());
    if mode & 0o6000 != 0 {
        return Err(refused(
            file,
            "set-user-id or set-group-id, which means nothing under QEMU; trace a copy without that bit",
        ));
    }
    if elf::FileHeader32::<object::Endianness>::parse(head).is_ok() {
        return Err(refused(file, "a 32-bit program; the plugin is for x86-64 ones"));
    }
    let foreign = || refused(file, "no x86-64 program");
    let header = elf::FileHeader64::<object::Endianness>::parse(head).map_err(|_| foreign())?;
    let endian = header.endian().map_err(|_| foreign())?;
    if header.e_machine(endian) == elf::EM_X86_64 { Ok(()) } else { Err(foreign()) }
}

fn refused(file: &Path, what: &str) -> Error {
    Error::Tracer { why: format!("{} is {what}", file.display()) }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn a_script_is_run_by_its_interpreter() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script");
        fs::write(&script, "#!/bin/sh -e\nexit 0\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program { file: script.clone(), command: vec!["script".into(), "argument".into()] };
        let (file, arguments) = of(&program).unwrap();
        assert_eq!(file, Path::new("/bin/sh"));
        assert_eq!(arguments, [OsStr::new("-e"), script.as_os_str(), OsStr::new("argument")]);
    }

    #[test]
    fn what_qemu_cannot_run_is_refused_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("text");
        fs::write(&file, "no program").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let refused = of(&Program { file: file.clone(), command: vec!["text".into()] }).unwrap_err().to_string();
        assert!(refused.contains("no x86-64 program"), "{refused}");
        let copied = directory.path().join("true");
        fs::copy("/bin/true", &copied).unwrap();
        fs::set_permissions(&copied, fs::Permissions::from_mode(0o4755)).unwrap();
        let refused = of(&Program { file: copied, command: vec!["true".into()] }).unwrap_err().to_string();
        assert!(refused.contains("set-user-id"), "{refused}");
    }
}
