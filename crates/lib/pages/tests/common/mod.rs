//! Shared by the tests: access to memory, and test bodies that run in a child process.

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::cast_possible_truncation, reason = "numbers of processes")]

use std::ffi::c_int;
use std::process::{Command, Output};

use fieldstone_pages::{Mechanism, Memory};

pub(crate) const PAGE: usize = 4096;
pub(crate) const TRAPS: [Mechanism; 4] =
    [Mechanism::UserfaultThread, Mechanism::UserfaultSignal, Mechanism::ProtectThread, Mechanism::ProtectSignal];

pub(crate) fn write(memory: &Memory, at: usize, value: u8) {
    assert!(at < memory.bytes());
    // SAFETY: the assertion keeps the address inside the memory.
    unsafe { memory.as_ptr().add(at).write_volatile(value) };
}

pub(crate) fn read(memory: &Memory, at: usize) -> u8 {
    assert!(at < memory.bytes());
    // SAFETY: the assertion keeps the address inside the memory.
    unsafe { memory.as_ptr().add(at).read_volatile() }
}

const CHILD: &str = "FIELDSTONE_PAGES_CHILD";

/// Runs a test's body in a child process, because it forks, or changes limits, signals or the user.
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        body();
        println!("the end of {test}");
        return;
    }
    let output = child(test);
    let text = text_of(&output);
    assert!(output.status.success() && text.contains(&format!("the end of {test}")), "{}: {text}", output.status);
    for skip in text.lines().filter(|line| line.starts_with("SKIP ")) {
        println!("{skip}");
    }
}

/// Runs a test's body in a child process that must end before the body does. Returns its output.
pub(crate) fn doomed(test: &str, body: impl FnOnce()) -> Option<Output> {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        no_core_file();
        body();
        println!("the end of {test}");
        return None;
    }
    let output = child(test);
    assert!(!text_of(&output).contains(&format!("the end of {test}")), "{}", text_of(&output));
    Some(output)
}

/// Disables core files, for processes that end by a signal.
pub(crate) fn no_core_file() {
    limit(libc::RLIMIT_CORE, 0);
}

pub(crate) fn limit(resource: libc::__rlimit_resource_t, most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the kernel reads one rlimit from a live local.
    assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
}

/// The signal that ended a process, from its status.
pub(crate) fn ended_by(status: c_int) -> Option<c_int> {
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

fn child(test: &str) -> Output {
    let this = std::env::current_exe().unwrap();
    Command::new(this).args(["--exact", test, "--nocapture"]).env(CHILD, test).output().unwrap()
}

pub(crate) fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Runs `body` in a forked child, for at most 20 s. Returns its status as of waitpid(2), 101 after
/// a panic.
pub(crate) fn forked(body: impl FnOnce() -> bool) -> c_int {
    // SAFETY: fork(3) takes no argument and returns 0 in the child.
    unsafe { child_by(|| libc::fork(), body) }
}

/// As [`forked`], by a bare clone(2), which runs no handlers of fork(3).
pub(crate) fn cloned(body: impl FnOnce() -> bool) -> c_int {
    // SAFETY: without sharing flags, clone(2) is a fork and returns 0 in the child.
    unsafe { child_by(|| libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t, body) }
}

/// # Safety
/// `make` must fork and return 0 in the child.
unsafe fn child_by(make: impl FnOnce() -> libc::pid_t, body: impl FnOnce() -> bool) -> c_int {
    let child = make();
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: _exit ends the child without running the parent's destructors.
        unsafe {
            libc::_exit(match result {
                Ok(true) => 0,
                Ok(false) => 1,
                Err(_) => 101,
            });
        }
    }
    let mut status = 0;
    // A child may hang with its signals blocked, where alarm(2) cannot end it.
    for wait in 0_u32.. {
        // SAFETY: the status is a live local, and the child is this process's.
        unsafe {
            if libc::waitpid(child, &raw mut status, libc::WNOHANG) == child {
                break;
            }
            if wait == 200_000 {
                libc::kill(child, libc::SIGKILL);
            }
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    status
}

/// Makes the kernel refuse a system call with an errno: for the calling thread, or for all threads.
pub(crate) fn refuse(call: libc::c_long, errno: c_int, all_threads: bool) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: u16::try_from(code).unwrap(), jt: 0, jf: 0, k };
    let is_other = u16::try_from(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K).unwrap();
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { code: is_other, jt: 0, jf: 1, k: u32::try_from(call).unwrap() },
        statement(answer, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()),
        statement(answer, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: u16::try_from(program.len()).unwrap(), filter: program.as_mut_ptr() };
    let flags = if all_threads { libc::SECCOMP_FILTER_FLAG_TSYNC } else { 0 };
    // SAFETY: the filter and its program are live locals, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let installed = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter);
        assert_eq!(installed, 0, "{}", std::io::Error::last_os_error());
    }
}

/// Pseudo-random numbers, the same in each run.
pub(crate) struct TestRandom(pub(crate) u64);

impl TestRandom {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 1).unwrap() % end
    }
}
