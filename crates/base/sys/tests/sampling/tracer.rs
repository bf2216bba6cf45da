//! The tracer process of the method ptrace: what it leaves in peace, and what happens when it ends.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fieldstone_sys::process::{State, stat};
use fieldstone_sys::sampling::SamplingMethod;

use crate::program::Other;
use crate::samples::{Samples, open};

#[test]
fn a_stopped_process_stays_stopped_under_ptrace_until_continued() {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(SamplingMethod::Ptrace, other.pid(), 100) else { return };
    let several = |sampled: &Samples| sampled.of(spinner.tid).count() >= 5;
    assert!(several(&Samples::until(&mut sampler, several)));

    other.signal(libc::SIGSTOP);
    let limit = Instant::now() + Duration::from_secs(10);
    while stat(spinner.tid).unwrap().state != State::Stopped && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(50));
    sampler.drain(&mut Vec::new()).unwrap();
    let used = stat(other.pid()).unwrap().user_ns;
    std::thread::sleep(Duration::from_millis(300));
    let mut none = Vec::new();
    sampler.drain(&mut none).unwrap();
    assert!(none.is_empty(), "nothing ran");
    assert_eq!(stat(other.pid()).unwrap().user_ns, used, "nothing ran");

    other.signal(libc::SIGCONT);
    assert!(several(&Samples::until(&mut sampler, several)), "it continues");
    assert_eq!(other.running.try_wait().unwrap(), None);
}

fn tracer_of(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")).unwrap().trim().parse().unwrap()
}

#[test]
fn dropping_the_sampler_detaches_and_the_program_continues() {
    let mut other = Other::start();
    let spinner = other.thread();
    for round in 0..5 {
        let Some(mut sampler) = open(SamplingMethod::Ptrace, other.pid(), 100) else { return };
        let tracer = tracer_of(spinner.tid);
        assert!(tracer != 0 && tracer != std::process::id(), "a separate process traces");
        let sampled = Samples::until(&mut sampler, |sampled| sampled.of(spinner.tid).count() >= 2);
        assert!(sampled.of(spinner.tid).count() >= 2, "round {round}");
        drop(sampler);
        assert_eq!((tracer_of(spinner.tid), tracer_of(other.pid())), (0, 0));
        assert!(stat(tracer).is_err(), "the tracer has exited and is reaped");
    }
    let before = stat(other.pid()).unwrap().user_ns;
    std::thread::sleep(Duration::from_millis(300));
    assert!(stat(other.pid()).unwrap().user_ns > before, "it runs");
    other.send("exit");
    assert_eq!(other.wait().code(), Some(7));
}

#[test]
fn a_tracer_that_does_not_exit_is_killed_and_the_program_continues() {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(sampler) = open(SamplingMethod::Ptrace, other.pid(), 100) else { return };
    // SAFETY: the call takes integers; the tracer is not reaped before the sampler is dropped.
    unsafe { libc::kill(i32::try_from(tracer_of(spinner.tid)).unwrap(), libc::SIGSTOP) };
    let since = Instant::now();
    drop(sampler);
    assert!(since.elapsed() < Duration::from_secs(10), "the wait for the tracer has a bound");
    assert_eq!(tracer_of(spinner.tid), 0);
    other.send("exit");
    assert_eq!(other.wait().code(), Some(7));
}

#[test]
fn a_killed_tracer_is_reported_and_the_program_continues() {
    is_reported_and_the_program_continues(libc::SIGKILL);
}

#[test]
fn a_stopped_tracer_is_reported_and_the_program_continues() {
    is_reported_and_the_program_continues(libc::SIGSTOP);
}

fn is_reported_and_the_program_continues(signal: libc::c_int) {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(SamplingMethod::Ptrace, other.pid(), 100) else { return };
    // SAFETY: the call takes integers; the tracer is not reaped before the sampler is dropped.
    unsafe { libc::kill(i32::try_from(tracer_of(spinner.tid)).unwrap(), signal) };
    let limit = Instant::now() + Duration::from_secs(10);
    let error = loop {
        match sampler.drain(&mut Vec::new()) {
            Ok(_) => assert!(Instant::now() < limit, "no error is reported"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("sample again"), "{error}");
    drop(sampler);
    assert_eq!(tracer_of(spinner.tid), 0);
    other.send("exit");
    assert_eq!(other.wait().code(), Some(7));
}

static CHILD_SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_child_signal(_: libc::c_int) {
    CHILD_SIGNALS.fetch_add(1, Relaxed);
}

#[test]
#[ignore = "run by another test, as a process with one child"]
fn parent() {
    // SAFETY: the handler only adds to an atomic; the structure is plain data, zeroed and then
    // filled.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_child_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut()), 0);
    }
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(SamplingMethod::Ptrace, other.pid(), 100) else { return };
    let sampled = Samples::until(&mut sampler, |sampled| sampled.of(spinner.tid).count() >= 20);
    assert!(sampled.of(spinner.tid).count() >= 20);
    assert_eq!(CHILD_SIGNALS.load(Relaxed), 0, "the parent receives no signal for the sampler's stops");
    other.send("exit");
    assert_eq!(other.wait().code(), Some(7));
    drop(sampler);
    assert_eq!(CHILD_SIGNALS.load(Relaxed), 1, "the child's exit, not the tracer's");
}

#[test]
fn the_parent_gets_one_sigchld() {
    let mut program = Command::new(std::env::current_exe().unwrap());
    let output = program.args(["--exact", "tracer::parent", "--ignored", "--nocapture"]).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    output_text.lines().filter(|line| line.contains("SKIP")).for_each(|line| println!("{line}"));
    assert!(output.status.success(), "{output_text}{}", String::from_utf8_lossy(&output.stderr));
}
