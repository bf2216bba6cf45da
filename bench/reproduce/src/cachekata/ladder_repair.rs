//! The repair by ladders, the slow form of Figure 6.2: each access goes through a chain of checks
//! instead of a cloned loop.
//!
//! ```text
//!   sample ── starts ──→ fieldstone-reproduce --by-ladders STATS PROGRAM …   writes STATS like run --repair
//!                          ├── PROGRAM                                       in the foreground
//!                          └── fieldstone-reproduce --ladder-repairer PID    repairs it, prints events
//! ```
//! The command `fieldstone` has no option for it, because it is only a comparison. This program
//! calls the library instead, and is its own repairer.
//!
//! Source: Taylor's thesis, section 5.2 and Figure 6.2 ("single ladder").

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

/// The first argument of a process that runs a program under repair.
const RUN: &str = "--by-ladders";

/// The command that runs a program under repair by ladders and writes its statistics to `stats`.
/// The program and its arguments follow.
///
/// # Errors
/// If the file of this program cannot be found.
pub(super) fn command(stats: &Path) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find the file of this program")?);
    command.arg(RUN).arg(stats);
    Ok(command)
}

/// The main function of the processes above; `None` in any other process.
#[cfg(target_arch = "x86_64")]
pub(crate) fn main() -> Option<ExitCode> {
    x86_64::main()
}

/// The main function of the processes above; `None` in any other process.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn main() -> Option<ExitCode> {
    let is_run = std::env::args_os().nth(1).is_some_and(|word| word == RUN);
    is_run.then(|| {
        eprintln!("fieldstone: cannot repair a program on this machine: ladders are x86-64 code");
        ExitCode::from(2)
    })
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::ffi::{OsStr, OsString};
    use std::fs;
    use std::io::{self, Write};
    use std::path::Path;
    use std::process::ExitCode;
    use std::sync::atomic::Ordering;

    use anyhow::{Context, Result};
    use fieldstone_launch::signals::termination_flag;
    use fieldstone_launch::{Program, outcome};
    use fieldstone_repair::{RepairOptions, TimedEvent, is_watchdog, repair, run_repaired, run_watchdog};
    use fieldstone_sys::process::has_ended;
    use fieldstone_sys::{limits, scheduling};

    /// The first argument of the repairer.
    const REPAIRER: &str = "--ladder-repairer";

    pub(super) fn main() -> Option<ExitCode> {
        if is_watchdog() {
            run_watchdog();
            return Some(ExitCode::SUCCESS);
        }
        let words: Vec<OsString> = std::env::args_os().skip(1).collect();
        let result = match &words[..] {
            [run, stats, program @ ..] if run == super::RUN => run_program(Path::new(stats), program),
            [repairer, pid] if repairer == REPAIRER => repair_program(pid),
            _ => return None,
        };
        Some(result.unwrap_or_else(|error| {
            eprintln!("fieldstone: {}", fieldstone_report::error::with_causes(error.as_ref()));
            ExitCode::from(2)
        }))
    }

    /// Runs a program with a repairer. Writes the statistics to `stats`, and ends like the program.
    fn run_program(stats: &Path, program: &[OsString]) -> Result<ExitCode> {
        let this_program = std::env::current_exe().context("cannot find the file of this program")?;
        let program = Program::find(program)?;
        let arguments = [OsStr::new(REPAIRER)];
        let warn = |error: &fieldstone_repair::Error| eprintln!("fieldstone: {error}");
        let (status, repaired) = run_repaired(&program, this_program.as_os_str(), &arguments, warn)?;
        let text = serde_json::to_string(&repaired)?;
        fs::write(stats, text).with_context(|| format!("cannot write {}", stats.display()))?;
        outcome::raise_signal_of(status)?;
        Ok(ExitCode::from(outcome::shell_code(status)))
    }

    /// Repairs process `pid` until it ends or a signal arrives. Prints each event as a line of
    /// JSON.
    fn repair_program(pid: &OsStr) -> Result<ExitCode> {
        let pid = pid.to_string_lossy().parse().context("the argument is no process number")?;
        // Threads of the program wait for this thread. Without the permissions for both settings
        // they wait longer, and fewer of them are sampled.
        let _ = scheduling::raise_priority();
        let _ = limits::raise_descriptors();
        let options = RepairOptions { uses_ladders: true, ..RepairOptions::default() };
        let stop = termination_flag()?;
        let repaired = repair(pid, &options, &stop, &mut |event| {
            if print(&event).is_err() {
                stop.store(true, Ordering::Relaxed);
            }
        });
        // The end of the program is no error of the repairer.
        if !has_ended(pid) {
            repaired?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn print(event: &TimedEvent) -> io::Result<()> {
        let mut output = io::stdout().lock();
        serde_json::to_writer(&mut output, event)?;
        writeln!(output)
    }
}
