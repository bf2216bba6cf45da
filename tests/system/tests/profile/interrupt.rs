//! Interrupted profiles, by Ctrl-C and SIGKILL: no child, no reserved huge page and no file
//! remains.

use std::os::unix::process::CommandExt;

use fieldstone_report::{Finding, Profile};

use crate::common::{ReservedPool, kill, pool, wait_until};
use crate::fixture::{Fixture, RunningCommand, folio_modes, start_until};
use crate::trace::{compile, has_tracer};

/// Starts a long profile on hugetlb, up to its measured runs. Returns the size of the pool before
/// it was raised. `None`, printed as a skip, if it was not raised, because another process freed
/// pages meanwhile.
fn start_profile(fixture: &Fixture) -> Option<(RunningCommand, u64)> {
    let before = pool("nr_hugepages").unwrap();
    let file = fixture.path("never.json");
    let options = format!("--runs 1000 --pages hugetlb --json {}", file.display());
    let mut command = fixture.command(&options, &["gups", "2M"]);
    let started = start_until(command.process_group(0), "runs, about");
    fixture.wait_for("gups");
    if pool("nr_hugepages").unwrap() > before {
        return Some((started, before));
    }
    println!("SKIP somebody else uses the hugetlb pool");
    None
}

fn check_restored(fixture: &Fixture, before: u64) {
    fixture.check_nothing_left();
    wait_until("the pool to be restored", || pool("nr_hugepages").filter(|&pages| pages <= before));
    assert!(!fixture.path("never.json").exists(), "no file of a profile that was never taken");
}

#[test]
fn ctrl_c_restores_everything() {
    let Some(fixture) = Fixture::new() else { return };
    let Some(_pool) = ReservedPool::with_free(0) else { return };
    for (signal, group, code) in [("INT", "", 130), ("INT", "-", 130), ("TERM", "", 143)] {
        let Some((mut started, before)) = start_profile(&fixture) else { return };
        kill(signal, &format!("{group}{}", started.id()));
        assert_eq!(started.code(), Some(code), "{signal}");
        check_restored(&fixture, before);
    }
}

#[test]
fn timed_runs_are_reported_when_the_trace_is_interrupted() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let options =
        format!("--trace --full --no-sites --runs 1 --pages 4k --json {}", fixture.path("timed.json").display());
    let mut started =
        start_until(&mut fixture.command(&options, &["gups", "16M", "200000000"]), "one more run is traced");
    fixture.wait_for("qemu-x86_64");
    kill("INT", &started.id().to_string());
    assert_eq!(started.code(), Some(130));
    let profile: Profile = serde_json::from_slice(&std::fs::read(fixture.path("timed.json")).unwrap()).unwrap();
    assert!(profile.translation.is_none() && profile.samples.len() == 1, "{:?}", profile.samples);
    let [Finding::NotTraced { why }] = profile.findings.as_slice() else { panic!("{:?}", profile.findings) };
    assert!(why.contains("stopped by SIGINT"), "{why}");
    fixture.check_nothing_left();
}

#[test]
fn sigkill_restores_everything() {
    let Some(fixture) = Fixture::new() else { return };
    let Some(_pool) = ReservedPool::with_free(0) else { return };
    let Some((mut started, before)) = start_profile(&fixture) else { return };
    kill("KILL", &started.id().to_string());
    assert_eq!(started.code(), None);
    check_restored(&fixture, before);
}

#[test]
fn a_traced_program_continues_after_its_reader_was_killed() {
    let Some(fixture) = Fixture::new().filter(|_| has_tracer()) else { return };
    let Some(program) = compile(&fixture, "children", &[]) else { return };
    let mut command = fixture.command("--trace --full --no-sites --runs 1 --pages 4k", &[&program, "30000"]);
    let mut started = start_until(&mut command, "one more run is traced");
    fixture.wait_for("qemu-x86_64");
    wait_until("a traced child", || (fixture.processes().len() > 3).then_some(()));
    kill("KILL", &started.id().to_string());
    assert_eq!(started.code(), None);
    fixture.check_nothing_left();
}

#[test]
fn folio_sizes_are_switched_for_the_run_and_restored() {
    let Some(fixture) = Fixture::alone() else { return };
    let before = folio_modes();
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !root || !before.iter().any(|(name, _)| name == "hugepages-64kB") {
        println!("SKIP folios of 64 KiB cannot be switched on here");
        return;
    }
    let profile = fixture.measured("--runs 1 --pages folio-64k", &["gups", "8M"], 0);
    assert_eq!(folio_modes(), before, "after a good end");
    let region = profile.footprint("folio-64k").unwrap().region.as_ref().unwrap();
    let got: u64 = region.pages.iter().filter(|share| share.kind == "folio-64k").map(|share| share.bytes).sum();
    assert!(got > 4 << 20, "{:?}", region.pages);

    let mut command = fixture.command("--runs 1 --pages folio-64k", &["odd", "hold", "16M", "2000"]);
    let mut started = start_until(&mut command, "warm-up");
    wait_until("the folio sizes to be switched", || (folio_modes() != before).then_some(()));
    kill("KILL", &started.id().to_string());
    assert_eq!(started.code(), None);
    wait_until("the folio sizes to be restored", || (folio_modes() == before).then_some(()));
    fixture.check_nothing_left();
}
