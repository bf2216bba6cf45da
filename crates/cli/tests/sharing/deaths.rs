//! Our processes die in every order while a program is repaired: it goes on at once, with the right results.
//!
//! `FIELDSTONE_RESCUES=N` does it N times (`make soak-rescue`), and compares the program's time with its time alone.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::stage::{Stage, checksum, fieldstone, is_forbidden, said};

/// Two threads that count in words of one line, as often as they are told to. What they take is printed.
const PAIR: &str = r#"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
__attribute__((aligned(4096))) volatile uint64_t words[512];
static uint64_t laps;
static void *count(void *which) {
  volatile uint64_t *own = words + (uintptr_t)which;
  for (uint64_t i = 0; i < laps; i++) for (int j = 0; j < 1000; j++) *own += j ^ i;
  return 0;
}
int main(int n, char **w) {
  laps = strtoull(w[1], 0, 0);
  struct timespec a, b; clock_gettime(CLOCK_MONOTONIC, &a);
  pthread_t t[2];
  for (uintptr_t i = 0; i < 2; i++) pthread_create(&t[i], 0, count, (void *)i);
  for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
  clock_gettime(CLOCK_MONOTONIC, &b);
  printf("checksum: %lx\n", words[0] * 31 + words[1]);
  fprintf(stderr, "seconds: %.3f\n", b.tv_sec - a.tv_sec + (b.tv_nsec - a.tv_nsec) / 1e9);
  return 0;
}
"#;
const LAPS: &str = "300000";
/// Without a rule it takes some time until the page is moved.
const RULES: &str = "isolate words 8\nisolate words+8 8\n";
const WATCHDOG: &str = "memory-watchdog";
const FEW: u32 = 14;
/// A program that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(60);

/// Who dies, in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deaths {
    Repairer,
    OneWatchdog,
    WatchdogsThenRepairer,
    RepairerThenWatchdogs,
    RepairerAndLauncher,
    /// The repairer is stopped, and not killed.
    Stopped,
}

const ALL: [Deaths; 6] = [
    Deaths::Repairer,
    Deaths::OneWatchdog,
    Deaths::WatchdogsThenRepairer,
    Deaths::RepairerThenWatchdogs,
    Deaths::RepairerAndLauncher,
    Deaths::Stopped,
];

#[test]
fn a_program_goes_on_whoever_of_ours_dies() {
    let Some(stage) = Stage::new() else { return };
    let program = stage.build_text("pair", PAIR, &["-O2", "-g"]);
    let rules = stage.path("rules");
    std::fs::write(&rules, RULES).unwrap();
    let asked = std::env::var("FIELDSTONE_RESCUES").ok().and_then(|number| number.parse::<u32>().ok());
    let plain = Command::new(&program).arg(LAPS).output().unwrap();
    let (mut alone, mut rescued) = (vec![seconds(&said(&plain))], Vec::new());
    for number in 0..asked.unwrap_or(FEW) {
        // Most of them are the plain case, when it is done often.
        let deaths = if number < FEW { ALL[number as usize % ALL.len()] } else { ALL[number as usize / 3 % 5] };
        let Some(time) = go_on(&program, &rules, deaths, number, &checksum(&plain)) else { return };
        rescued.push(time);
        if asked.is_some() {
            alone.push(seconds(&said(&Command::new(&program).arg(LAPS).output().unwrap())));
        }
    }
    let (alone, rescued) = (median(&mut alone), median(&mut rescued));
    println!("{} runs; alone {alone:.3} s, with a death {rescued:.3} s (medians)", asked.unwrap_or(FEW));
    assert!(asked.is_none() || rescued < 1.5 * alone, "{rescued:.3} s, alone {alone:.3} s");
}

/// One run; how long its threads took. None where repairs are forbidden.
fn go_on(program: &Path, rules: &Path, deaths: Deaths, number: u32, right: &str) -> Option<f64> {
    let mut command = fieldstone(&["run", "--repair", "--rules", rules.to_str().unwrap(), "--"]);
    let mut running = command.arg(program).arg(LAPS).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let ours = Ours::of(&mut running);
    if let Some((repairer, watchdogs)) = &ours {
        std::thread::sleep(Duration::from_micros(u64::from(number) * 7919 % 97_000));
        match deaths {
            Deaths::Repairer => send("-KILL", &[*repairer]),
            Deaths::OneWatchdog => {
                send("-KILL", &watchdogs[..1]);
                replaced(*repairer, watchdogs[0]);
                send("-KILL", &[*repairer]);
            }
            Deaths::WatchdogsThenRepairer => send("-KILL", &[watchdogs[0], watchdogs[1], *repairer]),
            Deaths::RepairerThenWatchdogs => send("-KILL", &[*repairer, watchdogs[1]]),
            Deaths::RepairerAndLauncher => send("-KILL", &[*repairer, running.id()]),
            Deaths::Stopped => send("-STOP", &[*repairer]),
        }
    }
    let begun = Instant::now();
    while running.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < LONGEST, "{deaths:?} {number}: it hangs");
        std::thread::sleep(Duration::from_millis(2));
    }
    // The pipes are open as long as the program runs, whoever has started it, and no longer.
    let output = running.wait_with_output().unwrap();
    if is_forbidden(&said(&output)) {
        return None;
    }
    assert!(ours.is_some(), "no page was moved: {}", said(&output));
    assert_eq!(checksum(&output), right, "{deaths:?} {number}: {}", said(&output));
    let is_reported = said(&output).contains("the program goes on unrepaired\ntry: fieldstone repair --pid");
    assert_eq!(is_reported, deaths != Deaths::RepairerAndLauncher, "{deaths:?} {number}: {}", said(&output));
    Some(seconds(&said(&output)))
}

struct Ours;

impl Ours {
    /// The repairer and its watchdogs, once these are there. None where the program has ended before.
    fn of(running: &mut Child) -> Option<(u32, Vec<u32>)> {
        while running.try_wait().unwrap().is_none() {
            if let Some(repairer) = children(running.id(), "fieldstone").first() {
                let watchdogs = children(*repairer, WATCHDOG);
                if watchdogs.len() == 2 {
                    return Some((*repairer, watchdogs));
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }
}

/// Until another one is there instead of this one.
fn replaced(repairer: u32, watchdog: u32) {
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

/// The children of a process that run under this name.
fn children(parent: u32, name: &str) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists: String = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok()).collect();
    let is = |pid: &u32| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name);
    lists.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).filter(is).collect()
}

fn send(signal: &str, to: &[u32]) {
    let numbers = to.iter().map(u32::to_string);
    assert!(Command::new("kill").arg(signal).args(numbers).status().unwrap().success());
}

fn seconds(said: &str) -> f64 {
    let line = said.lines().find_map(|line| line.strip_prefix("seconds: "));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("it has not ended: {said}"))
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
