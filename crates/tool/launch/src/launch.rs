//! Starts a program under one of the treatments that are compared.
//!
//! ```text
//! Untouched    as the user would start it
//! Traceable    the same, but other children of this process may trace it (PR_SET_PTRACER, for Yama)
//! SmallPages   no transparent huge page in it or its children (PR_SET_THP_DISABLE): the 4 KiB baseline
//! Region       with the agent and its memory in one region; another library can be injected
//! Emulated     started by an emulator, which gets the program's command as arguments
//! ```
//!
//! If this process is killed, the kernel kills the program too (PR_SET_PDEATHSIG). It does not kill the
//! program's own children.

#![allow(unsafe_code, reason = "a few calls have to be made between fork and exec")]

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
use crate::program::Program;
use crate::session::{RegionOptions, SharedSession};
use crate::standard_streams;
use crate::startable;
use crate::vectors::Vectors;

/// What is done to a program when it is started.
#[derive(Clone, Debug)]
pub enum Treatment {
    /// Nothing.
    Untouched,
    /// Nothing, but that our other children may trace it.
    Traceable,
    /// Base pages only.
    SmallPages,
    /// Its memory in a region.
    Region {
        /// What the region is to be like.
        options: RegionOptions,
        /// The agent that serves it.
        agent: AgentFile,
        /// Whether a process that exits waits until it was measured a last time.
        watched: bool,
        /// A second library to preload; programs that the program starts by exec do not have it.
        injection: Option<Injection>,
    },
    /// Another program runs it: this file, with these arguments, `argv[0]` first.
    Emulated {
        /// The emulator.
        file: PathBuf,
        /// Its arguments, the program's command among them.
        arguments: Vec<OsString>,
    },
}

/// A library that is preloaded before the region's agent, and the variable that it reads.
#[derive(Clone, Debug)]
pub struct Injection {
    /// The library. It removes its own entry from `LD_PRELOAD`, as the agent does.
    pub library: PathBuf,
    /// `NAME=value`.
    pub variable: OsString,
}

/// How the program is connected to the rest.
#[derive(Debug)]
pub struct Wiring {
    /// Standard input.
    pub stdin: Stdio,
    /// Standard output.
    pub stdout: Stdio,
    /// Standard error.
    pub stderr: Stdio,
    /// Whether it leads a process group of its own, which a terminal's Ctrl-C does not reach.
    pub own_group: bool,
    /// Whether a standard stream that was closed when this command started is closed in the program too.
    pub keeps_closed: bool,
}

impl Wiring {
    /// Everything as ours is.
    #[must_use]
    pub fn inherited() -> Self {
        let (stdin, stdout, stderr) = (Stdio::inherit(), Stdio::inherit(), Stdio::inherit());
        Self { stdin, stdout, stderr, own_group: false, keeps_closed: true }
    }
}

/// A program that was started.
#[derive(Debug)]
pub struct Running {
    /// The process.
    pub child: Child,
    /// The session that it and its children share with us, if they have a region.
    pub session: Option<Arc<SharedSession>>,
    /// When it was started.
    pub since: Instant,
}

/// Starts `program`.
///
/// # Errors
/// [`Error::Refused`] where the treatment cannot be had, [`Error::NotRunnable`] where the kernel
/// refuses to execute it.
pub fn launch(program: &Program, treatment: &Treatment, wiring: Wiring) -> Result<Running> {
    let mut command = Command::new(&program.file);
    command.stdin(wiring.stdin).stdout(wiring.stdout).stderr(wiring.stderr);
    if wiring.own_group {
        command.process_group(0);
    }
    let (session, vectors) = match treatment {
        Treatment::Region { options, agent, watched, injection } => {
            program.check_carries_agent()?;
            let session = Arc::new(SharedSession::create(options, *watched)?);
            let path = OsString::from(format!("FIELDSTONE_SESSION={}", session.path()));
            let mut ours = vec![preload(injection.as_ref(), agent), path];
            ours.extend(injection.as_ref().map(|injection| injection.variable.clone()));
            (Some(session), Vectors::new(&program.file, &program.command, &REPLACED, ours))
        }
        Treatment::Emulated { file, arguments } => (None, Vectors::new(file, arguments, &["LD_PRELOAD"], Vec::new())),
        Treatment::Untouched | Treatment::Traceable | Treatment::SmallPages => {
            (None, Vectors::new(&program.file, &program.command, &[], Vec::new()))
        }
    };
    let vectors = vectors.map_err(|source| Error::Start { path: program.file.clone(), source })?;
    let executed = vectors.file();
    let changes = Changes {
        parent: std::process::id(),
        small_pages: matches!(treatment, Treatment::SmallPages),
        traceable: matches!(treatment, Treatment::Traceable),
        keeps_closed: wiring.keeps_closed,
    };
    // SAFETY: between fork and exec only `Changes::apply` and execve are called: bare system calls.
    unsafe { command.pre_exec(move || changes.apply().and_then(|()| Err(vectors.execute()))) };
    let since = Instant::now();
    let child = command.spawn().map_err(|source| startable::explain(&executed, source))?;
    Ok(Running { child, session, since })
}

/// What changes in the child between fork and exec.
#[derive(Clone, Copy, Debug)]
struct Changes {
    /// This process, with which the program ends unless it is `traceable`.
    parent: u32,
    small_pages: bool,
    traceable: bool,
    keeps_closed: bool,
}

impl Changes {
    /// Makes bare system calls only: prctl, getppid, sigprocmask and close.
    fn apply(self) -> std::io::Result<()> {
        restore_mask()?;
        if self.traceable {
            // A program under repair goes on when we die. A kernel without Yama knows no such call, and needs none.
            let _ = allow_tracing(self.parent);
        } else {
            set_parent_death_signal(Some(libc::SIGKILL))?;
            // Who died before the call sends no signal.
            if std::os::unix::process::parent_id() != self.parent {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        if self.small_pages {
            set_thp_disabled(true)?;
        }
        if self.keeps_closed {
            standard_streams::close_again();
        }
        Ok(())
    }
}

/// The variables of the caller that the agents' variables replace.
const REPLACED: [&str; 3] = ["LD_PRELOAD", "FIELDSTONE_SESSION", "FIELDSTONE_SITES"];

/// The value of `LD_PRELOAD`: the injected library, the region's agent, and what the user preloads.
///
/// The injected library comes first because it has to find the program's malloc behind itself.
fn preload(injection: Option<&Injection>, agent: &AgentFile) -> OsString {
    let theirs = std::env::var_os("LD_PRELOAD").filter(|list| !list.is_empty());
    let ours = injection.map(|injection| injection.library.as_path()).into_iter().chain([agent.path()]);
    let all: Vec<OsString> = ours.map(|path| path.as_os_str().to_owned()).chain(theirs).collect();
    let mut entry = OsString::from("LD_PRELOAD=");
    entry.push(all.join(OsStr::new(":")));
    entry
}
