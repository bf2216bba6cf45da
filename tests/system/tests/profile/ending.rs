//! Programs that fail, or cannot start: each failure is reported, and nothing remains.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::binaries;
use crate::fixture::{Fixture, load, workload};

#[test]
fn a_crash_is_reported_with_the_last_output() {
    let Some(fixture) = Fixture::new() else { return };
    let line = format!("echo the last word >&2; exec {} crash 1", workload("odd").display());
    let message = fixture.refused("--runs 1", &["sh", "-c", &line]);
    assert!(
        message.contains("signal 11 (SIGSEGV)") && message.contains("the end of its stderr:\nthe last word"),
        "{message}"
    );
}

#[test]
fn a_killed_program_is_reported() {
    let Some(fixture) = Fixture::new() else { return };
    let message = fixture.refused("--runs 1", &["odd", "kill-self"]);
    assert!(message.contains("signal 9 (SIGKILL)"), "{message}");
}

#[test]
fn a_hanging_program_is_stopped_and_reported() {
    let Some(fixture) = Fixture::new() else { return };
    for mode in ["hang", "ignore-sigterm"] {
        let message = fixture.refused("--runs 1 --timeout 0.5", &["odd", mode]);
        assert!(message.contains("stopped after 0.5 s") && message.contains("--timeout"), "{message}");
    }
}

#[test]
fn earlier_processes_are_not_killed() {
    let Some(fixture) = Fixture::new() else { return };
    let (file, command) = (fixture.path("sleeper"), fixture.command("--runs 1 --pages 4k", &["true"]));
    let script = format!("sleep 1000 >/dev/null 2>&1 & echo $! >{}; exec \"$@\"", file.display());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &script, "sh"]).arg(command.get_program()).args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(std::process::Stdio::null());
    assert!(shell.output().unwrap().status.success());
    let sleeper = fs::read_to_string(file).unwrap();
    let killed = std::process::Command::new("kill").arg(sleeper.trim()).status().unwrap();
    assert!(killed.success(), "it still slept");
    fixture.check_nothing_left();
}

#[test]
fn the_time_of_orphaned_processes_counts() {
    let Some(fixture) = Fixture::new() else { return };
    let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    let user_s = |script: &str| fixture.measured("--runs 1 --pages 4k", &["sh", "-c", script], 0).samples[0].user_s;
    let file = fixture.path("done");
    let wait = format!("while [ ! -e {0} ]; do sleep 0.01; done; rm {0}", file.display());
    let (own, orphaned) = (user_s(work), user_s(&format!("(({work}; echo >{}) & ); {wait}", file.display())));
    assert!(orphaned > own / 2.0, "{orphaned} s, {own} s in the first process itself");
}

#[test]
fn a_constant_exit_code_is_no_finding_and_a_changed_one_is() {
    let Some(fixture) = Fixture::new() else { return };
    let profile = fixture.measured("--runs 1 --pages thp", &["odd", "exit", "3"], 0);
    assert!(profile.samples.iter().all(|sample| sample.outcome == "exit 3"));
    // With a region the mappings include the agent, unlike in the baseline.
    let script = "if grep -q region- /proc/self/maps; then exit 9; fi";
    let profile = fixture.measured("--runs 1 --pages thp", &["sh", "-c", script], 1);
    assert_eq!(profile.samples.iter().map(|sample| sample.outcome.as_str()).collect::<Vec<_>>(), ["exit 0", "exit 9"]);
    assert_eq!(profile.findings.len(), 1, "{:?}", profile.findings);
}

#[test]
fn a_program_that_runs_only_once_has_no_verdict() {
    let Some(fixture) = Fixture::new() else { return };
    let (results, file) = (fixture.path("results"), fixture.path("profile.json"));
    let script = format!("mkdir {} || exit 3", results.display());
    for options in ["--runs 2 --pages thp", "--runs 2 --pages thp --check-output"] {
        let _ = fs::remove_dir(&results);
        let options = format!("{options} --json {}", file.display());
        let output = fixture.profile(&options, &["sh", "-c", &script]);
        let (message, report_text) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
        assert_eq!(output.status.code(), Some(1), "{report_text}");
        // The warning about few runs comes before the runs.
        let (few, begun) = (message.find("--runs 2 gives no verdict"), message.find("runs, about"));
        assert!(few.is_some() && few < begun && message.contains("try: --runs 6"), "{message}");
        let report_text = report_text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in ["Run 2 ended with exit 3, and run 1 with exit 0", "no verdict", "UNDO; exec"] {
            assert!(report_text.contains(part), "{part}: {report_text}");
        }
        let profile = load(&file);
        assert!(matches!(profile.findings[0], fieldstone_report::Finding::NotRepeatable { run: 2, .. }));
        assert!(profile.resident.iter().any(|of| of.kind == "thp" && of.growth.is_some()), "{:?}", profile.resident);
    }
}

#[test]
fn errors_for_unrunnable_programs_are_distinct() {
    let Some(fixture) = Fixture::new() else { return };
    let message = fixture.refused("", &["no-such-program-anywhere"]);
    assert!(message.contains("there is no program called \"no-such-program-anywhere\""), "{message}");
    let misspelled = fixture.command("--runs 1 --pages 4k", &["true"]).args(["--trase"]).output().unwrap();
    assert!(misspelled.status.success(), "what comes after the program is the program's");
    let mut command = std::process::Command::new(binaries::command());
    let message = command.args(["profile", "--trase", "true"]).output().unwrap().stderr;
    assert!(
        String::from_utf8_lossy(&message).contains("nor is it an option of fieldstone"),
        "{}",
        String::from_utf8_lossy(&message)
    );
    let file = fixture.path("set-id");
    fs::copy(workload("odd"), &file).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
    let message = fixture.refused("", &[file.to_str().unwrap(), "exit", "0"]);
    assert!(message.contains("set-user-id") && message.contains("run a copy"), "{message}");
    fs::write(&file, "no program").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    let message = fixture.refused("", &[file.to_str().unwrap()]);
    assert!(message.contains("no ELF program"), "{message}");
}

#[test]
fn an_unwritable_path_is_reported_before_the_run() {
    let Some(fixture) = Fixture::new() else { return };
    let touched = fixture.path("touched");
    for option in ["--json", "--html"] {
        let message = fixture.refused(
            &format!("{option} {}", fixture.path("no-such-directory/file").display()),
            &["touch", touched.to_str().unwrap()],
        );
        assert!(message.contains("cannot write"), "{message}");
        assert!(!touched.exists(), "it ran before the path was tried");
    }
}

#[test]
fn an_output_that_cannot_be_written_is_refused_and_another_one_is_written() {
    let Some(fixture) = Fixture::new() else { return };
    for option in ["--json", "--html"] {
        let message = fixture.refused(&format!("--runs 1 --pages 4k {option} /dev/full"), &["true"]);
        assert!(message.contains("/dev/full"), "{message}");
    }
    let file = fixture.path("profile.json");
    let mut command = fixture.command(&format!("--runs 1 --pages 4k --json {}", file.display()), &["true"]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(command.stdout(full).status().unwrap().code(), Some(2));
    assert_eq!(load(&file).samples.len(), 1);
    let same = file.display();
    let message = fixture.refused(&format!("--json {same} --html {same}"), &["true"]);
    assert!(message.contains("same file"), "{message}");
}

#[test]
fn a_program_that_becomes_a_daemon_leaves_nothing_behind() {
    let Some(fixture) = Fixture::new() else { return };
    let profile = fixture.measured("--runs 1 --pages thp", &["sh", "-c", "setsid -f sleep 1000; sleep 0.5; exit 0"], 0);
    assert!(
        profile.warnings.iter().any(|words| words.contains("left processes behind (sleep)")),
        "{:?}",
        profile.warnings
    );
    assert!(profile.samples.iter().all(|sample| sample.outcome == "exit 0"), "{:?}", profile.samples);
}

#[test]
fn a_profile_of_unavailable_kinds_alone_ends_with_2() {
    let Some(fixture) = Fixture::new() else { return };
    let pool = fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages");
    if pool.is_ok_and(|pages| pages.trim() != "0") {
        println!("SKIP pages of 1 GiB are set aside here");
        return;
    }
    let output = fixture.profile("--runs 1 --pages hugetlb-1g", &["true"]);
    let (text, message) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(2), "{text}{message}");
    assert!(
        text.contains("Nothing could be compared: hugetlb-1g") && message.contains("1 run, about"),
        "{text}{message}"
    );
    assert_eq!(fixture.profile("--runs 1 --pages hugetlb-1g,thp", &["true"]).status.code(), Some(0));
    assert_eq!(fixture.profile("--runs 1 --pages 4k", &["true"]).status.code(), Some(0));
}
