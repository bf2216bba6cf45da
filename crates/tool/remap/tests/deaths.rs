//! The repairer is killed before each of its steps: the program continues and prints the right
//! results.
//!
//! ```text
//!   test ── traces system calls of ──> repairer, another process of this test ── moves, serves, restores ──> program
//!        ├─ kills it before the n-th step (ptrace, a write to memory, an ioctl, a signal), n = 1, 2, 3, …
//!        └─ restores what is left, as a watchdog does; then the program must print the right results
//! ```
//! Cost: a run takes some 50 ms, and a repair has some hundred steps. `FIELDSTONE_DEATHS=N` kills
//! at N of them, evenly spaced; the default is 12.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(unsafe_code, reason = "a tracer of system calls, by ptrace(2) itself")]

mod program;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fieldstone_remap::{Process, RestoreReason};
use program::{CHILD, ProgramBuilder, ProgramUnderTest, open_or_skip, split_words};
use tempfile::TempPath;

/// Environment variable with the process to repair and its page, for the test process that is the
/// repairer.
const REPAIRER: &str = "FIELDSTONE_TEST_REPAIRER";
/// Steps of a repair: calls that change the program or kernel state of it.
const STEPS: [libc::c_long; 6] =
    [libc::SYS_ptrace, libc::SYS_pwrite64, libc::SYS_ioctl, libc::SYS_tkill, libc::SYS_pidfd_getfd, libc::SYS_close];
/// Requests of ptrace that resume a thread of the program. The wait after one is a step too: the
/// thread is in the middle of its operation then.
const RESUMING: [u64; 3] = [libc::PTRACE_CONT as u64, libc::PTRACE_SYSCALL as u64, libc::PTRACE_SINGLESTEP as u64];
/// Default number of kills for each program.
const FEW: u32 = 12;
/// Time between the kill and the rescue.
const BEFORE_RESCUE: Duration = Duration::from_millis(1);
/// A program that has not continued after this time hangs.
const LONGEST: Duration = Duration::from_secs(40);

/// A counting function of one instruction. A thread stopped between a read and a write would
/// otherwise restore a lost count by itself.
const ATOMIC_LAP: &str = "static uint64_t lap(volatile uint64_t *own) { int i; for (i = 0; i < 1000; i++) __sync_fetch_and_add(own, 1); return 1000; }";

/// Waits for a child that must end with status 0, and prints any other wait status.
const AWAIT_CHILD: &str = r#"static void await_child(pid_t pid) { int status; CHECK(waitpid(pid, &status, 0) == pid);
    if (status) printf("wait status %#x of a child\n", status); CHECK(status == 0); }
"#;

/// Not a test: the repairer that the other tests start.
#[test]
fn repairer() {
    let Ok(words) = std::env::var(REPAIRER) else { return };
    let (pid, page) = words.split_once(' ').unwrap();
    let (pid, page) = (pid.parse().unwrap(), page.parse().unwrap());
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let mut process = Process::open(pid).unwrap();
    process.move_page(&split_words(page)).unwrap();
    serve_briefly(&mut process);
    process.restore_all(&RestoreReason::Requested).unwrap();
    process.move_page(&split_words(page)).unwrap();
    serve_briefly(&mut process);
    process.release().unwrap();
}

fn serve_briefly(process: &mut Process) {
    (0..12).for_each(|_| drop(process.serve(Duration::from_millis(1)).unwrap()));
}

/// Not a test: the repairer that restores a page while the program forks.
#[test]
fn restoring_repairer() {
    let Ok(words) = std::env::var(REPAIRER) else { return };
    let (pid, page) = words.split_once(' ').unwrap();
    let mut process = Process::open(pid.parse().unwrap()).unwrap();
    process.move_page(&split_words(page.parse().unwrap())).unwrap();
    serve_briefly(&mut process);
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    process.release().unwrap();
}

/// How a traced repairer ended.
#[derive(Debug, PartialEq)]
enum End {
    Killed,
    /// It finished after this number of steps.
    Finished(u32),
}

fn start_repairer(running: &ProgramUnderTest, name: &str) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command.env(REPAIRER, format!("{} {}", running.child.id(), running.page));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "ready"));
    child
}

/// When a repairer is killed.
#[derive(Clone, Copy, Debug)]
enum When {
    /// Before the step with this number.
    Step(u32),
    /// While a thread of the program is in the system call that empties a page, which waits for the
    /// repairer.
    Emptying,
    /// Before this step of a release that begins while a fork waits for the repairer. Until the
    /// repairer has read the message about the child, each step is delayed, as on a busy machine.
    Forking(u32),
}

/// Delay of a step: longer than a restore waits for a fork that is not reported.
const DELAY: Duration = Duration::from_millis(3);

/// Whether a thread with one of these states waits until the repairer reads a message.
fn waits_for_repairer(states: &str) -> bool {
    states.contains("userfaultfd_event_wait")
}

/// Resumes a repairer and kills it.
#[allow(clippy::zombie_processes, reason = "it is waited for as its tracer does")]
fn repair_and_kill(running: &mut ProgramUnderTest, mut child: Child, when: When) -> End {
    let pid = i32::try_from(child.id()).unwrap();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let threads: Vec<i32> = tasks.map(|task| task.file_name().to_str().unwrap().parse().unwrap()).collect();
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
    for &thread in &threads {
        // SAFETY: PTRACE_SEIZE and PTRACE_INTERRUPT take option bits and no pointer.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, thread, 0_usize, usize::try_from(options).unwrap()), 0);
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, thread, 0_usize, 0_usize), 0);
        }
    }
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let (mut steps, mut has_resumed) = (0, false);
    loop {
        let mut status = 0;
        // SAFETY: `status` is a live local that waitpid may write. Other children of this process
        // are not traced.
        let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        if thread < 0 || thread == pid && !libc::WIFSTOPPED(status) {
            return if libc::WIFSIGNALED(status) { End::Killed } else { End::Finished(steps) };
        }
        let program = i32::try_from(running.child.id()).unwrap();
        assert!(thread != program, "the program has ended before step {steps}: {status:#x} {:?}", running.output());
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
                if matches!(when, When::Forking(_)) && waits_for_repairer(&kernel_states(running.child.id())) {
                    std::thread::sleep(DELAY);
                }
            }
            let is_last = match when {
                When::Step(last) | When::Forking(last) => is_step && steps == last,
                When::Emptying => waits_for_repairer(&kernel_states(running.child.id())),
            };
            if is_last {
                println!("{when:?}: {entered:x?}");
                // SAFETY: kill takes two integers and no pointer.
                unsafe { libc::kill(pid, libc::SIGKILL) };
                continue;
            }
        }
        let is_signal = !is_call && status >> 16 == 0;
        let signal = if is_signal { usize::try_from(libc::WSTOPSIG(status)).unwrap() } else { 0 };
        // SAFETY: PTRACE_SYSCALL takes a signal number and no pointer. It fails for a killed
        // thread.
        unsafe { libc::ptrace(libc::PTRACE_SYSCALL, thread, 0_usize, signal) };
    }
}

/// The system call that a stopped thread enters, with its arguments. `None` if it leaves one.
fn entered(thread: i32) -> Option<(libc::c_long, [u64; 6])> {
    // SAFETY: `ptrace_syscall_info` consists of integers, so all zeros are a valid value.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let bytes = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most `bytes` bytes to `info`, a live local of that size.
    unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, bytes, &raw mut info) };
    // SAFETY: the kernel filled the `entry` member of the union, as `op` says.
    (info.op == libc::PTRACE_SYSCALL_INFO_ENTRY).then(|| unsafe { (info.u.entry.nr.cast_signed(), info.u.entry.args) })
}

/// Restores what is left, as a watchdog does.
fn rescue(running: &mut ProgramUnderTest) {
    let (pid, begun) = (running.child.id(), Instant::now());
    while Process::is_left_behind(pid).unwrap_or(true) {
        if let Some(status) = running.child.try_wait().unwrap() {
            panic!("it has ended: {status} {:?}", running.output());
        }
        if let Err(error) = Process::rescue(pid, None) {
            assert!(begun.elapsed() < LONGEST, "it cannot be restored: {error}");
        }
    }
}

/// One run in which the repairer is killed.
fn run(program: &Arc<TempPath>, when: When) -> End {
    let mut running = ProgramUnderTest::start(program);
    let page = running.page;
    let repairer = if matches!(when, When::Forking(_)) {
        // While the repairer waits for its start, no thread may be created.
        wait_until(&running, |states| states.lines().count() == 3);
        let repairer = start_repairer(&running, "restoring_repairer");
        running.send_input();
        wait_until(&running, waits_for_repairer);
        repairer
    } else {
        running.send_input();
        start_repairer(&running, "repairer")
    };
    let end = repair_and_kill(&mut running, repairer, when);
    let pid = running.child.id();
    // A watchdog may need this time.
    std::thread::sleep(BEFORE_RESCUE);
    rescue(&mut running);
    let begun = Instant::now();
    let mut is_done = false;
    while !is_done {
        is_done = running.has_printed("done");
        if begun.elapsed() > LONGEST || running.has_ended() {
            let said = running.output();
            panic!("killed at {when:?}, pid {pid}, page {page:#x}: not done: {said:?}\n{}", kernel_states(pid));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let output = running.finish_unserved();
    assert_eq!(output.last().map(String::as_str), Some("right right"), "killed at {when:?}: {output:?}");
    end
}

/// What each thread does in the kernel, in one line.
fn kernel_states(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let of = |path: std::path::PathBuf, name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
    tasks.map(|task| format!("{} {}\n", of(task.path(), "wchan"), of(task.path(), "syscall").trim_end())).collect()
}

fn wait_until(running: &ProgramUnderTest, has: fn(&str) -> bool) {
    let begun = Instant::now();
    loop {
        let states = kernel_states(running.child.id());
        if has(&states) {
            return;
        }
        assert!(begun.elapsed() < LONGEST, "it hangs: {states}");
    }
}

fn kill_at_each_step(builder: &ProgramBuilder, when: fn(u32) -> When) {
    let program = Arc::new(builder.build());
    if open_or_skip(ProgramUnderTest::start(&program).child.id()).is_none() {
        return;
    }
    let End::Finished(steps) = run(&program, when(u32::MAX)) else { panic!("another process killed it") };
    let kills = std::env::var("FIELDSTONE_DEATHS").ok().and_then(|number| number.parse().ok()).unwrap_or(FEW);
    let mut killed = 0;
    let only = std::env::var("FIELDSTONE_DEATH_AT").ok().and_then(|number| number.parse().ok());
    for step in
        only.map_or(1..=steps, |step: u32| step..=step).step_by(usize::try_from((steps / kills).max(1)).unwrap())
    {
        killed += u32::from(run(&program, when(step)) == End::Killed);
    }
    println!("killed {killed} times, at {kills} of {steps} steps");
    assert!(killed > 0);
}

/// The program's threads resume before the page is empty and before the rescuer traces them.
#[test]
fn writes_to_a_page_being_emptied_are_kept() {
    let program = Arc::new(ProgramBuilder::new("usleep(20000);").lap(ATOMIC_LAP).build());
    if open_or_skip(ProgramUnderTest::start(&program).child.id()).is_none() {
        return;
    }
    // Sometimes the call is over before it is observed.
    let ends: Vec<End> = (0..4).map(|_| run(&program, When::Emptying)).collect();
    assert!(ends.contains(&End::Killed), "{ends:?}");
}

#[test]
fn a_counting_program_survives_each_kill() {
    kill_at_each_step(&ProgramBuilder::new("usleep(20000);").lap(ATOMIC_LAP), When::Step);
}

/// Handlers begin at any time. They return after the rescue to where they interrupted: to the code
/// cache, or into a patched head.
#[test]
fn a_program_with_threads_in_handlers_survives_each_kill() {
    let globals = "static void linger(int s) { struct timespec a, b; clock_gettime(CLOCK_MONOTONIC, &a);
        do clock_gettime(CLOCK_MONOTONIC, &b); while ((b.tv_sec - a.tv_sec) * 1000000000L + b.tv_nsec - a.tv_nsec < 3000000); }";
    let body = "sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR1); pthread_sigmask(SIG_BLOCK, &s, 0);
        for (int i = 0; i < 300; i++) { kill(getpid(), SIGUSR1); usleep(1000); }";
    kill_at_each_step(
        &ProgramBuilder::new(body).globals(globals).before("signal(SIGUSR1, linger);").lap(ATOMIC_LAP),
        When::Step,
    );
}

#[test]
fn a_forking_program_survives_each_kill() {
    let body = "while (counters[8] < 2000 || counters[9] < 2000) usleep(100); for (int i = 0; i < 8; i++) { pid_t pid = fork(); CHECK(pid >= 0); if (!pid) _exit(child());
        await_child(pid); }";
    let builder = ProgramBuilder::new(body).globals(CHILD).globals(AWAIT_CHILD).before("counters[100] = 7;");
    kill_at_each_step(&builder, When::Step);
}

/// The repairer does not receive the child's userfaultfd itself: its death would close it, and the
/// child would read zeros.
#[test]
fn a_child_forked_during_a_restore_survives_each_kill() {
    let body = "pid_t pid = fork(); CHECK(pid >= 0); if (!pid) _exit(counters[100] == 7 ? 0 : counters[100] ? 2 : 1); await_child(pid);";
    let builder = ProgramBuilder::new(body).globals(AWAIT_CHILD).before("counters[100] = 7;");
    kill_at_each_step(&builder, When::Forking);
}

#[test]
fn a_program_receives_each_signal_despite_kills() {
    let globals = "static volatile int came; static pthread_t other; static void note(int s) { came++; }
        static void *keep_sending(void *to) { for (int i = 0; i < 40; i++) { int was = came; CHECK(!pthread_kill(*(pthread_t *)to, SIGUSR1));
        while (came == was) usleep(10); } return 0; }";
    let body =
        "signal(SIGUSR1, note); pthread_t me = pthread_self(), t; came = 0; pthread_create(&t, 0, keep_sending, &me);
        while (came < 40) usleep(50); pthread_join(t, 0);";
    kill_at_each_step(&ProgramBuilder::new(body).globals(globals), When::Step);
}
