//! Programs whose threads fight for a line, remapped while they run: the same results, in clones of their loops, whatever else they do.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use fieldstone_remap::{Done, Error, Process, Wanted, Why};

/// What all programs have: two threads that each count in a word of their own, on one line, and `meanwhile` by the main thread.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile uint64_t *counters;
static volatile int go_on = 1;
static uint64_t real[2];
static void *count(void *which) {
  volatile uint64_t *own = counters + 8 + (uintptr_t)which;
  uint64_t rounds = 0;
  while (go_on) for (int i = 0; i < 1000; i++) { ++*own; rounds++; }
  real[(uintptr_t)which] = rounds;
  return 0;
}
static void meanwhile(void);
int main(void) {
  counters = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset((void *)counters, 0, 4096);
  printf("%p\n", (void *)counters); fflush(stdout);
  pthread_t one, other;
  pthread_create(&one, 0, count, (void *)0); pthread_create(&other, 0, count, (void *)1);
  getchar();
  meanwhile();
  go_on = 0;
  pthread_join(one, 0); pthread_join(other, 0);
  printf("%s %s\n", real[0] == counters[8] ? "right" : "wrong", real[1] == counters[9] ? "right" : "wrong");
}
"#;

/// A program that runs, and what it tells.
struct Running {
    child: Child,
    output: BufReader<ChildStdout>,
    page: u64,
    _file: tempfile::TempPath,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

impl Running {
    /// Builds `PROGRAM` with a body of `meanwhile`, and starts it.
    fn start(meanwhile: &str, options: &[&str]) -> Self {
        let file = tempfile::Builder::new().prefix("remapped").tempfile().unwrap().into_temp_path();
        let mut compiler = Command::new("cc");
        compiler.args(["-x", "c", "-", "-pthread", "-o"]).arg(&*file).args(options).stdin(Stdio::piped());
        let mut compiling = compiler.spawn().expect("a C compiler");
        let source = format!("{PROGRAM}static void meanwhile(void) {{ {meanwhile} }}\n");
        compiling.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
        assert!(compiling.wait().unwrap().success());
        let mut child = Command::new(&*file).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let page = u64::from_str_radix(line.trim().trim_start_matches("0x"), 16).unwrap();
        Self { child, output, page, _file: file }
    }

    /// Takes hold of it, and moves the two words apart. None where that is forbidden.
    fn remap(&self) -> Option<Process> {
        let mut process = match Process::open(self.child.id()) {
            Ok(process) => process,
            Err(why @ (Error::Refused { .. } | Error::Linux(fieldstone_sys::Error::ProcessDenied { .. }))) => {
                println!("SKIP another process cannot be remapped here: {why}");
                return None;
            }
            Err(other) => panic!("{other}"),
        };
        process.move_page(&self.wanted()).unwrap();
        Some(process)
    }

    /// Both words apart.
    fn wanted(&self) -> Wanted {
        let word = |number: u64| std::iter::once(self.page + number * 8..self.page + number * 8 + 8).collect();
        Wanted { page: self.page, owners: vec![word(8), word(9)] }
    }

    /// Serves it until both threads count in clones.
    fn settle(&self, process: &mut Process) -> Vec<Done> {
        let mut done = Vec::new();
        let mut quiet = 0;
        while quiet < 20 {
            let now = process.serve(Duration::from_millis(5)).unwrap();
            quiet = if now.is_empty() { quiet + 1 } else { 0 };
            done.extend(now);
            assert!(done.len() < 100, "accesses go on to be redirected one by one: {:?}", &done[..10]);
        }
        done
    }

    /// Lets it do what it does meanwhile, and serves it to its end. What was done, and its last word.
    fn finish(mut self, process: &mut Process) -> (Vec<Done>, String) {
        let mut input = self.child.stdin.take().unwrap();
        input.write_all(b"x").unwrap();
        drop(input);
        let mut done = Vec::new();
        while !done.contains(&Done::Over) {
            done.extend(process.serve(Duration::from_millis(1)).unwrap());
        }
        let mut told = String::new();
        self.output.read_to_string(&mut told).unwrap();
        // Whoever traces a child of its own has its exit status already.
        let _ = self.child.wait();
        (done, told)
    }
}

fn redirected(done: &[Done]) -> usize {
    done.iter().filter(|done| matches!(done, Done::Redirected { .. })).count()
}

/// Moves the words, does `meanwhile`, and looks for the same result. What was done then.
fn right_all_the_same(meanwhile: &str, options: &[&str]) -> Option<Vec<Done>> {
    let running = Running::start(meanwhile, options);
    let mut process = running.remap()?;
    let before = running.settle(&mut process);
    assert!(redirected(&before) >= 2, "both threads came by: {before:?}");
    let (then, told) = running.finish(&mut process);
    assert_eq!(told.lines().last(), Some("right right"), "{told}{then:?}");
    Some(then)
}

fn put_back(done: &[Done]) -> Option<&Why> {
    done.iter().find_map(|done| if let Done::PutBack { why, .. } = done { Some(why) } else { None })
}

#[test]
fn loops_go_on_in_clones() {
    for optimised in ["-O0", "-O1", "-O2", "-O3"] {
        let Some(then) = right_all_the_same("usleep(100000);", &[optimised]) else { return };
        assert_eq!(put_back(&then), None, "{optimised}");
    }
}

#[test]
fn the_kernel_s_own_access_has_the_page_put_back() {
    let read = "int fds[2]; pipe(fds); write(fds[1], \"abc\", 3); read(fds[0], (void *)(counters + 100), 3); \
        if (memcmp((void *)(counters + 100), \"abc\", 3)) abort();";
    let Some(then) = right_all_the_same(read, &["-O2"]) else { return };
    assert!(matches!(put_back(&then), Some(Why::Kernel(_))), "{then:?}");
}

#[test]
fn an_access_to_bytes_of_two_owners_has_the_page_put_back() {
    let astride = "volatile uint64_t *astride = (void *)((char *)(counters + 8) + 4); uint64_t seen = *astride; \
        if (seen == 1) abort();";
    let Some(then) = right_all_the_same(astride, &["-O2"]) else { return };
    assert!(matches!(put_back(&then), Some(Why::Access { .. })), "{then:?}");
}

#[test]
fn a_page_is_put_back_when_that_is_asked() {
    let running = Running::start("usleep(1000);", &["-O2"]);
    let Some(mut process) = running.remap() else { return };
    running.settle(&mut process);
    assert_eq!(process.put_all_back().unwrap(), [Done::PutBack { page: running.page, why: Why::Asked }]);
    process.move_page(&running.wanted()).unwrap();
    let again = running.settle(&mut process);
    assert!(redirected(&again) >= 2, "{again:?}");
    process.put_all_back().unwrap();
    let (then, told) = running.finish(&mut process);
    assert_eq!((redirected(&then), told.lines().last()), (0, Some("right right")));
}

#[test]
fn signals_come_to_threads_in_clones() {
    let handler = "static volatile int seen; void on(int s) { seen++; } ";
    let meanwhile = "struct sigaction a = { .sa_handler = on }; sigaction(SIGALRM, &a, 0); \
        struct itimerval t = { { 0, 500 }, { 0, 500 } }; setitimer(ITIMER_REAL, &t, 0); \
        sigset_t block; sigemptyset(&block); sigaddset(&block, SIGALRM); pthread_sigmask(SIG_BLOCK, &block, 0); \
        while (seen < 200) usleep(1000); \
        struct itimerval off = { 0 }; setitimer(ITIMER_REAL, &off, 0);";
    // The body closes `meanwhile` and opens it again, to have the handler before it.
    let body = format!("extern void really(void); really(); }} {handler} void really(void) {{ {meanwhile}");
    right_all_the_same(&body, &["-O2"]);
}

#[test]
fn a_forked_child_has_its_pages_where_they_were() {
    let meanwhile = "pid_t child = fork(); if (!child) { uint64_t sum = counters[8] + counters[9] + counters[0]; \
        _exit(counters[8] > 1000 && counters[9] > 1000 && sum ? 7 : 9); } \
        int status; waitpid(child, &status, 0); if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) { printf(\"status %x\\n\", status); fflush(stdout); abort(); }";
    let Some(then) = right_all_the_same(meanwhile, &["-O2"]) else { return };
    assert!(then.iter().any(|done| matches!(done, Done::Child(_))), "{then:?}");
}

#[test]
fn threads_that_come_later_are_served_too() {
    let meanwhile = "for (int i = 0; i < 20; i++) { pthread_t t; go_on = 1; pthread_create(&t, 0, (void *(*)(void *))strlen, (void *)(counters + 200)); pthread_join(t, 0); }";
    right_all_the_same(meanwhile, &["-O2"]);
}

#[test]
fn a_program_that_another_takes_the_place_of_is_let_go() {
    let running = Running::start("execlp(\"echo\", \"echo\", \"another\", (char *)0);", &["-O2"]);
    let Some(mut process) = running.remap() else { return };
    running.settle(&mut process);
    let (_, told) = running.finish(&mut process);
    assert_eq!(told, "another\n");
}
