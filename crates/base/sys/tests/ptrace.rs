//! Threads of another process, held: what waiting for them must not do.
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

/// This test program once more: its first thread waits for the one that sleeps.
fn start() -> Child {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "sleeper", "--ignored", "--nocapture"]).stdout(Stdio::piped());
    let mut child = program.spawn().unwrap();
    let told = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(told.map_while(Result::ok).any(|line| line == "here"));
    child
}

/// Waits for the first thread's end, while the others wait for us at theirs.
fn first_of_all_ends(pid: u32) {
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
    assert_eq!(end(first), Stop::Gone, "though nobody tells of it");
    assert_eq!(first.try_wait().unwrap(), None);
    others.iter_mut().for_each(|other| assert_eq!(end(other), Stop::Gone));
    assert_eq!(first.wait().unwrap(), Stop::Gone, "now somebody does");
}

/// A shell that says things, again and again held until it stops by itself, and let go of, by who does not ask what it has stopped for.
/// None where that is forbidden.
fn let_go_of_unheard(script: &str, begin: impl Fn(u32)) -> Option<()> {
    let mut child = Command::new("/bin/sh");
    let mut child = child.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stdout.take().unwrap()).lines();
    let ready = told.next();
    assert_eq!(ready.unwrap().unwrap(), "on");
    let held = (0..20).try_for_each(|_| {
        let tracee = Tracee::seize(child.id()).ok()?;
        begin(child.id());
        let begun = Instant::now();
        while !std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") t ") {
            assert!(begun.elapsed() < Duration::from_secs(20), "it does not go on, or nothing stops it");
            std::thread::yield_now();
        }
        drop(tracee);
        assert_eq!(told.next().unwrap().unwrap(), "on");
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
fn what_has_just_been_started_is_let_go_of_too() {
    let_go_of_unheard("while /bin/true; do echo on; done", |_| {});
}

#[test]
fn a_signal_that_nobody_has_heard_of_is_delivered() {
    let usr1 = |pid: u32| assert!(Command::new("kill").args(["-USR1", &pid.to_string()]).status().unwrap().success());
    let_go_of_unheard("trap 'echo on' USR1; echo on; while :; do read line; done", usr1);
}

#[test]
fn a_first_thread_that_ended_before_the_others_is_not_waited_for() {
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
        first_of_all_ends(pid);
        done.send(()).unwrap();
    });
    let in_time = is_done.recv_timeout(Duration::from_secs(20));
    if matches!(in_time, Err(std::sync::mpsc::RecvTimeoutError::Timeout)) {
        panic!("it waits for ever");
    }
    waiting.join().unwrap();
    assert!(child.wait().is_err(), "it is reaped");
}

#[test]
#[ignore = "run by the other test, as a process of its own"]
fn dispatcher() {
    const ON: libc::c_ulong = 1;
    let allowed: &'static u8 = Box::leak(Box::new(0));
    // SAFETY: the selector says "allow", and lives for ever.
    let set = unsafe { libc::prctl(59, ON, 0_usize, 0_usize, std::ptr::from_ref(allowed)) };
    println!("\n{}", if set == 0 { "here" } else { "none" });
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn who_gets_its_system_calls_back_is_known() {
    for (name, expected) in [("sleeper", false), ("dispatcher", true)] {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]).stdout(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let mut told = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let said = told.find(|line| line == "here" || line == "none");
        let tasks = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
        let threads = tasks.map(|task| task.unwrap().file_name().into_string().unwrap().parse().unwrap());
        let found = threads.map(|thread: u32| {
            let mut tracee = Tracee::seize(thread).unwrap();
            tracee.interrupt().unwrap();
            tracee.wait().unwrap();
            tracee.dispatches_calls()
        });
        let found = found.collect::<Vec<_>>();
        child.kill().unwrap();
        child.wait().unwrap();
        if said.as_deref() == Some("none") {
            return println!("SKIP this kernel gives no system call back");
        }
        assert_eq!(found.contains(&true), expected, "{name}: {found:?}");
    }
}
