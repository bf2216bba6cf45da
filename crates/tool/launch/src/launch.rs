//! Starts a program under one of the treatments that are compared.
//!
//! ```text
//! Untouched    as the user starts it
//! Traceable    as Untouched, and other children of this process may trace it (PR_SET_PTRACER, for Yama)
//! SmallPages   no transparent huge page in it or its children (PR_SET_THP_DISABLE): the 4 KiB baseline
//! Injected     with libraries preloaded
//! Region       with the agent, which places memory in one region; optionally further libraries
//! Emulated     an emulator runs it and gets the program's command as arguments
//! ```
//!
//! If this process is killed, the kernel kills the program (PR_SET_PDEATHSIG), except under
//! `Traceable`. It does not kill the program's own children.

#![allow(unsafe_code, reason = "makes system calls between fork and exec")]

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use fieldstone_sys::process::{set_parent_death_signal, set_thp_disabled};
use fieldstone_sys::sampling::allow_tracing;
use fieldstone_sys::signals::restore_mask;

use crate::agent::AgentFile;
use crate::error::{Error, Result};
use crate::exec_check;
use crate::exec_vectors::ExecVectors;
use crate::program::Program;
use crate::session::{RegionOptions, SharedSession};
use crate::standard_streams;

/// How a program is started.
#[derive(Clone, Debug)]
pub enum Treatment {
    /// Unchanged.
    Untouched,
    /// Unchanged, and other children of this process may trace it.
    Traceable,
    /// No transparent huge pages.
    SmallPages,
    /// With preloaded libraries. Programs that it starts load them too.
    Injected(Vec<Injection>),
    /// With its memory in a region.
    Region {
        /// Properties of the region.
        options: RegionOptions,
        /// The agent that serves it.
        agent: AgentFile,
        /// Whether an exiting process waits until this process has sampled it a last time.
        watched: bool,
        /// A library to preload before the agent. It is not passed on across exec.
        injection: Option<Injection>,
        /// Libraries to preload behind the agent, passed on across exec.
        last: Vec<Injection>,
    },
    /// Run by an emulator.
    Emulated {
        /// The emulator's file.
        file: PathBuf,
        /// Its arguments, `argv[0]` first, with the program's command among them.
        arguments: Vec<OsString>,
    },
}

/// A library that is preloaded, and the environment variable that it reads.
#[derive(Clone, Debug)]
pub struct Injection {
    /// The file. A library before the region agent removes its own entry from `LD_PRELOAD`, as the
    /// agent does.
    pub library: PathBuf,
    /// `NAME=value`.
    pub variable: OsString,
}

/// Standard streams and process group of the program.
#[derive(Debug)]
pub struct ChildOptions {
    /// Standard input.
    pub stdin: Stdio,
    /// Standard output.
    pub stdout: Stdio,
    /// Standard error.
    pub stderr: Stdio,
    /// Whether the program leads a new process group, which a terminal's Ctrl-C does not reach.
    pub own_group: bool,
    /// Whether a standard stream that was closed when this command started is closed in the
    /// program.
    pub keeps_closed: bool,
}

impl ChildOptions {
    /// The streams and the process group of this process.
    #[must_use]
    pub fn inherited() -> Self {
        let (stdin, stdout, stderr) = (Stdio::inherit(), Stdio::inherit(), Stdio::inherit());
        Self { stdin, stdout, stderr, own_group: false, keeps_closed: true }
    }
}

/// A running program.
#[derive(Debug)]
pub struct RunningProgram {
    /// The process.
    pub child: Child,
    /// The record shared with the program and its children; `None` without a region.
    pub session: Option<Arc<SharedSession>>,
    /// The time of the start.
    pub since: Instant,
}

/// Starts `program`.
///
/// # Errors
/// [`Error::NoRegion`] if the program cannot carry the agent, [`Error::NotRunnable`] if the kernel
/// refuses to execute it.
pub fn launch(program: &Program, treatment: &Treatment, wiring: ChildOptions) -> Result<RunningProgram> {
    let mut command = Command::new(&program.file);
    command.stdin(wiring.stdin).stdout(wiring.stdout).stderr(wiring.stderr);
    if wiring.own_group {
        command.process_group(0);
    }
    let (session, vectors) = match treatment {
        Treatment::Region { options, agent, watched, injection, last } => {
            program.check_carries_agent()?;
            let session = Arc::new(SharedSession::create(options, *watched)?);
            let variable = OsString::from(format!("FIELDSTONE_SESSION={}", session.path()));
            let region = Injection { library: agent.path().to_owned(), variable };
            let all: Vec<&Injection> = injection.iter().chain([&region]).chain(last).collect();
            (Some(session), injected(program, &all))
        }
        Treatment::Injected(injections) => (None, injected(program, &injections.iter().collect::<Vec<_>>())),
        Treatment::Emulated { file, arguments } => {
            (None, ExecVectors::new(file, arguments, &["LD_PRELOAD"], Vec::new()))
        }
        Treatment::Untouched | Treatment::Traceable | Treatment::SmallPages => {
            (None, ExecVectors::new(&program.file, &program.command, &[], Vec::new()))
        }
    };
    let vectors = vectors.map_err(|source| Error::Start { path: program.file.clone(), source })?;
    let executed = vectors.file();
    let setup = ChildSetup {
        parent: std::process::id(),
        small_pages: matches!(treatment, Treatment::SmallPages),
        traceable: matches!(treatment, Treatment::Traceable),
        keeps_closed: wiring.keeps_closed,
    };
    // SAFETY: `ChildSetup::apply` and `execute` make system calls only. They neither allocate nor
    // take a lock, so the closure may run between fork and exec.
    unsafe { command.pre_exec(move || setup.apply().and_then(|()| Err(vectors.execute()))) };
    let since = Instant::now();
    let child = command.spawn().map_err(|source| exec_check::explain(&executed, source))?;
    Ok(RunningProgram { child, session, since })
}

/// Settings of the child, applied between fork and exec.
#[derive(Clone, Copy, Debug)]
struct ChildSetup {
    /// This process. The program ends with it unless it is `traceable`.
    parent: u32,
    small_pages: bool,
    traceable: bool,
    keeps_closed: bool,
}

impl ChildSetup {
    /// Makes system calls only: prctl, getppid, sigprocmask and close.
    fn apply(self) -> std::io::Result<()> {
        restore_mask()?;
        if self.traceable {
            // A program under repair continues if this process dies. A kernel without Yama fails
            // the call, and does not need it.
            let _ = allow_tracing(self.parent);
        } else {
            set_parent_death_signal(Some(libc::SIGKILL))?;
            // A parent that died before the prctl call sends no signal.
            if std::os::unix::process::parent_id() != self.parent {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        if self.small_pages {
            set_thp_disabled(true)?;
        }
        if self.keeps_closed {
            standard_streams::close_initially_closed();
        }
        Ok(())
    }
}

/// The variables that are replaced, or removed, in the program's environment.
const REPLACED_VARIABLES: [&str; 5] =
    ["LD_PRELOAD", "FIELDSTONE_SESSION", "FIELDSTONE_SITES", "FIELDSTONE_GUARD", "FIELDSTONE_PAGING"];

/// The vectors of the program with these libraries preloaded, then the user's own.
fn injected(program: &Program, injections: &[&Injection]) -> std::io::Result<ExecVectors> {
    let inherited = std::env::var_os("LD_PRELOAD").filter(|list| !list.is_empty());
    let libraries = injections.iter().map(|injection| injection.library.as_os_str().to_owned());
    let mut preload = OsString::from("LD_PRELOAD=");
    preload.push(libraries.chain(inherited).collect::<Vec<_>>().join(OsStr::new(":")));
    let variables = injections.iter().map(|injection| injection.variable.clone());
    let added = std::iter::once(preload).chain(variables).collect();
    ExecVectors::new(&program.file, &program.command, &REPLACED_VARIABLES, added)
}
