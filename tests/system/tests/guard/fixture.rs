//! The fixture of the tests: the command, and the programs that it guards.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{LazyLock, Mutex};

use fieldstone_report::{GuardStats, HeapError, SavedFile};
use tempfile::TempDir;

use crate::binaries;

/// `fieldstone run`, with options split at spaces.
pub(crate) fn guard(options: &str, program: &[&str]) -> Command {
    let mut command = Command::new(binaries::command());
    command.arg("run").args(options.split_whitespace()).arg("--").args(program);
    command.env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).stdin(Stdio::null());
    command
}

/// Runs a program with guards.
pub(crate) fn run(options: &str, program: &[&str]) -> Output {
    guard(options, program).output().unwrap()
}

/// Runs a program with a file of findings. Returns its output and the findings.
pub(crate) fn findings(options: &str, program: &[&str]) -> (Output, Vec<HeapError>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("findings.json");
    let output = run(&format!("{options} --guard-report {}", file.display()), program);
    let is_empty = std::fs::metadata(&file).is_ok_and(|metadata| metadata.len() == 0);
    let findings = match SavedFile::load(&file) {
        Ok(SavedFile::HeapErrors(findings)) => findings,
        _ if is_empty => Vec::new(),
        other => panic!("{other:?}: {}", stderr(&output)),
    };
    (output, findings)
}

/// Runs a program with `--stats`. Returns its output and the counts.
pub(crate) fn counted(options: &str, program: &[&str]) -> (Output, GuardStats) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stats.json");
    let output = run(&format!("{options} --stats {}", file.display()), program);
    match SavedFile::load(&file) {
        Ok(SavedFile::GuardStats(stats)) => (output, *stats),
        other => panic!("{other:?}: {}", stderr(&output)),
    }
}

/// The ways to select objects.
pub(crate) const MODES: [&str; 3] = ["--guard=all", "--guard=1/3", "--guard"];

/// Compares the output of a program with and without guards, and checks that objects were guarded.
/// A program that is not installed is printed as a skip.
pub(crate) fn same(modes: &[&str], program: &[&str]) {
    let Ok(plain) = Command::new(program[0]).args(&program[1..]).stdin(Stdio::null()).output() else {
        println!("SKIP {} is not installed", program[0]);
        return;
    };
    assert!(plain.status.success(), "{}", stderr(&plain));
    for mode in modes {
        let (output, stats) = counted(mode, program);
        assert_eq!(stdout(&output), stdout(&plain), "{mode} {program:?}: {}", stderr(&output));
        assert!(stats.processes.iter().any(|process| process.guarded > 0), "{mode} {program:?}: {stats:?}");
        assert_eq!((stderr(&output), output.status), (stderr(&plain), plain.status), "{mode} {program:?}");
    }
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The source of a test program.
pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/guard").join(name)
}

/// The path of a compiled test program; each is compiled once.
pub(crate) fn compiled(name: &str, options: &str) -> String {
    static PROGRAMS: LazyLock<(TempDir, Mutex<HashMap<String, String>>)> =
        LazyLock::new(|| (tempfile::tempdir().unwrap(), Mutex::default()));
    let (directory, programs) = &*PROGRAMS;
    let mut programs = programs.lock().unwrap();
    let key = format!("{name} {options}");
    let file = directory.path().join(format!("{}-{}", name.replace('.', "-"), programs.len()));
    let build = || {
        let compiler = if name.ends_with(".cpp") { "c++" } else { "cc" };
        let mut command = Command::new(compiler);
        // The compiler may remove pairs of malloc and free.
        command.args(["-g", "-O1", "-w", "-pthread", "-fno-builtin-malloc"]).args(options.split_whitespace());
        command.arg("-o").arg(&file).arg(source(name)).arg("-ldl");
        let built = command.output().unwrap();
        assert!(built.status.success(), "{}", stderr(&built));
        file.to_str().unwrap().to_owned()
    };
    programs.entry(key).or_insert_with(build).clone()
}

/// The number of the line of a source that ends in the comment `mark`; `None` if there is none.
pub(crate) fn marked_line(source_name: &str, mark: &str) -> Option<u32> {
    let text = std::fs::read_to_string(source(source_name)).unwrap();
    let has_mark = |line: &str| line.ends_with(&format!("/* {mark} */")) || line.ends_with(&format!("// {mark}"));
    Some(u32::try_from(text.lines().position(has_mark)?).unwrap() + 1)
}
