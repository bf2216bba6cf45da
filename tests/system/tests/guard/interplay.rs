//! What a program does while the agent works, or where the agent has little to work with: signals,
//! cancelled threads, small stacks, unloaded libraries, sandboxes, the end of the process.

use crate::fixture::{MODES, compiled, findings, marked_line, run, same, stderr, stdout};

/// Runs a program whose argument makes it end with an error, and checks that the error is found at the
/// marked line.
fn finds(source: &str, arguments: &[&str]) {
    let program = compiled(source, "");
    let (output, found) = findings("--guard=all --guard-side right", &[&[program.as_str()], arguments].concat());
    assert_eq!(found.len(), 1, "{arguments:?}: {:?} {}", output.status, stderr(&output));
    let name = source.split('.').next().unwrap();
    let line = marked_line(source, &format!("{name} error"));
    assert!(found[0].stack.iter().any(|frame| frame.line == line), "{arguments:?}: {:?}", found[0].stack);
}

#[test]
fn memory_is_available_until_the_end_of_threads_and_of_the_process() {
    same(&MODES, &[&compiled("late.cpp", "-std=c++17")]);
}

#[test]
fn new_handlers_and_failures_are_those_of_the_program() {
    same(&MODES, &[&compiled("new_handler.cpp", "-std=c++17")]);
}

#[test]
fn handlers_of_signals_may_allocate_inside_the_agent() {
    // Without guards, the program is not correct: its handler may interrupt malloc.
    let output = run("--guard=all", &[&compiled("signals.c", "")]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("ok\n", ""), "{:?}", output.status);
}

#[test]
fn cancelled_threads_leave_no_lock() {
    let program = compiled("cancelled.c", "");
    same(&MODES, &[&program]);
    let output = run("--guard=all", &[&program, "asynchronous"]);
    assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("ok\n", ""), "{:?}", output.status);
}

#[test]
fn small_stacks_are_enough() {
    same(&MODES, &[&compiled("small_stacks.c", "")]);
    for place in ["thread", "handler", "fault"] {
        finds("small_stacks.c", &[place]);
    }
}

#[test]
fn libraries_may_be_unloaded() {
    let library = compiled("unloaded.c", "-DLIBRARY -shared -fPIC");
    same(&MODES, &[&compiled("unloaded.c", ""), &library]);
    finds("unloaded.c", &[&library, "error"]);
}

#[test]
fn a_sandbox_that_permits_the_documented_calls_is_enough() {
    same(&MODES, &[&compiled("sandboxed.c", "")]);
    finds("sandboxed.c", &["error"]);
}
