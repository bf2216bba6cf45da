//! Sampling from outside, by both means, tried on a process of the test's own whose threads run in a known loop.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(unsafe_code, reason = "the loop is assembly, and signals are sent")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Lines, Write, stdin, stdout};
use std::ops::Range;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fieldstone_sys::Error;
use fieldstone_sys::process::{State, stat};
use fieldstone_sys::sampling::{Drained, MOST_STOPS, Means, Sample, Sampler};

// spin(rdi = a word, rsi = any number): runs until the word is not 0.
std::arch::global_asm!(
    ".pushsection .text",
    ".global fieldstone_spin",
    ".global fieldstone_spin_end",
    "fieldstone_spin:",
    "2: add r8, rsi",
    "cmp dword ptr [rdi], 0",
    "je 2b",
    "fieldstone_spin_end:",
    "mov rax, r8",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn fieldstone_spin(stop: *const AtomicU32, mark: u64) -> u64;
    static fieldstone_spin_end: u8;
}

/// Turns a while, and ends with 9.
const EXECUTED: &str = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 9";

fn busy() -> u64 {
    (0..2_000_000_u64).fold(1_u64, |sum, number| std::hint::black_box(sum.wrapping_mul(3) ^ number)) % 1000
}

const MARK: u64 = 0x0fee_1000_0000_0000;

#[test]
#[ignore = "run by the other tests, as a process of its own"]
fn task() {
    let start = fieldstone_spin as *const () as u64;
    println!("\nloop {start} {}", (&raw const fieldstone_spin_end).expose_provenance());
    let mut threads = Vec::new();
    for line in stdin().lines() {
        match line.unwrap().as_str() {
            "thread" => {
                let stop: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
                let mark = MARK + threads.len() as u64;
                let thread = std::thread::spawn(move || {
                    let tid = rustix::thread::gettid().as_raw_nonzero();
                    println!("\nthread {tid} {} {mark}", std::ptr::from_ref(stop).expose_provenance());
                    // SAFETY: the word lives for ever; all registers that the loop changes are the callee's to change.
                    std::hint::black_box(unsafe { fieldstone_spin(stop, mark) });
                });
                threads.push((stop, thread));
            }
            "end" => {
                let (stop, thread) = threads.pop().unwrap();
                stop.store(1, Relaxed);
                thread.join().unwrap();
                println!("\nended");
            }
            "exit" => std::process::exit(7),
            "churn" => {
                // Many short threads, some of which make others, and children beside them.
                for turn in 0..100 {
                    let inner = std::thread::spawn(|| std::thread::spawn(busy).join().unwrap() + busy());
                    if turn % 20 == 0 {
                        assert_eq!(Command::new("sh").args(["-c", "exit 3"]).status().unwrap().code(), Some(3));
                    }
                    assert_eq!(inner.join().unwrap(), 2 * busy());
                }
                println!("\nchurned");
            }
            "exec" => {
                // The thread becomes the process; all others end.
                let error = std::thread::spawn(|| Command::new("sh").args(["-c", EXECUTED]).exec()).join().unwrap();
                panic!("{error}");
            }
            other => panic!("{other}"),
        }
        stdout().flush().unwrap();
    }
}

/// A thread in the loop.
#[derive(Clone, Copy, Debug)]
struct Spinner {
    tid: u32,
    word: u64,
    mark: u64,
}

/// This test program once more, as [`task`].
struct Other {
    running: Child,
    ask: ChildStdin,
    told: Lines<BufReader<ChildStdout>>,
    code: Range<u64>,
}

impl Other {
    fn start() -> Self {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "task", "--ignored", "--nocapture"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = program.spawn().unwrap();
        let ask = running.stdin.take().unwrap();
        let told = BufReader::new(running.stdout.take().unwrap()).lines();
        let mut this = Self { running, ask, told, code: 0..0 };
        let [start, end] = this.hear("loop ");
        this.code = start..end;
        this
    }

    /// The numbers of the next line that begins so.
    fn hear<const N: usize>(&mut self, what: &str) -> [u64; N] {
        let line = self.told.find_map(|line| line.unwrap().strip_prefix(what).map(str::to_owned)).unwrap();
        let words: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        words.try_into().unwrap()
    }

    fn say(&mut self, what: &str) {
        writeln!(self.ask, "{what}").unwrap();
    }

    fn thread(&mut self) -> Spinner {
        self.say("thread");
        let [tid, word, mark] = self.hear("thread ");
        Spinner { tid: u32::try_from(tid).unwrap(), word, mark }
    }

    fn pid(&self) -> u32 {
        self.running.id()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: no memory is named; a child that is not reaped yet keeps its number.
        assert_eq!(unsafe { libc::kill(i32::try_from(self.pid()).unwrap(), signal) }, 0);
    }

    fn wait(&mut self) -> ExitStatus {
        self.running.wait().unwrap()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.running.kill();
        let _ = self.running.wait();
    }
}

/// Samples by these means, or says why not.
fn open(means: Means, pid: u32, hertz: u32) -> Option<Sampler> {
    match Sampler::open_by(means, pid, hertz) {
        Ok(sampler) => Some(sampler),
        Err(Error::NotSampled { means, why, .. }) => {
            println!("SKIP no sampling by {means}: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// All that was drained.
#[derive(Debug, Default)]
struct Seen {
    samples: Vec<Sample>,
    exited: Vec<u32>,
    ended: bool,
}

impl Seen {
    /// Drains until it is enough; after 20 s what there is must do.
    fn until(sampler: &mut Sampler, enough: impl Fn(&Self) -> bool) -> Self {
        let mut seen = Self::default();
        let limit = Instant::now() + Duration::from_secs(20);
        while !enough(&seen) && Instant::now() < limit {
            seen.ended = sampler.wait(Duration::from_millis(20)).unwrap();
            let first = seen.samples.len();
            let Drained { exited, ended, .. } = sampler.drain(&mut seen.samples).unwrap();
            assert!(seen.samples[first..].is_sorted_by_key(|sample| sample.time_ns));
            seen.exited.extend(exited);
            seen.ended |= ended;
            if seen.ended {
                break;
            }
        }
        seen
    }

    fn of(&self, tid: u32) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.tid == tid)
    }

    fn in_loop(&self, spinner: Spinner, code: &Range<u64>) -> usize {
        self.of(spinner.tid).filter(|sample| code.contains(&sample.registers.rip)).count()
    }
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}

/// Both threads are seen in their loop with what they have in rsi and rdi, at no more than the rate asked for.
fn registers_are_seen(means: Means) {
    let mut other = Other::start();
    let spinners = [other.thread(), other.thread()];
    let began_ns = now_ns();
    let Some(mut sampler) = open(means, other.pid(), 500) else { return };
    let code = other.code.clone();
    let seen = Seen::until(&mut sampler, |seen| spinners.iter().all(|&spinner| seen.in_loop(spinner, &code) >= 50));
    let ended_ns = now_ns();
    for spinner in spinners {
        let (all, inside) = (seen.of(spinner.tid).count(), seen.in_loop(spinner, &code));
        assert!(inside >= 50 && inside * 10 >= all * 9, "{means}: {inside} of {all} in the loop");
        for sample in seen.of(spinner.tid).filter(|sample| code.contains(&sample.registers.rip)) {
            assert_eq!((sample.registers.gpr[6], sample.registers.gpr[7]), (spinner.mark, spinner.word), "{sample:?}");
            assert!(sample.registers.gpr[4] > 1 << 20, "a stack pointer: {sample:?}");
            assert!((began_ns..=ended_ns).contains(&sample.time_ns) && sample.cpu < 65_536, "{sample:?}");
        }
        // Nothing is told twice.
        let most = u128::from(ended_ns - began_ns) * u128::from(sampler.hertz()) / 1_000_000_000;
        assert!(all as u128 <= most * 6 / 5 + 5, "{means}: {all} samples, {most} at most");
    }
}

#[test]
fn perf_sees_registers() {
    registers_are_seen(Means::Perf);
}

#[test]
fn ptrace_sees_registers() {
    registers_are_seen(Means::Ptrace);
}

/// A thread that is made while sampling goes on is seen, its own threads' numbers too, and its end is told.
fn later_threads_are_seen(means: Means) {
    let mut other = Other::start();
    let first = other.thread();
    let Some(mut sampler) = open(means, other.pid(), 500) else { return };
    let code = other.code.clone();
    let later = other.thread();
    let seen = Seen::until(&mut sampler, |seen| seen.in_loop(later, &code) >= 20 && seen.in_loop(first, &code) >= 20);
    assert!(seen.in_loop(later, &code) >= 20 && seen.in_loop(first, &code) >= 20, "{means}: {}", seen.samples.len());
    assert!(seen.exited.is_empty() && !seen.ended, "{means}: {:?}", seen.exited);
    other.say("end");
    let [] = other.hear("ended");
    let seen = Seen::until(&mut sampler, |seen| !seen.exited.is_empty());
    assert_eq!(seen.exited, [later.tid], "{means}");
    assert!(!seen.ended);
}

#[test]
fn perf_sees_later_threads() {
    later_threads_are_seen(Means::Perf);
}

#[test]
fn ptrace_sees_later_threads() {
    later_threads_are_seen(Means::Ptrace);
}

/// None are taken in a pause; who is there afterwards is seen, also who came meanwhile, and who went meanwhile is told.
#[test]
fn perf_pauses() {
    let mut other = Other::start();
    let (first, goes, code) = (other.thread(), other.thread(), other.code.clone());
    let Some(mut sampler) = open(Means::Perf, other.pid(), 1000) else { return };
    let seen = Seen::until(&mut sampler, |seen| [first, goes].iter().all(|&one| seen.in_loop(one, &code) >= 20));
    assert!(seen.in_loop(first, &code) >= 20 && seen.in_loop(goes, &code) >= 20, "{}", seen.samples.len());
    assert!(sampler.pause().unwrap());
    assert!(sampler.pause().unwrap(), "it does already");
    let before = stat(other.pid()).unwrap().user_ns;
    let kept = Seen::until(&mut sampler, |_| stat(other.pid()).unwrap().user_ns > before + 100_000_000);
    assert!(kept.samples.is_empty(), "{:?}", kept.samples);
    other.say("end");
    let [] = other.hear("ended");
    let comes = other.thread();
    let resumed_ns = now_ns();
    sampler.resume().unwrap();
    sampler.resume().unwrap();
    let seen = Seen::until(&mut sampler, |seen| [first, comes].iter().all(|&one| seen.in_loop(one, &code) >= 20));
    assert!(seen.in_loop(first, &code) >= 20 && seen.in_loop(comes, &code) >= 20, "{}", seen.samples.len());
    assert!(seen.samples.iter().all(|sample| sample.time_ns >= resumed_ns), "{:?}", seen.samples.first());
    assert_eq!(seen.exited, [goes.tid]);
}

#[test]
fn a_program_that_ends_in_a_pause_is_told() {
    let mut other = Other::start();
    let Some(mut sampler) = open(Means::Perf, other.pid(), 1000) else { return };
    assert!(sampler.pause().unwrap());
    other.say("exit");
    let seen = Seen::until(&mut sampler, |_| false);
    assert!(seen.ended);
    assert_eq!(other.wait().code(), Some(7));
    let gone = sampler.resume().unwrap_err();
    assert!(matches!(gone, Error::NoSuchProcess { .. }), "{gone}");
}

#[test]
fn ptrace_does_not_pause() {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(Means::Ptrace, other.pid(), 100) else { return };
    assert!(!sampler.pause().unwrap());
    let seen = Seen::until(&mut sampler, |seen| seen.of(spinner.tid).count() >= 5);
    assert!(seen.of(spinner.tid).count() >= 5);
}

/// The end of the process ends the sampling; its parent learns it as ever, and nothing else before.
fn ends_are_the_parents(means: Means) {
    for signal in [None, Some(libc::SIGTERM)] {
        let mut other = Other::start();
        let spinner = other.thread();
        let Some(mut sampler) = open(means, other.pid(), 500) else { return };
        let seen = Seen::until(&mut sampler, |seen| seen.of(spinner.tid).count() >= 10);
        assert!(seen.of(spinner.tid).count() >= 10, "{means}");
        assert_eq!(other.running.try_wait().unwrap(), None, "{means}: a stop of ours is no news for the parent");
        match signal {
            None => other.say("exit"),
            Some(signal) => other.signal(signal),
        }
        let seen = Seen::until(&mut sampler, |_| false);
        assert!(seen.ended, "{means}");
        let status = other.wait();
        assert_eq!((status.code(), status.signal()), (signal.is_none().then_some(7), signal), "{means}");
        assert!(sampler.drain(&mut Vec::new()).unwrap().ended);
    }
}

#[test]
fn perf_leaves_the_end_to_the_parent() {
    ends_are_the_parents(Means::Perf);
}

#[test]
fn ptrace_leaves_the_end_to_the_parent() {
    ends_are_the_parents(Means::Ptrace);
}

/// Threads that come and go, and children, do what they do without a sampler; the numbers of those that ended are told.
fn a_crowd_is_not_disturbed(means: Means) {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(means, other.pid(), 1000) else { return };
    other.say("churn");
    let seen = Seen::until(&mut sampler, |seen| seen.exited.len() >= 10 && seen.of(spinner.tid).count() >= 20);
    assert!(seen.exited.len() >= 10 && seen.of(spinner.tid).count() >= 20, "{means}: {:?}", seen.exited);
    assert!(!seen.exited.contains(&spinner.tid) && !seen.ended);
    let [] = other.hear("churned");
    other.say("exit");
    assert_eq!(other.wait().code(), Some(7), "{means}");
}

#[test]
fn perf_bears_a_crowd() {
    a_crowd_is_not_disturbed(Means::Perf);
}

#[test]
fn ptrace_bears_a_crowd() {
    a_crowd_is_not_disturbed(Means::Ptrace);
}

/// A thread that executes another program takes the process over: it is sampled on, and ends as it would.
fn an_exec_is_survived(means: Means) {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(means, other.pid(), 500) else { return };
    let several = |seen: &Seen| seen.of(spinner.tid).count() >= 5;
    assert!(several(&Seen::until(&mut sampler, several)), "{means}");
    other.say("exec");
    let seen = Seen::until(&mut sampler, |_| false);
    assert!(seen.ended, "{means}");
    let new = seen.of(other.pid()).filter(|sample| !other.code.contains(&sample.registers.rip)).count();
    assert!(new >= 5, "{means}: {new} samples of the new program");
    assert!(seen.exited.contains(&spinner.tid), "{means}: {:?}", seen.exited);
    assert_eq!(other.wait().code(), Some(9), "{means}");
}

#[test]
fn perf_survives_an_exec() {
    an_exec_is_survived(Means::Perf);
}

#[test]
fn ptrace_survives_an_exec() {
    an_exec_is_survived(Means::Ptrace);
}

#[test]
fn a_stopped_process_stays_stopped_under_ptrace_and_goes_on_when_told() {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(Means::Ptrace, other.pid(), 100) else { return };
    let several = |seen: &Seen| seen.of(spinner.tid).count() >= 5;
    assert!(several(&Seen::until(&mut sampler, several)));

    other.signal(libc::SIGSTOP);
    let limit = Instant::now() + Duration::from_secs(10);
    while stat(spinner.tid).unwrap().state != State::Stopped && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(50));
    sampler.drain(&mut Vec::new()).unwrap();
    let used = stat(other.pid()).unwrap().user_ns;
    std::thread::sleep(Duration::from_millis(300));
    let mut none = Vec::new();
    sampler.drain(&mut none).unwrap();
    assert!(none.is_empty(), "nothing ran");
    assert_eq!(stat(other.pid()).unwrap().user_ns, used, "nothing ran");

    other.signal(libc::SIGCONT);
    assert!(several(&Seen::until(&mut sampler, several)), "it goes on");
    assert_eq!(other.running.try_wait().unwrap(), None);
}

fn tracer_of(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")).unwrap().trim().parse().unwrap()
}

#[test]
fn dropping_the_sampler_detaches_and_the_program_runs_on() {
    let mut other = Other::start();
    let spinner = other.thread();
    for round in 0..5 {
        let Some(mut sampler) = open(Means::Ptrace, other.pid(), 100) else { return };
        let tracer = tracer_of(spinner.tid);
        assert!(tracer != 0 && tracer != std::process::id(), "a process of its own traces");
        let seen = Seen::until(&mut sampler, |seen| seen.of(spinner.tid).count() >= 2);
        assert!(seen.of(spinner.tid).count() >= 2, "round {round}");
        drop(sampler);
        assert_eq!((tracer_of(spinner.tid), tracer_of(other.pid())), (0, 0));
        assert!(stat(tracer).is_err(), "the tracer has left and is reaped");
    }
    let before = stat(other.pid()).unwrap().user_ns;
    std::thread::sleep(Duration::from_millis(300));
    assert!(stat(other.pid()).unwrap().user_ns > before, "it runs");
    other.say("exit");
    assert_eq!(other.wait().code(), Some(7));
}

#[test]
fn a_tracer_that_does_not_leave_is_killed_and_the_program_runs_on() {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(sampler) = open(Means::Ptrace, other.pid(), 100) else { return };
    // SAFETY: no memory is named; the tracer is not reaped before the sampler is dropped.
    unsafe { libc::kill(i32::try_from(tracer_of(spinner.tid)).unwrap(), libc::SIGSTOP) };
    let since = Instant::now();
    drop(sampler);
    assert!(since.elapsed() < Duration::from_secs(10), "the wait for the tracer has a bound");
    assert_eq!(tracer_of(spinner.tid), 0);
    other.say("exit");
    assert_eq!(other.wait().code(), Some(7));
}

#[test]
fn a_tracer_that_is_killed_is_told_and_harms_nobody() {
    is_told_and_harms_nobody(libc::SIGKILL);
}

#[test]
fn a_tracer_that_is_stopped_is_told_and_harms_nobody() {
    is_told_and_harms_nobody(libc::SIGSTOP);
}

fn is_told_and_harms_nobody(signal: libc::c_int) {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(Means::Ptrace, other.pid(), 100) else { return };
    // SAFETY: no memory is named; the tracer is not reaped before the sampler is dropped.
    unsafe { libc::kill(i32::try_from(tracer_of(spinner.tid)).unwrap(), signal) };
    let limit = Instant::now() + Duration::from_secs(10);
    let error = loop {
        match sampler.drain(&mut Vec::new()) {
            Ok(_) => assert!(Instant::now() < limit, "nobody told"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("sample again"), "{error}");
    drop(sampler);
    assert_eq!(tracer_of(spinner.tid), 0);
    other.say("exit");
    assert_eq!(other.wait().code(), Some(7));
}

static CHILD_SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_child_signal(_: libc::c_int) {
    CHILD_SIGNALS.fetch_add(1, Relaxed);
}

#[test]
#[ignore = "run by another test, as a process with one child"]
fn parent() {
    // SAFETY: the handler only adds to an atomic; the structure is plain data, zeroed and then filled.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_child_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut()), 0);
    }
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(Means::Ptrace, other.pid(), 100) else { return };
    let seen = Seen::until(&mut sampler, |seen| seen.of(spinner.tid).count() >= 20);
    assert!(seen.of(spinner.tid).count() >= 20);
    assert_eq!(CHILD_SIGNALS.load(Relaxed), 0, "no stop of ours is the parent's business");
    other.say("exit");
    assert_eq!(other.wait().code(), Some(7));
    drop(sampler);
    assert_eq!(CHILD_SIGNALS.load(Relaxed), 1, "the child's end, and not the tracer's");
}

#[test]
fn the_parent_gets_one_sigchld() {
    let mut program = Command::new(std::env::current_exe().unwrap());
    let output = program.args(["--exact", "parent", "--ignored", "--nocapture"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    told.lines().filter(|line| line.contains("SKIP")).for_each(|line| println!("{line}"));
    assert!(output.status.success(), "{told}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_cannot_be_sampled_is_told() {
    for means in [Means::Perf, Means::Ptrace] {
        let nobody = Sampler::open_by(means, i32::MAX.unsigned_abs(), 100).unwrap_err();
        assert!(matches!(nobody, Error::NoSuchProcess { .. }), "{nobody}");
        let never = Sampler::open_by(means, std::process::id(), 0).unwrap_err();
        assert!(matches!(never, Error::NotSampled { .. }), "{never}");
    }
    // A thread of the tracer's own parent's process may be traced by its child; a zombie may not.
    let mut other = Other::start();
    other.say("exit");
    let limit = Instant::now() + Duration::from_secs(10);
    while !stat(other.pid()).unwrap().state.ended() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = Sampler::open(other.pid(), 100).map(|sampler| sampler.wait(Duration::ZERO).unwrap());
    assert!(matches!(ended, Ok(true) | Err(Error::NoSuchProcess { .. } | Error::NotSampled { .. })), "{ended:?}");
    assert_eq!(other.wait().code(), Some(7));
}

#[test]
fn the_first_means_that_works_is_taken() {
    let mut other = Other::start();
    let spinner = other.thread();
    let mut sampler = match Sampler::open(other.pid(), 1000) {
        Ok(sampler) => sampler,
        Err(error) => {
            println!("SKIP no sampling: {error}");
            return;
        }
    };
    match sampler.means() {
        Means::Perf => assert_eq!(sampler.hertz(), 1000),
        Means::Ptrace => assert_eq!(sampler.hertz(), MOST_STOPS),
    }
    let seen = Seen::until(&mut sampler, |seen| seen.of(spinner.tid).count() >= 5);
    let mut threads = BTreeMap::new();
    seen.samples.iter().for_each(|sample| *threads.entry(sample.tid).or_insert(0) += 1);
    assert!(threads[&spinner.tid] >= 5, "{threads:?}");
    assert!(format!("{sampler:?}").contains("hertz"));
}
