//! Recursion in Rust on stacks of blocks: depth, panics, threads, limits, freeing.

#![allow(unsafe_code, reason = "forks")]
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]

use std::hint::black_box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fieldstone_stacks::{allocations, grow, grow_with, held_bytes, limit_bytes, remaining, set_limit_bytes, trim};

/// Serialises tests: allocations are counted for the whole process.
fn serialise() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `depth` nested calls, each with some hundred bytes that must not change, and runs `last`
/// in the deepest.
fn descend(depth: u64, last: &mut dyn FnMut()) -> u64 {
    let mark = [depth; 40];
    black_box(&mark);
    let below = grow(|| {
        if depth > 0 {
            return 1 + descend(depth - 1, last);
        }
        last();
        0
    });
    below + u64::from(black_box(&mark)[39] != depth)
}

#[test]
fn recursion_is_as_deep_as_memory_allows() {
    let _serial = serialise();
    let mut deepest = 0;
    assert_eq!(descend(300_000, &mut || deepest = held_bytes()), 300_000);
    assert!(deepest > 300_000 * 320, "{deepest} bytes for frames of at least 320 bytes");
    // The second time all segments are allocated.
    let before = allocations();
    assert_eq!(descend(300_000, &mut || {}), 300_000);
    assert_eq!(allocations(), before, "a second descent allocates nothing");
}

#[test]
fn panics_pass_through_segments_and_the_stack_stays_intact() {
    let _serial = serialise();
    struct CountedDrop<'a>(&'a std::cell::Cell<u64>);
    impl Drop for CountedDrop<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    fn down(depth: u64, dropped: &std::cell::Cell<u64>) {
        let _counter = CountedDrop(dropped);
        let mark = [depth; 60];
        black_box(&mark);
        grow(|| if depth == 0 { std::panic::panic_any(77_u32) } else { down(depth - 1, dropped) });
    }
    let dropped = std::cell::Cell::new(0);
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for round in 1..=20 {
        let caught = catch_unwind(AssertUnwindSafe(|| down(5_000, &dropped)));
        assert_eq!(caught.unwrap_err().downcast_ref::<u32>(), Some(&77));
        assert_eq!(dropped.get(), round * 5_001);
        assert_eq!(descend(5_000, &mut || {}), 5_000);
    }
    std::panic::set_hook(hook);
}

#[test]
fn grow_with_guarantees_the_requested_bytes() {
    let _serial = serialise();
    for red_zone in [100, 5_000, 50_000, 618 << 10, 5 << 20] {
        let left = descend_and(100, &|| grow_with(red_zone, remaining));
        assert!(left + 1_000 >= red_zone, "{left} bytes are left of {red_zone}");
    }
}

fn descend_and(depth: u64, last: &dyn Fn() -> usize) -> usize {
    let mark = [depth; 100];
    black_box(&mark);
    let found = grow(|| if depth == 0 { last() } else { descend_and(depth - 1, last) });
    found + usize::from(black_box(&mark)[3] != depth)
}

#[test]
fn threads_grow_separate_stacks_and_free_them() {
    let _serial = serialise();
    let resident = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let round = || {
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| assert_eq!(descend(20_000, &mut || {}), 20_000));
            }
        });
    };
    round();
    let before = resident();
    for _ in 0..5 {
        round();
    }
    // 80 threads of at least 6 MiB would be 480 MiB.
    assert!(resident() < before + (100 << 20), "{} to {}", before, resident());
}

#[test]
fn a_thread_with_a_small_stack_grows() {
    let _serial = serialise();
    let thread = std::thread::Builder::new().stack_size(64 << 10);
    let made = thread.spawn(|| {
        let mut held = 0;
        assert_eq!(descend(10_000, &mut || held = held_bytes()), 10_000);
        assert!(held > 3 << 20);
        let allocated = allocations();
        trim();
        assert_eq!(descend(10_000, &mut || {}), 10_000);
        assert!(allocations() > allocated, "trimmed segments are allocated again");
    });
    made.unwrap().join().unwrap();
}

/// Run by the next test, in its own process.
#[test]
#[ignore = "run by the test of the limit"]
fn endless_recursion() {
    std::thread::Builder::new()
        .name("endless".into())
        .spawn(|| {
            set_limit_bytes(16 << 20);
            assert_eq!(limit_bytes(), 16 << 20);
            descend(u64::MAX, &mut || {})
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn a_stack_at_its_limit_reports_its_thread() {
    let this = std::env::current_exe().unwrap();
    let ended = Command::new(this).args(["--ignored", "--exact", "endless_recursion"]).output().unwrap();
    use std::os::unix::process::ExitStatusExt;
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.signal(), Some(6), "{stderr}");
    assert!(stderr.contains("the stack of thread 'endless' (") && stderr.contains("its limit of 16 MiB"), "{stderr}");
}

#[test]
fn a_forked_child_can_grow_its_stack() {
    let _serial = serialise();
    let mut children = Vec::new();
    let busy = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while busy.load(std::sync::atomic::Ordering::Relaxed) {
                descend(5_000, &mut || {});
                trim();
            }
        });
        for _ in 0..50 {
            // SAFETY: the child recurses, which takes only this crate's lock, and ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let depth = descend(5_000, &mut || {});
                // SAFETY: the call ends the process.
                unsafe { libc::_exit(i32::from(depth != 5_000)) };
            }
            children.push(child);
        }
        busy.store(false, std::sync::atomic::Ordering::Relaxed);
    });
    for child in children {
        let mut status = -1;
        // SAFETY: the child was forked above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "a child ended badly");
    }
}
