//! Programs that samples run as children: `fieldstone` and the workloads, which are in the directory
//! of this program, and installed ones.
//!
//! A sample is skipped if the machine lacks what they need: an error [`Missing`] becomes a skip
//! ([`outcome`]).

#![allow(unsafe_code, reason = "sets a child's death signal between fork and exec")]

use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use fieldstone_sys::process::set_parent_death_signal;
use fieldstone_sys::sampling::allow_tracing;
use rustix::process::Signal;

use crate::experiment::{MeasuredValue, SampleOutcome};

/// The error of a sample that the machine cannot run. Contains what is missing.
#[derive(Debug)]
pub struct Missing(pub(crate) String);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// The outcome of a sample: its values, or a skip if something is [`Missing`].
pub(crate) fn outcome(figures: Result<Vec<MeasuredValue>>) -> Result<SampleOutcome> {
    match figures.map_err(anyhow::Error::downcast::<Missing>) {
        Ok(figures) => Ok(SampleOutcome::measured(figures)),
        Err(Ok(Missing(reason))) => Ok(SampleOutcome::Skipped { reason }),
        Err(Err(error)) => Err(error),
    }
}

/// The command `fieldstone`: in the directory of this program, or in PATH.
pub(crate) fn fieldstone() -> PathBuf {
    sibling("fieldstone").filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("fieldstone"))
}

/// The error if the command cannot be started.
pub(crate) fn no_fieldstone(error: &std::io::Error) -> Missing {
    Missing(format!("cannot start {} ({error}): install it beside fieldstone-reproduce", fieldstone().display()))
}

/// The last message of the command in its standard error, which may also have lines of the program.
pub(crate) fn last_message(errors: &str) -> &str {
    let mut messages = errors.lines().filter_map(|line| line.strip_prefix("fieldstone: "));
    messages.next_back().unwrap_or("it printed no message").trim()
}

/// A C program of the workloads, such as `counters-O0`, in a build directory or where `make
/// install` puts it.
///
/// # Errors
/// [`Missing`] if it is not built.
pub(crate) fn sharing_program(name: &str) -> Result<PathBuf> {
    let places = ["sharing", "../lib/fieldstone/workloads/sharing"];
    let mut files = folder().into_iter().flat_map(|folder| places.map(|place| folder.join(place).join(name)));
    let missing = || format!("no sharing/{name} beside this program: `make` builds it where there is a C compiler");
    Ok(files.find(|file| file.is_file()).ok_or_else(|| Missing(missing()))?)
}

/// The path of a file in the directory of this program, which may not exist.
pub(crate) fn sibling(name: &str) -> Option<PathBuf> {
    Some(folder()?.join(name))
}

fn folder() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_owned())
}

/// The file of a program, in PATH or in `/usr/sbin`.
///
/// # Errors
/// [`Missing`] with the name of its Debian package.
pub(crate) fn find(program: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::env::split_paths(&path).chain([Path::new("/usr/sbin").to_owned()]);
    let found = all.map(|folder| folder.join(program)).find(|file| file.is_file());
    Ok(found.ok_or_else(|| Missing(format!("no {program}: install the package {package}")))?)
}

/// A free port.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot find a free port")?;
    Ok(listener.local_addr()?.port())
}

/// Makes a child receive SIGTERM when this process ends.
pub(crate) fn end_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec one prctl is called, a bare system call.
    unsafe { command.pre_exec(|| set_parent_death_signal(Some(Signal::TERM.as_raw()))) }
}

/// The same, and allows the other children of this process to trace it, which Yama may forbid.
pub(crate) fn traceable(command: &mut Command) -> &mut Command {
    let tracer = std::process::id();
    // SAFETY: between fork and exec one prctl is called, a bare system call.
    unsafe {
        end_with_parent(command).pre_exec(move || {
            // Fails on a kernel without Yama, which needs no permission.
            let _ = allow_tracing(tracer);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_a_skip_and_any_other_failure_an_error() {
        let none: Result<Vec<MeasuredValue>> = Err(Missing("no compiler".into()).into());
        assert_eq!(outcome(none).unwrap(), SampleOutcome::Skipped { reason: "no compiler".into() });
        assert!(outcome(Err(anyhow::anyhow!("it broke"))).is_err());
        assert!(outcome(Ok(Vec::new())).is_ok());
        let absent = sharing_program("no-such-program").unwrap_err();
        assert!(absent.downcast::<Missing>().unwrap().to_string().contains("sharing/no-such-program"));
    }

    #[test]
    fn the_last_message_of_the_command_is_found() {
        let errors = "fieldstone: first\nfieldstone: second\na line of the program\n";
        assert_eq!((last_message(errors), last_message("a line")), ("second", "it printed no message"));
    }
}
