//! What all tests play on: a C program whose threads fight for a line, and that does something else meanwhile.
//!
//! ```text
//!   program   prints its pages ── a letter comes ── meanwhile() ── prints "done" ── a letter ── meanwhile() again ── its results
//!   test      moves them ─────── serves ──────────────────────── puts all back ────────────────────────────────── the same?
//! ```
//! So each hazard is met while the accesses are redirected, and when all is as it was.
#![allow(dead_code, reason = "not every test needs all of it")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use fieldstone_remap::{Error, Process, RemapEvent, Wanted, Why};

/// Two threads that each count in a word of their own, on one line of `counters`. Pages are mapped before and behind it. `second` are four
/// pages of their own. The page itself is the program's to use from its 16th word on.
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

/// How they count, where a test has no other way.
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
  // The shell that runs the tests may have left descriptors open: the program begins with the three that every program has.
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

/// What a forked child does, whose word 100 was set to 7: 0 where its page is as it was.
pub(crate) const CHILD: &str = "static int child(void) { volatile uint64_t *w = counters; uint64_t begin = w[8];
    if (w[100] != 7 || begin < 1000 || w[9] < 1000) return 1;
    for (int i = 0; i < 1000; i++) ++w[8]; return w[8] == begin + 1000 && w[100] == 7 ? 0 : 2; }";

/// A program in the making.
#[derive(Clone, Debug)]
pub(crate) struct Stage {
    globals: String,
    before: String,
    meanwhile: String,
    count: String,
    language: &'static str,
    options: Vec<String>,
}

impl Stage {
    /// One that does `meanwhile`.
    pub(crate) fn of(meanwhile: &str) -> Self {
        Self {
            globals: String::new(),
            before: String::new(),
            meanwhile: meanwhile.to_owned(),
            count: COUNT.to_owned(),
            language: "c",
            options: vec!["-O2".to_owned()],
        }
    }

    /// With functions and variables of its own.
    pub(crate) fn with(mut self, globals: &str) -> Self {
        self.globals.push_str(globals);
        self
    }

    /// That does this before its pages are known.
    pub(crate) fn before(mut self, before: &str) -> Self {
        self.before.push_str(before);
        self
    }

    /// Whose threads count by another `lap`, which adds as much to the word as it returns.
    pub(crate) fn counting(mut self, lap: &str) -> Self {
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

    /// Builds it, and starts it.
    pub(crate) fn start(&self) -> Running {
        Running::of(&Arc::new(self.build()))
    }

    /// Builds it.
    pub(crate) fn build(&self) -> tempfile::TempPath {
        let Self { globals, before, meanwhile, count, .. } = self;
        let source = format!(
            "{BEGIN}{globals}\n{count}\nstatic void before(void) {{ {before} }}\nstatic void meanwhile(void) {{ {meanwhile} }}\n{END}"
        );
        compiled(&source, self.language, &self.options)
    }

    /// Does `meanwhile` while its words are apart, and again when they are back, and looks for the same result. What was done the
    /// first time. None where that is forbidden.
    pub(crate) fn right_all_the_same(&self) -> Option<Vec<RemapEvent>> {
        let mut running = self.start();
        let mut process = running.remap()?;
        let before = running.settle(&mut process);
        assert!(redirected(&before) >= 2, "both threads came by: {before:?}");
        let then = running.go_on(&mut process);
        let back = process.put_all_back();
        assert!(back.is_ok() || running.is_over(), "{back:?}");
        let (last, told) = running.finish(&mut process);
        assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?} {then:?} {last:?} {self:?}");
        Some(then)
    }
}

/// A program of this text.
pub(crate) fn compiled(source: &str, language: &str, options: &[String]) -> tempfile::TempPath {
    let file = tempfile::Builder::new().prefix("remapped").tempfile().unwrap().into_temp_path();
    let mut compiler = Command::new(if language == "c" { "cc" } else { "c++" });
    compiler.args(["-w", "-x", language, "-", "-pthread", "-ldl", "-o"]).arg(&*file).args(options);
    let mut compiling = compiler.stdin(Stdio::piped()).spawn().expect("a C compiler");
    compiling.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
    assert!(compiling.wait().unwrap().success());
    file
}

/// Takes hold of a process. None where this user may not, or not have a userfaultfd for the kernel's accesses.
pub(crate) fn opened(pid: u32) -> Option<Process> {
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

/// A program that runs, and what it tells.
pub(crate) struct Running {
    pub(crate) child: Child,
    lines: Receiver<String>,
    told: Vec<String>,
    over: bool,
    pub(crate) page: u64,
    pub(crate) second: u64,
    _file: Arc<tempfile::TempPath>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// A program that is slower than this hangs.
const LONGEST: Duration = Duration::from_secs(60);

impl Running {
    /// Starts a program that was built.
    pub(crate) fn of(file: &Arc<tempfile::TempPath>) -> Self {
        Self::started(&mut Command::new(&**file), file)
    }

    /// The same by a command that runs it.
    pub(crate) fn started(command: &mut Command, file: &Arc<tempfile::TempPath>) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        let address = || u64::from_str_radix(lines.recv().unwrap().trim_start_matches("0x"), 16).unwrap();
        let (page, second) = (address(), address());
        Self { child, lines, told: Vec::new(), over: false, page, second, _file: Arc::clone(file) }
    }

    /// Takes hold of it. None where that is forbidden.
    pub(crate) fn hold(&self) -> Option<Process> {
        opened(self.child.id())
    }

    /// Takes hold of it, and moves the two words apart.
    pub(crate) fn remap(&self) -> Option<Process> {
        let mut process = self.hold()?;
        process.move_page(&apart(self.page)).unwrap();
        Some(process)
    }

    /// Serves it until both threads count in clones.
    pub(crate) fn settle(&self, process: &mut Process) -> Vec<RemapEvent> {
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

    /// Serves it for a while, whether its threads count in clones then or not.
    pub(crate) fn settle_or_not(&self, process: &mut Process) -> Vec<RemapEvent> {
        (0..50).flat_map(|_| process.serve(Duration::from_millis(2)).unwrap()).collect()
    }

    /// Lets it do what it does meanwhile, once, and serves it until that is done.
    pub(crate) fn go_on(&mut self, process: &mut Process) -> Vec<RemapEvent> {
        self.say();
        self.serve_until(process, |line| line == "done")
    }

    pub(crate) fn say(&mut self) {
        let _ = self.child.stdin.as_mut().map(|input| input.write_all(b"x"));
    }

    /// Serves it until it says that, or has ended.
    pub(crate) fn serve_until(&mut self, process: &mut Process, is_it: impl Fn(&str) -> bool) -> Vec<RemapEvent> {
        let (mut done, begun) = (Vec::new(), Instant::now());
        while !self.over {
            done.extend(process.serve(Duration::from_millis(1)).unwrap());
            self.over = done.contains(&RemapEvent::Over);
            assert!(begun.elapsed() < LONGEST, "it hangs: {:?} {:?}", self.told, &done[..done.len().min(20)]);
            match self.lines.try_recv() {
                Ok(line) if is_it(&line) => break,
                Ok(line) => self.told.push(line),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
        }
        done
    }

    /// Lets it do what it does meanwhile again, and serves it to its end. What was done, and what it has told.
    pub(crate) fn finish(mut self, process: &mut Process) -> (Vec<RemapEvent>, Vec<String>) {
        self.say();
        self.child.stdin.take();
        let done = self.serve_until(process, |_| false);
        // Whoever traces a child of its own has its exit status already.
        let _ = self.child.wait();
        self.told.extend(self.lines.iter());
        let told = std::mem::take(&mut self.told);
        (done, told.into_iter().filter(|line| line != "done").collect())
    }

    /// Whether it has said that by now.
    pub(crate) fn says(&mut self, what: &str) -> bool {
        let now: Vec<String> = self.lines.try_iter().collect();
        let says = now.iter().any(|line| line == what);
        self.told.extend(now);
        says
    }

    /// All that it has said.
    pub(crate) fn said(&mut self) -> &[String] {
        self.says("");
        &self.told
    }

    /// Until it says that; nobody serves it here.
    pub(crate) fn wait_for(&mut self, what: &str) {
        let begun = Instant::now();
        while !self.says(what) {
            assert!(begun.elapsed() < LONGEST, "it hangs: {:?}", self.told);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets it go on to its end, served by nobody. What it has told.
    pub(crate) fn alone(mut self) -> Vec<String> {
        self.say();
        self.say();
        self.child.stdin.take();
        assert!(self.child.wait().unwrap().success(), "{:?}", self.told);
        self.told.extend(self.lines.iter());
        std::mem::take(&mut self.told)
    }

    /// Whether its process is gone, told or not.
    pub(crate) fn has_ended(&self) -> bool {
        fieldstone_sys::process::has_ended(self.child.id())
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }
}

/// The 9th and the 10th word of a page apart.
pub(crate) fn apart(page: u64) -> Wanted {
    let word = |number: u64| std::iter::once(page + number * 8..page + number * 8 + 8).collect();
    Wanted { page, owners: vec![word(8), word(9)], consolidated: false, watched: Vec::new() }
}

pub(crate) fn redirected(done: &[RemapEvent]) -> usize {
    done.iter().filter(|done| matches!(done, RemapEvent::Redirected { .. })).count()
}

pub(crate) fn put_back(done: &[RemapEvent]) -> Option<&Why> {
    done.iter().find_map(|done| if let RemapEvent::PutBack { why, .. } = done { Some(why) } else { None })
}

/// Moves the page and puts it back again and again while a program does this, which takes some time.
pub(crate) fn while_the_page_comes_and_goes(stage: &Stage) {
    let mut running = stage.start();
    let Some(mut process) = running.remap() else { return };
    running.settle(&mut process);
    running.say();
    for round in 0..60 {
        (0..3).for_each(|_| drop(process.serve(Duration::from_millis(3)).unwrap()));
        let back = process.put_all_back();
        // What began meanwhile finds it back.
        let then = back.and_then(|_| process.serve(Duration::from_millis(4 * (round % 3))));
        let moved = then.and_then(|_| process.move_page(&apart(running.page)));
        if moved.is_err() && running.has_ended() {
            break;
        }
        moved.unwrap();
    }
    running.serve_until(&mut process, |line| line == "done");
    let _ = process.put_all_back();
    let (_, told) = running.finish(&mut process);
    assert_eq!(told.last().map(String::as_str), Some("right right"), "{told:?}");
}
