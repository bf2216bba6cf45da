//! What the tests share: touching memory, and bodies that run in a process of their own.

#![allow(dead_code, reason = "each test program uses a part")]

use std::ffi::c_int;
use std::process::{Command, Output};

use fieldstone_pages::{Mechanism, Memory};

pub(crate) const PAGE: usize = 4096;
pub(crate) const TRAPS: [Mechanism; 4] =
    [Mechanism::UserfaultThread, Mechanism::UserfaultSignal, Mechanism::ProtectThread, Mechanism::ProtectSignal];

pub(crate) fn write(memory: &Memory, at: usize, value: u8) {
    assert!(at < memory.bytes());
    // SAFETY: inside the memory.
    unsafe { memory.as_ptr().add(at).write_volatile(value) };
}

pub(crate) fn read(memory: &Memory, at: usize) -> u8 {
    assert!(at < memory.bytes());
    // SAFETY: inside the memory.
    unsafe { memory.as_ptr().add(at).read_volatile() }
}

const CHILD: &str = "FIELDSTONE_PAGES_CHILD";

/// Runs a test's body in a process of its own, since it forks, changes limits or signals, or leaves the user behind.
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        body();
        println!("the end of {test}");
        return;
    }
    let output = child(test);
    let text = told(&output);
    assert!(output.status.success() && text.contains(&format!("the end of {test}")), "{}: {text}", output.status);
    for skip in text.lines().filter(|line| line.starts_with("SKIP ")) {
        println!("{skip}");
    }
}

/// Runs a test's body in a process of its own, which must not come to the body's end; how it ended.
pub(crate) fn doomed(test: &str, body: impl FnOnce()) -> Option<Output> {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        // No core file.
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a live local.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
        body();
        println!("the end of {test}");
        return None;
    }
    let output = child(test);
    assert!(!told(&output).contains(&format!("the end of {test}")), "{}", told(&output));
    Some(output)
}

fn child(test: &str) -> Output {
    let this = std::env::current_exe().unwrap();
    Command::new(this).args(["--exact", test, "--nocapture"]).env(CHILD, test).output().unwrap()
}

pub(crate) fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs `body` in a forked child, which ends after 20 s at most; the child's status as of waitpid(2). A panic in it is status 101.
pub(crate) fn forked(body: impl FnOnce() -> bool) -> c_int {
    // SAFETY: the child calls what this library promises to work there, and leaves without running the parent's destructors.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            libc::alarm(20);
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
            libc::_exit(match result {
                Ok(true) => 0,
                Ok(false) => 1,
                Err(_) => 101,
            });
        }
        let mut status = 0;
        while libc::waitpid(child, &raw mut status, 0) != child {}
        status
    }
}

/// Numbers that look random, the same in each run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 1).unwrap() % end
    }
}
