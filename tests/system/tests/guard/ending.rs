//! The end of the program, or of the command, while an error is reported.

use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::fixture::{compiled, findings, guard, marked_line, stderr};

#[test]
fn the_end_of_the_process_waits_for_a_finding() {
    let program = compiled("ends.c", "");
    let name = program.rsplit('/').next().unwrap();
    for how in ["faults", "exit", "_exit", "abort", "null"] {
        for run in 0..5 {
            let (output, found) = findings("--guard=all", &[&program, how]);
            let text = stderr(&output);
            assert!(!found.is_empty(), "{how}, run {run}: {:?} {text}", output.status);
            for error in &found {
                assert_eq!(
                    (error.program.as_str(), error.kind.as_str()),
                    (name, "use-after-free"),
                    "{how}: {error:?} {text}"
                );
                assert!(error.stack[0].function.starts_with("use"), "{how}: {text}");
            }
            let line = marked_line("ends.c", "ends error");
            assert!(how == "faults" || found[0].stack[0].line == line, "{how}: {text}");
            let signal = output.status.signal().or(output.status.code().map(|code| code - 128));
            // On a busy machine, the access may come after the exit has begun: then the exit code is 1.
            let is_expected = [Some(11), Some(1 - 128), Some(6)].contains(&signal);
            assert!(is_expected, "{how}: {:?} {text}", output.status);
        }
    }
}

/// What a process prints that continues after the command, and how long after `go` exists.
fn outlived(arguments: &[&str]) -> (String, Duration) {
    let directory = tempfile::tempdir().unwrap();
    let (go, log) = (directory.path().join("go"), directory.path().join("log"));
    let program = compiled("daemon.c", "");
    let arguments: Vec<&str> = [&program, go.to_str().unwrap()].into_iter().chain(arguments.iter().copied()).collect();
    let mut command = guard("--guard=all", &arguments);
    let status = command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap()).status().unwrap();
    assert!(status.success());
    std::fs::write(&go, "").unwrap();
    let start = Instant::now();
    loop {
        let text = std::fs::read_to_string(&log).unwrap();
        if text.contains("try: ") || start.elapsed() > Duration::from_secs(20) {
            return (text, start.elapsed());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_process_that_outlives_the_command_prints_its_findings_at_once() {
    let (text, time) = outlived(&[]);
    assert!(text.contains("fieldstone: use-after-free in process "), "{text}");
    assert!(text.contains("the fieldstone command has ended"), "{text}");
    assert!(time < Duration::from_secs(5), "{time:?}");
    let frame = text.lines().nth(2).unwrap().trim();
    let (file, offset) = frame.rsplit_once('+').unwrap();
    let named = std::process::Command::new("addr2line").args(["-fe", file, offset]).output();
    let Ok(named) = named else { return println!("SKIP addr2line is not installed") };
    assert!(crate::fixture::stdout(&named).starts_with("use\n"), "{frame}: {named:?}");
}

#[test]
fn a_program_that_starts_after_the_end_of_the_command_says_so() {
    let (text, _) = outlived(&["/bin/true"]);
    assert!(text.contains("without guards: the fieldstone command that guards it has ended"), "{text}");
}
