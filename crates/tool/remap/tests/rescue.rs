//! Who remaps is killed: what is left behind is put back by who comes next.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod stage;

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fieldstone_remap::{Process, RemapEvent, Why};
use stage::{CHILD, Running, Stage, apart, compiled, opened};

/// Moves a page, serves so many times, and ends without letting go of anything, as one that is killed does: a thread is the tracer.
/// Whether it could.
fn remap_and_die(pid: u32, page: u64, times: u32) -> bool {
    let die = move || {
        let Some(mut process) = opened(pid) else { return false };
        process.move_page(&apart(page)).unwrap();
        (0..times).for_each(|_| drop(process.serve(Duration::from_millis(2)).unwrap()));
        std::mem::forget(process);
        true
    };
    std::thread::spawn(die).join().unwrap()
}

fn died(running: &Running, times: u32) -> bool {
    remap_and_die(running.child.id(), running.page, times)
}

#[test]
fn what_is_left_behind_is_put_back_by_who_comes_next() {
    let body = "uint64_t begin = counters[70]; counters[70] += 7; CHECK(counters[70] == begin + 7);";
    for options in [&["-O2"][..], &["-O0"]] {
        let mut running = Stage::of(body).options(options).start();
        if !died(&running, 100) {
            return;
        }
        let pid = running.child.id();
        assert!(Process::is_left_behind(pid).unwrap());
        // It comes by a word that no clone knows, and waits.
        running.say();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!running.says("done"), "it went on at a page that is not there");
        let mut process = Process::open(pid).unwrap();
        let then = running.serve_until(&mut process, |line| line == "done");
        let page = running.page;
        assert!(then.contains(&RemapEvent::PutBack { page, why: Why::Left }), "{then:?}");
        assert!(!Process::is_left_behind(pid).unwrap());
        // All is as it was: it can begin again, and be let go for good.
        process.move_page(&apart(page)).unwrap();
        running.settle(&mut process);
        process.release().unwrap();
        let (mappings, descriptors) = (mappings(pid), descriptors(pid));
        let is_ours = |line: &&String| line.contains(" r-xp 00000000 00:00 0") && !line.ends_with(']');
        assert_eq!(mappings.iter().find(is_ours), None, "code of ours is left");
        assert!(!descriptors.contains(&"anon_inode:[userfaultfd]".to_owned()), "{descriptors:?}");
        let told = running.alone();
        assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
    }
}

#[test]
fn at_any_moment() {
    let running = Stage::of("").start();
    for times in (0..40).map(|time| time % 8) {
        if !died(&running, times) {
            return;
        }
    }
    let pid = running.child.id();
    drop(Process::open(pid).unwrap().release().unwrap());
    let told = running.alone();
    assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
}

/// Traces a process, with much memory of its own: it is let go of only after all of that.
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
fn who_is_killed_and_not_gone_yet_is_waited_for() {
    let running = Stage::of("").start();
    if opened(running.child.id()).is_none() {
        return;
    }
    let tracer = compiled(LARGE_TRACER, "c", &["-O1".to_owned()]);
    let pid = running.child.id();
    let mut tracer = Command::new(&*tracer).arg(pid.to_string()).stdout(Stdio::piped()).spawn().unwrap();
    let mut on = [0; 3];
    tracer.stdout.take().unwrap().read_exact(&mut on).unwrap();
    tracer.kill().unwrap();
    // The ninth field are its flags: it is on its way out.
    let is_ending = |stat: String| stat.split(' ').nth(8).is_some_and(|flags| flags.parse::<u64>().unwrap() & 4 != 0);
    let begun = Instant::now();
    while !is_ending(std::fs::read_to_string(format!("/proc/{}/stat", tracer.id())).unwrap()) {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not end");
    }
    Process::open(pid).unwrap().release().unwrap();
    tracer.wait().unwrap();
    let told = running.alone();
    assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
}

#[test]
fn children_that_are_born_while_nobody_is_there_have_their_pages_where_they_were() {
    // A child of the child, too; and one whose first access is the kernel's.
    let born = [
        "_exit(child());",
        "pid_t inner = fork(); if (!inner) _exit(child()); int status; if (waitpid(inner, &status, 0) != inner || status) _exit(4); _exit(child());",
        "int ends[2]; uint64_t seen = 0; if (pipe(ends) || write(ends[1], (void *)&counters[100], 8) != 8 || read(ends[0], &seen, 8) != 8 || seen != 7) _exit(5); _exit(child());",
    ];
    for born in born {
        let body = format!(
            "pid_t pid = fork(); CHECK(pid >= 0); if (!pid) {{ {born} }} int status; CHECK(waitpid(pid, &status, 0) == pid); CHECK(status == 0);"
        );
        let mut running = Stage::of(&body).with(CHILD).before("counters[100] = 7;").start();
        if !died(&running, 100) {
            return;
        }
        running.say();
        std::thread::sleep(Duration::from_millis(50));
        assert!(!running.says("done"), "it went on without anybody");
        let mut process = Process::open(running.child.id()).unwrap();
        let then = running.serve_until(&mut process, |line| line == "done");
        assert!(then.iter().any(|done| matches!(done, RemapEvent::Child(_))), "{born}: {then:?}");
        process.release().unwrap();
        let told = running.alone();
        assert_eq!(told.last().map(String::as_str), Some("right right"), "{born}: {told:?}");
    }
}

#[test]
fn nobody_finds_anything_where_nothing_was_left() {
    let running = Stage::of("").start();
    let Some(mut process) = running.remap() else { return };
    running.settle(&mut process);
    process.release().unwrap();
    assert!(!Process::is_left_behind(running.child.id()).unwrap());
    assert!(Process::is_left_behind(std::process::id()).is_ok_and(|left| !left));
    let told = running.alone();
    assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
}

#[test]
fn a_program_that_closes_what_it_does_not_know_is_refused_with_words() {
    // As daemons do.
    let body = "for (int i = 3; i < 2048; i++) close(i);";
    let mut running = Stage::of(body).start();
    let pid = running.child.id();
    let page = running.page;
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (end, is_over) = std::sync::mpsc::channel::<()>();
    let tracer = std::thread::spawn(move || {
        let Ok(mut process) = Process::open(pid) else { return begun.send(false).unwrap() };
        process.move_page(&apart(page)).unwrap();
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
    running.say();
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
