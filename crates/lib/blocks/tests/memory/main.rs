//! Memory from the kernel: the pages used, failures without memory, a million arrays, forks.

#![cfg(not(any(loom, miri)))]
#![allow(unsafe_code, reason = "forks, and frees raw blocks")]
#![expect(clippy::unwrap_used, reason = "a test")]
mod crowd;
mod exhaustion;
#[path = "../../../pages/tests/common/hugetlb_reserve.rs"]
mod hugetlb_reserve;
mod pages;

use std::process::Command;

const CHILD: &str = "FIELDSTONE_BLOCKS_CHILD";

/// Runs a test's body in its own process, since it changes limits or measures memory.
fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        body();
        println!("the end of {test}");
        return;
    }
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).args(["--exact", test, "--nocapture"]).env(CHILD, test).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains(&format!("the end of {test}")), "{}: {text}", output.status);
}

/// A field of `/proc/self/status`, in bytes.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
