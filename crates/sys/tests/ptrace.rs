//! Threads of another process, held: what waiting for them must not do.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

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
