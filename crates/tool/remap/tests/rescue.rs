//! The repairer is killed: the next one restores the pages it has left.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod program;

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fieldstone_remap::{Process, RemapEvent, RestoreReason};
use program::{CHILD, ProgramBuilder, ProgramUnderTest, compiled, open_or_skip, split_words};

/// Moves a page, serves `times` times, and ends without a release, as a killed repairer does. The
/// tracer is a thread. Returns whether tracing is permitted.
fn move_and_abandon(pid: u32, page: u64, times: u32) -> bool {
    let die = move || {
        let Some(mut process) = open_or_skip(pid) else { return false };
        process.move_page(&split_words(page)).unwrap();
        (0..times).for_each(|_| drop(process.serve(Duration::from_millis(2)).unwrap()));
        std::mem::forget(process);
        true
    };
    std::thread::spawn(die).join().unwrap()
}

fn abandoned(running: &ProgramUnderTest, times: u32) -> bool {
    move_and_abandon(running.child.id(), running.page, times)
}

#[test]
fn the_next_repairer_restores_abandoned_pages() {
    let body = "uint64_t begin = counters[70]; counters[70] += 7; CHECK(counters[70] == begin + 7);";
    for options in [&["-O2"][..], &["-O0"]] {
        let mut running = ProgramBuilder::new(body).options(options).start();
        if !abandoned(&running, 100) {
            return;
        }
        let pid = running.child.id();
        assert!(Process::is_left_behind(pid).unwrap());
        // The program accesses a word that no clone redirects, and waits.
        running.send_input();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!running.has_printed("done"), "it continued at a missing page");
        let mut process = Process::open(pid).unwrap();
        let then = running.serve_until(&mut process, |line| line == "done");
        let page = running.page;
        assert!(then.contains(&RemapEvent::Restored { page, why: RestoreReason::Abandoned }), "{then:?}");
        assert!(!Process::is_left_behind(pid).unwrap());
        // The process can be repaired and released again.
        process.move_page(&split_words(page)).unwrap();
        running.serve_until_quiet(&mut process);
        process.release().unwrap();
        let (mappings, descriptors) = (mappings(pid), descriptors(pid));
        let is_ours = |line: &&String| line.contains(" r-xp 00000000 00:00 0") && !line.ends_with(']');
        assert_eq!(mappings.iter().find(is_ours), None, "inserted code is left");
        assert!(!descriptors.contains(&"anon_inode:[userfaultfd]".to_owned()), "{descriptors:?}");
        let output = running.finish_unserved();
        assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
    }
}

#[test]
fn a_kill_after_any_number_of_events_is_recoverable() {
    let running = ProgramBuilder::new("").start();
    for times in (0..40).map(|time| time % 8) {
        if !abandoned(&running, times) {
            return;
        }
    }
    let pid = running.child.id();
    drop(Process::open(pid).unwrap().release().unwrap());
    let output = running.finish_unserved();
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

/// A tracer with much memory, which releases its tracees only after all of that.
const LARGE_TRACER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>
int main(int count, char **words) {
  memset(malloc(1 << 29), 1, 1 << 29);
  if (ptrace(PTRACE_SEIZE, atoi(words[1]), 0, 0)) return 1;
  puts("on"); fflush(stdout); pause();
}
"#;

#[test]
fn a_killed_tracer_is_awaited() {
    let running = ProgramBuilder::new("").start();
    if open_or_skip(running.child.id()).is_none() {
        return;
    }
    let tracer = compiled(LARGE_TRACER, "c", &["-O1".to_owned()]);
    let pid = running.child.id();
    let mut tracer = Command::new(&*tracer).arg(pid.to_string()).stdout(Stdio::piped()).spawn().unwrap();
    let mut on = [0; 3];
    tracer.stdout.take().unwrap().read_exact(&mut on).unwrap();
    tracer.kill().unwrap();
    // The ninth field has the flags: the tracer is exiting.
    let is_ending = |stat: String| stat.split(' ').nth(8).is_some_and(|flags| flags.parse::<u64>().unwrap() & 4 != 0);
    let begun = Instant::now();
    while !is_ending(std::fs::read_to_string(format!("/proc/{}/stat", tracer.id())).unwrap()) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not end");
    }
    Process::open(pid).unwrap().release().unwrap();
    tracer.wait().unwrap();
    let output = running.finish_unserved();
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

#[test]
fn pages_are_restored_in_children_of_untraced_parents() {
    // Also a grandchild, and a child whose first access is the kernel's.
    let born = [
        "_exit(child());",
        "pid_t inner = fork(); if (!inner) _exit(child()); int status; if (waitpid(inner, &status, 0) != inner || status) _exit(4); _exit(child());",
        "int ends[2]; uint64_t seen = 0; if (pipe(ends) || write(ends[1], (void *)&counters[100], 8) != 8 || read(ends[0], &seen, 8) != 8 || seen != 7) _exit(5); _exit(child());",
    ];
    for born in born {
        let body = format!(
            "pid_t pid = fork(); CHECK(pid >= 0); if (!pid) {{ {born} }} int status; CHECK(waitpid(pid, &status, 0) == pid); CHECK(status == 0);"
        );
        let mut running = ProgramBuilder::new(&body).globals(CHILD).before("counters[100] = 7;").start();
        if !abandoned(&running, 100) {
            return;
        }
        running.send_input();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!running.has_printed("done"), "it continued without a repairer");
        let mut process = Process::open(running.child.id()).unwrap();
        let then = running.serve_until(&mut process, |line| line == "done");
        assert!(then.iter().any(|done| matches!(done, RemapEvent::ChildRestored(_))), "{born}: {then:?}");
        process.release().unwrap();
        let output = running.finish_unserved();
        assert_eq!(output.last().map(String::as_str), Some("right right"), "{born}: {output:?}");
    }
}

#[test]
fn a_released_process_has_no_record() {
    let running = ProgramBuilder::new("").start();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    process.release().unwrap();
    assert!(!Process::is_left_behind(running.child.id()).unwrap());
    assert!(Process::is_left_behind(std::process::id()).is_ok_and(|left| !left));
    let output = running.finish_unserved();
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

#[test]
fn a_program_that_closed_the_userfaultfd_is_refused_with_the_reason() {
    // As daemons do.
    let body = "for (int i = 3; i < 2048; i++) close(i);";
    let mut running = ProgramBuilder::new(body).start();
    let pid = running.child.id();
    let page = running.page;
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (end, is_over) = std::sync::mpsc::channel::<()>();
    let tracer = std::thread::spawn(move || {
        let Ok(mut process) = Process::open(pid) else { return begun.send(false).unwrap() };
        process.move_page(&split_words(page)).unwrap();
        begun.send(true).unwrap();
        while is_over.try_recv().is_err() {
            process.serve(Duration::from_millis(1)).unwrap();
        }
        std::mem::forget(process);
    });
    if !has_begun.recv().unwrap() {
        println!("SKIP another process cannot be remapped here");
        return;
    }
    running.send_input();
    running.wait_for("done");
    end.send(()).unwrap();
    tracer.join().unwrap();
    match Process::open(pid) {
        Err(fieldstone_remap::Error::Refused { why, .. }) => assert!(why.contains("closed the descriptor"), "{why}"),
        other => panic!("{other:?}"),
    }
}

fn mappings(pid: u32) -> Vec<String> {
    std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines().map(str::to_owned).collect()
}

fn descriptors(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    entries.filter_map(|entry| std::fs::read_link(entry.path()).ok()?.to_str().map(str::to_owned)).collect()
}
