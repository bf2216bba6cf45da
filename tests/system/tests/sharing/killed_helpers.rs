//! Helper processes are killed or stopped in every order during a repair: the program continues at
//! once, with correct results, and no helper process remains.
//!
//! `FIELDSTONE_RESCUES=N` repeats this N times (`make soak-rescue`), and compares the time of the
//! program with its time alone.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{SharingFixture, checksum, fieldstone, is_forbidden, stderr};
use HelperAction::{AwaitReplacement, Kill, Stop};
use RunProcess::{FirstWatchdog, Launcher, Repairer, SecondWatchdog};

/// Two threads that count in words of one line; the argument is the number of laps. Prints the
/// seconds of both threads, and the longest time between two laps of a thread, which bounds the
/// duration of a rescue.
const PAIR: &str = r#"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
__attribute__((aligned(4096))) volatile uint64_t words[512];
static uint64_t laps;
static double longest[2][16];
static double now(void) {
  struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}
static void *count(void *which) {
  volatile uint64_t *own = words + (uintptr_t)which;
  double last = now(), most = 0;
  for (uint64_t i = 0; i < laps; i++) {
    for (int j = 0; j < 1000; j++) *own += j ^ i;
    double at = now();
    if (at - last > most) most = at - last;
    last = at;
  }
  *longest[(uintptr_t)which] = most;
  return 0;
}
int main(int n, char **w) {
  laps = strtoull(w[1], 0, 0);
  double begun = now();
  pthread_t t[2];
  for (uintptr_t i = 0; i < 2; i++) pthread_create(&t[i], 0, count, (void *)i);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  printf("checksum: %lx\n", words[0] * 31 + words[1]);
  fprintf(stderr, "seconds: %.3f\n", now() - begun);
  fprintf(stderr, "longest wait: %.3f\n", *longest[0] > *longest[1] ? *longest[0] : *longest[1]);
  return 0;
}
"#;
const LAPS: &str = "300000";
/// Without a rule it takes some time until the page moves.
const RULES: &str = "isolate words 8\nisolate words+8 8\n";
const WATCHDOG: &str = "memory-watchdog";
/// A program that takes longer counts as hanging.
const LONGEST: Duration = Duration::from_secs(60);
/// The limit of the median of the longest waits, from the kill to the end of the rescue.
const LONGEST_RESCUE_S: f64 = 2.0;
/// A stopped repairer is killed after two seconds. This leaves three seconds for the kill.
const LONGEST_END: Duration = Duration::from_secs(5);

/// A process of the run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RunProcess {
    Launcher,
    Repairer,
    FirstWatchdog,
    SecondWatchdog,
}

/// What the test does to these processes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HelperAction {
    Kill(RunProcess),
    Stop(RunProcess),
    /// Waits until the repairer has replaced the first watchdog.
    AwaitReplacement,
}

/// The orders after which one rescue starts at once.
const IMMEDIATE: [&[HelperAction]; 12] = [
    &[Kill(Repairer)],
    &[Kill(FirstWatchdog), AwaitReplacement, Kill(Repairer)],
    &[Kill(FirstWatchdog), Kill(SecondWatchdog), Kill(Repairer)],
    &[Kill(Repairer), Kill(FirstWatchdog), Kill(SecondWatchdog)],
    &[Kill(Repairer), Kill(Launcher)],
    &[Kill(Launcher), Kill(Repairer)],
    &[Kill(Launcher), Kill(Repairer), Kill(FirstWatchdog)],
    &[Stop(FirstWatchdog), Stop(SecondWatchdog), Kill(Repairer)],
    &[Stop(FirstWatchdog), Stop(SecondWatchdog), Kill(Launcher), Kill(Repairer)],
    &[Stop(FirstWatchdog), AwaitReplacement, Kill(Repairer)],
    &[Kill(Launcher), Kill(Repairer), Kill(FirstWatchdog), Kill(SecondWatchdog)],
    &[Kill(FirstWatchdog), Kill(SecondWatchdog), Kill(Repairer), Kill(Launcher)],
];
/// The orders after which another process has to detect first that the repairer is stopped.
const AFTER_A_STOP: [&[HelperAction]; 2] =
    [&[Stop(Repairer)], &[Stop(Repairer), Kill(FirstWatchdog), Kill(SecondWatchdog)]];

#[test]
fn a_program_continues_whichever_helper_is_killed() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build_text("pair", PAIR, &["-O2", "-g"]);
    let rules = fixture.path("rules");
    std::fs::write(&rules, RULES).unwrap();
    let repetitions = std::env::var("FIELDSTONE_RESCUES").ok().and_then(|number| number.parse::<usize>().ok());
    let plain = Command::new(&program).arg(LAPS).output().unwrap();
    let all = [&IMMEDIATE[..], &AFTER_A_STOP[..]].concat();
    let (mut alone, mut times, mut waits) = (vec![seconds(&plain, "seconds")], Vec::new(), Vec::new());
    for number in 0..repetitions.unwrap_or(all.len()) {
        // With many repetitions most are the simple case.
        let steps = if number < all.len() { all[number] } else { IMMEDIATE[number / 3 % IMMEDIATE.len()] };
        let Some(output) = run_with_steps(&program, &rules, steps, number, &checksum(&plain)) else { return };
        times.push(seconds(&output, "seconds"));
        let wait = seconds(&output, "longest wait");
        println!("{steps:?}: longest wait {wait:.3} s");
        if IMMEDIATE.contains(&steps) {
            waits.push(wait);
        }
        if repetitions.is_some() {
            alone.push(seconds(&Command::new(&program).arg(LAPS).output().unwrap(), "seconds"));
        }
    }
    let (runs, alone, rescued, wait) = (times.len(), median(&mut alone), median(&mut times), median(&mut waits));
    println!("{runs} runs; alone {alone:.3} s, with a death {rescued:.3} s, longest wait {wait:.3} s (medians)");
    assert!(wait < LONGEST_RESCUE_S, "threads wait {wait:.3} s for a rescue");
    assert!(repetitions.is_none() || rescued < 1.5 * alone, "{rescued:.3} s, alone {alone:.3} s");
}

#[test]
fn a_run_ends_with_its_program_while_the_repairer_is_stopped() {
    let Some(_fixture) = SharingFixture::new() else { return };
    let mut running = fieldstone(&["run", "--repair", "--", "sleep", "1"]).stderr(Stdio::piped()).spawn().unwrap();
    let repairer = loop {
        let is_repairer = |pid: &u32| command_line(*pid).contains("--events");
        if let Some(repairer) = children(running.id(), "fieldstone").into_iter().find(is_repairer) {
            break repairer;
        }
        assert!(running.try_wait().unwrap().is_none(), "there was no repairer");
    };
    send(Signal::STOP, repairer);
    let begun = Instant::now();
    let output = until_end(running, LONGEST_END + Duration::from_secs(1), &[repairer], "sleep");
    println!("ended {:.3} s after the repairer was stopped", begun.elapsed().as_secs_f64());
    assert!(output.status.success(), "{}", stderr(&output));
    check_all_end(&[repairer]);
}

/// One run. `None` if repairs are forbidden.
fn run_with_steps(program: &Path, rules: &Path, steps: &[HelperAction], number: usize, right: &str) -> Option<Output> {
    let mut command = fieldstone(&["run", "--repair", "--rules", rules.to_str().unwrap(), "--"]);
    let mut running = command.arg(program).arg(LAPS).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let helpers = HelperProcesses::of(&mut running);
    let mut known = children(running.id(), program.file_name().unwrap().to_str().unwrap());
    if let Some(helpers) = &helpers {
        std::thread::sleep(Duration::from_micros(number as u64 * 7919 % 97_000));
        known.extend(helpers.all());
        steps.iter().for_each(|&step| helpers.apply(step));
    }
    let output = until_end(running, LONGEST, &known, &format!("{steps:?} {number}"));
    if is_forbidden(&stderr(&output)) {
        return None;
    }
    assert!(helpers.is_some(), "no page was moved: {}", stderr(&output));
    assert_eq!(checksum(&output), right, "{steps:?} {number}: {}", stderr(&output));
    let is_reported = stderr(&output).contains("the program goes on unrepaired\ntry: fieldstone attach --repair");
    // With a stopped repairer, ending threads may wait for it: the program ends after the
    // repairer has been killed.
    if IMMEDIATE.contains(&steps) {
        assert_eq!(is_reported, !steps.contains(&Kill(Launcher)), "{steps:?} {number}: {}", stderr(&output));
    }
    check_all_end(&known);
    Some(output)
}

/// Waits for a run and its program, which keeps the pipes open until it ends. After `longest`,
/// kills the processes `all` and fails.
fn until_end(running: Child, longest: Duration, all: &[u32], what: &str) -> Output {
    let launcher = running.id();
    let (sender, ended) = channel();
    std::thread::spawn(move || sender.send(running.wait_with_output()));
    ended.recv_timeout(longest).map(Result::unwrap).unwrap_or_else(|_| {
        all.iter().chain([&launcher]).for_each(|&pid| send(Signal::KILL, pid));
        panic!("{what}: it hangs")
    })
}

/// Checks that all of these processes end.
fn check_all_end(all: &[u32]) {
    let begun = Instant::now();
    while let Some(pid) = all.iter().find(|&&pid| !fieldstone_sys::process::has_ended(pid)) {
        if begun.elapsed() > LONGEST_END {
            let name = command_line(*pid);
            all.iter().for_each(|&pid| send(Signal::KILL, pid));
            panic!("process {pid} is left: {name}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The helper processes of a run.
struct HelperProcesses {
    launcher: u32,
    repairer: u32,
    watchdogs: [u32; 2],
}

impl HelperProcesses {
    /// Waits for the watchdogs. `None` if the program ended first.
    fn of(running: &mut Child) -> Option<Self> {
        let launcher = running.id();
        while running.try_wait().unwrap().is_none() {
            for repairer in children(launcher, "fieldstone") {
                if let Ok(watchdogs) = children(repairer, WATCHDOG).try_into() {
                    return Some(Self { launcher, repairer, watchdogs });
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    const fn all(&self) -> [u32; 4] {
        [self.launcher, self.repairer, self.watchdogs[0], self.watchdogs[1]]
    }

    fn apply(&self, step: HelperAction) {
        match step {
            Kill(target) => send(Signal::KILL, self.pid(target)),
            Stop(target) => send(Signal::STOP, self.pid(target)),
            AwaitReplacement => await_replacement(self.repairer, self.watchdogs[0]),
        }
    }

    const fn pid(&self, target: RunProcess) -> u32 {
        match target {
            Launcher => self.launcher,
            Repairer => self.repairer,
            FirstWatchdog => self.watchdogs[0],
            SecondWatchdog => self.watchdogs[1],
        }
    }
}

/// Waits until another watchdog runs instead of this one.
fn await_replacement(repairer: u32, watchdog: u32) {
    let begun = Instant::now();
    loop {
        let now = children(repairer, WATCHDOG);
        if now.len() == 2 && !now.contains(&watchdog) {
            return;
        }
        assert!(begun.elapsed() < LONGEST, "{watchdog} is not replaced: {now:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The children of a process that have this name.
fn children(parent: u32, name: &str) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists: String = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok()).collect();
    let is = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
    lists.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).filter(is).collect()
}

/// Sends a signal; a process that has ended meanwhile is no error.
fn send(signal: Signal, to: u32) {
    let _ = kill_process(Pid::from_raw(to.cast_signed()).unwrap(), signal);
}

fn command_line(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ")
}

/// The seconds that the program prints after this name.
fn seconds(output: &Output, name: &str) -> f64 {
    let message = stderr(output);
    let line = message.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("it has not ended: {message}"))
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
