//! Programs that succeed: numbers, order, output, and the measured process.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use assert_cmd::assert::OutputAssertExt;
use fieldstone_report::Finding;

use crate::binaries;
use crate::fixture::{Fixture, load};

#[test]
fn a_program_is_measured_in_abba_order_and_reported_three_ways() {
    let Some(fixture) = Fixture::new() else { return };
    let (json, html) = (fixture.path("profile.json"), fixture.path("profile.html"));
    let options = format!("--runs 2 --pages thp --json {} --html {}", json.display(), html.display());
    let output = fixture.profile(&options, &["gups", "8M"]);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    output.assert().code(0);

    let profile = load(&json);
    let order: Vec<_> = profile.samples.iter().map(|sample| (sample.round, sample.kind.as_str())).collect();
    assert_eq!(order, [(0, "4k"), (0, "thp"), (1, "thp"), (1, "4k")]);
    assert!(profile.samples.iter().map(|sample| sample.position).eq(0..4));
    for sample in &profile.samples {
        assert_eq!(sample.outcome, "exit 0");
        assert!(sample.wall_s > 0.0 && sample.value == sample.wall_s && sample.user_s + sample.system_s > 0.0);
        assert!(sample.max_resident_bytes > 8 << 20 && sample.minor_faults > 0, "{sample:?}");
    }
    assert_eq!(profile.program.command, ["gups", "8M"]);
    assert_eq!((profile.program.primary.as_str(), profile.footprints.len()), ("gups", 2));
    let footprint = profile.footprint("thp").unwrap();
    assert!(footprint.peak().unwrap().resident_bytes > 8 << 20);
    let region = footprint.region.as_ref().unwrap();
    assert!(region.served_bytes >= 8 << 20);
    assert!(region.pages.iter().map(|share| share.bytes).sum::<u64>() > 8 << 20, "{:?}", region.pages);

    for part in ["gups 8M", "4k", "thp", "Advice"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let page = fs::read_to_string(&html).unwrap();
    assert!(page.contains("<svg") && page.contains("gups 8M"));
    for outside in ["src=", "url(http", "@import"] {
        assert!(!page.contains(outside), "the page reaches outside by {outside}");
    }
    let links: Vec<_> = page.split("href=\"").skip(1).filter(|link| !link.starts_with(['#', '"'])).collect();
    assert!(links.iter().all(|link| link.starts_with("data:")), "{links:.80?}");
}

#[test]
fn output_has_the_requested_format() {
    let Some(fixture) = Fixture::new() else { return };
    let json = fixture.profile("--runs 1 --pages thp --format json --metric cpu", &["true"]);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((value["schema"].as_str(), value["metric"].as_str()), (Some("fieldstone-profile/1"), Some("cpu")));
    let csv = String::from_utf8(fixture.profile("--runs 1 --pages thp --format csv", &["true"]).stdout).unwrap();
    assert_eq!(csv.lines().count(), 3, "a heading and a line a kind\n{csv}");
}

#[test]
fn output_that_differs_from_run_to_run_is_reported() {
    let Some(fixture) = Fixture::new() else { return };
    let profile = fixture.measured("--runs 1 --pages thp --check-output", &["odd", "random-output"], 1);
    let varies = |kind: &str| Finding::OutputVaries { kind: kind.into() };
    assert_eq!(profile.findings, [varies("4k"), varies("thp")]);
    let text =
        String::from_utf8(fixture.profile("--runs 1 --pages thp --check-output", &["odd", "random-output"]).stdout);
    assert!(text.unwrap().contains("output differs from run to run"));
}

#[test]
fn each_run_gets_the_standard_input_and_equal_output_is_no_finding() {
    let Some(fixture) = Fixture::new() else { return };
    let input = fixture.path("input");
    fs::write(&input, "the same each time\n").unwrap();
    let options = format!("--runs 2 --pages thp --check-output --stdin {}", input.display());
    let profile = fixture.measured(&options, &["odd", "echo"], 0);
    let hashes: Vec<_> = profile.samples.iter().map(|sample| sample.output_hash.clone().unwrap()).collect();
    assert!(hashes.len() == 4 && hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    let empty = fixture.measured("--runs 1 --pages thp --check-output", &["odd", "echo"], 0);
    assert_ne!(empty.samples[0].output_hash.as_ref(), Some(&hashes[0]), "without it the input is empty");
    let missing = format!("--stdin {}", fixture.path("none").display());
    let message = fixture.refused(&missing, &["odd", "echo"]);
    assert!(message.contains("cannot provide the standard input: cannot read"), "{message}");
}

#[test]
fn the_process_with_the_most_memory_is_measured() {
    let Some(fixture) = Fixture::new() else { return };
    let tree = ["odd", "fork-tree", "32M"];
    let profile = fixture.measured("--runs 1 --pages thp", &tree, 0);
    assert_eq!(profile.program.primary, "odd-second");
    let peak = profile.footprint("thp").unwrap().peak().unwrap().resident_bytes;
    assert!(peak > 32 << 20, "{peak}");
    let named = fixture.measured("--runs 1 --pages thp --process odd", &tree, 0);
    assert_eq!(named.program.primary, "odd-second", "children have their parent's file");
    assert!(named.footprint("thp").unwrap().region.as_ref().unwrap().served_bytes > 0);
    let other = fixture.measured("--runs 1 --pages thp --process nobody", &tree, 0);
    let found = |warning: &String| warning.contains("called nobody");
    assert!(other.warnings.iter().any(found), "{:?}", other.warnings);
    assert_eq!(other.footprint("thp").unwrap().region.as_ref().map_or(0, |region| region.served_bytes), 0);
}

#[test]
fn a_shell_that_starts_the_program_is_not_measured() {
    let Some(fixture) = Fixture::new() else { return };
    let gups = crate::fixture::workload("gups");
    let line = format!("{} 8M; true", gups.display());
    let profile = fixture.measured("--runs 1 --pages thp", &["sh", "-c", &line], 0);
    assert_eq!(profile.program.primary, "gups");
}

#[test]
fn a_process_in_another_pid_namespace_is_found() {
    let Some(fixture) = Fixture::new() else { return };
    if !std::process::Command::new("unshare").args(["-pf", "true"]).output().is_ok_and(|made| made.status.success()) {
        println!("SKIP no pid namespace can be made here");
        return;
    }
    let gups = crate::fixture::workload("gups");
    let profile = fixture.measured("--runs 1 --pages thp", &["unshare", "-pf", gups.to_str().unwrap(), "8M"], 0);
    assert_eq!(profile.program.primary, "gups");
    let region = profile.footprint("thp").unwrap().region.as_ref().unwrap();
    assert!(region.served_bytes >= 8 << 20 && region.mapped_peak_bytes >= 8 << 20, "{region:?}");
}

#[test]
fn page_kinds_that_a_user_may_not_set_up_are_unavailable_and_the_others_are_measured() {
    const NOBODY: u32 = 65534;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let file = directory.path().join("profile.json");
    let options = format!("--runs 1 --pages folio-64k,thp --json {} -- sleep 0.2", file.display());
    let mut command = Command::new(binaries::command());
    command.arg("profile").args(options.split(' ')).current_dir(directory.path()).env("TMPDIR", directory.path());
    let Ok(output) = command.uid(NOBODY).gid(NOBODY).output() else {
        println!("SKIP not root: no other user can be tried");
        return;
    };
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{message}");
    let profile = load(&file);
    let reason = |name: &str| profile.kind(name).and_then(|kind| kind.unavailable.clone());
    let refused = reason("folio-64k").expect("its folio sizes are a setting of root");
    assert!(refused.contains("permission denied\ntry: echo ") && !refused.contains("os error"), "{refused}");
    assert!(profile.samples.iter().any(|sample| sample.kind == "thp"), "{message}");
}
