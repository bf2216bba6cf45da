//! Repairs of running programs: results are the same, and everything is restored when the repairer
//! ends.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use fieldstone_repair::{RepairEvent, RepairStats, SamplingStats, TimedEvent};

use crate::fixture::{
    RunCommand, SharingFixture, checksum, did_not_run_together, fieldstone, interrupt, is_forbidden, iterations_for,
    kernel_s, ran_together, run, run_together, slowdown_by_sharing, stderr,
};

const COUNTING: &[&str] = &["--iterations", "300000000"];

/// Runs a program natively and with a repair, compares the results, and returns the statistics.
fn repaired(fixture: &SharingFixture, run: RunCommand, program: &Path, arguments: &[&str]) -> Option<RepairStats> {
    let plain = std::process::Command::new(program).args(arguments).output().unwrap();
    let file = fixture.path("stats.json");
    let output = run(&["run", "--repair", "--stats", file.to_str().unwrap()], program, arguments)?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(checksum(&output), checksum(&plain));
    Some(serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap())
}

fn count(events: &[TimedEvent], is: impl Fn(&RepairEvent) -> bool) -> usize {
    events.iter().filter(|event| is(&event.kind)).count()
}

#[test]
fn counters_are_separated_at_each_optimization_level() {
    let Some(fixture) = SharingFixture::new() else { return };
    // Contended atomic operations take ten times as long as others.
    let atomic = ["--atomic", "--iterations", "100000000"];
    for (level, more) in [("-O0", &[][..]), ("-O2", &[]), ("-O1", &atomic), ("-O2", &["--globals"])] {
        let program = fixture.build("counters", &["-g", level]);
        let Some(stats) = repaired(&fixture, run_together, &program, &[COUNTING, more].concat()) else { return };
        assert_eq!(stats.schema, RepairStats::SCHEMA);
        let moved = count(&stats.events, |what| matches!(what, RepairEvent::PageMoved { .. }));
        let redirected = count(&stats.events, |what| matches!(what, RepairEvent::AccessRedirected { .. }));
        assert!(moved >= 1 && redirected >= 2, "{level} {more:?}: {:#?}", stats.events);
        let is_named = |what: &RepairEvent| matches!(what, RepairEvent::AccessRedirected { code: Some(code), .. } if code.contains("counters.c:"));
        assert!(count(&stats.events, is_named) >= 1, "{level} {more:?}: {:#?}", stats.events);
        if more.contains(&"--globals") {
            let is_named = |event: &TimedEvent| event.variables.iter().any(|name| name.starts_with("global_array"));
            let moved = |event: &&TimedEvent| matches!(event.kind, RepairEvent::PageMoved { .. });
            assert!(stats.events.iter().filter(moved).all(is_named), "{:#?}", stats.events);
        }
        if let Some(why) = restored_within_100_ms(&stats.events) {
            let slowdown = slowdown_by_sharing(&program, &[COUNTING, more].concat());
            let is_useless = slowdown < 1.2 && why.contains("times as fast as before");
            // Whatever takes a processor away during the trial makes the repair look slow, but hardly twice.
            let stays = || {
                let stats = repaired(&fixture, run_together, &program, &[COUNTING, more].concat());
                stats.is_none_or(|stats| restored_within_100_ms(&stats.events).is_none())
            };
            let events = &stats.events;
            assert!(is_useless || stays(), "{level} {more:?}: sharing takes {slowdown} times as long: {events:#?}");
        }
    }
}

/// Why the first page to be moved was restored, if that was less than 100 ms later. At the end the main
/// thread may access the page so often, one access at a time, that the repairer restores it.
fn restored_within_100_ms(events: &[TimedEvent]) -> Option<&str> {
    let mut moved_ms = f64::INFINITY;
    events.iter().find_map(|event| match &event.kind {
        RepairEvent::PageMoved { .. } => {
            moved_ms = moved_ms.min(event.at_ms);
            None
        }
        RepairEvent::PageRestored { why, .. } if event.at_ms - moved_ms < 100.0 => Some(why.as_str()),
        _ => None,
    })
}

/// Without optimization each access loads its address from the stack, and each is checked.
#[test]
fn a_loop_of_many_accesses_runs_in_a_clone() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build("linear_regression", &["-g", "-O0"]);
    let arguments = ["--shift", "16", "--pin", "--rounds", "5"];
    let Some(stats) = repaired(&fixture, run_together, &program, &arguments) else { return };
    let moved = stats.events.iter().find(|event| matches!(event.kind, RepairEvent::PageMoved { .. }));
    let moved_ms = moved.unwrap_or_else(|| panic!("{:#?}", stats.sampling)).at_ms;
    let one_by_one = |event: &&TimedEvent| matches!(&event.kind, RepairEvent::PageRestored { why, .. } if why.contains("one by one"));
    let restored = stats.events.iter().find(one_by_one);
    assert!(restored.is_none_or(|restored| restored.at_ms - moved_ms > 2000.0), "{:#?}", stats.events);
}

#[test]
fn truly_shared_memory_is_not_moved() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build("counters", &["-g", "-O2"]);
    for (pattern, iterations) in
        [("padded", "100000000"), ("same", "30000000"), ("bits", "30000000"), ("read", "100000000")]
    {
        let arguments = ["--iterations", iterations, "--pattern", pattern];
        let Some(stats) = repaired(&fixture, run_together, &program, &arguments) else { return };
        assert!(stats.sampling.samples > 0, "{pattern}: nothing was seen");
        assert_eq!(
            count(&stats.events, |what| matches!(what, RepairEvent::PageMoved { .. })),
            0,
            "{pattern}: {:?}",
            stats.events
        );
    }
}

#[test]
fn repaired_programs_keep_their_results() {
    let Some(fixture) = SharingFixture::new() else { return };
    // Rounds for which threads run at least 0.1 s: long enough to be sampled.
    let programs = [
        ("linear_regression", ["1", "4"]),
        ("histogram", ["1", "6"]),
        ("string_match", ["1", "1"]),
        ("word_count", ["1", "4"]),
        ("streamcluster", ["200", "500"]),
    ];
    for (name, rounds) in programs {
        for (level, rounds) in ["-O0", "-O2"].into_iter().zip(rounds) {
            let program = fixture.build(name, &["-g", level]);
            let Some(stats) = repaired(&fixture, run, &program, &["--rounds", rounds]) else { return };
            assert!(stats.sampling.analysed > 0, "{name} {level}: no sample was analysed: {stats:?}");
            println!("{name} {level}: {} events", stats.events.len());
        }
    }
}

/// Accesses outside of cloned loops: in a virtual function, and in a mutex of the C library.
#[test]
fn objects_accessed_through_calls_are_not_slower() {
    let Some(fixture) = SharingFixture::new() else { return };
    for (level, kind, iterations) in [("-O0", "virtual", "100000000"), ("-O2", "mutexes", "16000000")] {
        let Some(program) = fixture.build_cpp("objects", &["-g", level]) else { return };
        let arguments = ["--pin", "--kind", kind, "--iterations", iterations];
        let mut ratios = Vec::new();
        for pair in 0..3 {
            let plain = || std::process::Command::new(&program).args(arguments).output().unwrap();
            let first = (pair % 2 == 0).then(plain);
            let Some(repaired) = run(&["run", "--repair"], &program, &arguments) else { return };
            let plain = first.unwrap_or_else(plain);
            assert_eq!(checksum(&repaired), checksum(&plain));
            ratios.push(kernel_s(&repaired) / kernel_s(&plain));
        }
        ratios.sort_by(f64::total_cmp);
        assert!(ratios[1] < 1.25, "{kind} {level}: {ratios:?} times as long as without the repair");
    }
}

/// The first lines of these programs.
const BEGIN: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
static volatile long counters[512] __attribute__((aligned(4096)));
static double now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}
static double at_work[2];
static long times;
"#;

/// First each access is redirected alone, since its code may be rewritten; then the loop is a
/// simple one.
const CHANGING: &str = r#"
static long first[2];
static void *made;
static void *work(void *number) {
    long own = (long)number;
    void (*many)(volatile long *, int) = made;
    for (double end = now(CLOCK_MONOTONIC) + 2.5; now(CLOCK_MONOTONIC) < end; first[own] += 100)
        many(&counters[own], 100);
    double begun = now(CLOCK_MONOTONIC), worked = now(CLOCK_THREAD_CPUTIME_ID);
    for (long i = 0; i < 800000000; i++) counters[own] += 1;
    at_work[own] = (now(CLOCK_THREAD_CPUTIME_ID) - worked) / (now(CLOCK_MONOTONIC) - begun);
    return 0;
}
int main(void) {
    pthread_t threads[2];
    made = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(made, "\x48\x83\x07\x01\xff\xce\x75\xf8\xc3", 9); // head: add [rdi], 1; dec esi; jne head; ret
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    fprintf(stderr, "%.2f processors at work\n", at_work[0] + at_work[1]);
    printf("checksum: %ld %ld\n", counters[0] - first[0], counters[1] - first[1]);
}
"#;

#[test]
fn a_failed_repair_is_retried() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build_text("changing", &[BEGIN, CHANGING].concat(), &["-g", "-O2"]);
    let Some(stats) = repaired(&fixture, run_together, &program, &[]) else { return };
    let one_by_one =
        |what: &RepairEvent| matches!(what, RepairEvent::PageRestored { why, .. } if why.contains("one by one"));
    assert!(count(&stats.events, one_by_one) >= 1, "{:#?}", stats.events);
    assert!(count(&stats.events, |what| matches!(what, RepairEvent::PageMoved { .. })) >= 2, "{:#?}", stats.events);
}

/// Two threads that work the given number of times.
const TWO: &str = r#"
int main(int count, char **words) {
    pthread_t threads[2];
    times = atol(words[1]);
    for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    fprintf(stderr, "%.2f processors at work\n", at_work[0] + at_work[1]);
    printf("checksum: %ld %ld\n", counters[0], counters[1]);
}
"#;

/// Threads that first work on separate lines for a while, and then contend the given number of
/// times.
const LATE: &str = r#"
static void *work(void *number) {
    long own = (long)number;
    for (double end = now(CLOCK_MONOTONIC) + 1.5; now(CLOCK_MONOTONIC) < end;)
        for (long i = 0; i < 100000; i++) counters[own * 256 + 64] += 1;
    double begun = now(CLOCK_MONOTONIC), worked = now(CLOCK_THREAD_CPUTIME_ID);
    for (long i = 0; i < times; i++) counters[own] += 1;
    at_work[own] = (now(CLOCK_THREAD_CPUTIME_ID) - worked) / (now(CLOCK_MONOTONIC) - begun);
    return 0;
}
"#;

#[test]
fn late_false_sharing_is_repaired_after_few_samples() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build_text("late", &[BEGIN, LATE, TWO].concat(), &["-g", "-O2"]);
    let Some(calm) = repaired(&fixture, run, &program, &["1000"]) else { return };
    assert!(calm.events.is_empty(), "{:#?}", calm.events);
    let SamplingStats { pauses, samples, .. } = calm.sampling;
    assert!(pauses > 0 && samples < 1000, "1.5 s of two threads: {:?}", calm.sampling);
    let Some(stats) = repaired(&fixture, run_together, &program, &["800000000"]) else { return };
    let moved = stats.events.iter().find(|event| matches!(event.kind, RepairEvent::PageMoved { .. }));
    assert!(moved.is_some_and(|event| event.at_ms > 1400.0), "{:#?}", stats.events);
    // Until the page moves there are about 110 more samples than in the calm program, and as
    // many during its trial.
    assert!(stats.sampling.samples > samples + 160, "{:?} and {:?}", stats.sampling, calm.sampling);
}

/// The address is returned by a call each time, as by a smart pointer in C++ without optimization:
/// no register keeps it.
const CALLING: &str = r#"
static volatile long *at(long own) { return &counters[own]; }
static void *work(void *number) {
    long own = (long)number;
    double begun = now(CLOCK_MONOTONIC), worked = now(CLOCK_THREAD_CPUTIME_ID);
    for (long i = 0; i < times; i++) __atomic_fetch_add(at(own), 1, __ATOMIC_RELAXED);
    at_work[own] = (now(CLOCK_THREAD_CPUTIME_ID) - worked) / (now(CLOCK_MONOTONIC) - begun);
    return 0;
}
"#;

#[test]
fn an_access_to_a_returned_address_is_repaired() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build_text("calling", &[BEGIN, CALLING, TWO].concat(), &["-g", "-O0"]);
    let Some(stats) = repaired(&fixture, run_together, &program, &["60000000"]) else { return };
    let found = stats.events.iter().find_map(|event| match event.kind {
        RepairEvent::LineFound { share, .. } => Some(share),
        _ => None,
    });
    assert!(found.is_some_and(|share| share > 0.3), "{:#?}", stats.events);
    assert!(count(&stats.events, |what| matches!(what, RepairEvent::PageMoved { .. })) >= 1, "{:#?}", stats.events);
}

#[test]
fn bytes_separated_by_a_rule_are_not_reported_as_found() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build_text("ruled", &[BEGIN, LATE, TWO].concat(), &["-g", "-O2"]);
    let (file, rules) = (fixture.path("stats.json"), fixture.path("rules"));
    std::fs::write(&rules, "isolate counters 8\nisolate counters+8 8\n").unwrap();
    let options = ["run", "--repair", "--stats", file.to_str().unwrap(), "--rules", rules.to_str().unwrap()];
    if run_together(&options, &program, &["3000000000"]).is_none() {
        return;
    }
    let stats: RepairStats = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    // The loop of each thread, when it first runs.
    assert!(
        count(&stats.events, |what| matches!(what, RepairEvent::AccessRedirected { .. })) >= 2,
        "{:#?}",
        stats.events
    );
    assert_eq!(count(&stats.events, |what| matches!(what, RepairEvent::PageMoved { .. })), 1, "{:#?}", stats.events);
    assert_eq!(count(&stats.events, |what| matches!(what, RepairEvent::LineFound { .. })), 0, "{:#?}", stats.events);
}

/// Threads that end and are replaced by as many new ones, at a time without samples for almost a
/// second; the new ones contend.
const REPLACED: &str = r#"
static int fights;
static void *work(void *number) {
    long own = (long)number;
    double begun = now(CLOCK_MONOTONIC), worked = now(CLOCK_THREAD_CPUTIME_ID);
    for (double end = begun + (fights ? 0.4 : 2.2); now(CLOCK_MONOTONIC) < end;)
        for (long i = 0; i < 100000; i++) counters[fights ? own : own * 256 + 64] += 1;
    at_work[own] = (now(CLOCK_THREAD_CPUTIME_ID) - worked) / (now(CLOCK_MONOTONIC) - begun);
    return 0;
}
int main(void) {
    pthread_t threads[2];
    for (; fights < 2; fights++) {
        for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, work, (void *)i);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    }
    fprintf(stderr, "%.2f processors at work\n", at_work[0] + at_work[1]);
    printf("checksum: %d\n", counters[0] > 0 && counters[1] > 0 && counters[64] > 0);
}
"#;

#[test]
fn replacement_threads_are_sampled_at_once() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build_text("replaced", &[BEGIN, REPLACED].concat(), &["-g", "-O2"]);
    let Some(stats) = repaired(&fixture, run_together, &program, &[]) else { return };
    assert!(stats.sampling.pauses >= 3, "{:?}", stats.sampling);
    let moved = stats.events.iter().find(|event| matches!(event.kind, RepairEvent::PageMoved { .. }));
    assert!(moved.is_some_and(|event| (2200.0..2600.0).contains(&event.at_ms)), "{:#?}", stats.events);
}

#[test]
fn a_program_started_by_exec_is_repaired() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build("counters", &["-g", "-O2"]);
    let script = format!("sleep 0.1; exec {} \"$@\"", program.display());
    let arguments = [&["-c", &script, "sh", "--pin"], COUNTING].concat();
    let Some(stats) = repaired(&fixture, run_together, Path::new("/bin/sh"), &arguments) else { return };
    assert_eq!(count(&stats.events, |what| matches!(what, RepairEvent::Exec)), 1, "{:#?}", stats.events);
    assert!(count(&stats.events, |what| matches!(what, RepairEvent::PageMoved { .. })) >= 1, "{:#?}", stats.events);
}

/// Repairs a running process and detaches; the process ends normally.
#[test]
fn a_running_process_is_repaired_and_detached() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build("counters", &["-g", "-O2"]);
    let running = std::process::Command::new(&program)
        .args(["--pin", "--iterations", &iterations_for(&program, 1.0)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut repairer = fieldstone(&["attach", "--events", "--repair", &running.id().to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(repairer.stdout.take().unwrap()).lines();
    let redirected = lines.by_ref().map_while(Result::ok).filter(|line| line.contains("\"led\"")).nth(1);
    if redirected.is_some() {
        check_reports_of_the_repair(running.id(), repairer.id());
        interrupt(repairer.id());
    }
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let ended = repairer.wait_with_output().unwrap();
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success(), "the program found its own result wrong: {}", stderr(&output));
    if redirected.is_none() && is_forbidden(&stderr(&ended)) {
        return;
    }
    if redirected.is_none() && !ran_together(&stderr(&output)) {
        return did_not_run_together(&program);
    }
    assert!(redirected.is_some() && ended.status.success(), "{rest:?}{}", stderr(&ended));
    assert!(rest.last().is_some_and(|line| line.contains("\"over\"")), "{rest:?}");
    assert!(checksum(&output).contains("checksum:"));
}

/// A second repair, and `sharing`, report the running repair and how to end it.
fn check_reports_of_the_repair(pid: u32, repairer: u32) {
    let pid = pid.to_string();
    let other = fieldstone(&["attach", "--repair", &pid]).output().unwrap();
    let expected = format!("process {repairer} repairs it already\ntry: kill {repairer}");
    assert!(other.status.code() == Some(2) && stderr(&other).contains(&expected), "{}", stderr(&other));
    let sampled = fieldstone(&["sharing", "--pid", &pid, "--duration", "0.1"]).output().unwrap();
    let text = String::from_utf8_lossy(&sampled.stdout).replace('\n', " ");
    assert!(text.contains("under repair") && text.contains(&repairer.to_string()), "{text}{}", stderr(&sampled));
}

#[test]
fn a_saved_repair_is_shown_with_its_events() {
    let Some(fixture) = SharingFixture::new() else { return };
    let file = fixture.path("repair.json");
    let saved = r#"{"schema": "fieldstone-repair/1", "command": ["./counters"], "outcome": "exit 0", "events": [
        {"at_ms": 12.5, "event": "moved", "page": 4096, "views": 2, "lines": [4096]},
        {"at_ms": 99.0, "event": "undone", "page": 4096, "why": "the kernel uses it"}]}"#;
    std::fs::write(&file, saved).unwrap();
    let page = fixture.path("repair.html");
    let shown = fieldstone(&["report", "--html", page.to_str().unwrap(), file.to_str().unwrap()]).output().unwrap();
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success(), "{}", stderr(&shown));
    let page = std::fs::read_to_string(&page).unwrap();
    for shown in [&text, &page] {
        assert!(shown.contains("page 0x1000: 1 line separated, over 2 pages"), "{shown}");
        assert!(shown.contains("restored: the kernel uses it") && shown.contains("exit 0"), "{shown}");
    }
}
