//! The test passes on the bare kernel and C library, and detects faulty replacements of either.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Command, Output};

fn stress(arguments: &[&str], preload: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mmap-stress"));
    command.args(arguments);
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    command.output().unwrap()
}

fn assert_passes(arguments: &[&str]) {
    let output = stress(arguments, None);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn one_thread_passes() {
    for seed in 1..=4 {
        assert_passes(&[&seed.to_string(), "250"]);
    }
}

#[test]
fn threads_that_fork_pass() {
    assert_passes(&["5", "100", "--threads", "4"]);
}

#[test]
fn bad_arguments_end_with_2() {
    for arguments in [&["1"][..], &["x", "1"], &["1", "1", "--threads", "0"], &["1", "1", "--skip", "nothing"]] {
        let output = stress(arguments, None);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty());
    }
}

/// Faulty C libraries. Each is a small C file, preloaded in front of the real functions.
const FAULTS: [(&str, &str); 10] = [
    // Contents.
    ("discard skipped", "int madvise(void *a, size_t n, int how) { return how == 4 ? 0 : CALL(madvise, a, n, how); }"),
    (
        "dirty mapping",
        "void *mmap(void *a, size_t n, int p, int f, int fd, off_t o) { \
        char *m = (char *)CALL(mmap, a, n, p, f, fd, o); if (m != MAP_FAILED && (p & 2) && fd < 0 && n > 9000) m[8999] = 1; return m; }",
    ),
    (
        "move drops a page",
        "void *mremap(void *a, size_t o, size_t n, int f, void *to) { \
        char *m = (char *)CALL(mremap, a, o, n, f, to); \
        if (m != MAP_FAILED && m != a) CALL(madvise, m, 4096, 4); return m; }",
    ),
    // Mappings.
    ("unmap skipped", "int munmap(void *a, size_t n) { return (size_t)a % 4096 || !n ? CALL(munmap, a, n) : 0; }"),
    ("unmap too short", "int munmap(void *a, size_t n) { return CALL(munmap, a, n > 8192 ? n - 4096 : n); }"),
    ("protect skipped", "int mprotect(void *a, size_t n, int p) { return p ? CALL(mprotect, a, n, p) : 0; }"),
    (
        "no-replace replaces",
        "void *mmap(void *a, size_t n, int p, int f, int fd, off_t o) { \
        return (void *)CALL(mmap, a, n, p, f & MAP_FIXED_NOREPLACE ? (f & ~MAP_FIXED_NOREPLACE) | MAP_FIXED : f, fd, o); }",
    ),
    // Errors.
    ("unaligned accepted", "int munmap(void *a, size_t n) { return CALL(munmap, (size_t)a & ~4095UL, n); }"),
    ("limit ignored", "int setrlimit(int what, const void *limit) { return 0; }"),
    // fork.
    (
        "fork advice ignored",
        "int madvise(void *a, size_t n, int how) { \
        return how == 18 || how == 10 ? 0 : CALL(madvise, a, n, how); }",
    ),
];

const HEAD: &str = "#define _GNU_SOURCE\n#include <stddef.h>\n#include <unistd.h>\n#include <sys/types.h>\n\
    #include <sys/syscall.h>\n\
    #define MAP_FAILED ((void *)-1)\n#define MAP_FIXED 0x10\n#define MAP_FIXED_NOREPLACE 0x100000\n\
    #define CALL(name, ...) syscall(SYS_##name, __VA_ARGS__)\n";

/// Compiles the library with `body`; returns its path, or `None` without a C compiler.
fn compiled(name: &str, body: &str) -> Option<String> {
    let stem = format!("{}/{}", env!("CARGO_TARGET_TMPDIR"), name.replace(' ', "-"));
    let (source, library) = (format!("{stem}.c"), format!("{stem}.so"));
    std::fs::write(&source, format!("{HEAD}{body}\n")).unwrap();
    match Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o", &library, &source]).status() {
        Ok(status) => assert!(status.success(), "{name} does not compile"),
        Err(error) => {
            println!("SKIP no C compiler (cc): {error}");
            return None;
        }
    }
    Some(library)
}

#[test]
fn a_faulty_library_is_detected() {
    for (name, body) in FAULTS {
        let Some(library) = compiled(name, body) else { return };
        let output = stress(&["1", "1000"], Some(&library));
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {message}");
        assert!(message.contains("step "), "{name}: {message}");
    }
}

#[test]
fn a_kind_of_step_can_be_left_out() {
    let Some(library) = compiled("limit skipped", "int setrlimit(int what, const void *limit) { return 0; }") else {
        return;
    };
    let output = stress(&["1", "200", "--skip", "limit,fork"], Some(&library));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
