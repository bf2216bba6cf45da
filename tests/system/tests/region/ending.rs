//! The end of a run: exit code and signal are the program's, and no process remains.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};

use crate::common::{kill, wait_until};
use crate::fixture::{child, counted, is_running, region, run, stderr, stdout, workload};

const SIGINT: i32 = 2;
const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;
const SIGSEGV: i32 = 11;
const SIGTERM: i32 = 15;

#[test]
fn the_exit_code_is_the_program_s() {
    for code in [0, 1, 7, 255] {
        let output = run("", &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    }
}

#[test]
fn the_signal_is_the_program_s() {
    let Some(odd) = workload("odd") else { return };
    for (mode, signal) in [("crash", SIGSEGV), ("kill-self", SIGKILL), ("abort", SIGABRT)] {
        let (output, stats) = counted("", &[&odd, mode]);
        assert_eq!(output.status.signal(), Some(signal), "{mode}");
        assert!(stats.outcome.starts_with(&format!("signal {signal} ")), "{}", stats.outcome);
    }
}

#[test]
fn unwritable_statistics_do_not_hide_the_program_s_exit_code() {
    // The disk is full when the program ends, and was not when it started.
    let directory = tempfile::tempdir().unwrap();
    let (disk, command) = (directory.path().display(), crate::binaries::command());
    for (program, code) in [("exit 7", 7), ("exit 0", 2)] {
        let script = format!(
            "mount -t tmpfs -o size=8k none {disk} || exit 99
             exec {command} run --region --stats {disk}/stats -- \
                 sh -c 'echo ran; dd if=/dev/zero of={disk}/fill bs=4k 2>/dev/null; {program}'"
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "sh", "-c", &script]).env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR"));
        let output = unshare.stdin(Stdio::null()).output().unwrap();
        if matches!(output.status.code(), Some(1 | 99)) && stdout(&output).is_empty() {
            println!("SKIP no tmpfs can be mounted here");
            return;
        }
        assert_eq!((stdout(&output).as_str(), output.status.code()), ("ran\n", Some(code)), "{}", stderr(&output));
        assert!(stderr(&output).contains(&format!("cannot write {disk}/stats: No space")), "{}", stderr(&output));
    }
}

/// Starts a program that sleeps forever, in a process group with the command. Returns its process
/// number.
fn hanging(mode: &str) -> Option<(Child, u32)> {
    let odd = workload("odd")?;
    let running = region("", &[&odd, mode]).process_group(0).stdout(Stdio::piped()).spawn().unwrap();
    let program = wait_until("the program", || child(running.id(), "odd"));
    // The program sets its handlers before it sleeps.
    let stat = || std::fs::read_to_string(format!("/proc/{program}/wchan")).unwrap_or_default();
    wait_until("it to sleep", || stat().contains("nanosleep").then_some(()));
    Some((running, program))
}

#[test]
fn a_signal_to_the_command_reaches_the_program() {
    let Some((mut running, program)) = hanging("hang") else { return };
    kill("TERM", &running.id().to_string());
    assert_eq!(running.wait().unwrap().signal(), Some(SIGTERM));
    assert!(!is_running(program));
}

#[test]
fn a_program_that_ignores_a_signal_continues() {
    let Some((mut running, program)) = hanging("ignore-sigterm") else { return };
    kill("TERM", &running.id().to_string());
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert!(is_running(program) && is_running(running.id()));
    kill("INT", &running.id().to_string());
    assert_eq!(running.wait().unwrap().signal(), Some(SIGINT));
}

#[test]
fn ctrl_c_leaves_no_child() {
    let Some((mut running, program)) = hanging("hang") else { return };
    kill("INT", &format!("-{}", running.id()));
    assert_eq!(running.wait().unwrap().signal(), Some(SIGINT));
    assert!(!is_running(program));
}

#[test]
fn the_program_does_not_outlive_the_command() {
    let Some((mut running, program)) = hanging("ignore-sigterm") else { return };
    kill("KILL", &running.id().to_string());
    running.wait().unwrap();
    wait_until("the program to be gone", || (!is_running(program)).then_some(()));
}
