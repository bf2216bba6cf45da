//! The experiment `figure3` as a whole, with the compiler of this machine. A stand-in replaces
//! `fieldstone-cc`, whose own tests are in `crates/lib/stacks/runtime`.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use assert_cmd::cargo::cargo_bin;

/// A folder with `fieldstone-reproduce` and a stand-in for the compiler that runs `driver`. `None`
/// without gcc.
fn folder_with(driver: &str) -> Option<tempfile::TempDir> {
    if Command::new("gcc").arg("--version").output().is_err() {
        println!("SKIP there is no gcc");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("stacks")).unwrap();
    let program = folder.path().join("fieldstone-reproduce");
    fs::hard_link(cargo_bin("fieldstone-reproduce"), &program)
        .or_else(|_| fs::copy(cargo_bin("fieldstone-reproduce"), &program).map(|_| ()))
        .unwrap();
    let stand_in = folder.path().join("stacks/fieldstone-cc");
    fs::write(&stand_in, format!("#!/bin/sh\n{driver}\n")).unwrap();
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).unwrap();
    Some(folder)
}

fn reproduce(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(folder.join("fieldstone-reproduce"));
    command.args(words).args(["--quick", "--runs", "1", "--format", "csv"]).current_dir(folder);
    // No source package is downloaded in a test.
    command.env("FIELDSTONE_SOURCES", "/dev/null/nowhere").env("XDG_CACHE_HOME", folder).output().unwrap()
}

fn lines<'a>(csv: &'a str, with: &[&str]) -> Vec<&'a str> {
    csv.lines().filter(|line| with.iter().all(|word| line.contains(word))).collect()
}

#[test]
fn calls_are_timed_and_memory_is_counted_beside_the_blog_s_numbers() {
    let Some(folder) = folder_with("exec gcc \"$@\"") else { return };
    let ran = reproduce(folder.path(), &["figure3/calls"]);
    let csv = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{csv}{}", String::from_utf8_lossy(&ran.stderr));
    for cell in ["fib-quick", "fib-alone-quick", "sum-1e6"] {
        assert_eq!(lines(&csv, &[&format!("figure3/calls/{cell},ratio"), "stack of blocks"]).len(), 1, "{cell}: {csv}");
    }
    assert_eq!(lines(&csv, &["gcc's split stack", "15%"]).len(), 1, "{csv}");
    // The stand-in has a plain stack, which takes no memory. A frame has at least 16 bytes, so gcc needs
    // 16 MB. A segment has at least 16 KiB; it is larger where a signal handler needs more stack, as on
    // processors with AMX: there, 331 were counted.
    assert_eq!(lines(&csv, &["stack of blocks: times", ",0"]).len(), 1, "{csv}");
    let gcc = lines(&csv, &["gcc's split stack: times"]);
    assert_eq!(gcc.len(), 1, "{csv}");
    assert!(
        gcc[0].split(',').filter_map(|word| word.parse::<f64>().ok()).any(|count| (200.0..9000.0).contains(&count)),
        "{gcc:?}"
    );
}

#[test]
fn programs_without_a_source_are_named_and_the_others_have_their_average() {
    let Some(folder) = folder_with("exec gcc \"$@\"") else { return };
    let ran = reproduce(folder.path(), &["figure3/programs"]);
    let csv = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{csv}{}", String::from_utf8_lossy(&ran.stderr));
    for program in ["similar", "streamcluster", "histogram", "string match", "word count", "average"] {
        assert_eq!(lines(&csv, &["stack of blocks", program, "ratio"]).len(), 1, "{program}: {csv}");
    }
    for program in ["lua", "sqlite", "bzip2", "zstd"] {
        assert_eq!(lines(&csv, &[program, "no source"]).len(), 2, "{program}: {csv}");
    }
    assert_eq!(lines(&csv, &["gcc's split stack", "average", "2%"]).len(), 1, "{csv}");
}

#[test]
fn a_program_that_comes_to_something_else_is_an_error() {
    let other = r#"case "$*" in
*similar.c*) sed 's/BEST = 10/BEST = 9/' "$SOURCE/similar.c" >other.c; exec gcc -O2 -c other.c ;;
*) exec gcc "$@" ;;
esac"#;
    let Some(folder) = folder_with(other) else { return };
    let ran = reproduce(folder.path(), &["figure3/programs"]);
    let words = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && words.contains("similar: stack of blocks printed something else"), "{words}");
}

#[test]
fn without_the_driver_it_is_skipped_with_the_remedy() {
    let Some(folder) = folder_with("") else { return };
    fs::remove_dir_all(folder.path().join("stacks")).unwrap();
    let ran = reproduce(folder.path(), &["figure3/calls"]);
    let words = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && words.contains("SKIP figure3/calls/fib-quick: no fieldstone-cc"), "{words}");
}
