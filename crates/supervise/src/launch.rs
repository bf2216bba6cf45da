//! Starting a program under one of the treatments that are compared.
//!
//! ```text
//! Untouched    as the user would start it
//! SmallPages   no transparent huge page in it or its children (PR_SET_THP_DISABLE): the 4 KiB baseline
//! Region       with the agent, its memory in one region
//! Traced       under QEMU, with the tracing plugin
//! ```
//!
//! Should we be killed, the program is killed with us (PR_SET_PDEATHSIG). The kernel does that for our own child only: what
//! that one has started lives on.

#![allow(unsafe_code, reason = "a few calls have to be made between fork and exec")]

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use fieldstone_sys::process::{set_parent_death_signal, set_thp_disabled};

use crate::agent::AgentFile;
use crate::error::{Error, Result};
use crate::program::Program;
use crate::session::{RegionOptions, SharedSession};
use crate::trace::{Records, Tracer};
use crate::vectors::Vectors;

/// What is done to a program when it is started.
#[derive(Clone, Debug)]
pub enum Treatment {
    /// Nothing.
    Untouched,
    /// Base pages only.
    SmallPages,
    /// Its memory in a region; with `true`, watched.
    Region(RegionOptions, AgentFile, bool),
    /// Under QEMU, its accesses recorded.
    Traced(Tracer, Arc<Records>),
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
}

impl Wiring {
    /// Everything as ours is.
    #[must_use]
    pub fn inherited() -> Self {
        Self { stdin: Stdio::inherit(), stdout: Stdio::inherit(), stderr: Stdio::inherit(), own_group: false }
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
/// [`Error::Refused`] where the treatment cannot be had, [`Error::Start`] where the kernel refuses.
pub fn launch(program: &Program, treatment: &Treatment, wiring: Wiring) -> Result<Running> {
    let mut command = Command::new(&program.file);
    command.stdin(wiring.stdin).stdout(wiring.stdout).stderr(wiring.stderr);
    if wiring.own_group {
        command.process_group(0);
    }
    let (session, vectors) = match treatment {
        Treatment::Region(options, agent, watched) => {
            program.check_carries_agent()?;
            let session = Arc::new(SharedSession::create(options, *watched)?);
            let ours = vec![preload(agent), OsString::from(format!("FIELDSTONE_SESSION={}", session.path()))];
            let replaced = ["LD_PRELOAD", "FIELDSTONE_SESSION"];
            (Some(session), Vectors::new(&program.file, &program.command, &replaced, ours))
        }
        Treatment::Traced(tracer, records) => {
            let (file, words) = tracer.command(program, records)?;
            (None, Vectors::new(&file, &words, &["LD_PRELOAD"], Vec::new()))
        }
        Treatment::Untouched | Treatment::SmallPages => {
            (None, Vectors::new(&program.file, &program.command, &[], Vec::new()))
        }
    };
    let vectors = vectors.map_err(|source| Error::Start { path: program.file.clone(), source })?;
    let small = matches!(treatment, Treatment::SmallPages);
    let parent = std::process::id();
    // SAFETY: between fork and exec only prctl, getppid and execve are called, which are bare system calls.
    unsafe {
        command.pre_exec(move || {
            set_parent_death_signal(Some(libc::SIGKILL))?;
            // Who died before the call sends no signal.
            if std::os::unix::process::parent_id() != parent {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            if small {
                set_thp_disabled(true)?;
            }
            Err(vectors.execute())
        });
    }
    let since = Instant::now();
    let child = command.spawn().map_err(|source| Error::Start { path: program.file.clone(), source })?;
    Ok(Running { child, session, since })
}

/// The agent first, then what the user preloads.
fn preload(agent: &AgentFile) -> OsString {
    let mut entry = OsString::from("LD_PRELOAD=");
    entry.push(agent.path());
    if let Some(theirs) = std::env::var_os("LD_PRELOAD").filter(|list| !list.is_empty()) {
        entry.push(":");
        entry.push(theirs);
    }
    entry
}
