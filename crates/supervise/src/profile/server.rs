//! One run of a server: start, wait for its port, load it, stop it.
//!
//! The load is a fixed piece of work, so the time that it takes is throughput, and the processor time that the server
//! spends meanwhile is its cost a request.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fieldstone_sys::process;
use fieldstone_wire::PageKind;

use super::once::{Once, TIMED_OUT, Watched, last_words, read_end, seen, stdin};
use super::plan::{Load, Plan};
use super::watch_if;
use crate::error::{Error, Result};
use crate::launch::{Treatment, Wiring, launch};
use crate::outcome;
use crate::signals::Interrupt;
use crate::stop::{self, Deadline};

const POLL: Duration = Duration::from_millis(10);

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
    kind: PageKind,
    treatment: &Treatment,
    watch: bool,
    interrupt: &Interrupt,
) -> Result<(Once, Watched)> {
    if is_open(load.port) {
        return Err(Error::PortTaken { port: load.port });
    }
    let (stderr, mut words) = last_words()?;
    let wiring = Wiring { stdin: stdin(plan)?, stdout: Stdio::null(), stderr, own_group: true };
    let running = launch(&plan.program, treatment, wiring)?;
    let pid = running.child.id();
    interrupt.watch_group(pid);
    let watch = watch_if(watch, &running);
    let ready = wait_ready(pid, load.port, plan.timeout, interrupt);
    let before = used(pid);
    let loaded = ready.and_then(|()| apply(load, plan.timeout, interrupt));
    let after = used(pid);
    let resident = process::stat(pid).map_or(0, |stat| stat.resident_bytes);
    let watched = watch.map(|watch| seen(watch, &running, kind, plan.process.as_deref())).unwrap_or_default();
    let outcome = stop::stop_gently(pid, interrupt.spared());
    interrupt.watch_group(0);
    let stderr = read_end(&mut words);
    let elapsed = loaded.map_err(|error| with_words(error, &stderr))?;
    let once = Once {
        elapsed: elapsed.unwrap_or(plan.timeout),
        user_s: Duration::from_nanos(after.user_ns.saturating_sub(before.user_ns)).as_secs_f64(),
        system_s: Duration::from_nanos(after.system_ns.saturating_sub(before.system_ns)).as_secs_f64(),
        minor_faults: after.minor_faults.saturating_sub(before.minor_faults),
        major_faults: after.major_faults.saturating_sub(before.major_faults),
        max_resident_bytes: resident.max(watched.peak_bytes),
        outcome: if elapsed.is_some() { outcome } else { TIMED_OUT.to_owned() },
        output_hash: None,
        stderr,
    };
    Ok((once, watched))
}

fn with_words(error: Error, words: &str) -> Error {
    match error {
        Error::NotReady { port, waited_s, state, .. } => {
            Error::NotReady { port, waited_s, state, stderr: words.to_owned() }
        }
        other => other,
    }
}

fn is_open(port: u16) -> bool {
    let hosts = [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    hosts.iter().any(|host| TcpStream::connect_timeout(host, Duration::from_millis(200)).is_ok())
}

fn wait_ready(pid: u32, port: u16, timeout: Duration, interrupt: &Interrupt) -> Result<()> {
    let since = Instant::now();
    let patience = timeout.min(Duration::from_secs(60));
    loop {
        interrupt.check()?;
        if is_open(port) {
            return Ok(());
        }
        let dead = process::stat(pid).map_or(true, |stat| stat.state == process::State::Zombie);
        if dead || since.elapsed() > patience {
            let state = if dead { "the program has ended; it must stay in the foreground" } else { "the program runs" };
            let waited_s = since.elapsed().as_secs_f64();
            return Err(Error::NotReady { port, waited_s, state: state.to_owned(), stderr: String::new() });
        }
        sleep(POLL);
    }
}

/// Runs the load; how long it took, or `None` if it took too long.
fn apply(load: &Load, timeout: Duration, interrupt: &Interrupt) -> Result<Option<Duration>> {
    interrupt.check()?;
    let (stderr, mut words) = last_words()?;
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &load.command]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).process_group(0);
    let since = Instant::now();
    let child = shell.spawn().map_err(|source| Error::Start { path: "/bin/sh".into(), source })?;
    let deadline = Deadline::watching(child.id(), timeout, interrupt.clone());
    let ended = stop::wait(child.id());
    let elapsed = since.elapsed();
    let timed_out = deadline.finish();
    stop::end_group(child.id());
    interrupt.check()?;
    let status = ended?.status;
    if timed_out {
        return Ok(None);
    }
    if status.success() {
        return Ok(Some(elapsed));
    }
    Err(Error::Load { command: load.command.clone(), outcome: outcome::words(status), stderr: read_end(&mut words) })
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
