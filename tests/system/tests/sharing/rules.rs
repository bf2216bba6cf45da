//! Requests for single bytes: by a file of rules, and by the program itself.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fieldstone_repair::{RepairEvent, RepairStats, TimedEvent};

use crate::fixture::{SharingFixture, checksum, fieldstone, run, stderr};

/// Waits until a repairer may have attached, then accesses some words a known number of times.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <unistd.h>
static volatile long words[1024] __attribute__((aligned(4096))) = { 1 };
static long sum;
static __attribute__((noinline)) void write_some(void) { for (int i = 0; i < 37; i++) words[100] = i; }
static __attribute__((noinline)) void read_some(void) { for (int i = 0; i < 5; i++) sum += words[101]; }
#ifdef ASKS
static volatile struct { unsigned long magic, changes, entries[255][2]; } fieldstone_isolated = { 0x316574616c6f7369 };
static void ask(volatile void *address, unsigned long bytes) {
  fieldstone_isolated.entries[0][0] = (unsigned long)address; fieldstone_isolated.entries[0][1] = bytes; fieldstone_isolated.changes++;
}
#else
static void ask(volatile void *address, unsigned long bytes) {}
#endif
int main(void) {
  ask(&words[200], 8);
  usleep(2500000);
  for (int i = 0; i < 1000; i++) words[200]++;
  write_some(); read_some();
  ask(&words[300], 8);
  usleep(300000);
  words[300] = 3;
  printf("checksum: %ld\n", sum + words[100] + words[200] + words[300]);
  return 0;
}
"#;

fn stats(fixture: &SharingFixture, program: &Path, rules: Option<&str>) -> Option<Vec<TimedEvent>> {
    let (file, rule_file) = (fixture.path("stats.json"), fixture.path("rules"));
    let mut options = vec!["run", "--repair", "--stats", file.to_str().unwrap()];
    if let Some(rules) = rules {
        std::fs::write(&rule_file, rules).unwrap();
        options.extend(["--rules", rule_file.to_str().unwrap()]);
    }
    let output = run(&options, program, &[])?;
    assert_eq!(checksum(&output), "checksum: 1039", "{}", stderr(&output));
    let stats: RepairStats = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    Some(stats.events)
}

fn moved(events: &[TimedEvent]) -> Vec<(u64, u32)> {
    let moved = |event: &TimedEvent| match &event.kind {
        RepairEvent::PageMoved { page, views, .. } => Some((*page, *views)),
        _ => None,
    };
    events.iter().filter_map(moved).collect()
}

#[test]
fn rules_are_applied_and_count_each_access() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build_text("words", PROGRAM, &["-g", "-O1"]);
    let rules = "# of the first page\nisolate words+64 8\nisolate wordsgO1:words+72 8\ncount words+800 8\ntrace words+808 8\nlog nowhere 8\n";
    let Some(events) = stats(&fixture, &program, Some(rules)) else { return };
    let moved = moved(&events);
    assert_eq!(moved.len(), 1, "{events:#?}");
    assert_eq!(moved[0].1, 2, "a view for each: {events:#?}");
    let page = moved[0].0;
    let mut counted: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut traced = 0;
    for event in &events {
        match &event.kind {
            RepairEvent::AccessCount { rule, reads, writes, code, .. } => {
                let all = counted.entry(rule.clone()).or_default();
                (all.0, all.1) = (all.0 + reads, all.1 + writes);
                assert!(code.is_some(), "{event:?}");
            }
            RepairEvent::WatchedAccess { rule, address, bytes, read, write, code, .. } => {
                assert_eq!((rule.as_str(), *address, *bytes), ("words+808", page + 808, 8), "{event:?}");
                assert!(*read && !*write, "{event:?}");
                let code = code.as_deref().unwrap_or_default();
                assert!(code.contains("read_some") && code.contains("words.c:7"), "{event:?}");
                traced += 1;
            }
            _ => {}
        }
    }
    // The last read is in main, for the program's own sum.
    assert_eq!(counted, BTreeMap::from([("words+800".to_owned(), (1, 37))]), "{events:#?}");
    assert_eq!(traced, 5);
    assert!(
        events.iter().any(|event| matches!(&event.kind, RepairEvent::SymbolMissing { rule, .. } if rule == "nowhere")),
        "{events:#?}"
    );
}

#[test]
fn a_program_requests_isolation_itself() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build_text("asking", PROGRAM, &["-O1", "-DASKS"]);
    let Some(events) = stats(&fixture, &program, None) else { return };
    let moved = moved(&events);
    // First words[200], then words[300] instead, in the same page.
    assert_eq!(moved.iter().map(|(_, views)| *views).collect::<Vec<_>>(), [1, 1], "{events:#?}");
    assert_eq!(moved[0].0, moved[1].0);
    assert!(moved[0].0.is_multiple_of(4096));
}

#[test]
fn wrong_rules_stop_the_program_before_it_starts() {
    let Some(fixture) = SharingFixture::new() else { return };
    let rules = fixture.path("rules");
    std::fs::write(&rules, "isolate words\n").unwrap();
    for file in [rules.to_str().unwrap(), "/there/is/none"] {
        let output = fieldstone(&["run", "--repair", "--rules", file, "--", "echo", "it ran"]).output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{}", stderr(&output));
        assert!(stderr(&output).contains(file), "{}", stderr(&output));
    }
    let output = fieldstone(&["run", "--rules", "x", "--", "echo"]).output().unwrap();
    assert!(stderr(&output).contains("--repair"), "{}", stderr(&output));
    let output = fieldstone(&["run", "--repair", "--pages", "thp", "--", "echo"]).output().unwrap();
    assert!(output.status.code() == Some(2) && stderr(&output).contains("--pages"), "{}", stderr(&output));
}

#[test]
fn a_run_without_repairs_is_reported_on_request() {
    let Some(_fixture) = SharingFixture::new() else { return };
    for (options, is_expected) in [(&["run", "--repair", "--stats", "-"][..], true), (&["run", "--repair"], false)] {
        let Some(output) = run(options, Path::new("/bin/sleep"), &["1"]) else { return };
        assert_eq!(stderr(&output).contains("nothing was repaired"), is_expected, "{}", stderr(&output));
        assert!(
            !stderr(&output).contains("old form"),
            "the command starts its repairer by the new form: {}",
            stderr(&output)
        );
    }
}

#[test]
fn inapplicable_rules_are_always_reported() {
    let Some(fixture) = SharingFixture::new() else { return };
    let rules = fixture.path("rules");
    std::fs::write(&rules, "isolate 0x10000 8\nisolate nowhere 8\n").unwrap();
    let options = ["run", "--repair", "--rules", rules.to_str().unwrap()];
    let Some(output) = run(&options, Path::new("/bin/sleep"), &["0.5"]) else { return };
    let message = stderr(&output);
    assert!(message.contains("0x10000") && message.contains("not mapped"), "{message}");
    assert!(message.contains("/rules:2: cannot find nowhere: ") && message.contains("\ntry: nm "), "{message}");
}

#[test]
fn a_reader_that_does_not_read_delays_no_thread() {
    let Some(fixture) = SharingFixture::new() else { return };
    let program = fixture.build_text("unread", PROGRAM, &["-O1"]);
    let rules = fixture.path("rules");
    std::fs::write(&rules, "log words+1600 8\n").unwrap();
    let mut child = std::process::Command::new(&program).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    let saved = fixture.path("attached.json");
    let options = ["--rules", rules.to_str().unwrap(), "--stats", saved.to_str().unwrap()];
    let mut repair = fieldstone(&[["attach", "--repair", &pid].as_slice(), options.as_slice()].concat());
    let mut repair = repair.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the program waits for who does not read");
        std::thread::sleep(Duration::from_millis(20));
    }
    // More than a pipe buffers.
    let mut text = String::new();
    repair.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let mut errors = String::new();
    repair.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    if !repair.wait().unwrap().success() {
        return println!("SKIP {}", errors.trim());
    }
    let is_access = |line: &&str| line.contains("words+1600");
    assert!(text.lines().filter(is_access).count() >= 2000 && text.len() > 1 << 17, "{text}");
    let stats: RepairStats = serde_json::from_str(&std::fs::read_to_string(&saved).unwrap()).unwrap();
    assert_eq!(stats.events.len() + 1, text.lines().count(), "the last line is the end of the repair");
    assert!(stats.sampling.ended && stats.command[0].ends_with(program.to_str().unwrap()), "{:?}", stats.command);
}

#[test]
fn a_program_runs_although_its_repairer_cannot_start() {
    // Enough descriptors for the program, but not for another pipe.
    let command = fieldstone(&["run", "--repair", "--", "sh", "-c", "echo it ran; exit 7"]);
    let script = "ulimit -n 8; exec \"$0\" \"$@\"";
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", script]).arg(command.get_program()).args(command.get_args()).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(output.stdout == b"it ran\n" && stderr(&output).contains("without a repair"), "{}", stderr(&output));
}
