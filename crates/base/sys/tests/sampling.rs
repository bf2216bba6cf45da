//! Sampling by both methods, tested on a child process whose threads run a known loop.
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
use fieldstone_sys::sampling::{Drained, MAX_STOPS_PER_SECOND, Sample, Sampler, SamplingMethod};

// spin(rdi = a word, rsi = any number): loops until the word is not 0.
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

/// Loops for a while and exits with 9.
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
                    // SAFETY: the word lives forever; the loop changes only caller-saved registers.
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
                // Many short threads, some of which create others, and child processes.
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

/// Another instance of this test program, running [`task`].
struct Other {
    running: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    code: Range<u64>,
}

impl Other {
    fn start() -> Self {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "task", "--ignored", "--nocapture"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = program.spawn().unwrap();
        let input = running.stdin.take().unwrap();
        let output = BufReader::new(running.stdout.take().unwrap()).lines();
        let mut this = Self { running, input, output, code: 0..0 };
        let [start, end] = this.receive("loop ");
        this.code = start..end;
        this
    }

    /// The numbers of the next line with this prefix.
    fn receive<const N: usize>(&mut self, what: &str) -> [u64; N] {
        let line = self.output.find_map(|line| line.unwrap().strip_prefix(what).map(str::to_owned)).unwrap();
        let words: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        words.try_into().unwrap()
    }

    fn send(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    fn thread(&mut self) -> Spinner {
        self.send("thread");
        let [tid, word, mark] = self.receive("thread ");
        Spinner { tid: u32::try_from(tid).unwrap(), word, mark }
    }

    fn pid(&self) -> u32 {
        self.running.id()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the call takes integers; an unreaped child keeps its number.
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

/// Opens a sampler, or prints the reason.
fn open(method: SamplingMethod, pid: u32, hertz: u32) -> Option<Sampler> {
    match Sampler::open_by(method, pid, hertz) {
        Ok(sampler) => Some(sampler),
        Err(Error::NotSampled { method, why, .. }) => {
            println!("SKIP no sampling by {method}: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The results of all drains.
#[derive(Debug, Default)]
struct Samples {
    samples: Vec<Sample>,
    exited: Vec<u32>,
    ended: bool,
}

impl Samples {
    /// Drains until `enough`, for at most 20 s.
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

/// Both threads are sampled in their loop, with the expected rsi and rdi, at no more than the
/// requested rate.
fn registers_are_sampled(method: SamplingMethod) {
    let mut other = Other::start();
    let spinners = [other.thread(), other.thread()];
    let began_ns = now_ns();
    let Some(mut sampler) = open(method, other.pid(), 500) else { return };
    let code = other.code.clone();
    let seen = Samples::until(&mut sampler, |seen| spinners.iter().all(|&spinner| seen.in_loop(spinner, &code) >= 50));
    let ended_ns = now_ns();
    for spinner in spinners {
        let (all, inside) = (seen.of(spinner.tid).count(), seen.in_loop(spinner, &code));
        assert!(inside >= 50 && inside * 10 >= all * 9, "{method}: {inside} of {all} in the loop");
        for sample in seen.of(spinner.tid).filter(|sample| code.contains(&sample.registers.rip)) {
            assert_eq!((sample.registers.gpr[6], sample.registers.gpr[7]), (spinner.mark, spinner.word), "{sample:?}");
            assert!(sample.registers.gpr[4] > 1 << 20, "a stack pointer: {sample:?}");
            assert!((began_ns..=ended_ns).contains(&sample.time_ns) && sample.cpu < 65_536, "{sample:?}");
        }
        // No sample appears twice.
        let most = u128::from(ended_ns - began_ns) * u128::from(sampler.hertz()) / 1_000_000_000;
        assert!(all as u128 <= most * 6 / 5 + 5, "{method}: {all} samples, {most} at most");
    }
}

#[test]
fn perf_samples_registers() {
    registers_are_sampled(SamplingMethod::Perf);
}

#[test]
fn ptrace_samples_registers() {
    registers_are_sampled(SamplingMethod::Ptrace);
}

/// A thread created during sampling is sampled, with its own number, and its exit is reported.
fn later_threads_are_sampled(method: SamplingMethod) {
    let mut other = Other::start();
    let first = other.thread();
    let Some(mut sampler) = open(method, other.pid(), 500) else { return };
    let code = other.code.clone();
    let later = other.thread();
    let seen =
        Samples::until(&mut sampler, |seen| seen.in_loop(later, &code) >= 20 && seen.in_loop(first, &code) >= 20);
    assert!(seen.in_loop(later, &code) >= 20 && seen.in_loop(first, &code) >= 20, "{method}: {}", seen.samples.len());
    assert!(seen.exited.is_empty() && !seen.ended, "{method}: {:?}", seen.exited);
    other.send("end");
    let [] = other.receive("ended");
    let seen = Samples::until(&mut sampler, |seen| !seen.exited.is_empty());
    assert_eq!(seen.exited, [later.tid], "{method}");
    assert!(!seen.ended);
}

#[test]
fn perf_samples_later_threads() {
    later_threads_are_sampled(SamplingMethod::Perf);
}

#[test]
fn ptrace_samples_later_threads() {
    later_threads_are_sampled(SamplingMethod::Ptrace);
}

/// A pause takes no samples. Afterwards old and new threads are sampled, and exits are reported.
#[test]
fn perf_pauses_and_resumes() {
    let mut other = Other::start();
    let (first, goes, code) = (other.thread(), other.thread(), other.code.clone());
    let Some(mut sampler) = open(SamplingMethod::Perf, other.pid(), 1000) else { return };
    let seen = Samples::until(&mut sampler, |seen| [first, goes].iter().all(|&one| seen.in_loop(one, &code) >= 20));
    assert!(seen.in_loop(first, &code) >= 20 && seen.in_loop(goes, &code) >= 20, "{}", seen.samples.len());
    assert!(sampler.pause().unwrap());
    assert!(sampler.pause().unwrap(), "it is paused already");
    let before = stat(other.pid()).unwrap().user_ns;
    let kept = Samples::until(&mut sampler, |_| stat(other.pid()).unwrap().user_ns > before + 100_000_000);
    assert!(kept.samples.is_empty(), "{:?}", kept.samples);
    other.send("end");
    let [] = other.receive("ended");
    let comes = other.thread();
    let resumed_ns = now_ns();
    sampler.resume().unwrap();
    sampler.resume().unwrap();
    let seen = Samples::until(&mut sampler, |seen| [first, comes].iter().all(|&one| seen.in_loop(one, &code) >= 20));
    assert!(seen.in_loop(first, &code) >= 20 && seen.in_loop(comes, &code) >= 20, "{}", seen.samples.len());
    assert!(seen.samples.iter().all(|sample| sample.time_ns >= resumed_ns), "{:?}", seen.samples.first());
    assert_eq!(seen.exited, [goes.tid]);
}

#[test]
fn a_program_that_ends_in_a_pause_is_reported() {
    let mut other = Other::start();
    let Some(mut sampler) = open(SamplingMethod::Perf, other.pid(), 1000) else { return };
    assert!(sampler.pause().unwrap());
    other.send("exit");
    let seen = Samples::until(&mut sampler, |_| false);
    assert!(seen.ended);
    assert_eq!(other.wait().code(), Some(7));
    let gone = sampler.resume().unwrap_err();
    assert!(matches!(gone, Error::NoSuchProcess { .. }), "{gone}");
}

#[test]
fn ptrace_does_not_pause() {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(SamplingMethod::Ptrace, other.pid(), 100) else { return };
    assert!(!sampler.pause().unwrap());
    let seen = Samples::until(&mut sampler, |seen| seen.of(spinner.tid).count() >= 5);
    assert!(seen.of(spinner.tid).count() >= 5);
}

/// The end of the process ends the sampling; its parent receives the exit, and nothing before.
fn the_parent_receives_the_exit(method: SamplingMethod) {
    for signal in [None, Some(libc::SIGTERM)] {
        let mut other = Other::start();
        let spinner = other.thread();
        let Some(mut sampler) = open(method, other.pid(), 500) else { return };
        let seen = Samples::until(&mut sampler, |seen| seen.of(spinner.tid).count() >= 10);
        assert!(seen.of(spinner.tid).count() >= 10, "{method}");
        assert_eq!(other.running.try_wait().unwrap(), None, "{method}: the parent does not see the sampler's stops");
        match signal {
            None => other.send("exit"),
            Some(signal) => other.signal(signal),
        }
        let seen = Samples::until(&mut sampler, |_| false);
        assert!(seen.ended, "{method}");
        let status = other.wait();
        assert_eq!((status.code(), status.signal()), (signal.is_none().then_some(7), signal), "{method}");
        assert!(sampler.drain(&mut Vec::new()).unwrap().ended);
    }
}

#[test]
fn perf_leaves_the_exit_to_the_parent() {
    the_parent_receives_the_exit(SamplingMethod::Perf);
}

#[test]
fn ptrace_leaves_the_exit_to_the_parent() {
    the_parent_receives_the_exit(SamplingMethod::Ptrace);
}

/// Short-lived threads and children behave as without a sampler; the exits are reported.
fn many_short_threads_are_not_disturbed(method: SamplingMethod) {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(method, other.pid(), 1000) else { return };
    other.send("churn");
    let seen = Samples::until(&mut sampler, |seen| seen.exited.len() >= 10 && seen.of(spinner.tid).count() >= 20);
    assert!(seen.exited.len() >= 10 && seen.of(spinner.tid).count() >= 20, "{method}: {:?}", seen.exited);
    assert!(!seen.exited.contains(&spinner.tid) && !seen.ended);
    let [] = other.receive("churned");
    other.send("exit");
    assert_eq!(other.wait().code(), Some(7), "{method}");
}

#[test]
fn perf_does_not_disturb_many_short_threads() {
    many_short_threads_are_not_disturbed(SamplingMethod::Perf);
}

#[test]
fn ptrace_does_not_disturb_many_short_threads() {
    many_short_threads_are_not_disturbed(SamplingMethod::Ptrace);
}

/// A thread that executes another program takes the process over: it is sampled and exits normally.
fn an_exec_is_survived(method: SamplingMethod) {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(method, other.pid(), 500) else { return };
    let several = |seen: &Samples| seen.of(spinner.tid).count() >= 5;
    assert!(several(&Samples::until(&mut sampler, several)), "{method}");
    other.send("exec");
    let seen = Samples::until(&mut sampler, |_| false);
    assert!(seen.ended, "{method}");
    let new = seen.of(other.pid()).filter(|sample| !other.code.contains(&sample.registers.rip)).count();
    assert!(new >= 5, "{method}: {new} samples of the new program");
    assert!(seen.exited.contains(&spinner.tid), "{method}: {:?}", seen.exited);
    assert_eq!(other.wait().code(), Some(9), "{method}");
}

#[test]
fn perf_survives_an_exec() {
    an_exec_is_survived(SamplingMethod::Perf);
}

#[test]
fn ptrace_survives_an_exec() {
    an_exec_is_survived(SamplingMethod::Ptrace);
}

#[test]
fn a_stopped_process_stays_stopped_under_ptrace_until_continued() {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(SamplingMethod::Ptrace, other.pid(), 100) else { return };
    let several = |seen: &Samples| seen.of(spinner.tid).count() >= 5;
    assert!(several(&Samples::until(&mut sampler, several)));

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
    assert!(several(&Samples::until(&mut sampler, several)), "it continues");
    assert_eq!(other.running.try_wait().unwrap(), None);
}

fn tracer_of(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("TracerPid:")).unwrap().trim().parse().unwrap()
}

#[test]
fn dropping_the_sampler_detaches_and_the_program_continues() {
    let mut other = Other::start();
    let spinner = other.thread();
    for round in 0..5 {
        let Some(mut sampler) = open(SamplingMethod::Ptrace, other.pid(), 100) else { return };
        let tracer = tracer_of(spinner.tid);
        assert!(tracer != 0 && tracer != std::process::id(), "a separate process traces");
        let seen = Samples::until(&mut sampler, |seen| seen.of(spinner.tid).count() >= 2);
        assert!(seen.of(spinner.tid).count() >= 2, "round {round}");
        drop(sampler);
        assert_eq!((tracer_of(spinner.tid), tracer_of(other.pid())), (0, 0));
        assert!(stat(tracer).is_err(), "the tracer has exited and is reaped");
    }
    let before = stat(other.pid()).unwrap().user_ns;
    std::thread::sleep(Duration::from_millis(300));
    assert!(stat(other.pid()).unwrap().user_ns > before, "it runs");
    other.send("exit");
    assert_eq!(other.wait().code(), Some(7));
}

#[test]
fn a_tracer_that_does_not_exit_is_killed_and_the_program_continues() {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(sampler) = open(SamplingMethod::Ptrace, other.pid(), 100) else { return };
    // SAFETY: the call takes integers; the tracer is not reaped before the sampler is dropped.
    unsafe { libc::kill(i32::try_from(tracer_of(spinner.tid)).unwrap(), libc::SIGSTOP) };
    let since = Instant::now();
    drop(sampler);
    assert!(since.elapsed() < Duration::from_secs(10), "the wait for the tracer has a bound");
    assert_eq!(tracer_of(spinner.tid), 0);
    other.send("exit");
    assert_eq!(other.wait().code(), Some(7));
}

#[test]
fn a_killed_tracer_is_reported_and_the_program_continues() {
    is_reported_and_the_program_continues(libc::SIGKILL);
}

#[test]
fn a_stopped_tracer_is_reported_and_the_program_continues() {
    is_reported_and_the_program_continues(libc::SIGSTOP);
}

fn is_reported_and_the_program_continues(signal: libc::c_int) {
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(SamplingMethod::Ptrace, other.pid(), 100) else { return };
    // SAFETY: the call takes integers; the tracer is not reaped before the sampler is dropped.
    unsafe { libc::kill(i32::try_from(tracer_of(spinner.tid)).unwrap(), signal) };
    let limit = Instant::now() + Duration::from_secs(10);
    let error = loop {
        match sampler.drain(&mut Vec::new()) {
            Ok(_) => assert!(Instant::now() < limit, "no error is reported"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("sample again"), "{error}");
    drop(sampler);
    assert_eq!(tracer_of(spinner.tid), 0);
    other.send("exit");
    assert_eq!(other.wait().code(), Some(7));
}

static CHILD_SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_child_signal(_: libc::c_int) {
    CHILD_SIGNALS.fetch_add(1, Relaxed);
}

#[test]
#[ignore = "run by another test, as a process with one child"]
fn parent() {
    // SAFETY: the handler only adds to an atomic; the structure is plain data, zeroed and then
    // filled.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count_child_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut()), 0);
    }
    let mut other = Other::start();
    let spinner = other.thread();
    let Some(mut sampler) = open(SamplingMethod::Ptrace, other.pid(), 100) else { return };
    let seen = Samples::until(&mut sampler, |seen| seen.of(spinner.tid).count() >= 20);
    assert!(seen.of(spinner.tid).count() >= 20);
    assert_eq!(CHILD_SIGNALS.load(Relaxed), 0, "the parent receives no signal for the sampler's stops");
    other.send("exit");
    assert_eq!(other.wait().code(), Some(7));
    drop(sampler);
    assert_eq!(CHILD_SIGNALS.load(Relaxed), 1, "the child's exit, not the tracer's");
}

#[test]
fn the_parent_gets_one_sigchld() {
    let mut program = Command::new(std::env::current_exe().unwrap());
    let output = program.args(["--exact", "parent", "--ignored", "--nocapture"]).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    output_text.lines().filter(|line| line.contains("SKIP")).for_each(|line| println!("{line}"));
    assert!(output.status.success(), "{output_text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_process_that_cannot_be_sampled_is_an_error() {
    for method in [SamplingMethod::Perf, SamplingMethod::Ptrace] {
        let missing = Sampler::open_by(method, i32::MAX.unsigned_abs(), 100).unwrap_err();
        assert!(matches!(missing, Error::NoSuchProcess { .. }), "{missing}");
        let never = Sampler::open_by(method, std::process::id(), 0).unwrap_err();
        assert!(matches!(never, Error::NotSampled { .. }), "{never}");
    }
    // A child may trace its parent's threads; a zombie cannot be traced.
    let mut other = Other::start();
    other.send("exit");
    let limit = Instant::now() + Duration::from_secs(10);
    while !stat(other.pid()).unwrap().state.has_ended() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
    let ended = Sampler::open(other.pid(), 100).map(|sampler| sampler.wait(Duration::ZERO).unwrap());
    assert!(matches!(ended, Ok(true) | Err(Error::NoSuchProcess { .. } | Error::NotSampled { .. })), "{ended:?}");
    assert_eq!(other.wait().code(), Some(7));
}

#[test]
fn the_first_method_that_works_is_used() {
    let mut other = Other::start();
    let spinner = other.thread();
    let mut sampler = match Sampler::open(other.pid(), 1000) {
        Ok(sampler) => sampler,
        Err(error) => {
            println!("SKIP no sampling: {error}");
            return;
        }
    };
    match sampler.method() {
        SamplingMethod::Perf => assert_eq!(sampler.hertz(), 1000),
        SamplingMethod::Ptrace => assert_eq!(sampler.hertz(), MAX_STOPS_PER_SECOND),
    }
    let seen = Samples::until(&mut sampler, |seen| seen.of(spinner.tid).count() >= 5);
    let mut threads = BTreeMap::new();
    seen.samples.iter().for_each(|sample| *threads.entry(sample.tid).or_insert(0) += 1);
    assert!(threads[&spinner.tid] >= 5, "{threads:?}");
    assert!(format!("{sampler:?}").contains("hertz"));
}
