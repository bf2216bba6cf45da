//! Threads, forks, programs that execute others, small limits, and a second agent.

use std::process::{Command, Output};

use crate::fixture::{MODES, compiled, counted, findings, guard, marked_line, run, same, stderr, stdout};

#[test]
fn threads_and_forks_go_on_as_without_guards() {
    let program = compiled("stress.c", "");
    for options in ["--guard=all", "--guard=1/3", "--guard"] {
        let output = run(options, &[&program]);
        assert_eq!((stdout(&output).as_str(), stderr(&output).as_str()), ("ok\n", ""), "{options}");
        assert!(output.status.success());
    }
}

#[test]
fn a_program_that_another_one_executes_is_guarded() {
    let program = compiled("bugs.c", "");
    let script = format!("{program} past_end; echo ended with $?");
    let (output, found) = findings("--guard=all --guard-side right", &["sh", "-c", &script]);
    assert_eq!(found.len(), 1, "{}", stderr(&output));
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("ended with 139\n", Some(1)), "1 instead of 0");
    let (_, stats) = counted("--guard=all", &["sh", "-c", "true; ls / > /dev/null; true"]);
    assert!(stats.processes.len() > 1 && stats.processes.iter().any(|process| process.name == "ls"), "{stats:?}");
}

#[test]
fn children_of_each_kind_are_guarded_and_leave_the_parent_as_it_is() {
    let program = compiled("spawned.c", "");
    same(&MODES, &[&program]);
    let (output, found) = findings("--guard=all --guard-side right", &[&program, "error"]);
    assert_eq!(found.len(), 1, "{}", stderr(&output));
    assert_eq!(found[0].stack[0].line, marked_line("spawned.c", "spawned error"));
    assert_eq!(stdout(&output), "from the child\nthe parent continues\n");
    let bugs = compiled("bugs.c", "");
    let (output, found) = findings("--guard=all --guard-side right", &[&program, "spawn", &bugs, "past_end"]);
    assert_eq!((found.len(), output.status.code()), (1, Some(11)), "{}", stderr(&output));
}

/// Runs a program with guards and 600 MB of address space.
fn run_in_small_space(options: &str, program: &[&str]) -> Output {
    let command = guard(options, program);
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let quoted: Vec<String> = words.iter().map(|word| format!("'{}'", word.to_str().unwrap())).collect();
    let script = format!("ulimit -v 600000; {}", quoted.join(" "));
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR"));
    shell.output().unwrap()
}

#[test]
fn a_small_address_space_guards_fewer_objects() {
    let program = compiled("bugs.c", "");
    let text = stderr(&run_in_small_space("--guard=all --guard-side right", &[&program, "past_end"]));
    assert!(text.contains("heap-buffer-overflow in "), "{text}");
}

#[test]
fn a_program_goes_on_when_all_slots_are_in_use() {
    let program = compiled("family.c", "");
    let plain = Command::new(&program).output().unwrap();
    let output = run_in_small_space("--guard=all --stats -", &[&program]);
    let text = stderr(&output);
    assert_eq!((stdout(&output), output.status), (stdout(&plain), plain.status), "{text}");
    assert!(text.contains("memory limit reached"), "{text}");
}

#[test]
fn a_region_and_guards_work_together() {
    let program = compiled("bugs.c", "");
    let (output, found) = findings("--region --guard=all --guard-side right", &[&program, "past_end"]);
    assert_eq!(found.len(), 1, "{}", stderr(&output));
    let plain = run("--region", &["/usr/bin/python3", "-c", PYTHON]);
    if plain.status.success() {
        for options in ["--region --guard", "--region --guard=all"] {
            let output = run(options, &["/usr/bin/python3", "-c", PYTHON]);
            assert_eq!((stdout(&output), stderr(&output)), (stdout(&plain), String::new()), "{options}");
        }
    } else {
        println!("SKIP python3 is not installed");
    }
}

/// A program that works with threads and subprocesses.
const PYTHON: &str = "import json, subprocess, threading
def work(): return json.loads(json.dumps({str(i): [i] * 5 for i in range(2000)}))
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(len(work()), subprocess.check_output(['echo', 'a']))";
