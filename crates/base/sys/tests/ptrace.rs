//! Traced threads of another process: cases in which waiting for them must not block.
#![cfg(target_arch = "x86_64")]
#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test that cannot go on fails; one makes a system call without a safe form"
)]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use fieldstone_sys::ptrace::{Stop, Tracee};

#[test]
#[ignore = "run by the other test, as a process of its own"]
fn sleeper() {
    println!("\nhere");
    std::thread::sleep(Duration::from_secs(60));
}

/// Another instance of this test program: its first thread waits for the sleeping one.
fn start() -> Child {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "sleeper", "--ignored", "--nocapture"]).stdout(Stdio::piped());
    let mut child = program.spawn().unwrap();
    let output = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(output.map_while(Result::ok).any(|line| line == "here"));
    child
}

/// Waits for the first thread's exit, while the others wait for this process at their exit.
fn all_threads_end(pid: u32) {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let threads: Vec<u32> =
        tasks.map(|task| task.unwrap().file_name().into_string().unwrap().parse().unwrap()).collect();
    assert!(threads.len() > 1, "{threads:?}");
    let mut held: Vec<Tracee> = threads.into_iter().map(|thread| Tracee::seize(thread).unwrap()).collect();
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    let end = |tracee: &mut Tracee| {
        assert_eq!(tracee.wait().unwrap(), Stop::Ending);
        tracee.resume(0).unwrap();
        tracee.wait().unwrap()
    };
    held.sort_by_key(Tracee::thread);
    let (first, others) = held.split_first_mut().unwrap();
    assert_eq!(first.thread(), pid);
    assert_eq!(end(first), Stop::Gone, "although no report arrives");
    assert_eq!(first.try_wait().unwrap(), None);
    others.iter_mut().for_each(|other| assert_eq!(end(other), Stop::Gone));
    assert_eq!(first.wait().unwrap(), Stop::Gone, "the report has arrived");
}

/// Repeatedly seizes a shell, waits for it to stop by itself, and detaches without asking for the
/// reason of the stop. The shell prints a line in between. `None` if tracing is forbidden.
fn detach_from_unreported_stops(script: &str, begin: impl Fn(u32)) -> Option<()> {
    let mut child = Command::new("/bin/sh");
    let mut child = child.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = output.next();
    assert_eq!(ready.unwrap().unwrap(), "on");
    let held = (0..20).try_for_each(|_| {
        let tracee = Tracee::seize(child.id()).ok()?;
        begin(child.id());
        let begun = Instant::now();
        while !std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") t ") {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not stop");
            std::thread::yield_now();
        }
        drop(tracee);
        assert_eq!(output.next().unwrap().unwrap(), "on");
        Some(())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    if held.is_none() {
        println!("SKIP another process cannot be remapped here: ptrace(2) is refused");
    }
    held
}

#[test]
fn a_newly_started_child_is_detached_too() {
    detach_from_unreported_stops("while /bin/true; do echo on; done", |_| {});
}

#[test]
fn an_unreported_signal_is_delivered() {
    let usr1 = |pid: u32| assert!(Command::new("kill").args(["-USR1", &pid.to_string()]).status().unwrap().success());
    detach_from_unreported_stops("trap 'echo on' USR1; echo on; while :; do read line; done", usr1);
}

#[test]
fn a_first_thread_that_ended_early_does_not_block() {
    let mut child = start();
    let pid = child.id();
    if let Err(error) = Tracee::seize(pid) {
        child.kill().unwrap();
        child.wait().unwrap();
        println!("SKIP another process cannot be remapped here: {error}");
        return;
    }
    let (done, is_done) = channel();
    let waiting = std::thread::spawn(move || {
        all_threads_end(pid);
        done.send(()).unwrap();
    });
    let in_time = is_done.recv_timeout(Duration::from_secs(20));
    if matches!(in_time, Err(std::sync::mpsc::RecvTimeoutError::Timeout)) {
        panic!("the wait does not end");
    }
    waiting.join().unwrap();
    assert!(child.wait().is_err(), "it is reaped");
}

#[test]
#[ignore = "run by the other test, as a process of its own"]
fn dispatcher() {
    const ON: libc::c_ulong = 1;
    let allowed: &'static u8 = Box::leak(Box::new(0));
    // SAFETY: the selector allows calls, and lives forever.
    let set = unsafe { libc::prctl(59, ON, 0_usize, 0_usize, std::ptr::from_ref(allowed)) };
    println!("\n{}", if set == 0 { "here" } else { "none" });
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn syscall_dispatch_is_detected() {
    for (name, expected) in [("sleeper", false), ("dispatcher", true)] {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]).stdout(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let state = output.find(|line| line == "here" || line == "none");
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
        let threads = tasks.map(|task| task.unwrap().file_name().into_string().unwrap().parse().unwrap());
        let found = threads.map(|thread: u32| {
            let mut tracee = Tracee::seize(thread).unwrap();
            tracee.interrupt().unwrap();
            tracee.wait().unwrap();
            tracee.has_syscall_dispatch()
        });
        let found = found.collect::<Vec<_>>();
        child.kill().unwrap();
        child.wait().unwrap();
        if state.as_deref() == Some("none") {
            return println!("SKIP this kernel gives no system call back");
        }
        assert_eq!(found.contains(&true), expected, "{name}: {found:?}");
    }
}
