//! Findings of `fieldstone sharing`: false sharing with object, code and remedy; and other sharing,
//! classified.

use std::os::unix::process::CommandExt;
use std::path::Path;

use fieldstone_report::sharing::{MemoryKind, Sharing};

use crate::fixture::{RunCommand, SharingFixture, fieldstone, iterations_for, run, run_together, stderr};

/// Long enough for hundreds of samples of each thread, on any machine.
const COUNTING: &[&str] = &["--iterations", "300000000"];

/// The findings of `fieldstone sharing`, and its exit code.
fn look(fixture: &SharingFixture, run: RunCommand, program: &Path, arguments: &[&str]) -> Option<(Sharing, i32)> {
    let file = fixture.path("found.json");
    let output = run(&["sharing", "--json", file.to_str().unwrap()], program, arguments)?;
    let code = output.status.code().unwrap();
    assert!(code < 2, "{}", stderr(&output));
    Some((fieldstone_report::sharing::load(&file).unwrap(), code))
}

#[test]
fn threads_on_one_line_are_found_with_the_object_and_the_code() {
    let Some(fixture) = SharingFixture::new() else { return };
    for level in ["-O0", "-O2"] {
        let program = fixture.build("counters", &["-g", level]);
        let Some((report, code)) = look(&fixture, run_together, &program, &[COUNTING, &["--globals"]].concat()) else {
            return;
        };
        assert_eq!((code, report.findings.len()), (1, 1), "{level}: {:?}", report.others);
        let found = &report.findings[0];
        // Nearly all of the time is in the loop.
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
fn other_sharing_is_not_reported_as_false_sharing() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build("counters", &["-g", "-O1"]);
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
        let Some((report, code)) = look(&fixture, together, &program, &arguments) else { return };
        assert_eq!((code, report.findings.len()), (0, 0), "{pattern}: {:?}", report.findings);
        assert!(report.sampling.accesses > 20, "{pattern}: {:?}", report.sampling);
        let others: Vec<&str> = report.others.iter().map(|other| other.judged.verdict.words()).collect();
        let fits = words.is_none_or(|words| others.iter().any(|other| other.contains(words)));
        assert!(fits, "{pattern}: {others:?}");
    }
}

#[test]
fn a_known_finding_can_be_ignored() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build("counters", &["-g", "-O2"]);
    let file = fixture.path("known.txt");
    std::fs::write(&file, "# ours\nfunction:add\n").unwrap();
    let options = ["sharing", "--ignore", file.to_str().unwrap()];
    let Some(output) = run_together(&options, &program, COUNTING) else { return };
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.code() == Some(0) && text.contains("1 finding is not reported"), "{text}{}", stderr(&output));
    std::fs::write(&file, "nonsense").unwrap();
    let output = run(&options, &program, COUNTING).unwrap();
    assert!(output.status.code() == Some(2) && stderr(&output).contains("known.txt"), "{}", stderr(&output));
}

#[test]
fn the_old_form_of_a_repair_works_and_prints_the_new_one() {
    let output = fieldstone(&["repair", "--pid", "4194304"]).output().unwrap();
    let message = stderr(&output);
    let old_form = "fieldstone: `fieldstone repair --pid` is an old form\ntry: fieldstone attach --repair\n";
    assert!(message.starts_with(old_form), "{message}");
    assert!(
        output.status.code() == Some(2) && message.contains("cannot repair process 4194304: it does not exist"),
        "{message}"
    );
}

#[test]
fn a_process_of_another_user_is_reported() {
    const NOBODY: u32 = 65534;
    let us = std::process::id().to_string();
    for command in [["sharing", "--pid"], ["attach", "--repair"]] {
        let tried = fieldstone(&[&command[..], &[us.as_str()]].concat()).uid(NOBODY).gid(NOBODY).output();
        let Ok(output) = tried else {
            println!("SKIP not root: no other user can be tried");
            return;
        };
        let message = stderr(&output);
        assert!(
            output.status.code() == Some(2) && message.contains("its owner") && message.contains("root"),
            "{message}"
        );
        assert!(!message.contains("perf_event_paranoid"), "that would not help: {message}");
    }
}

#[test]
fn a_program_that_ends_before_sampling_is_no_error() {
    let Some(_fixture) = SharingFixture::new() else { return };
    for _ in 0..40 {
        let Some(output) = run(&["sharing"], Path::new("true"), &[]) else { return };
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

#[test]
fn false_sharing_after_exec_is_found() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build("counters", &["-g", "-O2"]);
    let script = format!("sleep 0.1; exec {} \"$@\"", program.display());
    let arguments = [&["-c", &script, "sh"], COUNTING].concat();
    let Some((report, code)) = look(&fixture, run_together, Path::new("/bin/sh"), &arguments) else { return };
    assert_eq!((code, report.findings.len()), (1, 1), "{:?} {:?}", report.others, report.unseen);
    assert!(report.findings[0].code.iter().any(|code| code.function == "add"), "{:?}", report.findings[0].code);
}

/// Threads on one processor use one cache, so no line moves between caches.
#[test]
fn threads_on_one_processor_have_no_false_sharing() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build("counters", &["-g", "-O2"]);
    let arguments = [&["-c", "0", program.to_str().unwrap()], COUNTING].concat();
    let Some((report, code)) = look(&fixture, run, Path::new("/usr/bin/taskset"), &arguments) else { return };
    assert_eq!((code, report.findings.len()), (0, 0), "{:?}", report.findings);
    assert!(report.sampling.accesses > 20, "{:?}", report.sampling);
}

/// Two threads: a counter on two lines; or two locks on one line, each followed by an atomic.
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

/// The report on a mode of [`WIDTHS`].
fn report_on(fixture: &SharingFixture, mode: &str, rounds: &str) -> Option<String> {
    let program = fixture.build_text("widths", WIDTHS, &["-g", "-O1"]);
    let output = run_together(&["sharing"], &program, &[mode, rounds])?;
    assert_eq!(output.status.code(), Some(1), "{mode}: {}", String::from_utf8_lossy(&output.stdout));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_counter_on_two_lines_is_reported_with_a_layout_on_one() {
    let Some(fixture) = SharingFixture::new() else { return };
    let Some(report) = report_on(&fixture, "tight", "800000000") else { return };
    for part in [
        "first is on two cache lines: each access to it takes both.",
        "- leave out the attribute packed: by it first lies across two cache lines",
        "// 64: written by thread",
        "alignas(64) volatile long unsigned int second;",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }
}

#[test]
fn locks_and_atomics_are_named() {
    let Some(fixture) = SharingFixture::new() else { return };
    let Some(report) = report_on(&fixture, "locks", "50000000") else { return };
    for part in [
        "[0].guard, lock of slots[0], atomic",
        "[1].guard, lock of slots[1], atomic",
        "[1].hits, atomic",
        "// 0: a lock, atomic",
    ] {
        assert!(report.contains(part), "{part}\n{report}");
    }
}

/// Adjacent words that the loops of two threads would write on an event that never happens.
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
fn writes_that_never_happen_are_no_finding() {
    let Some(fixture) = SharingFixture::new() else { return };
    for level in ["-O0", "-O2"] {
        let program = fixture.build_text("never", NEVER, &["-g", level]);
        let Some((report, code)) = look(&fixture, run, &program, &["500000000"]) else { return };
        assert_eq!((code, report.findings.len()), (0, 0), "{level}: {:?}", report.findings);
        assert!(report.sampling.accesses > 20, "{level}: {:?}", report.sampling);
    }
}
