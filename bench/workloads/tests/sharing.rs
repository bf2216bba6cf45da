//! The false-sharing programs in C; the tests compile them at each optimisation level, since cargo
//! does not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::{Command, Output};

/// Compiles `name` at `-O` `level`; returns its path, or `None` without a compiler.
fn compiled(name: &str, level: u32) -> Option<String> {
    let program = format!("{}/{name}-O{level}", env!("CARGO_TARGET_TMPDIR"));
    let source = format!("{}/src/sharing/{name}.c", env!("CARGO_MANIFEST_DIR"));
    let flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", &program, &source];
    match Command::new("cc").arg(format!("-O{level}")).args(flags).status() {
        Ok(status) => {
            assert!(status.success(), "{name}.c does not compile at -O{level}");
            Some(program)
        }
        Err(error) => {
            println!("SKIP cc: no C compiler: {error}");
            None
        }
    }
}

fn run(program: &str, line: &str) -> Output {
    Command::new(program).args(line.split_whitespace()).output().unwrap()
}

/// Runs `line`, which must pass its own check; returns stdout.
fn run_successfully(program: &str, line: &str) -> String {
    let output = run(program, line);
    assert!(output.status.success(), "{program} {line}: {output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    let kernel = stderr.lines().find_map(|phase| phase.strip_prefix("kernel: ")).expect(&stderr);
    assert!(kernel.parse::<f64>().is_ok(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn assert_rejects(program: &str, line: &str, reason: &str) {
    let output = run(program, line);
    assert_eq!(output.status.code(), Some(2), "{program} {line}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains(reason) && stderr.contains("Usage: "), "{line}: {stderr}");
}

/// splitmix64's output function, which mixes the checksums of the programs.
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The checksum of counters with these final values.
fn checksum(values: &[u64]) -> String {
    format!("checksum: {:016x}\n", values.iter().fold(0, |sum, value| mix(sum ^ value)))
}

#[test]
fn counters_count_at_each_level() {
    for level in 0..=3 {
        let Some(program) = compiled("counters", level) else { return };
        for (line, values) in [
            ("--iterations 1001", &[1001, 1001][..]),
            ("--iterations 1001 --threads 9 --pin", &[1001; 9]),
            ("--iterations 1001 --atomic --globals", &[1001, 1001]),
            ("--iterations 1001 --pattern padded --threads 64", &[1001; 64]),
            ("--iterations 1001 --reenter 100", &[1001, 1001]),
            ("--iterations 1001 --pattern same --threads 3", &[3003; 3]),
            // 125 times the eight words 1 to 8, and one more word.
            ("--iterations 1001 --pattern read", &[125 * 36 + 1; 2]),
            // Ten pieces of 12 times all words and the first four, and a piece of one word.
            ("--iterations 1001 --pattern read --reenter 100", &[10 * (12 * 36 + 10) + 1; 2]),
            ("--iterations 1001 --pattern pair", &[2002, 2002]),
            ("--iterations 1001 --pattern bits --threads 8", &[1; 8]),
            ("--iterations 1000 --pattern bits --threads 8", &[0; 8]),
            ("--iterations 1001 --pattern turns --threads 4", &[1001; 4]),
        ] {
            assert_eq!(run_successfully(&program, line), checksum(values), "-O{level} {line}");
        }
    }
}

#[test]
fn counters_reject_bad_options() {
    let Some(program) = compiled("counters", 1) else { return };
    for (line, why) in [
        ("--threads 65", "range"),
        ("--threads 0", "range"),
        ("--iterations", "value is missing"),
        ("--iterations 1x", "number"),
        ("--pattern zigzag", "pattern"),
        ("--pattern pair --threads 3", "two threads"),
        ("--pattern bits --threads 9", "eight bits"),
        ("7", "unknown option"),
    ] {
        assert_rejects(&program, line, why);
    }
}

/// The number of the line `NAME: number` in the regression's output.
fn value(output: &str, name: &str) -> f64 {
    let number = output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    number.expect(output).parse().unwrap()
}

#[test]
fn the_regression_is_the_same_for_each_layout_of_its_sums() {
    let mut results = Vec::new();
    for level in 0..=3 {
        let Some(program) = compiled("linear_regression", level) else { return };
        for line in ["", "--threads 1", "--threads 7 --pin", "--padded --threads 3"] {
            results.push(run_successfully(&program, &format!("--points 10007 {line}")));
        }
        results.extend((0..8).map(|word| run_successfully(&program, &format!("--points 10007 --shift {}", word * 8))));
    }
    assert!(results.iter().all(|output| *output == results[0]), "{results:#?}");
    // x is 0 to 127, y is x/2 plus 0 to 31: 15.5 on average, minus the half that the division
    // drops.
    let output = &results[0];
    let (slope, offset) = (value(output, "slope"), value(output, "offset"));
    assert!((slope - 0.5).abs() < 0.01 && (offset - 15.25).abs() < 0.5, "{output}");
    assert!((value(output, "SX") / 10007.0 - 63.5).abs() < 1.5, "{output}");
}

#[test]
fn rounds_add_up() {
    let Some(program) = compiled("linear_regression", 0) else { return };
    let (once, thrice) =
        (run_successfully(&program, "--points 1000"), run_successfully(&program, "--points 1000 --rounds 3"));
    for name in ["SX", "SY", "SXX", "SYY", "SXY"] {
        assert!((value(&thrice, name) - 3.0 * value(&once, name)).abs() < 0.5, "{once}{thrice}");
    }
    assert!((value(&thrice, "slope") - value(&once, "slope")).abs() < 0.001);
}

#[test]
fn the_regression_rejects_bad_options() {
    let Some(program) = compiled("linear_regression", 1) else { return };
    for (line, why) in [
        ("--shift 4", "multiple of 8"),
        ("--shift 64", "range"),
        ("--padded --shift 8", "begins with a line"),
        ("--points 1", "range"),
        ("--rounds", "value is missing"),
        ("here", "unknown option"),
    ] {
        assert_rejects(&program, line, why);
    }
}

#[test]
fn the_others_find_the_same_at_each_level_and_thread_count() {
    for (name, size) in [
        ("histogram", "--pixels 10007"),
        ("string_match", "--words 20011"),
        ("word_count", "--words 10007"),
        ("streamcluster", "--points 2003 --rounds 20"),
    ] {
        let mut results = Vec::new();
        for level in 0..=3 {
            let Some(program) = compiled(name, level) else { return };
            let other = if name == "histogram" { "--shift 0" } else { "--padded" };
            for line in ["", "--threads 1", "--threads 7 --pin", other] {
                results.push(run_successfully(&program, &format!("{size} {line}")));
            }
            // Another size gives another result, so the checksum depends on it.
            let (option, number) = size.split_once(' ').unwrap();
            let number: u32 = number.split(' ').next().unwrap().parse().unwrap();
            assert_ne!(run_successfully(&program, &format!("{option} {}", number + 1)), results[0], "{name}");
            assert_rejects(&program, "--threads 0", "range");
            assert_rejects(&program, "--no-such-option", "unknown option");
        }
        assert!(results.iter().all(|output| *output == results[0]), "{name}: {results:#?}");
        assert!(results[0].lines().last().unwrap().starts_with("checksum: "), "{name}");
    }
}

#[test]
fn each_round_repeats_the_same_work() {
    for (name, size) in
        [("histogram", "--pixels 1003"), ("string_match", "--words 20011"), ("word_count", "--words 1003")]
    {
        let Some(program) = compiled(name, 2) else { return };
        // The program compares its result with one pass times the rounds.
        let results =
            ["", "--rounds 1", "--rounds 3"].map(|rounds| run_successfully(&program, &format!("{size} {rounds}")));
        assert!(results[0] == results[1] && results[1] != results[2], "{name}: {results:?}");
        assert_rejects(&program, "--rounds 0", "range");
    }
}

#[test]
fn progress_is_printed_from_the_start_of_the_threads_to_their_end() {
    let Some(program) = compiled("counters", 1) else { return };
    let output = run(&program, "--iterations 200000000 --reenter 100000 --pattern padded --progress 2");
    let stderr = String::from_utf8(output.stderr).unwrap();
    let samples = stderr.lines().filter_map(|line| line.strip_prefix("at ")?.strip_suffix(" done")?.split_once(": "));
    let samples: Vec<(f64, u64)> = samples.map(|(at_s, done)| (at_s.parse().unwrap(), done.parse().unwrap())).collect();
    assert!(samples.len() > 3 && samples.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{stderr}");
    assert_eq!((samples[0].1, samples.last().unwrap().1), (0, 400_000_000), "{stderr}");
    // Progress is printed during the run, not only at its end.
    assert!(samples.iter().any(|(_, done)| (4_000_000..396_000_000).contains(done)), "{stderr}");
    let busy = stderr.lines().find_map(|line| line.strip_suffix(" processors at work")).expect(&stderr);
    assert!((0.1..=2.1).contains(&busy.parse::<f64>().unwrap()), "{stderr}");
    // Without --progress there is no such line.
    let silent = run(&program, "--iterations 1000").stderr;
    assert!(!String::from_utf8(silent).unwrap().contains("done"));
}
