//! Starting a program under one of the treatments that are compared.
//!
//! ```text
//! Untouched    as the user would start it
//! Traceable    the same, but what we start may trace it (PR_SET_PTRACER, where Yama would forbid it)
//! SmallPages   no transparent huge page in it or its children (PR_SET_THP_DISABLE): the 4 KiB baseline
//! Region       with the agent, its memory in one region
//! Recorded     the same with the site recorder before it, watched: who got which pages
//! Traced       under QEMU, with the tracing plugin
//! ```
//!
//! Should we be killed, the program is killed with us (PR_SET_PDEATHSIG). The kernel does that for our own child only: what
//! that one has started lives on.

#![allow(unsafe_code, reason = "a few calls have to be made between fork and exec")]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
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
use crate::trace::{Records, SharedSites, Tracer};
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
    /// Its memory in a region; with `true`, watched.
    Region(RegionOptions, AgentFile, bool),
    /// The same, watched, and with the tracer's site recorder, which fills the sites of the records. Programs that it starts by
    /// exec have neither.
    Recorded(RegionOptions, AgentFile, Tracer, Arc<Records>),
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
    /// Who allocates in it, where that is recorded in a real run.
    pub recorded: Option<Arc<Records>>,
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
        Treatment::Region(options, agent, watched) => {
            let (session, ours) = in_region(program, options, *watched, preload(agent))?;
            (Some(session), Vectors::new(&program.file, &program.command, &REPLACED, ours))
        }
        Treatment::Recorded(options, agent, tracer, records) => {
            let entries = tracer.preloads(records.sites.as_ref().map(SharedSites::path));
            let first = entries.split_first().filter(|(list, _)| list.as_bytes().starts_with(b"LD_PRELOAD="));
            let (list, rest) =
                first.ok_or_else(|| Error::Tracer { why: "it brings no site recorder along".to_owned() })?;
            let (session, mut ours) = in_region(program, options, true, behind_first(list, agent))?;
            ours.extend_from_slice(rest);
            (Some(session), Vectors::new(&program.file, &program.command, &REPLACED, ours))
        }
        Treatment::Traced(tracer, records) => {
            let (file, words) = tracer.command(program, records)?;
            (None, Vectors::new(&file, &words, &["LD_PRELOAD"], Vec::new()))
        }
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
    let recorded = match treatment {
        Treatment::Recorded(.., records) => Some(Arc::clone(records)),
        _ => None,
    };
    Ok(Running { child, session, recorded, since })
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

/// The variables that the agents' replace.
const REPLACED: [&str; 3] = ["LD_PRELOAD", "FIELDSTONE_SESSION", "FIELDSTONE_SITES"];

/// A session, and the variables that lead to it; `preload` is the first of them.
fn in_region(
    program: &Program,
    options: &RegionOptions,
    watched: bool,
    preload: OsString,
) -> Result<(Arc<SharedSession>, Vec<OsString>)> {
    program.check_carries_agent()?;
    let session = Arc::new(SharedSession::create(options, watched)?);
    let path = OsString::from(format!("FIELDSTONE_SESSION={}", session.path()));
    Ok((session, vec![preload, path]))
}

/// A list of what is preloaded with the region's agent behind the first entry: that one has to find the program's malloc behind itself,
/// and each of the two takes the first entry off the list for the program.
fn behind_first(list: &OsStr, agent: &AgentFile) -> OsString {
    let bytes = list.as_bytes();
    let (first, rest) = bytes.split_at(bytes.iter().position(|&byte| b": ".contains(&byte)).unwrap_or(bytes.len()));
    let agent = agent.path().as_os_str().as_bytes();
    OsString::from_vec([first, b":", agent, rest].concat())
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
