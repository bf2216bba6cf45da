//! The other commands as their user sees them: `report`, `diff`, `man`, `completions`, and `run` where it ends alike.

#![allow(clippy::unwrap_used, reason = "a test that cannot set its stage has failed")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fieldstone_report::{Profile, RunStats, Sample, saved};
use tempfile::TempDir;

fn fieldstone(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fieldstone"));
    command.args(arguments).env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A directory with `profile.json`, measured here.
fn measured() -> (TempDir, PathBuf) {
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("profile.json");
    let output =
        fieldstone(&["profile", "--runs", "1", "--pages", "thp", "--json", file.to_str().unwrap(), "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    (room, file)
}

/// `profile` again, each run taking `seconds`.
fn save_as(profile: &Profile, seconds: f64, path: &Path) {
    let sample = |round: u32| Sample {
        kind: "4k".into(),
        round,
        position: round,
        wall_s: seconds,
        value: seconds,
        outcome: "exit 0".into(),
        ..Sample::default()
    };
    let profile = Profile { samples: (0..8).map(sample).collect(), ..profile.clone() };
    saved::save(&profile, path).unwrap();
}

#[test]
fn a_saved_profile_is_reported_as_it_was() {
    let (room, file) = measured();
    let file = file.to_str().unwrap();
    let page = room.path().join("page.html");
    let text = fieldstone(&["report", "--html", page.to_str().unwrap(), file]);
    assert_eq!(text.status.code(), Some(0), "{}", said(&text));
    assert!(printed(&text).contains("thp") && fs::read_to_string(page).unwrap().contains("<svg"));
    let json = fieldstone(&["report", "--format", "json", file]);
    assert_eq!(printed(&json), fs::read_to_string(file).unwrap());
    assert!(printed(&fieldstone(&["report", "--format", "csv", file])).lines().count() >= 3);
}

#[test]
fn what_is_no_report_is_told_apart() {
    let room = tempfile::tempdir().unwrap();
    let path = |name: &str| room.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("garbage"), "{\"half\":").unwrap();
    fs::write(path("other"), "{\"schema\": \"fieldstone-profile/99\"}").unwrap();
    fs::write(path("foreign"), "{\"name\": \"package\"}").unwrap();
    let mut words = Vec::new();
    for name in ["garbage", "other", "foreign", "missing"] {
        let output = fieldstone(&["report", &path(name)]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{name}");
        assert!(said(&output).contains(name), "{}", said(&output));
        words.push(said(&output).replace(&path(name), ""));
    }
    words.dedup();
    assert_eq!(words.len(), 4, "each in its own words: {words:?}");
}

#[test]
fn the_counts_of_a_run_are_reported_as_text_and_json_only() {
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("stats.json");
    let file = file.to_str().unwrap();
    let output = fieldstone(&["run", "--region", "--stats", file, "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let text = fieldstone(&["report", file]);
    assert!(text.status.success() && printed(&text).contains("Primary process"), "{}", said(&text));
    let json = fieldstone(&["report", "--format", "json", file]);
    let stats: RunStats = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((stats.outcome.as_str(), stats.command), ("exit 0", vec!["true".to_owned()]));
    assert_eq!(fieldstone(&["report", "--format", "csv", file]).status.code(), Some(2));
    assert_eq!(fieldstone(&["diff", file, file]).status.code(), Some(2));
}

#[test]
fn a_difference_is_told_by_the_exit_code_too() {
    let (room, file) = measured();
    let profile = match saved::Saved::load(&file).unwrap() {
        saved::Saved::Profile(profile) => *profile,
        saved::Saved::RunStats(_) => panic!("a profile was saved"),
    };
    let (fast, slow) = (room.path().join("fast.json"), room.path().join("slow.json"));
    save_as(&profile, 1.0, &fast);
    save_as(&profile, 2.0, &slow);
    let (fast, slow) = (fast.to_str().unwrap(), slow.to_str().unwrap());
    let slower = fieldstone(&["diff", fast, slow]);
    assert_eq!(slower.status.code(), Some(1), "{}", said(&slower));
    assert!(printed(&slower).contains("slower"));
    assert_eq!(fieldstone(&["diff", slow, fast]).status.code(), Some(0));
    assert_eq!(fieldstone(&["diff", fast, fast]).status.code(), Some(0));
    assert_eq!(fieldstone(&["diff", fast, "/no/such/file"]).status.code(), Some(2));
}

#[test]
fn man_pages_and_completions_are_written() {
    let room = tempfile::tempdir().unwrap();
    let directory = room.path().join("man/man1");
    assert!(fieldstone(&["man", directory.to_str().unwrap()]).status.success());
    for name in ["fieldstone", "fieldstone-profile", "fieldstone-run", "fieldstone-doctor", "fieldstone-report"] {
        let page = fs::read_to_string(directory.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains("SYNOPSIS"), "{name}");
    }
    assert_eq!(fieldstone(&["man", "/dev/null/man"]).status.code(), Some(2));
    let script = fieldstone(&["completions", "bash"]);
    let file = room.path().join("completions");
    fs::write(&file, &script.stdout).unwrap();
    assert!(printed(&script).contains("--check-output"));
    match Command::new("bash").arg("-n").arg(&file).status() {
        Ok(status) => assert!(status.success()),
        Err(_) => println!("SKIP bash not installed"),
    }
}

#[test]
fn signals_that_were_ignored_stay_ignored() {
    let line =
        format!("trap '' HUP; exec {} run --region -- grep SigIgn /proc/self/status", env!("CARGO_BIN_EXE_fieldstone"));
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", &line]).env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).output().unwrap();
    let ignored = printed(&output).trim().rsplit('\t').next().and_then(|set| u64::from_str_radix(set, 16).ok());
    assert_eq!(ignored.map(|set| set & 1), Some(1), "SIGHUP, as nohup has it: {}{}", printed(&output), said(&output));
}
