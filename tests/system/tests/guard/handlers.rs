//! A program's own handlers of SIGSEGV and SIGBUS work as without guards.

use crate::fixture::{compiled, findings, marked_line, run, stderr, stdout};

#[test]
fn handlers_get_what_they_would_get_without_guards() {
    let program = compiled("handlers.c", "");
    for options in ["--guard=all", "--guard"] {
        let output = run(options, &[&program]);
        assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("ok\n", ""), "{options}");
        assert!(output.status.success());
    }
}

#[test]
fn an_error_is_reported_although_the_program_handles_the_signal() {
    let program = compiled("handlers.c", "");
    let (output, found) = findings("--guard=all --guard-side right", &[&program, "error"]);
    assert_eq!(found.len(), 1, "{}", stderr(&output));
    assert_eq!(found[0].stack[0].line, marked_line("handlers.c", "handlers error"));
}

#[test]
fn an_error_in_a_thread_that_has_blocked_all_signals_is_reported() {
    let program = compiled("blocked.c", "-pthread");
    let output = run("--guard=all", &[&program]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("ok\n", ""));
    for how in ["thread", "process", "inherited"] {
        let (output, found) = findings("--guard=all --guard-side right", &[&program, how]);
        assert_eq!(found.len(), 1, "{how}: {}", stderr(&output));
        assert_eq!(found[0].stack[0].line, marked_line("blocked.c", "blocked error"), "{how}");
    }
}
