//! Sampling by both methods, tested on a child process whose threads run a known loop.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(unsafe_code, reason = "the loop is assembly, and signals are sent")]

mod program;
mod samples;
mod tracer;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use fieldstone_sys::Error;
use fieldstone_sys::process::stat;
use fieldstone_sys::sampling::{MAX_STOPS_PER_SECOND, Sampler, SamplingMethod};
use program::Other;
use samples::{Samples, now_ns, open};

/// Both threads are sampled in their loop, with the expected rsi and rdi, at no more than the
/// requested rate.
fn registers_are_sampled(method: SamplingMethod) {
    let mut other = Other::start();
    let spinners = [other.thread(), other.thread()];
    let began_ns = now_ns();
    let Some(mut sampler) = open(method, other.pid(), 500) else { return };
    let code = other.code.clone();
    let sampled =
        Samples::until(&mut sampler, |sampled| spinners.iter().all(|&spinner| sampled.in_loop(spinner, &code) >= 50));
    let ended_ns = now_ns();
    for spinner in spinners {
        let (all, inside) = (sampled.of(spinner.tid).count(), sampled.in_loop(spinner, &code));
        assert!(inside >= 50 && inside * 10 >= all * 9, "{method}: {inside} of {all} in the loop");
        for sample in sampled.of(spinner.tid).filter(|sample| code.contains(&sample.registers.rip)) {
            assert_eq!((sample.registers.gpr[6], sample.registers.gpr[7]), (spinner.mark, spinner.word), "{sample:?}");
            assert!(sample.registers.gpr[4] > 1 << 20, "a stack pointer: {sample:?}");
            assert!((began_ns..=ended_ns).contains(&sample.time_ns) && sample.cpu < 65_536, "{sample:?}");
        }
        // No sample appears twice.
        let most = u128::from(ended_ns - began_ns) * u128::from(sampler.hertz()) / 1_000_000_000;
        assert!(all as u128 <= most * 6 / 5 + 5, "{method}: {all} samples, {most} at most");
    }
}

#[test]
fn perf_samples_registers() {
    registers_are_sampled(SamplingMethod::Perf);
}

#[test]
fn ptrace_samples_registers() {
    registers_are_sampled(SamplingMethod::Ptrace);
}

/// A thread created during sampling is sampled, with its own number, and its exit is reported.
fn later_threads_are_sampled(method: SamplingMethod) {
    let mut other = Other::start();
    let first = other.thread();
    let Some(mut sampler) = open(method, other.pid(), 500) else { return };
    let code = other.code.clone();
    let later = other.thread();
    let sampled = Samples::until(&mut sampler, |sampled| {
        sampled.in_loop(later, &code) >= 20 && sampled.in_loop(first, &code) >= 20
    });
    assert!(
        sampled.in_loop(later, &code) >= 20 && sampled.in_loop(first, &code) >= 20,
        "{method}: {}",
        sampled.samples.len()
    );
    assert!(sampled.exited.is_empty() && !sampled.ended, "{method}: {:?}", sampled.exited);
    other.send("end");
    let [] = other.receive("ended");
    let sampled = Samples::until(&mut sampler, |sampled| !sampled.exited.is_empty());
    assert_eq!(sampled.exited, [later.tid], "{method}");
    assert!(!sampled.ended);
}

#[test]
fn perf_samples_later_threads() {
    later_threads_are_sampled(SamplingMethod::Perf);
}

#[test]
fn ptrace_samples_later_threads() {
    later_threads_are_sampled(SamplingMethod::Ptrace);
}

/// A pause takes no samples. Afterwards old and new threads are sampled, and exits are reported.
#[test]
fn perf_pauses_and_resumes() {
    let mut other = Other::start();
    let (first, goes, code) = (other.thread(), other.thread(), other.code.clone());
    let Some(mut sampler) = open(SamplingMethod::Perf, other.pid(), 1000) else { return };
    let sampled =
        Samples::until(&mut sampler, |sampled| [first, goes].iter().all(|&one| sampled.in_loop(one, &code) >= 20));
    assert!(sampled.in_loop(first, &code) >= 20 && sampled.in_loop(goes, &code) >= 20, "{}", sampled.samples.len());
    assert!(sampler.pause().unwrap());
    assert!(sampler.pause().unwrap(), "it is paused already");
    let before = stat(other.pid()).unwrap().user_ns;
    let kept = Samples::until(&mut sampler, |_| stat(other.pid()).unwrap().user_ns > before + 100_000_000);
    assert!(kept.samples.is_empty(), "{:?}", kept.samples);
    other.send("end");
    let [] = other.receive("ended");
    let comes = other.thread();
    let resumed_ns = now_ns();
    sampler.resume().unwrap();
    sampler.resume().unwrap();
    let sampled =
        Samples::until(&mut sampler, |sampled| [first, comes].iter().all(|&one| sampled.in_loop(one, &code) >= 20));
    assert!(sampled.in_loop(first, &code) >= 20 && sampled.in_loop(comes, &code) >= 20, "{}", sampled.samples.len());
    assert!(sampled.samples.iter().all(|sample| sample.time_ns >= resumed_ns), "{:?}", sampled.samples.first());
    assert_eq!(sampled.exited, [goes.tid]);
}

#[test]
fn a_program_that_ends_in_a_pause_is_reported() {
    let mut other = Other::start();
    let Some(mut sampler) = open(SamplingMethod::Perf, other.pid(), 1000) else { return };
    assert!(sampler.pause().unwrap());
    other.send("exit");
    let sampled = Samples::until(&mut sampler, |_| false);
    assert!(sampled.ended);
    assert_eq!(other.wait().code(), Some(7));
    let gone = sampler.resume().unwrap_err();
    assert!(matches!(gone, Error::NoSuchProcess { .. }), "{gone}");
}

#[test]
fn ptrace_does_not_pause() {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(SamplingMethod::Ptrace, other.pid(), 100) else { return };
    assert!(!sampler.pause().unwrap());
    let sampled = Samples::until(&mut sampler, |sampled| sampled.of(spinner.tid).count() >= 5);
    assert!(sampled.of(spinner.tid).count() >= 5);
}

/// The end of the process ends the sampling; its parent receives the exit, and nothing before.
fn the_parent_receives_the_exit(method: SamplingMethod) {
    for signal in [None, Some(libc::SIGTERM)] {
        let mut other = Other::start();
        let spinner = other.thread();
        let Some(mut sampler) = open(method, other.pid(), 500) else { return };
        let sampled = Samples::until(&mut sampler, |sampled| sampled.of(spinner.tid).count() >= 10);
        assert!(sampled.of(spinner.tid).count() >= 10, "{method}");
        assert_eq!(other.running.try_wait().unwrap(), None, "{method}: the parent does not see the sampler's stops");
        match signal {
            None => other.send("exit"),
            Some(signal) => other.signal(signal),
        }
        let sampled = Samples::until(&mut sampler, |_| false);
        assert!(sampled.ended, "{method}");
        let status = other.wait();
        assert_eq!((status.code(), status.signal()), (signal.is_none().then_some(7), signal), "{method}");
        assert!(sampler.drain(&mut Vec::new()).unwrap().ended);
    }
}

#[test]
fn perf_leaves_the_exit_to_the_parent() {
    the_parent_receives_the_exit(SamplingMethod::Perf);
}

#[test]
fn ptrace_leaves_the_exit_to_the_parent() {
    the_parent_receives_the_exit(SamplingMethod::Ptrace);
}

/// Short-lived threads and children behave as without a sampler; the exits are reported.
fn many_short_threads_are_not_disturbed(method: SamplingMethod) {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(method, other.pid(), 1000) else { return };
    other.send("churn");
    let sampled =
        Samples::until(&mut sampler, |sampled| sampled.exited.len() >= 10 && sampled.of(spinner.tid).count() >= 20);
    assert!(sampled.exited.len() >= 10 && sampled.of(spinner.tid).count() >= 20, "{method}: {:?}", sampled.exited);
    assert!(!sampled.exited.contains(&spinner.tid) && !sampled.ended);
    let [] = other.receive("churned");
    other.send("exit");
    assert_eq!(other.wait().code(), Some(7), "{method}");
}

#[test]
fn perf_does_not_disturb_many_short_threads() {
    many_short_threads_are_not_disturbed(SamplingMethod::Perf);
}

#[test]
fn ptrace_does_not_disturb_many_short_threads() {
    many_short_threads_are_not_disturbed(SamplingMethod::Ptrace);
}

/// A thread that executes another program takes the process over: it is sampled and exits normally.
fn an_exec_is_survived(method: SamplingMethod) {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(method, other.pid(), 500) else { return };
    let several = |sampled: &Samples| sampled.of(spinner.tid).count() >= 5;
    assert!(several(&Samples::until(&mut sampler, several)), "{method}");
    other.send("exec");
    let sampled = Samples::until(&mut sampler, |_| false);
    assert!(sampled.ended, "{method}");
    let new = sampled.of(other.pid()).filter(|sample| !other.code.contains(&sample.registers.rip)).count();
    assert!(new >= 5, "{method}: {new} samples of the new program");
    assert!(sampled.exited.contains(&spinner.tid), "{method}: {:?}", sampled.exited);
    assert_eq!(other.wait().code(), Some(9), "{method}");
}

#[test]
fn perf_survives_an_exec() {
    an_exec_is_survived(SamplingMethod::Perf);
}

#[test]
fn ptrace_survives_an_exec() {
    an_exec_is_survived(SamplingMethod::Ptrace);
}

#[test]
fn a_process_that_cannot_be_sampled_is_an_error() {
    for method in [SamplingMethod::Perf, SamplingMethod::Ptrace] {
        let missing = Sampler::open_by(method, i32::MAX.unsigned_abs(), 100).unwrap_err();
        assert!(matches!(missing, Error::NoSuchProcess { .. }), "{missing}");
        let never = Sampler::open_by(method, std::process::id(), 0).unwrap_err();
        assert!(matches!(never, Error::NotSampled { .. }), "{never}");
    }
    // A child may trace its parent's threads; a zombie cannot be traced.
    let mut other = Other::start();
    other.send("exit");
    let limit = Instant::now() + Duration::from_secs(10);
    while !stat(other.pid()).unwrap().state.has_ended() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = Sampler::open(other.pid(), 100).map(|sampler| sampler.wait(Duration::ZERO).unwrap());
    assert!(matches!(ended, Ok(true) | Err(Error::NoSuchProcess { .. } | Error::NotSampled { .. })), "{ended:?}");
    assert_eq!(other.wait().code(), Some(7));
}

#[test]
fn the_first_method_that_works_is_used() {
    let mut other = Other::start();
    let spinner = other.thread();
    let mut sampler = match Sampler::open(other.pid(), 1000) {
        Ok(sampler) => sampler,
        Err(error) => {
            println!("SKIP no sampling: {error}");
            return;
        }
    };
    match sampler.method() {
        SamplingMethod::Perf => assert_eq!(sampler.hertz(), 1000),
        SamplingMethod::Ptrace => assert_eq!(sampler.hertz(), MAX_STOPS_PER_SECOND),
    }
    let sampled = Samples::until(&mut sampler, |sampled| sampled.of(spinner.tid).count() >= 5);
    let mut threads = BTreeMap::new();
    sampled.samples.iter().for_each(|sample| *threads.entry(sample.tid).or_insert(0) += 1);
    assert!(threads[&spinner.tid] >= 5, "{threads:?}");
    assert!(format!("{sampler:?}").contains("hertz"));
}
