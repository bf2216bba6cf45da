//! Run a server once under load: start it, wait for its port, run the load, stop it.
//!
//! The load is a fixed amount of work. Its duration gives the throughput, and the CPU time of the
//! server during the load gives the cost per request.

use std::ffi::OsString;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fieldstone_launch::launch::{ChildOptions, Treatment, launch};
use fieldstone_launch::outcome;
use fieldstone_launch::program::Program;
use fieldstone_launch::signals::Interrupt;
use fieldstone_launch::stop::{self, Deadline};
use fieldstone_sys::process;
use fieldstone_wire::Mixture;

use super::observation::{Observation, ObservedRun, Observer};
use super::plan::{ProfilePlan, ServerLoad};
use super::program_run::{ProgramRun, TIMED_OUT, stdin};
use super::stderr_tail::StderrTail;
use super::walk_counters::RunCounters;
use crate::error::{Error, Result};

const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time limit for the server to open its port; ten times as long under the tracer.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the server to exit after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// CPU time and page faults of a process tree.
#[derive(Clone, Copy, Debug, Default)]
struct ResourceUsage {
    user_ns: u64,
    system_ns: u64,
    minor_faults: u64,
    major_faults: u64,
}

/// Runs the server under its load.
pub(super) fn run(
    plan: &ProfilePlan,
    load: &ServerLoad,
    kind: Mixture,
    treatment: &Treatment,
    observation: &Observation,
    interrupt: &Interrupt,
) -> Result<(ProgramRun, ObservedRun)> {
    if is_open(load.port) {
        return Err(Error::PortTaken { port: load.port });
    }
    let (stderr, tail) = StderrTail::start()?;
    let wiring =
        ChildOptions { stdin: stdin(plan)?, stdout: Stdio::null(), stderr, own_group: true, keeps_closed: false };
    let running = launch(&plan.program, treatment, wiring)?;
    let pid = running.child.id();
    interrupt.set_group(pid);
    let counters = plan.trace.is_some().then(|| RunCounters::start(pid));
    let observer = Observer::start(observation, &running);
    let timeout = plan.timeout.min(if matches!(treatment, Treatment::Emulated { .. }) {
        READY_TIMEOUT * 10
    } else {
        READY_TIMEOUT
    });
    let ready = wait_ready(pid, load.port, timeout, interrupt);
    let before = usage(pid);
    let loaded = ready.and_then(|()| run_load(load, plan.timeout, interrupt));
    let after = usage(pid);
    let resident = process::stat(pid).map_or(0, |stat| stat.resident_bytes);
    let has_died = process::has_ended(pid);
    let ended = stop::terminate(pid, plan.timeout.min(STOP_TIMEOUT));
    let outcome = ended.as_ref().map_or_else(|| "an unknown end".to_owned(), |ended| outcome::describe(ended.status));
    let observed =
        observer.map(|observer| observer.finish(&running, kind, plan.process.as_deref())).unwrap_or_default();
    let strays = stop::kill_leftovers(pid, interrupt.excluded());
    interrupt.set_group(0);
    let stderr = tail.finish();
    let load = check_load(loaded, has_died, &stderr)?;
    let total_ns = ended.map_or(0, |ended| ended.user_ns + ended.system_ns) + strays.user_ns + strays.system_ns;
    let run = ProgramRun {
        elapsed: load.elapsed,
        user_s: Duration::from_nanos(after.user_ns.saturating_sub(before.user_ns)).as_secs_f64(),
        system_s: Duration::from_nanos(after.system_ns.saturating_sub(before.system_ns)).as_secs_f64(),
        minor_faults: after.minor_faults.saturating_sub(before.minor_faults),
        major_faults: after.major_faults.saturating_sub(before.major_faults),
        max_resident_bytes: resident.max(observed.peak_bytes),
        outcome: match (has_died, load.timed_out) {
            (true, _) => format!("{outcome} during the load"),
            (false, true) => TIMED_OUT.to_owned(),
            (false, false) => outcome,
        },
        // The exit status after SIGTERM is no failure.
        has_failed: has_died || load.timed_out,
        output_hash: None,
        walks: counters.map(RunCounters::finish),
        total_cpu_s: Duration::from_nanos(total_ns).as_secs_f64(),
        stderr,
        orphans: strays.names,
    };
    Ok((run, observed))
}

/// Checks the load. If the server died, its own exit is the error, and that of the load is dropped.
fn check_load(loaded: Result<LoadOutcome>, has_died: bool, stderr: &str) -> Result<LoadOutcome> {
    let stderr = || stderr.to_owned();
    match loaded {
        Ok(load) => match load.failed {
            Some(error) if !has_died => Err(error),
            _ => Ok(LoadOutcome { failed: None, ..load }),
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

fn wait_ready(pid: u32, port: u16, timeout: Duration, interrupt: &Interrupt) -> Result<()> {
    let since = Instant::now();
    loop {
        interrupt.check()?;
        if is_open(port) {
            return Ok(());
        }
        let dead = process::has_ended(pid);
        if dead || since.elapsed() > timeout {
            let state = if dead { "the program has ended; it must stay in the foreground" } else { "the program runs" };
            let waited_s = since.elapsed().as_secs_f64();
            return Err(Error::NotReady { port, waited_s, state: state.to_owned(), stderr: String::new() });
        }
        sleep(POLL_INTERVAL);
    }
}

/// The result of a load.
struct LoadOutcome {
    elapsed: Duration,
    timed_out: bool,
    failed: Option<Error>,
}

/// Runs the load and waits for its end.
fn run_load(load: &ServerLoad, timeout: Duration, interrupt: &Interrupt) -> Result<LoadOutcome> {
    interrupt.check()?;
    let (stderr, tail) = StderrTail::start()?;
    let command = ["sh", "-c", &load.command].map(OsString::from).to_vec();
    let shell = Program { file: "/bin/sh".into(), command };
    let wiring =
        ChildOptions { stdin: Stdio::null(), stdout: Stdio::null(), stderr, own_group: true, keeps_closed: false };
    let running = launch(&shell, &Treatment::Untouched, wiring)?;
    let pid = running.child.id();
    let deadline = Deadline::start(pid, timeout, interrupt.clone());
    let ended = stop::wait(pid);
    let elapsed = running.since.elapsed();
    let timed_out = deadline.finish();
    stop::kill_group(pid);
    interrupt.check()?;
    let status = ended?.status;
    let failed = (!timed_out && !status.success()).then(|| Error::Load {
        command: load.command.clone(),
        outcome: outcome::describe(status),
        stderr: tail.finish(),
    });
    Ok(LoadOutcome { elapsed, timed_out, failed })
}

fn usage(root: u32) -> ResourceUsage {
    let mut total = ResourceUsage::default();
    let pids = process::descendants(root).unwrap_or_default().into_iter().chain([root]);
    for stat in pids.filter_map(|pid| process::stat(pid).ok()) {
        total.user_ns += stat.user_ns;
        total.system_ns += stat.system_ns;
        total.minor_faults += stat.minor_faults;
        total.major_faults += stat.major_faults;
    }
    total
}
