//! The repairer is killed before each of its steps: the program goes on, with the results that it has alone.
//!
//! ```text
//!   test ── traces, by system calls ──> repairer: another process of this test ── moves, serves, puts back ──> program
//!        └─ kills it before the n-th step that changes something (ptrace, a write to memory, an ioctl, a signal); n = 1, 2, 3, …
//!        └─ puts back what it left, as a watchdog does; then the program has to end with the right results
//! ```
//! A run takes some 50 ms, and a repair has some hundred steps. `FIELDSTONE_DEATHS=N` kills at N of them, spread evenly; the default is few.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(unsafe_code, reason = "a tracer of system calls, by ptrace(2) itself")]

mod stage;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fieldstone_remap::Process;
use stage::{CHILD, Running, Stage, apart, opened};
use tempfile::TempPath;

/// Names the process to repair and its page, in a test process that is the repairer.
const REPAIRER: &str = "FIELDSTONE_TEST_REPAIRER";
/// Steps of a repair: what changes the program or what the kernel knows of it.
const STEPS: [libc::c_long; 6] =
    [libc::SYS_ptrace, libc::SYS_pwrite64, libc::SYS_ioctl, libc::SYS_tkill, libc::SYS_pidfd_getfd, libc::SYS_close];
/// What has a thread of the program go on, among the requests of ptrace. The wait after it is a step too: the thread is then in the middle
/// of what it is to do.
const RESUMING: [u64; 3] = [libc::PTRACE_CONT as u64, libc::PTRACE_SYSCALL as u64, libc::PTRACE_SINGLESTEP as u64];
/// Kills in the test suite, for each program.
const FEW: u32 = 12;
/// Between the death and the rescue.
const BEFORE_RESCUE: Duration = Duration::from_millis(1);
/// A program that has not gone on after this hangs.
const LONGEST: Duration = Duration::from_secs(40);

/// Counting by one instruction: a thread that is stopped between its read and its write would bring back by itself what was lost.
const AT_ONCE: &str = "static uint64_t lap(volatile uint64_t *own) { int i; for (i = 0; i < 1000; i++) __sync_fetch_and_add(own, 1); return 1000; }";

/// No test: the repairer that the others start.
#[test]
fn repairer() {
    let Ok(words) = std::env::var(REPAIRER) else { return };
    let (pid, page) = words.split_once(' ').unwrap();
    let (pid, page) = (pid.parse().unwrap(), page.parse().unwrap());
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let serve = |process: &mut Process| (0..12).for_each(|_| drop(process.serve(Duration::from_millis(1)).unwrap()));
    let mut process = Process::open(pid).unwrap();
    process.move_page(&apart(page)).unwrap();
    serve(&mut process);
    process.put_all_back().unwrap();
    process.move_page(&apart(page)).unwrap();
    serve(&mut process);
    process.release().unwrap();
}

/// How a traced repairer ended.
#[derive(Debug, PartialEq)]
enum End {
    Killed,
    /// It took so many steps.
    Finished(u32),
}

fn start_repairer(running: &Running) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "repairer", "--nocapture", "--test-threads=1"]);
    command.env(REPAIRER, format!("{} {}", running.child.id(), running.page));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "ready"));
    child
}

/// When a repairer is killed.
#[derive(Clone, Copy, Debug)]
enum When {
    /// Before this step of its.
    Step(u32),
    /// While a thread of the program is in the system call that empties a page, which waits for the repairer.
    Emptying,
}

/// Lets a repairer work, and kills it.
#[allow(clippy::zombie_processes, reason = "it is waited for as its tracer does")]
fn repair_and_die(running: &mut Running, when: When) -> End {
    let mut child = start_repairer(running);
    let pid = i32::try_from(child.id()).unwrap();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let threads: Vec<i32> = tasks.map(|task| task.file_name().to_str().unwrap().parse().unwrap()).collect();
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    for &thread in &threads {
        // SAFETY: no request here takes a pointer.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, thread, 0_usize, usize::try_from(options).unwrap()), 0);
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, 0_usize, 0_usize), 0);
        }
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let (mut steps, mut has_resumed) = (0, false);
    loop {
        let mut status = 0;
        // SAFETY: the status is a live local. Other children of this process have not stopped.
        let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        if thread < 0 || thread == pid && !libc::WIFSTOPPED(status) {
            return if libc::WIFSIGNALED(status) { End::Killed } else { End::Finished(steps) };
        }
        let program = i32::try_from(running.child.id()).unwrap();
        assert!(thread != program, "the program has ended before step {steps}: {status:#x} {:?}", running.said());
        if !libc::WIFSTOPPED(status) {
            continue;
        }
        let is_call = libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80;
        let entered = if is_call { entered(thread) } else { None };
        if let Some((number, arguments)) = entered {
            let is_step = STEPS.contains(&number) || number == libc::SYS_waitid && has_resumed;
            if is_step {
                has_resumed = number == libc::SYS_ptrace && RESUMING.contains(&arguments[0]);
                steps += 1;
            }
            let is_last = match when {
                When::Step(last) => is_step && steps == last,
                When::Emptying => left(running.child.id()).contains("userfaultfd_event_wait"),
            };
            if is_last {
                println!("{when:?}: {entered:x?}");
                // SAFETY: no pointer.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                continue;
            }
        }
        let is_signal = !is_call && status >> 16 == 0;
        let signal = if is_signal { usize::try_from(libc::WSTOPSIG(status)).unwrap() } else { 0 };
        // SAFETY: no pointer. A thread that has been killed refuses it.
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, thread, 0_usize, signal) };
    }
}

/// The system call that a thread enters, if it does, and its arguments.
fn entered(thread: i32) -> Option<(libc::c_long, [u64; 6])> {
    // SAFETY: a structure of integers, for which zeros are good.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let bytes = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes no more than so many bytes, into a live local.
    unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, bytes, &raw mut info) };
    // SAFETY: the union is that of an entry where the kernel says so.
    (info.op == libc::PTRACE_SYSCALL_INFO_ENTRY).then(|| unsafe { (info.u.entry.nr.cast_signed(), info.u.entry.args) })
}

/// Puts back what is left, as a watchdog does.
fn rescue(running: &mut Running) {
    let (pid, begun) = (running.child.id(), Instant::now());
    while Process::is_left_behind(pid).unwrap_or(true) {
        if let Some(status) = running.child.try_wait().unwrap() {
            panic!("it has ended: {status} {:?}", running.said());
        }
        if let Err(error) = Process::rescue(pid, None) {
            assert!(begun.elapsed() < LONGEST, "it cannot be put back: {error}");
        }
    }
}

/// One run in which the repairer is killed.
fn run(program: &Arc<TempPath>, when: When) -> End {
    let mut running = Running::of(program);
    let page = running.page;
    running.say();
    let end = repair_and_die(&mut running, when);
    let pid = running.child.id();
    // A watchdog may take so long.
    std::thread::sleep(BEFORE_RESCUE);
    rescue(&mut running);
    let begun = Instant::now();
    let mut is_done = false;
    while !is_done {
        is_done = running.says("done");
        if begun.elapsed() > LONGEST || running.has_ended() {
            let said = running.said();
            panic!("killed at {when:?}, pid {pid}, page {page:#x}: not done: {said:?}\n{}", left(pid));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let told = running.alone();
    assert_eq!(told.last().map(String::as_str), Some("right right"), "killed at {when:?}: {told:?}");
    end
}

fn left(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of = |path: std::path::PathBuf, name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
    tasks.map(|task| format!("{} {}\n", of(task.path(), "wchan"), of(task.path(), "syscall"))).collect()
}

fn at_each_step(stage: &Stage) {
    let program = Arc::new(stage.build());
    if opened(Running::of(&program).child.id()).is_none() {
        return;
    }
    let End::Finished(steps) = run(&program, When::Step(u32::MAX)) else { panic!("it was killed by somebody else") };
    let kills = std::env::var("FIELDSTONE_DEATHS").ok().and_then(|number| number.parse().ok()).unwrap_or(FEW);
    let mut killed = 0;
    let only = std::env::var("FIELDSTONE_DEATH_AT").ok().and_then(|number| number.parse().ok());
    for step in
        only.map_or(1..=steps, |step: u32| step..=step).step_by(usize::try_from((steps / kills).max(1)).unwrap())
    {
        killed += u32::from(run(&program, When::Step(step)) == End::Killed);
    }
    println!("killed {killed} times, at {kills} of {steps} steps");
    assert!(killed > 0);
}

/// Its threads go on before the page is empty, and before anybody has taken hold of them again.
#[test]
fn what_is_written_to_a_page_that_is_being_emptied_stays() {
    let program = Arc::new(Stage::of("usleep(20000);").counting(AT_ONCE).build());
    if opened(Running::of(&program).child.id()).is_none() {
        return;
    }
    // Now and then the call is over before it is seen.
    let ends: Vec<End> = (0..4).map(|_| run(&program, When::Emptying)).collect();
    assert!(ends.contains(&End::Killed), "{ends:?}");
}

#[test]
fn a_program_that_counts_goes_on() {
    at_each_step(&Stage::of("usleep(20000);").counting(AT_ONCE));
}

/// Handlers begin at any time, and return after the rescue to where they began: in code of ours, or in the middle of a jump.
#[test]
fn a_program_whose_threads_are_in_handlers_goes_on() {
    let globals = "static void linger(int s) { struct timespec a, b; clock_gettime(CLOCK_MONOTONIC, &a);
        do clock_gettime(CLOCK_MONOTONIC, &b); while ((b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec < 3000000); }";
    let body = "sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR1); pthread_sigmask(SIG_BLOCK, &s, 0);
        for (int i = 0; i < 300; i++) { kill(getpid(), SIGUSR1); usleep(1000); }";
    at_each_step(&Stage::of(body).with(globals).before("signal(SIGUSR1, linger);").counting(AT_ONCE));
}

#[test]
fn a_program_that_forks_goes_on() {
    let body = "while (counters[8] < 2000 || counters[9] < 2000) usleep(100); for (int i = 0; i < 8; i++) { pid_t pid = fork(); CHECK(pid >= 0); if (!pid) _exit(child());
        int status; CHECK(waitpid(pid, &status, 0) == pid); CHECK(status == 0); }";
    at_each_step(&Stage::of(body).with(CHILD).before("counters[100] = 7;"));
}

#[test]
fn a_program_that_waits_for_signals_gets_each() {
    let globals = "static volatile int came; static pthread_t other; static void note(int s) { came++; }
        static void *keep_sending(void *to) { for (int i = 0; i < 40; i++) { int was = came; CHECK(!pthread_kill(*(pthread_t *)to, SIGUSR1));
        while (came == was) usleep(10); } return 0; }";
    let body =
        "signal(SIGUSR1, note); pthread_t me = pthread_self(), t; came = 0; pthread_create(&t, 0, keep_sending, &me);
        while (came < 40) usleep(50); pthread_join(t, 0);";
    at_each_step(&Stage::of(body).with(globals));
}
