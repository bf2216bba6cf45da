//! Each measured program, at small sizes: it passes its own check, prints the same result each
//! time, and exits with 2 for bad arguments.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use assert_cmd::Command;

/// Runs `line` and checks the exit code; returns stdout and stderr.
fn run(line: &str, code: i32) -> (String, String) {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap();
    let output = Command::new(program_path(program)).args(words).assert().code(code).get_output().clone();
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

fn program_path(name: &str) -> &'static str {
    match name {
        "gups" => env!("CARGO_BIN_EXE_gups"),
        "scan" => env!("CARGO_BIN_EXE_scan"),
        "chase" => env!("CARGO_BIN_EXE_chase"),
        "bfs" => env!("CARGO_BIN_EXE_bfs"),
        "cg" => env!("CARGO_BIN_EXE_cg"),
        "bt" => env!("CARGO_BIN_EXE_bt"),
        "blackscholes" => env!("CARGO_BIN_EXE_blackscholes"),
        "game" => env!("CARGO_BIN_EXE_game"),
        "spin" => env!("CARGO_BIN_EXE_spin"),
        "bounded-memory" => env!("CARGO_BIN_EXE_bounded-memory"),
        _ => panic!("{name} is not a measured program"),
    }
}

/// Returns the checksum that `line` prints, after checking the `kernel: seconds` line of stderr.
fn checksum(line: &str) -> String {
    let (out, err) = run(line, 0);
    let seconds = err.lines().find_map(|phase| phase.strip_prefix("kernel: ")).expect(&err);
    assert!(seconds.parse::<f64>().is_ok(), "{err}");
    let checksum = out.strip_prefix("checksum: ").and_then(|rest| rest.strip_suffix('\n')).expect(&out);
    assert!(checksum.len() == 16 && checksum.bytes().all(|b| b.is_ascii_hexdigit()), "{out}");
    checksum.to_owned()
}

#[test]
fn each_program_passes_its_check_and_prints_the_same_again() {
    for line in [
        "gups 1M 10000",
        "gups 24 1000",
        "scan 1M 3",
        "scan 64K --stride 4096 5",
        "chase 64K 5000",
        "bfs 8",
        "bfs 1 1",
        "cg 1M",
        "cg 64K 7 --nonzeros 32",
        "bt 64K 17",
        "bt 2160 1",
        "blackscholes 1001 2",
        "game 64K 5x4",
        "spin 100000",
        "bounded-memory 1M 5000",
        "bounded-memory 4096 100 --pattern zipf --threads 3",
        "bounded-memory 1M 5000 --pattern zipf --threads 2 --warm-up 777",
        "bounded-memory 1M 5000 --pattern sequential --threads 2 --wait",
    ] {
        assert_eq!(checksum(line), checksum(line), "{line}");
    }
}

#[test]
fn different_work_gives_different_checksums() {
    for (a, b) in [
        ("gups 1M 10000", "gups 1M 10001"),
        ("scan 1M 1", "scan 1M --stride 16 1"),
        ("chase 64K 5000", "chase 64K 5001"),
        ("bfs 8", "bfs 8 8"),
        ("bfs 8", "bfs 8 --roots 9"),
        ("cg 1M 2", "cg 1M 3"),
        ("cg 1M 2", "cg 1M 2 --nonzeros 129"),
        ("bt 64K 1", "bt 64K 2"),
        ("spin 1000", "spin 1001"),
        ("bounded-memory 1M 5000", "bounded-memory 1M 5010"),
        ("bounded-memory 1M 5000", "bounded-memory 1M 5000 --warm-up 10"),
        ("bounded-memory 1M 5000", "bounded-memory 1M 5000 --pattern zipf"),
        ("bounded-memory 1M 5000", "bounded-memory 1M 5000 --writes 100"),
    ] {
        assert_ne!(checksum(a), checksum(b), "{a}, {b}");
    }
}

#[test]
fn checksums_match_closed_forms() {
    // 0 + 1 + … + 7, twice.
    assert_eq!(checksum("scan 64 2"), format!("{:016x}", 2 * 28));
    // Every second of 8 words.
    assert_eq!(checksum("scan 64 --stride 16 1"), format!("{:016x}", 2 + 4 + 6));
    // One lap of 16 lines.
    assert_eq!(checksum("chase 1K 16"), format!("{:016x}", 15 * 16 / 2));
    // One step of Lehmer's generator from 1 returns the multiplier.
    assert_eq!(checksum("spin 1"), format!("{:016x}", 437_799_614_237_992_725_u64));
}

#[test]
fn a_rate_is_printed_but_is_not_a_phase() {
    let (_, err) = run("bfs 8", 0);
    let rate = err.lines().find_map(|line| line.split_once(" traversed edges per second")).expect(&err);
    assert!(rate.0.parse::<f64>().unwrap() > 0.0, "{err}");
    assert_eq!(err.lines().filter(|line| line.contains(": ")).count(), 3, "init, kernel, verify: {err}");
    let (_, err) = run("bounded-memory 1M 5000", 0);
    let rate = err.lines().find_map(|line| line.strip_suffix(" operations per second")).expect(&err);
    assert!(rate.parse::<f64>().unwrap() > 0.0, "{err}");
}

#[test]
fn memory_of_a_file_has_the_same_contents_and_leaves_no_file() {
    let path = std::env::temp_dir().join(format!("fieldstone-bounded-memory-{}", std::process::id()));
    let of_file = checksum(&format!("bounded-memory 1M 5000 --file {}", path.display()));
    assert_eq!(of_file, checksum("bounded-memory 1M 5000"));
    assert!(!path.exists());
}

#[test]
fn without_writes_no_counter_changes() {
    let line = "bounded-memory 1M 5000 --writes 0";
    assert_eq!(checksum(line), checksum(&format!("{line} --pattern zipf")));
}

#[test]
fn both_layouts_give_the_same_prices() {
    assert_eq!(checksum("blackscholes 5000 --layout arrays"), checksum("blackscholes 5000 --layout structs"));
}

#[test]
fn bad_arguments_end_with_2_and_a_reason() {
    for (line, why) in [
        ("gups", "Usage"),
        ("gups 12Q", "12Q"),
        ("gups 4", "8-byte word"),
        ("gups 1M 0", "0"),
        ("scan 1M --stride 12", "multiple of 8"),
        ("scan 1M --stride 0", "stride"),
        ("chase 64", "two lines"),
        ("bfs 99", "99"),
        ("bfs 8 x", "x"),
        ("bfs 8 --roots 0", "0"),
        ("cg 1K", "two rows"),
        ("cg 1M --nonzeros 8", "8"),
        ("bt 2159", "2160"),
        ("bt 1M 0", "0"),
        ("blackscholes 0", "0"),
        ("blackscholes 10 --layout heap", "heap"),
        ("game 1M 9x9", "9x9"),
        ("spin", "Usage"),
        ("bounded-memory 4095", "one page"),
        ("bounded-memory 1M 0", "0"),
        ("bounded-memory 1M --pattern backwards", "backwards"),
        ("bounded-memory 1M --threads 0", "0"),
        ("bounded-memory 1M --writes 101", "101"),
        ("bounded-memory 1M --file /no-such-directory/file", "open failed"),
        ("gups 100000T", "cannot allocate"),
    ] {
        let (out, err) = run(line, 2);
        assert!(out.is_empty(), "{line}: {out}");
        assert!(err.contains(why), "{line}: {err}");
    }
}
