//! What is told: false sharing with the object, the code and the remedy; and what is none, as what it is.

use std::os::unix::process::CommandExt;
use std::path::Path;

use fieldstone_report::sharing::{MemoryKind, Sharing};

use crate::stage::{Run, Stage, fieldstone, iterations_for, run, run_together, said};

/// Long enough for hundreds of samples of each thread, on any machine.
const COUNTING: &[&str] = &["--iterations", "300000000"];

/// What `fieldstone sharing` finds, and its exit code.
fn look(stage: &Stage, run: Run, program: &Path, arguments: &[&str]) -> Option<(Sharing, i32)> {
    let file = stage.path("found.json");
    let output = run(&["sharing", "--json", file.to_str().unwrap()], program, arguments)?;
    let code = output.status.code().unwrap();
    assert!(code < 2, "{}", said(&output));
    Some((fieldstone_report::sharing::load(&file).unwrap(), code))
}

#[test]
fn threads_on_one_line_are_found_with_the_object_and_the_code() {
    let Some(stage) = Stage::new() else { return };
    for level in ["-O0", "-O2"] {
        let program = stage.build("counters", &["-g", level]);
        let Some((told, code)) = look(&stage, run_together, &program, &[COUNTING, &["--globals"]].concat()) else {
            return;
        };
        assert_eq!((code, told.findings.len()), (1, 1), "{level}: {:?}", told.others);
        let found = &told.findings[0];
        // The loop is nearly all of the program.
        assert!(found.cost.share.likely > 0.6, "{level}: {:?}", found.cost);
        let place = &found.places[0];
        assert_eq!((place.kind, place.name.as_str()), (MemoryKind::Global, "global_array"), "{place:?}");
        let adding =
            found.code.iter().find(|code| code.function == "add").unwrap_or_else(|| panic!("{:?}", found.code));
        assert!(adding.file.as_ref().is_some_and(|file| file.ends_with("counters.c")), "{adding:?}");
        assert_eq!(adding.threads.len(), 2, "{adding:?}");
    }
}

#[test]
fn what_only_seems_to_be_false_sharing_is_not_told_as_such() {
    let Some(stage) = Stage::new() else { return };
    let program = stage.build("counters", &["-g", "-O1"]);
    let alone = iterations_for(&program, 0.4);
    for (pattern, words) in [
        ("padded", None),
        ("turns", None),
        ("read", Some("only read")),
        ("same", Some("true sharing")),
        ("pair", Some("true sharing")),
        ("bits", Some("most likely different bits of one byte")),
    ] {
        let iterations = match pattern {
            "pair" => "10000000",
            "same" | "bits" => "100000000",
            _ => &alone,
        };
        let arguments = ["--iterations", iterations, "--pattern", pattern];
        let together = if matches!(pattern, "turns" | "pair") { run } else { run_together };
        let Some((told, code)) = look(&stage, together, &program, &arguments) else { return };
        assert_eq!((code, told.findings.len()), (0, 0), "{pattern}: {:?}", told.findings);
        assert!(told.sampling.accesses > 20, "{pattern}: {:?}", told.sampling);
        let others: Vec<&str> = told.others.iter().map(|other| other.judged.verdict.words()).collect();
        let fits = words.is_none_or(|words| others.iter().any(|other| other.contains(words)));
        assert!(fits, "{pattern}: {others:?}");
    }
}

#[test]
fn a_finding_that_is_known_can_be_ignored() {
    let Some(stage) = Stage::new() else { return };
    let program = stage.build("counters", &["-g", "-O2"]);
    let file = stage.path("known.txt");
    std::fs::write(&file, "# ours\nfunction:add\n").unwrap();
    let options = ["sharing", "--ignore", file.to_str().unwrap()];
    let Some(output) = run_together(&options, &program, COUNTING) else { return };
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(0) && told.contains("1 finding is not reported"), "{told}{}", said(&output));
    std::fs::write(&file, "nonsense").unwrap();
    let output = run(&options, &program, COUNTING).unwrap();
    assert!(output.status.code() == Some(2) && said(&output).contains("known.txt"), "{}", said(&output));
}

#[test]
fn a_process_that_is_not_there_is_told() {
    for command in ["sharing", "repair"] {
        let output = fieldstone(&[command, "--pid", "4194304"]).output().unwrap();
        assert!(output.status.code() == Some(2) && said(&output).contains("no process 4194304"), "{}", said(&output));
    }
}

#[test]
fn another_users_process_is_told_as_such() {
    const NOBODY: u32 = 65534;
    let us = std::process::id().to_string();
    for command in ["sharing", "repair"] {
        let tried = fieldstone(&[command, "--pid", &us]).uid(NOBODY).gid(NOBODY).output();
        let Ok(output) = tried else {
            println!("SKIP not root: no other user can be tried");
            return;
        };
        let said = said(&output);
        assert!(output.status.code() == Some(2) && said.contains("its owner") && said.contains("root"), "{said}");
        assert!(!said.contains("perf_event_paranoid"), "that would not help: {said}");
    }
}

#[test]
fn who_is_over_before_it_is_looked_at_is_no_error() {
    let Some(_alone) = Stage::new() else { return };
    for _ in 0..40 {
        let Some(output) = run(&["sharing"], Path::new("true"), &[]) else { return };
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }
}

#[test]
fn what_another_program_does_in_the_process_is_found_too() {
    let Some(stage) = Stage::new() else { return };
    let program = stage.build("counters", &["-g", "-O2"]);
    let script = format!("sleep 0.1; exec {} \"$@\"", program.display());
    let arguments = [&["-c", &script, "sh"], COUNTING].concat();
    let Some((told, code)) = look(&stage, run_together, Path::new("/bin/sh"), &arguments) else { return };
    assert_eq!((code, told.findings.len()), (1, 1), "{:?} {:?}", told.others, told.unseen);
    assert!(told.findings[0].code.iter().any(|code| code.function == "add"), "{:?}", told.findings[0].code);
}

/// No line travels from a cache to another one where there is one.
#[test]
fn threads_of_one_processor_share_nothing() {
    let Some(stage) = Stage::new() else { return };
    let program = stage.build("counters", &["-g", "-O2"]);
    let arguments = [&["-c", "0", program.to_str().unwrap()], COUNTING].concat();
    let Some((told, code)) = look(&stage, run, Path::new("/usr/bin/taskset"), &arguments) else { return };
    assert_eq!((code, told.findings.len()), (0, 0), "{:?}", told.findings);
    assert!(told.sampling.accesses > 20, "{:?}", told.sampling);
}

/// What does not come apart by itself, by two threads: a counter on two lines, two mutexes on one line with two atomics behind them.
const WIDTHS: &str = r#"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
static struct __attribute__((packed)) { char before[60]; volatile unsigned long first, second; } tight __attribute__((aligned(64)));
static struct slot { pthread_spinlock_t guard; _Atomic unsigned hits; } slots[2] __attribute__((aligned(64)));
static long rounds;
static int is_tight;
static void *work(void *which) {
  uintptr_t me = (uintptr_t)which;
  if (is_tight && me) for (long i = 0; i < rounds; i++) tight.first++;
  else if (is_tight) for (long i = 0; i < rounds; i++) tight.second++;
  else for (long i = 0; i < rounds; i++) {
    __asm__ volatile("1: lock decl %0; je 2f; 3: pause; cmpl $0, %0; jle 3b; jmp 1b; 2:" : "+m"(slots[me].guard) :: "memory", "cc");
    slots[me].hits++;
    __asm__ volatile("movl $1, %0" : "=m"(slots[me].guard) :: "memory");
  }
  return 0;
}
static double now(clockid_t clock) { struct timespec t; clock_gettime(clock, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(int argc, char **argv) {
  is_tight = !strcmp(argv[1], "tight"), rounds = atol(argv[2]);
  for (int i = 0; i < 2; i++) pthread_spin_init(&slots[i].guard, 0);
  double wall = now(CLOCK_MONOTONIC), work_s = now(CLOCK_PROCESS_CPUTIME_ID);
  pthread_t threads[2];
  for (uintptr_t i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, (void *)i);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
  fprintf(stderr, "%.2f processors at work\n", (now(CLOCK_PROCESS_CPUTIME_ID) - work_s) / (now(CLOCK_MONOTONIC) - wall));
  return 0;
}
"#;

/// The text of the report on a mode of [`WIDTHS`].
fn report_on(stage: &Stage, mode: &str, rounds: &str) -> Option<String> {
    let program = stage.build_text("widths", WIDTHS, &["-g", "-O1"]);
    let output = run_together(&["sharing"], &program, &[mode, rounds])?;
    assert_eq!(output.status.code(), Some(1), "{mode}: {}", String::from_utf8_lossy(&output.stdout));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_counter_on_two_lines_is_named_and_put_on_one() {
    let Some(stage) = Stage::new() else { return };
    let Some(report) = report_on(&stage, "tight", "800000000") else { return };
    for part in [
        "first lies across two cache lines: each access to it takes both.",
        "- leave out the attribute packed: by it first lies across two cache lines",
        "// 64: written by thread",
        "alignas(64) volatile long unsigned int second;",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }
}

#[test]
fn locks_and_atomics_are_named() {
    let Some(stage) = Stage::new() else { return };
    let Some(report) = report_on(&stage, "locks", "50000000") else { return };
    for part in [
        "[0].guard, lock of slots[0], atomic",
        "[1].guard, lock of slots[1], atomic",
        "[1].hits, atomic",
        "// 0: a lock, atomic",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }
}

/// Words beside each other, which the threads' loops would write if something happened that never does.
const NEVER: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static volatile uint64_t errors[8] __attribute__((aligned(64)));
static volatile unsigned char data[1 << 16];
static uint64_t rounds;
static void *work(void *which) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < rounds; i++) {
    unsigned char found = data[i & 0xffff];
    if (__builtin_expect(found == 77, 0)) errors[(uintptr_t)which]++;
    sum += found;
  }
  return (void *)(uintptr_t)sum;
}
int main(int argc, char **argv) {
  rounds = strtoull(argv[1], 0, 10);
  pthread_t threads[2];
  for (uintptr_t i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, (void *)i);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
  printf("%d\n", (int)errors[0]);
  return 0;
}
"#;

#[test]
fn what_a_loop_could_write_and_never_does_is_no_finding() {
    let Some(stage) = Stage::new() else { return };
    for level in ["-O0", "-O2"] {
        let program = stage.build_text("never", NEVER, &["-g", level]);
        let Some((told, code)) = look(&stage, run, &program, &["500000000"]) else { return };
        assert_eq!((code, told.findings.len()), (0, 0), "{level}: {:?}", told.findings);
        assert!(told.sampling.accesses > 20, "{level}: {:?}", told.sampling);
    }
}
