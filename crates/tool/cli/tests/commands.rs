//! Tests of the command alone: `report`, `diff`, `tlb`, `man`, `completions`, help, and messages of
//! all commands.
//!
//! Tests with other programs are in `tests/system`.

#![allow(clippy::unwrap_used, reason = "a test whose fixture fails has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fieldstone_report::{MeasuredRun, Profile, ProfiledProgram, RunStats, saved};
use fieldstone_translation::Mmu;
use tempfile::TempDir;

fn fieldstone(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fieldstone"));
    command.args(arguments).env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A directory with a measured `profile.json`.
fn measured() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("profile.json");
    let output =
        fieldstone(&["profile", "--runs", "1", "--pages", "thp", "--json", file.to_str().unwrap(), "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    (directory, file)
}

/// Saves a copy of `profile` in which each run takes `seconds`.
fn save_as(profile: &Profile, seconds: f64, path: &Path) {
    let sample = |round: u32| MeasuredRun {
        kind: "4k".into(),
        round,
        position: round,
        wall_s: seconds,
        value: seconds,
        outcome: "exit 0".into(),
        ..MeasuredRun::default()
    };
    let profile = Profile { samples: (0..8).map(sample).collect(), ..profile.clone() };
    saved::save(&profile, path).unwrap();
}

#[test]
fn a_saved_profile_is_printed_unchanged() {
    let (directory, file) = measured();
    let file = file.to_str().unwrap();
    let page = directory.path().join("page.html");
    let text = fieldstone(&["report", "--html", page.to_str().unwrap(), file]);
    assert_eq!(text.status.code(), Some(0), "{}", stderr(&text));
    assert!(stdout(&text).contains("thp") && fs::read_to_string(page).unwrap().contains("<svg"));
    let json = fieldstone(&["report", "--format", "json", file]);
    assert_eq!(stdout(&json), fs::read_to_string(file).unwrap());
    assert!(stdout(&fieldstone(&["report", "--format", "csv", file])).lines().count() >= 3);
}

#[test]
fn errors_for_other_files_are_distinct() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("garbage"), "{\"half\":").unwrap();
    fs::write(path("other"), "{\"schema\": \"fieldstone-profile/99\"}").unwrap();
    fs::write(path("foreign"), "{\"name\": \"package\"}").unwrap();
    let mut words = Vec::new();
    for name in ["garbage", "other", "foreign", "missing"] {
        let output = fieldstone(&["report", &path(name)]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{name}");
        assert!(stderr(&output).contains(name), "{}", stderr(&output));
        words.push(stderr(&output).replace(&path(name), ""));
    }
    for words in &words {
        assert_eq!(times(words, "\ntry: "), 1, "a remedy: {words}");
    }
    assert!(words[0].contains("it is incomplete: it ends at byte 8\n"), "{words:?}");
    words.dedup();
    assert_eq!(words.len(), 4, "each in its own words: {words:?}");
}

#[test]
fn statistics_of_a_run_have_the_formats_text_json_and_html() {
    let directory = tempfile::tempdir().unwrap();
    let page = directory.path().join("page.html");
    let page = page.to_str().unwrap();
    let file = directory.path().join("stats.json");
    let file = file.to_str().unwrap();
    let output = fieldstone(&["run", "--region", "--stats", file, "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = fieldstone(&["report", file]);
    assert!(text.status.success() && stdout(&text).contains("Primary process"), "{}", stderr(&text));
    let json = fieldstone(&["report", "--format", "json", file]);
    let stats: RunStats = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((stats.outcome.as_str(), stats.command), ("exit 0", vec!["true".to_owned()]));
    assert_eq!(fieldstone(&["report", "--html", page, file]).status.code(), Some(0));
    assert!(fs::read_to_string(page).unwrap().contains("Memory in a region"));
    let csv = fieldstone(&["report", "--format", "csv", file]);
    assert!(csv.status.code() == Some(2) && stderr(&csv).contains("\ntry: fieldstone report"), "{}", stderr(&csv));
    assert_eq!(fieldstone(&["diff", file, file]).status.code(), Some(2));
}

#[test]
fn a_difference_sets_the_exit_code() {
    let (directory, file) = measured();
    let profile = match saved::SavedFile::load(&file).unwrap() {
        saved::SavedFile::Profile(profile) => *profile,
        _ => panic!("a profile was saved"),
    };
    let (fast, slow) = (directory.path().join("fast.json"), directory.path().join("slow.json"));
    save_as(&profile, 1.0, &fast);
    save_as(&profile, 2.0, &slow);
    let (fast, slow) = (fast.to_str().unwrap(), slow.to_str().unwrap());
    let slower = fieldstone(&["diff", fast, slow]);
    assert_eq!(slower.status.code(), Some(1), "{}", stderr(&slower));
    assert!(stdout(&slower).contains("slower"));
    assert_eq!(fieldstone(&["diff", slow, fast]).status.code(), Some(0));
    assert_eq!(fieldstone(&["diff", fast, fast]).status.code(), Some(0));
    assert_eq!(fieldstone(&["diff", fast, "/no/such/file"]).status.code(), Some(2));
    let other =
        Profile { program: ProfiledProgram { command: vec!["other".into()], ..profile.program.clone() }, ..profile };
    let other_file = directory.path().join("other.json");
    save_as(&other, 2.0, &other_file);
    let different = fieldstone(&["diff", fast, other_file.to_str().unwrap()]);
    assert_eq!(different.status.code(), Some(2), "{}", stderr(&different));
    let shown = stdout(&different);
    assert!(shown.starts_with("No verdict: the programs differ: BEFORE true, AFTER other.\n"), "{shown}");
    assert!(shown.contains("fast.json") && shown.contains("other.json") && !shown.contains("slower"), "{shown}");
}

#[test]
fn a_missing_directory_is_named_before_anything_runs() {
    for option in ["--json", "--html"] {
        let output = fieldstone(&["profile", option, "/no-such/dir/a", "--", "true"]);
        let expected =
            "fieldstone: cannot write /no-such/dir/a: there is no directory /no-such\ntry: mkdir -p /no-such/dir\n";
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(2), expected));
    }
    let output = fieldstone(&["run", "--region", "--stats", "/no-such/a", "--", "true"]);
    assert!(
        stderr(&output).ends_with("there is no directory /no-such\ntry: mkdir -p /no-such\n"),
        "{}",
        stderr(&output)
    );
}

/// The program would create a file if it ran.
#[test]
fn a_result_file_that_takes_no_data_is_found_before_the_program_runs() {
    let directory = tempfile::tempdir().unwrap();
    let touched = directory.path().join("touched");
    for options in [
        ["profile", "--runs=1", "--json"],
        ["profile", "--runs=1", "--html"],
        ["sharing", "--hertz=1000", "--json"],
        ["run", "--region", "--stats"],
        ["run", "--repair", "--stats"],
        ["run", "--guard", "--stats"],
        ["run", "--guard", "--guard-report"],
    ] {
        for (path, cause) in [
            ("/dev/full", "No space left on device"),
            ("/proc/page.html", "/proc takes no new files"),
            ("/no-such/a", "there is no directory /no-such"),
        ] {
            let line = [options.as_slice(), &[path, "--", "touch", touched.to_str().unwrap()]].concat();
            let output = fieldstone(&line);
            let expected = format!("fieldstone: cannot write {path}: {cause}\ntry: ");
            assert!(stderr(&output).starts_with(&expected), "{line:?}: {}", stderr(&output));
            assert_eq!(output.status.code(), Some(2), "{line:?}");
            assert!(!touched.exists(), "{line:?}");
        }
    }
}

#[test]
fn a_missing_process_is_reported_in_one_form() {
    const PID: &str = "2147483632";
    for (operation, arguments) in [
        ("collapse", ["attach", "--huge", PID]),
        ("repair", ["attach", "--repair", PID]),
        ("sample", ["sharing", "--pid", PID]),
    ] {
        let output = fieldstone(&arguments);
        let expected =
            format!("fieldstone: cannot {operation} process {PID}: it does not exist or has ended\ntry: ps -e\n");
        assert_eq!((output.status.code(), stderr(&output)), (Some(2), expected));
    }
}

#[test]
fn a_killed_program_is_named() {
    let output = fieldstone(&["run", "--region", "--stats", "-", "--", "sh", "-c", "kill -9 $$"]);
    assert!(
        stderr(&output).contains("Primary process: sh (process ")
            || stderr(&output).contains("Primary process: dash (process "),
        "{}",
        stderr(&output)
    );
}

/// The number of occurrences of `part` in `words`.
fn times(words: &str, part: &str) -> usize {
    words.matches(part).count()
}

#[test]
fn a_cause_is_printed_once() {
    let directory = tempfile::tempdir().unwrap();
    let bad = directory.path().join("bad.json");
    fs::write(&bad, "{\"half\":").unwrap();
    let bad = bad.to_str().unwrap();
    for arguments in [["report", bad].as_slice(), &["diff", bad, bad], &["report", "/no/such/file"]] {
        let words = stderr(&fieldstone(arguments));
        let causes = ["it is incomplete", "there is no directory"].map(|cause| times(&words, cause));
        assert_eq!(causes.iter().sum::<usize>(), 1, "{words}");
    }
    let full = fieldstone(&["profile", "--runs", "1", "--pages", "4k", "--json", "/dev/full", "--", "true"]);
    assert_eq!((full.status.code(), times(&stderr(&full), "No space left")), (Some(2), 1), "{}", stderr(&full));
}

#[test]
fn one_page_kind_has_nothing_to_compare_with() {
    let said_of = |pages| stderr(&fieldstone(&["profile", "--runs", "1", "--pages", pages, "--", "true"]));
    assert!(said_of("4k").contains("nothing to compare with\ntry: --pages thp"), "{}", said_of("4k"));
    assert!(!said_of("thp").contains("nothing to compare with"));
}

#[test]
fn a_printed_processor_description_can_be_read_again() {
    let preset = fieldstone(&["tlb", "zen4"]);
    assert_eq!(Mmu::from_toml(&stdout(&preset)).ok(), Mmu::preset("zen4"), "{}", stderr(&preset));
    let directory = tempfile::tempdir().unwrap();
    let mine = directory.path().join("mine.toml");
    fs::write(&mine, stdout(&preset).replace("name = \"zen4\"", "name = \"mine\"")).unwrap();
    let again = fieldstone(&["tlb", mine.to_str().unwrap()]);
    let wanted = Mmu { name: "mine".into(), ..Mmu::preset("zen4").unwrap() };
    assert_eq!(Mmu::from_toml(&stdout(&again)).ok(), Some(wanted), "{}", stderr(&again));
    let host = fieldstone(&["tlb"]);
    match host.status.code() {
        Some(0) => assert!(Mmu::from_toml(&stdout(&host)).is_ok(), "{}", stdout(&host)),
        _ => println!("SKIP {}", stderr(&host)),
    }
    let unknown = fieldstone(&["tlb", "pentium"]);
    assert!(unknown.status.code() == Some(2) && stderr(&unknown).contains("zen4"), "{}", stderr(&unknown));
}

#[test]
fn processors_are_named_in_one_order() {
    let names: Vec<_> = Mmu::presets().into_iter().map(|machine| machine.name).collect();
    for command in ["profile", "tlb"] {
        let help = stdout(&fieldstone(&[command, "--help"])).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains(&names.join(", ")), "{help}");
    }
}

/// A full standard error changes no exit code.
#[test]
fn messages_that_cannot_be_written_end_nothing() {
    let run_with_full_stderr = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fieldstone"));
        command.args(arguments).env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR"));
        command.stderr(fs::File::options().write(true).open("/dev/full").unwrap()).output().unwrap().status.code()
    };
    assert_eq!(
        run_with_full_stderr(&["run", "--region", "--pages", "hugetlb-1g", "--", "sh", "-c", "exit 42"]),
        Some(42)
    );
    assert_eq!(run_with_full_stderr(&["run", "--region", "--stats", "-", "--", "sh", "-c", "exit 7"]), Some(7));
    assert_eq!(run_with_full_stderr(&["profile", "--runs", "1", "--pages", "4k", "--", "true"]), Some(0));
    assert_eq!(run_with_full_stderr(&["report", "/no/such/file"]), Some(2));
}

#[test]
fn a_reader_that_closes_the_pipe_is_no_error() {
    let line = format!("{} tlb zen4 | true; echo ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_fieldstone"));
    match Command::new("bash").args(["-c", &line]).output() {
        Ok(output) => assert_eq!((stdout(&output), stderr(&output)), ("0\n".to_owned(), String::new())),
        Err(_) => println!("SKIP bash not installed"),
    }
}

/// On a terminal, simulated by `script`, a drawn bar stays above later output unless it is cleared.
#[test]
fn an_empty_progress_bar_is_not_drawn() {
    let line = format!("{} profile --runs 1 --pages thp -- true", env!("CARGO_BIN_EXE_fieldstone"));
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &line, "/dev/null"]).stdin(Stdio::null()).env("TERM", "xterm");
    let Ok(output) = script.env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).output() else {
        return println!("SKIP script is not installed");
    };
    let shown = stdout(&output);
    assert!(shown.contains("2 kinds of pages"), "{shown}");
    assert!(!shown.contains("0/0"), "{shown:?}");
    let end = shown.rfind("2 runs, about").unwrap_or_else(|| panic!("{shown:?}"));
    let cleared = shown[end..].rfind("\x1b[2K").unwrap_or(0);
    assert!(!shown[end + cleared..].contains('█'), "the bar is cleared: {shown:?}");
}

#[test]
fn man_pages_and_completions_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let man = directory.path().join("man/man1");
    assert!(fieldstone(&["man", man.to_str().unwrap()]).status.success());
    for name in ["", "-profile", "-run", "-doctor", "-report", "-store", "-store-check", "-store-load"] {
        let name = format!("fieldstone{name}");
        let page = fs::read_to_string(man.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains("SYNOPSIS"), "{name}");
    }
    assert_eq!(fieldstone(&["man", "/dev/null/man"]).status.code(), Some(2));
    let script = fieldstone(&["completions", "bash"]);
    let file = directory.path().join("completions");
    fs::write(&file, &script.stdout).unwrap();
    assert!(stdout(&script).contains("--check-output"));
    match Command::new("bash").arg("-n").arg(&file).status() {
        Ok(status) => assert!(status.success()),
        Err(_) => println!("SKIP bash not installed"),
    }
}

#[test]
fn ignored_signals_stay_ignored() {
    let line =
        format!("trap '' HUP; exec {} run --region -- grep SigIgn /proc/self/status", env!("CARGO_BIN_EXE_fieldstone"));
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", &line]).env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).output().unwrap();
    let ignored = stdout(&output).trim().rsplit('\t').next().and_then(|set| u64::from_str_radix(set, 16).ok());
    assert_eq!(ignored.map(|set| set & 1), Some(1), "SIGHUP, as nohup has it: {}{}", stdout(&output), stderr(&output));
}

#[test]
fn unwritable_help_is_an_error_and_a_closed_reader_is_not() {
    for arguments in [&["--help"][..], &["--version"], &["help", "run"], &["run", "--help"], &["doctor", "-h"]] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fieldstone"));
        let output = command.args(arguments).stdout(full).stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("cannot write to standard output"), "{arguments:?}: {}", stderr(&output));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let status = Command::new(env!("CARGO_BIN_EXE_fieldstone")).args(arguments).stdout(writer).status().unwrap();
        assert_eq!(status.code(), Some(0), "{arguments:?}");
    }
    assert_eq!(fieldstone(&["--help"]).status.code(), Some(0));
    assert_eq!(fieldstone(&["--no-such-option"]).status.code(), Some(2));
}
