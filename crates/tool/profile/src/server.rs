//! One run of a server: start, wait for its port, load it, stop it.
//!
//! The load is a fixed piece of work, so the time that it takes is throughput, and the processor time that the server
//! spends meanwhile is its cost a request.

use std::ffi::OsString;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fieldstone_sys::process;
use fieldstone_wire::Mixture;

use super::counted::Counting;
use super::last_words::LastWords;
use super::observe::{Observation, Observed, Observer};
use super::once::{Once, TIMED_OUT, stdin};
use super::plan::{Load, Plan};
use crate::error::{Error, Result};
use fieldstone_launch::launch::{Treatment, Wiring, launch};
use fieldstone_launch::outcome;
use fieldstone_launch::program::Program;
use fieldstone_launch::signals::Interrupt;
use fieldstone_launch::stop::{self, Deadline};

const POLL: Duration = Duration::from_millis(10);
/// How long a server may take to open its port; ten times as long under the tracer.
const READY: Duration = Duration::from_secs(60);
/// How long a server may take to leave after SIGTERM.
const GENTLE: Duration = Duration::from_secs(20);

/// What the processes of a tree have used so far.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    user_ns: u64,
    system_ns: u64,
    minor_faults: u64,
    major_faults: u64,
}

/// Runs the server under its load.
pub(super) fn run(
    plan: &Plan,
    load: &Load,
    kind: Mixture,
    treatment: &Treatment,
    observation: &Observation,
    interrupt: &Interrupt,
) -> Result<(Once, Observed)> {
    if is_open(load.port) {
        return Err(Error::PortTaken { port: load.port });
    }
    let (stderr, words) = LastWords::listen()?;
    let wiring = Wiring { stdin: stdin(plan)?, stdout: Stdio::null(), stderr, own_group: true, keeps_closed: false };
    let running = launch(&plan.program, treatment, wiring)?;
    let pid = running.child.id();
    interrupt.watch_group(pid);
    let counting = plan.trace.is_some().then(|| Counting::start(pid));
    let observer = Observer::start(observation, &running);
    let patience = plan.timeout.min(if matches!(treatment, Treatment::Emulated { .. }) { READY * 10 } else { READY });
    let ready = wait_ready(pid, load.port, patience, interrupt);
    let before = used(pid);
    let loaded = ready.and_then(|()| apply(load, plan.timeout, interrupt));
    let after = used(pid);
    let resident = process::stat(pid).map_or(0, |stat| stat.resident_bytes);
    let died = process::has_ended(pid);
    let ended = stop::stop_gently(pid, plan.timeout.min(GENTLE));
    let outcome = ended.as_ref().map_or_else(|| "an unknown end".to_owned(), |ended| outcome::words(ended.status));
    let observed =
        observer.map(|observer| observer.finish(&running, kind, plan.process.as_deref())).unwrap_or_default();
    let strays = stop::end_strays(pid, interrupt.spared());
    interrupt.watch_group(0);
    let stderr = words.finish();
    let applied = settle(loaded, died, &stderr)?;
    let whole_ns = ended.map_or(0, |ended| ended.user_ns + ended.system_ns) + strays.user_ns + strays.system_ns;
    let once = Once {
        elapsed: applied.elapsed,
        user_s: Duration::from_nanos(after.user_ns.saturating_sub(before.user_ns)).as_secs_f64(),
        system_s: Duration::from_nanos(after.system_ns.saturating_sub(before.system_ns)).as_secs_f64(),
        minor_faults: after.minor_faults.saturating_sub(before.minor_faults),
        major_faults: after.major_faults.saturating_sub(before.major_faults),
        max_resident_bytes: resident.max(observed.peak_bytes),
        outcome: match (died, applied.timed_out) {
            (true, _) => format!("{outcome} during the load"),
            (false, true) => TIMED_OUT.to_owned(),
            (false, false) => outcome,
        },
        // What it says to SIGTERM is no failure.
        broken: died || applied.timed_out,
        output_hash: None,
        walks: counting.map(Counting::finish),
        whole_cpu_s: Duration::from_nanos(whole_ns).as_secs_f64(),
        stderr,
        left: strays.left,
    };
    Ok((once, observed))
}

/// What a load came to. A server that has died is told of by its own end, not by the load's complaint.
fn settle(loaded: Result<Applied>, died: bool, stderr: &str) -> Result<Applied> {
    let stderr = || stderr.to_owned();
    match loaded {
        Ok(applied) => match applied.failed {
            Some(error) if !died => Err(error),
            _ => Ok(Applied { failed: None, ..applied }),
        },
        Err(Error::NotReady { port, waited_s, state, .. }) => {
            Err(Error::NotReady { port, waited_s, state, stderr: stderr() })
        }
        Err(error) => Err(error),
    }
}

fn is_open(port: u16) -> bool {
    let hosts = [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    hosts.iter().any(|host| TcpStream::connect_timeout(host, Duration::from_millis(200)).is_ok())
}

fn wait_ready(pid: u32, port: u16, patience: Duration, interrupt: &Interrupt) -> Result<()> {
    let since = Instant::now();
    loop {
        interrupt.check()?;
        if is_open(port) {
            return Ok(());
        }
        let dead = process::has_ended(pid);
        if dead || since.elapsed() > patience {
            let state = if dead { "the program has ended; it must stay in the foreground" } else { "the program runs" };
            let waited_s = since.elapsed().as_secs_f64();
            return Err(Error::NotReady { port, waited_s, state: state.to_owned(), stderr: String::new() });
        }
        sleep(POLL);
    }
}

/// What became of a load.
struct Applied {
    elapsed: Duration,
    timed_out: bool,
    failed: Option<Error>,
}

/// Runs the load.
fn apply(load: &Load, timeout: Duration, interrupt: &Interrupt) -> Result<Applied> {
    interrupt.check()?;
    let (stderr, words) = LastWords::listen()?;
    let command = ["sh", "-c", &load.command].map(OsString::from).to_vec();
    let shell = Program { file: "/bin/sh".into(), command };
    let wiring = Wiring { stdin: Stdio::null(), stdout: Stdio::null(), stderr, own_group: true, keeps_closed: false };
    let running = launch(&shell, &Treatment::Untouched, wiring)?;
    let pid = running.child.id();
    let deadline = Deadline::start(pid, timeout, interrupt.clone());
    let ended = stop::wait(pid);
    let elapsed = running.since.elapsed();
    let timed_out = deadline.finish();
    stop::end_group(pid);
    interrupt.check()?;
    let status = ended?.status;
    let failed = (!timed_out && !status.success()).then(|| Error::Load {
        command: load.command.clone(),
        outcome: outcome::words(status),
        stderr: words.finish(),
    });
    Ok(Applied { elapsed, timed_out, failed })
}

fn used(root: u32) -> Used {
    let mut total = Used::default();
    let pids = process::descendants(root).unwrap_or_default().into_iter().chain([root]);
    for stat in pids.filter_map(|pid| process::stat(pid).ok()) {
        total.user_ns += stat.user_ns;
        total.system_ns += stat.system_ns;
        total.minor_faults += stat.minor_faults;
        total.major_faults += stat.major_faults;
    }
    total
}
