//! The sampled program: another instance of this test program, whose threads run a known loop.

use std::io::{BufRead, BufReader, Lines, Write, stdin, stdout};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

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
pub(crate) struct Spinner {
    pub(crate) tid: u32,
    pub(crate) word: u64,
    pub(crate) mark: u64,
}

/// Another instance of this test program, running [`task`].
pub(crate) struct Other {
    pub(crate) running: Child,
    pub(crate) input: ChildStdin,
    pub(crate) output: Lines<BufReader<ChildStdout>>,
    pub(crate) code: Range<u64>,
}

impl Other {
    pub(crate) fn start() -> Self {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program
            .args(["--exact", "program::task", "--ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut running = program.spawn().unwrap();
        let input = running.stdin.take().unwrap();
        let output = BufReader::new(running.stdout.take().unwrap()).lines();
        let mut this = Self { running, input, output, code: 0..0 };
        let [start, end] = this.receive("loop ");
        this.code = start..end;
        this
    }

    /// The numbers of the next line with this prefix.
    pub(crate) fn receive<const N: usize>(&mut self, what: &str) -> [u64; N] {
        let line = self.output.find_map(|line| line.unwrap().strip_prefix(what).map(str::to_owned)).unwrap();
        let words: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        words.try_into().unwrap()
    }

    pub(crate) fn send(&mut self, what: &str) {
        writeln!(self.input, "{what}").unwrap();
    }

    pub(crate) fn thread(&mut self) -> Spinner {
        self.send("thread");
        let [tid, word, mark] = self.receive("thread ");
        Spinner { tid: u32::try_from(tid).unwrap(), word, mark }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.id()
    }

    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the call takes integers; an unreaped child keeps its number.
        assert_eq!(unsafe { libc::kill(i32::try_from(self.pid()).unwrap(), signal) }, 0);
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.running.wait().unwrap()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.running.kill();
        let _ = self.running.wait();
    }
}
