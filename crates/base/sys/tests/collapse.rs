//! `MADV_COLLAPSE` from outside: the facts that Fieldstone depends on, tested on a child process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(unsafe_code, reason = "memory is mapped and advised here")]

mod memory;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use fieldstone_sys::collapse::{CollapseTarget, HUGE_BYTES};
use fieldstone_sys::pagemap::present_ranges;
use memory::Mapped;

/// Another instance of this test program, which maps and touches memory, and checks it when its
/// standard input ends.
struct OtherProcess {
    running: Child,
    /// Start of the memory advised for small pages, then of the unadvised memory.
    addresses: [u64; 2],
}

const PIECES: u64 = 4;

#[test]
#[ignore = "run by the other tests, as a process of its own"]
fn task() {
    let [small, plain] = [(); 2].map(|()| Mapped::anonymous(PIECES * HUGE_BYTES, HUGE_BYTES));
    small.advise(libc::MADV_NOHUGEPAGE);
    small.touch();
    plain.touch();
    println!("\naddresses {} {}", small.range().start, plain.range().start);
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    for offset in (0..PIECES * HUGE_BYTES).step_by(4096) {
        assert_eq!((small.read(offset), plain.read(offset), plain.read(offset + 1)), (1, 1, 0));
    }
}

impl OtherProcess {
    fn start() -> Self {
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "task", "--ignored", "--nocapture"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = program.spawn().unwrap();
        let mut lines = BufReader::new(running.stdout.as_mut().unwrap()).lines();
        let line = lines.find_map(|line| line.unwrap().strip_prefix("addresses ").map(str::to_owned)).unwrap();
        let mut words = line.split(' ').map(|word| word.parse().unwrap());
        let addresses = [words.next().unwrap(), words.next().unwrap()];
        Self { running, addresses }
    }

    /// Whether all of the memory at `start` is on huge pages.
    fn is_huge(&self, start: u64) -> bool {
        let found = present_ranges(self.running.id(), start..start + PIECES * HUGE_BYTES).unwrap();
        found.iter().all(|span| span.huge)
    }

    fn end(mut self) {
        drop(self.running.stdin.take());
        let mut rest = String::new();
        self.running.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert!(self.running.wait().unwrap().success(), "its memory has changed: {rest}");
    }
}

#[test]
fn small_pages_become_huge_and_keep_their_contents() {
    let other = OtherProcess::start();
    match CollapseTarget::open(other.running.id()) {
        Err(refused @ fieldstone_sys::Error::NotCollapsible { .. }) => {
            println!("SKIP memory may not be collapsed from outside: {refused}");
        }
        target => {
            let target = target.unwrap();
            let [small, plain] = other.addresses;
            assert!(!other.is_huge(small));
            for piece in 0..PIECES {
                target.collapse(plain + piece * HUGE_BYTES).unwrap();
                let refused = target.collapse(small + piece * HUGE_BYTES).unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "MADV_NOHUGEPAGE binds");
            }
            assert!(other.is_huge(plain) && !other.is_huge(small));
        }
    }
    other.end();
}

#[test]
fn a_target_that_has_ended_is_reported() {
    let mut other = OtherProcess::start();
    let Ok(target) = CollapseTarget::open(other.running.id()) else {
        println!("SKIP memory may not be collapsed from outside");
        return other.end();
    };
    other.running.kill().unwrap();
    other.running.wait().unwrap();
    assert_eq!(target.collapse(other.addresses[1]).unwrap_err().raw_os_error(), Some(libc::ESRCH));
}
