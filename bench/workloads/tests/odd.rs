//! The odd programs misbehave as documented.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    process::{Command, Output, Stdio},
};

fn odd(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_odd")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn each_mode_ends_as_documented() {
    for (arguments, signal) in
        [(&["crash", "1"][..], libc::SIGSEGV), (&["abort"], libc::SIGABRT), (&["kill-self"], libc::SIGKILL)]
    {
        assert_eq!(odd(arguments).status.signal(), Some(signal), "{arguments:?}");
    }
    assert_eq!(text(&odd(&["crash", "1"]).stdout), "about to crash\n");
    assert_eq!(odd(&["exit", "7"]).status.code(), Some(7));
    assert_eq!(odd(&["exit", "300"]).status.code(), Some(2));
    assert_eq!(odd(&["no-such-mode"]).status.code(), Some(2));
}

#[test]
fn random_output_differs() {
    assert_ne!(odd(&["random-output"]).stdout, odd(&["random-output"]).stdout);
}

/// Starts `mode`, waits for `ready`, sends `signals`; returns the signal that ended the process.
fn killed_by(mode: &str, signals: &[&str]) -> Option<i32> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_odd")).arg(mode).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    assert!(child.try_wait().unwrap().is_none());
    for signal in signals {
        assert!(
            Command::new("sh").args(["-c", &format!("kill -s {signal} {}", child.id())]).status().unwrap().success()
        );
    }
    child.wait().unwrap().signal()
}

#[test]
fn hanging_programs_end_by_the_signal_they_do_not_ignore() {
    assert_eq!(killed_by("hang", &["TERM"]), Some(libc::SIGTERM));
    assert_eq!(killed_by("ignore-sigterm", &["TERM", "KILL"]), Some(libc::SIGKILL));
}

#[test]
fn echo_copies() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_odd"))
        .arg("echo")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a\0b").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"a\0b");
}

#[test]
fn surroundings_shows_arguments_environment_and_descriptors() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_odd"));
    command.env_clear().env("B", "2").env("A", "1").args(["surroundings", "--x", "y"]).stdin(Stdio::null());
    let output = text(&command.output().unwrap().stdout);
    let head =
        "argument --x\nargument y\nenvironment A=1\nenvironment B=2\ndescriptor 0 /dev/null\ndescriptor 1 pipe\n";
    assert!(output.starts_with(head), "{output}");
}

#[test]
fn programs_that_keep_memory_find_their_writes() {
    for arguments in [&["hold", "1M", "1"][..], &["fork-tree", "1M"], &["threads", "100"]] {
        let (first, second) = (odd(arguments), odd(arguments));
        assert!(first.status.success(), "{arguments:?}: {}", text(&first.stderr));
        assert_eq!(first.stdout, second.stdout, "{arguments:?}");
    }
    // The program counts its rounds, at least two for each of its four threads.
    let churned = odd(&["churn", "1M"]);
    assert!(churned.status.success(), "{}", text(&churned.stderr));
    let rounds = text(&churned.stdout);
    let rounds = rounds.trim_end().rsplit(' ').next().and_then(|rounds| u64::from_str_radix(rounds, 16).ok());
    assert!(rounds.is_some_and(|rounds| rounds >= 2 * 4), "{rounds:?}");
}
