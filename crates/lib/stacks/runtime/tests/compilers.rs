//! C and C++ programs with each installed compiler and linker: calls of every kind, exceptions,
//! jumps, signals, threads, contexts, shared libraries, static programs, gdb, and the drivers'
//! errors.

mod common;

use std::path::Path;
use std::process::Command;

use common::{compile, compilers, driver, is_installed, library, linkers, program, run, text};

/// Compiles a program with each compiler and the default linker, and with gcc and each linker. Runs
/// each and compares the last line.
fn with_all_tools(language: &str, name: &str, level: &str, last: &str) {
    let compilers = compilers(language);
    let by_linkers = linkers().into_iter().map(|linker| (compilers[0], linker));
    let by_compilers = compilers.iter().skip(1).map(|&compiler| (compiler, "bfd"));
    for (compiler, linker) in by_linkers.chain(by_compilers) {
        let options = [level, &format!("-fuse-ld={linker}"), "-pthread"];
        let made = compile(driver(language, compiler), name, &options, &format!("{compiler}-{linker}{level}"));
        let printed = run(&mut program(&made));
        assert_eq!(printed.lines().last(), Some(last), "{name} by {compiler} and {linker}: {printed}");
    }
}

#[test]
fn calls_of_every_kind_cross_segments() {
    // The plain build prints the expected result, on a stack that is large enough.
    let plain = library().join("calls-plain");
    let mut compiler = Command::new("gcc");
    compiler
        .args(["-O1", "-o"])
        .arg(&plain)
        .args([&format!("-I{}/../include", common::HERE), &format!("{}/tests/programs/calls.c", common::HERE)]);
    run(&mut compiler);
    let printed = run(Command::new("sh").args(["-c", "ulimit -s 100000; exec \"$0\""]).arg(&plain));
    for level in ["-O0", "-O2"] {
        with_all_tools("c", "calls.c", level, printed.trim());
    }
}

#[test]
fn exceptions_pass_hundreds_of_segments() {
    with_all_tools("c++", "throws.cpp", "-O1", "caught");
}

#[test]
fn longjmp_returns_over_many_segments() {
    with_all_tools("c", "jumps.c", "-O1", "jumped");
}

#[test]
fn signals_may_arrive_at_any_point() {
    with_all_tools("c", "signals.c", "-O1", "20000 signals");
}

#[test]
fn a_handler_at_each_instruction_of_a_switch_leaves_the_guard_unchanged() {
    with_all_tools("c", "steps.c", "-O1", "stepped");
}

#[test]
fn other_uses_of_stacks_work() {
    with_all_tools("c", "odd.c", "-O1", "odd");
}

#[test]
fn a_foreign_thread_can_run_coroutines_and_libm_is_the_programs_own() {
    with_all_tools("c++", "foreign.cpp", "-O1", "foreign");
}

#[test]
fn threads_end_in_every_way() {
    with_all_tools("c", "threads.c", "-O1", "threads ended");
}

#[test]
fn contexts_are_small() {
    with_all_tools("c", "contexts.c", "-O1", "switched");
}

#[test]
fn a_library_uses_the_run_time_of_its_program() {
    for linker in linkers() {
        let ld = format!("-fuse-ld={linker}");
        let shared =
            compile(driver("c++", "g++"), "library.cpp", &["-O1", "-shared", "-fPIC", &ld], &format!("{linker}.so"));
        let with = compile(driver("c++", "g++"), "loads.cpp", &["-O1", &ld], linker);
        assert_eq!(run(program(&with).arg(&shared)), "loaded\n", "{linker}");
        // A program that is built without the run time.
        let without = library().join(format!("loads-plain-{linker}"));
        let source = format!("{}/tests/programs/loads.cpp", common::HERE);
        let include = format!("-I{}/../include", common::HERE);
        run(Command::new("g++").args(["-O1", &ld, &include, "-o"]).arg(&without).arg(source));
        let printed = run(program(&without).arg(&shared));
        assert_eq!(printed, "loaded\n", "{linker}");
    }
}

#[test]
fn other_code_models_and_hardening_options_work() {
    for (name, options, last) in [
        ("jumps.c", ["-O2", "-D_FORTIFY_SOURCE=2"], "jumped"),
        ("jumps.c", ["-mcmodel=large", "-no-pie"], "jumped"),
        ("contexts.c", ["-fcf-protection", "-fstack-protector-all"], "switched"),
    ] {
        let made = compile(driver("c", "gcc"), name, &options, &options.concat());
        assert_eq!(run(&mut program(&made)).lines().last(), Some(last), "{options:?}");
    }
    // lld does not read gcc's LTO objects.
    for linker in linkers().into_iter().filter(|&linker| linker != "lld") {
        let ld = format!("-fuse-ld={linker}");
        let made = compile(driver("c++", "g++"), "throws.cpp", &["-O1", "-flto", &ld], &format!("lto-{linker}"));
        assert_eq!(run(&mut program(&made)).lines().last(), Some("caught"), "{linker}");
    }
    // Static position-independent programs; gold cannot link libc into one.
    let made = compile(driver("c++", "g++"), "throws.cpp", &["-O1", "-static-pie"], "static-pie");
    assert_eq!(run(&mut program(&made)).lines().last(), Some("caught"));
}

#[test]
fn static_programs_grow_their_stacks() {
    for name in ["jumps.c", "threads.c", "signals.c"] {
        run(&mut program(&compile(driver("c", "gcc"), name, &["-O1", "-static", "-pthread"], "static")));
    }
    run(&mut program(&compile(driver("c++", "g++"), "throws.cpp", &["-O1", "-static"], "static")));
}

#[test]
fn a_stack_at_its_limit_reports_its_thread_and_size() {
    let made = compile(driver("c", "gcc"), "limit.c", &["-O1", "-pthread"], "limit");
    let by_call = Command::new(&made).arg("33554432").output().unwrap();
    let by_environment = Command::new(&made).env("FIELDSTONE_STACK_LIMIT", "32M").output().unwrap();
    for ended in [by_call, by_environment] {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(ended.status.signal(), Some(6), "{}", text(&ended));
        let message = text(&ended);
        assert!(
            message.contains("the stack of thread 'deep-one' (") && message.contains("is at its limit of 32 MiB"),
            "{message}"
        );
        assert!(message.contains("FIELDSTONE_STACK_LIMIT=SIZE"), "{message}");
    }
    let bad = Command::new(&made).arg("1000000").env("FIELDSTONE_STACK_LIMIT", "lots").output().unwrap();
    assert!(text(&bad).contains("is not a size of at least"), "{}", text(&bad));
}

/// Blocks are far from the system's stack, so a recursion guard by address distance refuses where
/// the first block begins. `FIELDSTONE_STACK_FIRST` moves that point.
#[test]
fn a_guard_by_distance_allows_the_first_bytes_of_a_stack() {
    let made = compile(driver("c", "gcc"), "distance.c", &["-O1", "-pthread"], "distance");
    let levels = |first: Option<&str>, deep: &str| {
        let mut command = program(&made);
        command.args(["4000", deep]).envs(first.map(|first| ("FIELDSTONE_STACK_FIRST", first)));
        let printed = run(&mut command);
        ["first", "other"].map(|thread| {
            let line = printed.lines().find_map(|line| line.strip_prefix(&format!("{thread}: ")));
            line.unwrap_or_else(|| panic!("{printed}")).parse::<u32>().unwrap()
        })
    };
    let refused = levels(None, "0");
    assert!(refused.iter().all(|&levels| (100..400).contains(&levels)), "64 KiB of some 350 bytes: {refused:?}");
    let allowed = levels(Some("1M"), "0");
    assert!(allowed.iter().all(|&levels| (2000..4000).contains(&levels)), "1 MiB: {allowed:?}");
    // A size beyond the system's stack uses all of it; deeper recursion continues in blocks.
    assert_eq!(levels(Some("1G"), "20000"), [4000, 4000]);
    let bad = program(&made).env("FIELDSTONE_STACK_FIRST", "1K").output().unwrap();
    assert!(text(&bad).contains("of at least 64K"), "{}", text(&bad));
}

#[test]
fn exhausted_memory_is_reported() {
    let made = compile(driver("c", "gcc"), "limit.c", &["-O1", "-pthread"], "memory");
    let ended = Command::new("sh").args(["-c", "ulimit -v 200000; exec \"$0\""]).arg(&made).output().unwrap();
    assert!(!ended.status.success() && text(&ended).contains("cannot grow"), "{}", text(&ended));
}

#[test]
fn gdb_shows_every_frame() {
    if !is_installed("gdb") {
        return;
    }
    let made = compile(driver("c++", "g++"), "throws.cpp", &["-O1"], "gdb");
    let mut gdb = program(Path::new("gdb"));
    gdb.args(["-q", "-batch", "-ex", "break backtrace", "-ex", "run", "-ex", "bt"]).arg(&made);
    let shown = text(&gdb.output().unwrap());
    let frames = shown.lines().filter(|line| line.starts_with('#') && line.contains("frames (")).count();
    assert_eq!(frames, 607, "{shown}");
    assert!(shown.lines().any(|line| line.contains("main (")), "{shown}");
}

#[test]
fn unsupported_options_are_refused() {
    let source = format!("{}/tests/programs/limit.c", common::HERE);
    for (options, why) in [
        (vec!["-fsanitize=address"], "keeps its own record of the stack"),
        (vec!["-fsanitize=undefined,thread"], "keeps its own record of the stack"),
        (vec!["-m32"], "x86-64 only"),
        (vec!["--target=aarch64-linux-gnu"], "target aarch64-linux-gnu"),
        (vec!["-target", "riscv64-linux-gnu"], "target riscv64-linux-gnu"),
        (vec!["-mx32"], "build with cc instead"),
    ] {
        let refused = driver("c", "gcc").args(&options).args(["-c", "-o", "/dev/null", &source]).output().unwrap();
        assert!(!refused.status.success() && text(&refused).contains(why), "{options:?}: {}", text(&refused));
    }
    let lost = driver("c", "gcc").env("FIELDSTONE_STACKS_LIB", "/nowhere").arg(&source).output().unwrap();
    assert!(!lost.status.success() && text(&lost).contains("make install"), "{}", text(&lost));
    for (compiler, why) in [("fieldstone-cc", "must name gcc or clang"), ("true", "is not a C compiler")] {
        let refused = driver("c", compiler).arg(&source).output().unwrap();
        assert!(!refused.status.success() && text(&refused).contains(why), "{}", text(&refused));
    }
    let none = driver("c", "no-such-compiler").arg(&source).output().unwrap();
    assert!(!none.status.success() && text(&none).contains("FIELDSTONE_CC"), "{}", text(&none));
}
