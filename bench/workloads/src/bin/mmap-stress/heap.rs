//! malloc between the other steps, and a second thread that checks all memory.

use crate::test_thread::{CheckResult, TestThread};

/// Makes four random calls of the malloc family.
pub(crate) fn heap(test: &mut TestThread) -> CheckResult {
    for _ in 0..4 {
        test.heap.step(&mut test.random).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Starts a thread (new stack, own malloc arena) that checks this thread's memory and allocates.
pub(crate) fn thread(test: &mut TestThread) -> CheckResult {
    let seed = test.random.draw();
    let test = &*test;
    let check = move || {
        let mut random = fieldstone_workloads::random::SplitMix64::new(seed);
        let mut blocks = fieldstone_workloads::blocks::Blocks::new(4 << 20);
        for _ in 0..50 {
            blocks.step(&mut random).map_err(|error| error.to_string())?;
        }
        test.check_all()
    };
    std::thread::scope(|scope| scope.spawn(check).join()).unwrap_or_else(|_| Err("the thread panicked".into()))
}
