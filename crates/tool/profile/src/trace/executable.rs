//! Find the file that QEMU runs for a program: the program itself, or the interpreter of a script.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fieldstone_launch::exec_check;
use fieldstone_launch::program::Program;
use object::elf;
use object::read::elf::FileHeader;

use crate::error::{Error, Result};

/// Maximum depth of scripts whose interpreter is a script.
const DEPTH: usize = 4;

/// The file that QEMU runs for `program`, and its arguments.
///
/// # Errors
/// [`Error::Tracer`] if QEMU cannot run it like the kernel would.
pub(super) fn resolve(program: &Program) -> Result<(PathBuf, Vec<OsString>)> {
    let mut file = program.file.clone();
    let mut arguments: Vec<OsString> = program.command.iter().skip(1).cloned().collect();
    for _ in 0..DEPTH {
        let head = exec_check::head(&file)?;
        if !head.starts_with(b"#!") {
            return check(&file, &head).map(|()| (file, arguments));
        }
        let Some((interpreter, option)) = exec_check::interpreter(&head) else { break };
        exec_check::check_interpreter(&file, &interpreter)?;
        arguments.insert(0, file.into_os_string());
        if let Some(option) = option {
            arguments.insert(0, option.to_owned());
        }
        file = interpreter;
    }
    Err(untraceable(&program.file, "a script with an unknown interpreter; name the interpreter in the command"))
}

fn check(file: &Path, head: &[u8]) -> Result<()> {
    let mode = fs::metadata(file).map_or(0, |found| found.permissions().mode());
    if mode & 0o6000 != 0 {
        return Err(untraceable(
            file,
            "set-user-id or set-group-id, which QEMU ignores; trace a copy without that bit",
        ));
    }
    if elf::FileHeader32::<object::Endianness>::parse(head).is_ok() {
        return Err(untraceable(file, "a 32-bit program; the plugin supports x86-64 only"));
    }
    let foreign = || untraceable(file, "no x86-64 program");
    let header = elf::FileHeader64::<object::Endianness>::parse(head).map_err(|_| foreign())?;
    let endian = header.endian().map_err(|_| foreign())?;
    if header.e_machine(endian) == elf::EM_X86_64 { Ok(()) } else { Err(foreign()) }
}

fn untraceable(file: &Path, what: &str) -> Error {
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
        let (file, arguments) = resolve(&program).unwrap();
        assert_eq!(file, Path::new("/bin/sh"));
        assert_eq!(arguments, [OsStr::new("-e"), script.as_os_str(), OsStr::new("argument")]);
    }

    #[test]
    fn programs_that_qemu_cannot_run_are_rejected_with_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("text");
        fs::write(&file, "no program").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let refused = resolve(&Program { file: file.clone(), command: vec!["text".into()] }).unwrap_err().to_string();
        assert!(refused.contains("no x86-64 program"), "{refused}");
        let copied = directory.path().join("true");
        fs::copy("/bin/true", &copied).unwrap();
        fs::set_permissions(&copied, fs::Permissions::from_mode(0o4755)).unwrap();
        let refused = resolve(&Program { file: copied, command: vec!["true".into()] }).unwrap_err().to_string();
        assert!(refused.contains("set-user-id"), "{refused}");
    }
}
