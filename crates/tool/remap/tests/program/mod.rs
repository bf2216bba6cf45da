//! The C programs of all tests: two threads with false sharing, and a phase in which the program
//! does something else.
//!
//! ```text
//!   program   prints its pages ── reads a byte ── meanwhile() ── prints "done" ── reads a byte ── meanwhile() ── prints results
//!   test      moves the pages ─── writes it ───── serves ──────────────────────── restores all ──────────────── compares them
//! ```
//! So each hazard occurs once while accesses are redirected and once afterwards.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use fieldstone_remap::{Error, PageRequest, Process, RemapEvent, RestoreReason};

/// Two threads each count in a word of their own, on one line of `counters`. Pages are mapped
/// before and behind its page. `second` is the start of four more pages. The program may use the
/// page of `counters` from its 16th word on.
const BEGIN: &str = r#"
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define CHECK(c) do { if (!(c)) { printf("failed in line %d: %s (%s)\n", __LINE__, #c, strerror(errno)); fflush(stdout); _exit(3); } } while (0)
static volatile uint64_t *counters;
static char *second;
static volatile int go_on = 1;
static uint64_t real[2];
"#;

/// The default counting function.
const COUNT: &str = r"
static uint64_t lap(volatile uint64_t *own) { int i; for (i = 0; i < 1000; i++) ++*own; return 1000; }
";

const END: &str = r#"
static void *count(void *which) {
  volatile uint64_t *own = counters + 8 + (uintptr_t)which;
  uint64_t rounds = 0;
  while (go_on) rounds += lap(own);
  real[(uintptr_t)which] = rounds;
  return 0;
}
int main(void) {
  // The shell that runs the tests may have left descriptors open: the program begins with the three
  // that every program has.
  syscall(SYS_close_range, 3, ~0U, 0);
  char *pages = (char *)mmap(0, 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  second = (char *)mmap(0, 16384, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(pages, 0, 12288); memset(second, 7, 16384);
  counters = (volatile uint64_t *)(pages + 4096);
  before();
  printf("%p\n%p\n", (void *)counters, (void *)second); fflush(stdout);
  pthread_t one, other;
  pthread_create(&one, 0, count, (void *)0); pthread_create(&other, 0, count, (void *)1);
  for (int time = 0; time < 2; time++) {
    getchar();
    meanwhile();
    printf("done\n"); fflush(stdout);
  }
  go_on = 0;
  pthread_join(one, 0); pthread_join(other, 0);
  printf("%s %s\n", real[0] == counters[8] ? "right" : "wrong", real[1] == counters[9] ? "right" : "wrong");
  return 0;
}
"#;

/// The code of a forked child. It returns 0 if its page has the right contents; word 100 must be 7.
pub(crate) const CHILD: &str = "static int child(void) { volatile uint64_t *w = counters; uint64_t begin = w[8];
    if (w[100] != 7 || begin < 1000 || w[9] < 1000) return 1;
    for (int i = 0; i < 1000; i++) ++w[8]; return w[8] == begin + 1000 && w[100] == 7 ? 0 : 2; }";

/// Builds a test program.
#[derive(Clone, Debug)]
pub(crate) struct ProgramBuilder {
    globals: String,
    before: String,
    meanwhile: String,
    count: String,
    language: &'static str,
    options: Vec<String>,
}

impl ProgramBuilder {
    /// A program whose phase is `meanwhile`.
    pub(crate) fn new(meanwhile: &str) -> Self {
        Self {
            globals: String::new(),
            before: String::new(),
            meanwhile: meanwhile.to_owned(),
            count: COUNT.to_owned(),
            language: "c",
            options: vec!["-O2".to_owned()],
        }
    }

    /// Adds functions and variables.
    pub(crate) fn globals(mut self, globals: &str) -> Self {
        self.globals.push_str(globals);
        self
    }

    /// Adds code that runs before the pages are printed.
    pub(crate) fn before(mut self, before: &str) -> Self {
        self.before.push_str(before);
        self
    }

    /// Replaces the counting function. It must add to the word as much as it returns.
    pub(crate) fn lap(mut self, lap: &str) -> Self {
        self.count = lap.to_owned();
        self
    }

    pub(crate) fn in_cpp(mut self) -> Self {
        self.language = "c++";
        self
    }

    pub(crate) fn options(mut self, options: &[&str]) -> Self {
        self.options = options.iter().map(|&option| option.to_owned()).collect();
        self
    }

    /// Builds and starts the program.
    pub(crate) fn start(&self) -> ProgramUnderTest {
        ProgramUnderTest::start(&Arc::new(self.build()))
    }

    /// Builds the program.
    pub(crate) fn build(&self) -> tempfile::TempPath {
        let Self { globals, before, meanwhile, count, .. } = self;
        let source = format!(
            "{BEGIN}{globals}\n{count}\nstatic void before(void) {{ {before} }}\nstatic void meanwhile(void) {{ {meanwhile} }}\n{END}"
        );
        compiled(&source, self.language, &self.options)
    }

    /// Runs the phase while the two words are separate, and again after the page is restored, and
    /// compares the results. Returns the events of the first run. `None` if tracing is not
    /// permitted.
    pub(crate) fn assert_same_results(&self) -> Option<Vec<RemapEvent>> {
        let mut running = self.start();
        let mut process = running.open_and_move()?;
        let before = running.serve_until_quiet(&mut process);
        assert!(redirect_count(&before) >= 2, "both threads were redirected: {before:?}");
        let then = running.run_phase(&mut process);
        let restored = process.restore_all(&RestoreReason::Requested);
        assert!(restored.is_ok() || running.is_over(), "{restored:?}");
        let (last, output) = running.finish(&mut process);
        assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?} {then:?} {last:?} {self:?}");
        Some(then)
    }
}

/// Compiles a program.
pub(crate) fn compiled(source: &str, language: &str, options: &[String]) -> tempfile::TempPath {
    let file = tempfile::Builder::new().prefix("remapped").tempfile().unwrap().into_temp_path();
    let mut compiler = Command::new(if language == "c" { "cc" } else { "c++" });
    compiler.args(["-w", "-x", language, "-", "-pthread", "-ldl", "-o"]).arg(&*file).args(options);
    let mut compiling = compiler.stdin(Stdio::piped()).spawn().expect("a C compiler");
    compiling.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(compiling.wait().unwrap().success());
    file
}

/// Opens a process. `None` if the user may not trace it, or it may not have a userfaultfd for
/// kernel accesses.
pub(crate) fn open_or_skip(pid: u32) -> Option<Process> {
    let error = match Process::open(pid) {
        Ok(process) => return Some(process),
        Err(error) => error,
    };
    let is_forbidden = match &error {
        Error::Refused { why, .. } => why.contains("vm.unprivileged_userfaultfd"),
        Error::Linux(fieldstone_sys::Error::ProcessDenied { .. }) => true,
        _ => false,
    };
    assert!(is_forbidden, "{error}");
    println!("SKIP another process cannot be remapped here: {error}");
    None
}

/// A running program, and its output.
pub(crate) struct ProgramUnderTest {
    pub(crate) child: Child,
    lines: Receiver<String>,
    output: Vec<String>,
    ended: bool,
    pub(crate) page: u64,
    pub(crate) second: u64,
    _file: Arc<tempfile::TempPath>,
}

impl Drop for ProgramUnderTest {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// A program that takes longer hangs.
const LONGEST: Duration = Duration::from_secs(60);

impl ProgramUnderTest {
    /// Starts a built program.
    pub(crate) fn start(file: &Arc<tempfile::TempPath>) -> Self {
        Self::start_by(&mut Command::new(&**file), file)
    }

    /// Starts a built program by another command.
    pub(crate) fn start_by(command: &mut Command, file: &Arc<tempfile::TempPath>) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let address = || u64::from_str_radix(lines.recv().unwrap().trim_start_matches("0x"), 16).unwrap();
        let (page, second) = (address(), address());
        Self { child, lines, output: Vec::new(), ended: false, page, second, _file: Arc::clone(file) }
    }

    /// Opens the process. `None` if that is not permitted.
    pub(crate) fn open(&self) -> Option<Process> {
        open_or_skip(self.child.id())
    }

    /// Opens the process and separates the two words.
    pub(crate) fn open_and_move(&self) -> Option<Process> {
        let mut process = self.open()?;
        process.move_page(&split_words(self.page)).unwrap();
        Some(process)
    }

    /// Serves until both threads count in clones.
    pub(crate) fn serve_until_quiet(&self, process: &mut Process) -> Vec<RemapEvent> {
        let mut done = Vec::new();
        let mut quiet = 0;
        while quiet < 20 {
            let now = process.serve(Duration::from_millis(5)).unwrap();
            quiet = if now.is_empty() { quiet + 1 } else { 0 };
            done.extend(now);
            assert!(done.len() < 100, "accesses are still redirected one by one: {:?}", &done[..10]);
        }
        done
    }

    /// Serves for about 100 ms.
    pub(crate) fn serve_for_a_while(&self, process: &mut Process) -> Vec<RemapEvent> {
        (0..50).flat_map(|_| process.serve(Duration::from_millis(2)).unwrap()).collect()
    }

    /// Starts the next phase and serves until it is done.
    pub(crate) fn run_phase(&mut self, process: &mut Process) -> Vec<RemapEvent> {
        self.send_input();
        self.serve_until(process, |line| line == "done")
    }

    pub(crate) fn send_input(&mut self) {
        let _ = self.child.stdin.as_mut().map(|input| input.write_all(b"x"));
    }

    /// Serves until a line satisfies `is_it`, or the program ends.
    pub(crate) fn serve_until(&mut self, process: &mut Process, is_it: impl Fn(&str) -> bool) -> Vec<RemapEvent> {
        let (mut done, begun) = (Vec::new(), Instant::now());
        while !self.ended {
            done.extend(process.serve(Duration::from_millis(1)).unwrap());
            self.ended = done.contains(&RemapEvent::Ended);
            assert!(begun.elapsed() < LONGEST, "it hangs: {:?} {:?}", self.output, &done[..done.len().min(20)]);
            match self.lines.try_recv() {
                Ok(line) if is_it(&line) => break,
                Ok(line) => self.output.push(line),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
        }
        done
    }

    /// Starts the last phase and serves until the program ends. Returns the events and the output.
    pub(crate) fn finish(mut self, process: &mut Process) -> (Vec<RemapEvent>, Vec<String>) {
        self.send_input();
        self.child.stdin.take();
        let done = self.serve_until(process, |_| false);
        // If the program is traced by its parent, the exit status is consumed already.
        let _ = self.child.wait();
        self.output.extend(self.lines.iter());
        let output = std::mem::take(&mut self.output);
        (done, output.into_iter().filter(|line| line != "done").collect())
    }

    /// Whether the program has printed this line since the last call.
    pub(crate) fn has_printed(&mut self, what: &str) -> bool {
        let now: Vec<String> = self.lines.try_iter().collect();
        let says = now.iter().any(|line| line == what);
        self.output.extend(now);
        says
    }

    /// The output so far.
    pub(crate) fn output(&mut self) -> &[String] {
        self.has_printed("");
        &self.output
    }

    /// Waits for a line without serving.
    pub(crate) fn wait_for(&mut self, what: &str) {
        let begun = Instant::now();
        while !self.has_printed(what) {
            assert!(begun.elapsed() < LONGEST, "it hangs: {:?}", self.output);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets the program finish without serving. Returns its output.
    pub(crate) fn finish_unserved(mut self) -> Vec<String> {
        self.send_input();
        self.send_input();
        self.child.stdin.take();
        assert!(self.child.wait().unwrap().success(), "{:?}", self.output);
        self.output.extend(self.lines.iter());
        std::mem::take(&mut self.output)
    }

    /// Whether the process is gone, whether reported or not.
    pub(crate) fn has_ended(&self) -> bool {
        fieldstone_sys::process::has_ended(self.child.id())
    }

    /// Whether the end of the process was reported.
    pub(crate) fn is_over(&self) -> bool {
        self.ended
    }
}

/// A request that separates the 9th and the 10th word of a page.
pub(crate) fn split_words(page: u64) -> PageRequest {
    let word = |number: u64| std::iter::once(page + number * 8..page + number * 8 + 8).collect();
    PageRequest { page, owners: vec![word(8), word(9)], consolidated: false, watched: Vec::new() }
}

pub(crate) fn redirect_count(done: &[RemapEvent]) -> usize {
    done.iter().filter(|done| matches!(done, RemapEvent::Redirected { .. })).count()
}

pub(crate) fn restore_reason(done: &[RemapEvent]) -> Option<&RestoreReason> {
    done.iter().find_map(|done| if let RemapEvent::Restored { why, .. } = done { Some(why) } else { None })
}

/// Moves and restores the page many times during a long phase.
pub(crate) fn move_and_restore_repeatedly(builder: &ProgramBuilder) {
    let mut running = builder.start();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    running.send_input();
    for round in 0..60 {
        (0..3).for_each(|_| drop(process.serve(Duration::from_millis(3)).unwrap()));
        let restored = process.restore_all(&RestoreReason::Requested);
        // What began meanwhile finds the page restored.
        let then = restored.and_then(|_| process.serve(Duration::from_millis(4 * (round % 3))));
        let moved = then.and_then(|_| process.move_page(&split_words(running.page)));
        if moved.is_err() && running.has_ended() {
            break;
        }
        moved.unwrap();
    }
    running.serve_until(&mut process, |line| line == "done");
    let _ = process.restore_all(&RestoreReason::Requested);
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}
