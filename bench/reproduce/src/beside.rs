//! Programs that lie beside this one, and are measured as children: `fieldstone` itself, and the bundled workloads.
//!
//! What they lack on a machine is no failure of ours: an error that is a [`Missing`] makes a sample a skip ([`outcome`]).

#![allow(unsafe_code, reason = "a child's death signal has to be set between fork and exec")]

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use fieldstone_sys::process::set_parent_death_signal;
use fieldstone_sys::sampling::allow_tracing;
use rustix::process::Signal;

use crate::experiment::{Figure, Outcome};

/// What the machine lacks.
#[derive(Debug)]
pub struct Missing(pub(crate) String);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

/// What came of a sample: its numbers, or what is missing.
pub(crate) fn outcome(figures: Result<Vec<Figure>>) -> Result<Outcome> {
    match figures.map_err(anyhow::Error::downcast::<Missing>) {
        Ok(figures) => Ok(Outcome::Measured { figures, alternately: true }),
        Err(Ok(Missing(reason))) => Ok(Outcome::Skipped { reason }),
        Err(Err(error)) => Err(error),
    }
}

/// The command beside this program, or in the path.
pub(crate) fn fieldstone() -> PathBuf {
    beside("fieldstone").filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("fieldstone"))
}

/// That it cannot be started.
pub(crate) fn no_fieldstone(error: &std::io::Error) -> Missing {
    Missing(format!("cannot start {} ({error}): install it beside fieldstone-reproduce", fieldstone().display()))
}

/// What the command itself said last; a program's last words may stand below.
pub(crate) fn complaint(words: &str) -> &str {
    words.lines().filter_map(|line| line.strip_prefix("fieldstone: ")).next_back().unwrap_or("it said nothing").trim()
}

/// A C program of the workloads, such as `counters-O0`: in a build tree, or where `make install` puts it.
///
/// # Errors
/// [`Missing`].
pub(crate) fn sharing_program(name: &str) -> Result<PathBuf> {
    let places = ["sharing", "../lib/fieldstone/workloads/sharing"];
    let mut files = folder().into_iter().flat_map(|folder| places.map(|place| folder.join(place).join(name)));
    let missing = || format!("no sharing/{name} beside this program: `make` builds it where there is a C compiler");
    Ok(files.find(|file| file.is_file()).ok_or_else(|| Missing(missing()))?)
}

/// What this program's folder has, or might have, by that name.
pub(crate) fn beside(name: &str) -> Option<PathBuf> {
    Some(folder()?.join(name))
}

fn folder() -> Option<PathBuf> {
    Some(std::env::current_exe().ok()?.parent()?.to_owned())
}

/// Has a child asked to end when we are gone.
pub(crate) fn ends_with_us(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec one prctl is called, a bare system call.
    unsafe { command.pre_exec(|| set_parent_death_signal(Some(Signal::TERM.as_raw()))) }
}

/// The same, and our other children may trace it, where Yama would forbid it.
pub(crate) fn traceable(command: &mut Command) -> &mut Command {
    let tracer = std::process::id();
    // SAFETY: between fork and exec one prctl is called, a bare system call.
    unsafe {
        ends_with_us(command).pre_exec(move || {
            // A kernel without Yama knows no such call, and needs none.
            let _ = allow_tracing(tracer);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_a_skip_and_anything_else_an_error() {
        let none: Result<Vec<Figure>> = Err(Missing("no compiler".into()).into());
        assert_eq!(outcome(none).unwrap(), Outcome::Skipped { reason: "no compiler".into() });
        assert!(outcome(Err(anyhow::anyhow!("it broke"))).is_err());
        assert!(outcome(Ok(Vec::new())).is_ok());
        let absent = sharing_program("no-such-program").unwrap_err();
        assert!(absent.downcast::<Missing>().unwrap().to_string().contains("sharing/no-such-program"));
    }

    #[test]
    fn the_last_complaint_is_the_command_s() {
        let words = "fieldstone: first\nfieldstone: second\nthe program's own words\n";
        assert_eq!((complaint(words), complaint("nothing of ours")), ("second", "it said nothing"));
    }
}
