//! The C++ program; the test compiles it, since cargo does not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Command, Output};

/// Compiles the program; returns its path, or `None` without a compiler.
fn compiled() -> Option<String> {
    let program = format!("{}/rbtree", env!("CARGO_TARGET_TMPDIR"));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rbtree.cpp");
    let flags = ["-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-o", &program, source];
    match Command::new("c++").args(flags).status() {
        Ok(status) => {
            assert!(status.success(), "rbtree.cpp does not compile");
            Some(program)
        }
        Err(error) => {
            println!("SKIP no C++ compiler (c++): {error}");
            None
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

#[test]
fn it_passes_its_check_and_rejects_bad_arguments() {
    let Some(program) = compiled() else { return };
    let (first, second) = (run(&program, &["10001"]), run(&program, &["10001"]));
    assert!(first.status.success(), "{first:?}");
    assert_eq!(first.stdout, second.stdout);
    assert!(String::from_utf8(first.stdout).unwrap().starts_with("checksum: "));
    assert!(String::from_utf8(first.stderr).unwrap().contains("lookup: "));
    assert_ne!(run(&program, &["1"]).stdout, second.stdout);
    for bad in [&[][..], &["0"], &["-1"], &["1x"], &[""], &["1", "2"], &["99999999999999999999"]] {
        let output = run(&program, bad);
        assert_eq!(output.status.code(), Some(2), "{bad:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("Usage: rbtree N"), "{bad:?}");
    }
}
