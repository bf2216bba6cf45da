//! Waiting for what another process does, and signals to it.

use std::process::Command;
use std::time::{Duration, Instant};

/// Longer than any wait in a successful test.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

pub(crate) fn wait_until<T>(what: &str, mut happens: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(it) = happens() {
            return it;
        }
        assert!(since.elapsed() < LONGEST_WAIT, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal to a process, or with a minus before its number to its group.
pub(crate) fn kill(signal: &str, target: &str) {
    let status = Command::new("kill").args([&format!("-{signal}"), "--", target]).status().unwrap();
    assert!(status.success(), "kill -{signal} {target}");
}
