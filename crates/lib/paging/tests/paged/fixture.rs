//! The fixture of the tests: memory, contents, and tests that run in a process of their own.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_paging::{Error, Paged, PagedBuilder};

pub(crate) const PAGE: usize = 4096;
pub(crate) const WORDS: usize = PAGE / 8;
pub(crate) const MIB: usize = 1 << 20;

/// Memory of these options; `None`, with a SKIP line, where this user may not have it.
pub(crate) fn build(builder: PagedBuilder) -> Option<Paged> {
    match builder.build() {
        Ok(memory) => Some(memory),
        Err(error @ Error::NoUserfaultfd { .. }) => {
            println!("SKIP {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Contents of pages.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Become smaller when they are compressed.
    Text,
    /// Do not.
    Noise,
    Zeros,
}

/// The word at an index of contents of a kind.
pub(crate) fn word(kind: Kind, index: usize) -> u64 {
    let number = index as u64;
    match kind {
        Kind::Text => number / 16,
        Kind::Noise => {
            let mixed = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            (mixed ^ mixed >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ number
        }
        Kind::Zeros => 0,
    }
}

pub(crate) fn fill(memory: &Paged, kind: Kind) {
    let words = memory.as_slice::<AtomicU64>();
    words.iter().enumerate().for_each(|(index, place)| place.store(word(kind, index), Relaxed));
}

pub(crate) fn check(memory: &Paged, kind: Kind) {
    let words = memory.as_slice::<AtomicU64>();
    let wrong = words.iter().enumerate().find(|(index, place)| place.load(Relaxed) != word(kind, *index));
    assert!(wrong.is_none(), "{kind:?}: {wrong:?}\n{}", memory.stats());
}

/// Sends contents of two kinds through the only store of the memory, and checks them.
#[cfg(any(feature = "redis", feature = "opendal"))]
pub(crate) fn pass_through_store(memory: &Paged, name: &str) {
    for kind in [Kind::Text, Kind::Noise] {
        fill(memory, kind);
        memory.advise(0..memory.len(), fieldstone_paging::Advice::Cold).unwrap();
        check(memory, kind);
    }
    let stats = memory.stats();
    assert!(stats.stores[0].name == name && stats.stores[0].loaded > 2000, "{stats}");
}

/// Runs an ignored test of this program in a process of its own, which ends after a minute.
pub(crate) fn run_alone(test: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", test, "--ignored", "--nocapture", "--test-threads=1"];
    let mut command = Command::new(program);
    let limit = || {
        // SAFETY: the call has no pointers, and the timer stays when the program is executed.
        unsafe { libc::alarm(60) };
        Ok(())
    };
    // SAFETY: the closure calls alarm(2) only, which is async-signal-safe.
    unsafe { command.args(arguments).pre_exec(limit) }.output().unwrap()
}

/// The output of an ignored test that passes.
pub(crate) fn passes_alone(test: &str) -> String {
    let output = run_alone(test);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{:?}\n{text}\n{errors}", output.status);
    text
}

/// Asserts that an ignored test ends by a signal; its standard error.
pub(crate) fn dies_alone(test: &str, signal: i32) -> String {
    let output = run_alone(test);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if !String::from_utf8_lossy(&output.stdout).contains("SKIP") {
        assert_eq!(output.status.signal(), Some(signal), "{:?}\n{errors}", output.status);
    }
    errors
}

/// Runs `f` in a forked child, and returns its exit code; negative: the signal that ended it.
pub(crate) fn in_child(f: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child calls `f`, and ends without destructors of its parent.
    match unsafe { libc::fork() } {
        // SAFETY: the child ends here, without destructors of its parent.
        0 => unsafe { libc::_exit(f()) },
        child => {
            let mut status = 0;
            // SAFETY: the status is a live local.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
        }
    }
}
