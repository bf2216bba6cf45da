//! Users who may not repair: the program runs without a repair, and the remedy is printed once.
//! Also messages at the start of sampling, and statistics of a program that ends at once.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use crate::fixture::{SharingFixture, did_not_run_together, fieldstone, interrupt, is_forbidden, ran_together, stderr};

const NOBODY: u32 = 65534;
const REMEDY: &str = "sudo sysctl vm.unprivileged_userfaultfd=1";

/// Whether a user without privileges lacks userfaultfd here; prints a skip if not, or if no other
/// user can be tried.
fn can_be_tried() -> bool {
    let sysctl = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let tried = Command::new("true").uid(NOBODY).gid(NOBODY).status();
    let can = sysctl.is_ok_and(|word| word.trim() == "0") && tried.is_ok();
    if !can {
        println!("SKIP no program without the right to a userfaultfd can be made here");
    }
    can
}

fn as_nobody(arguments: &[&str]) -> Output {
    fieldstone(arguments).uid(NOBODY).gid(NOBODY).current_dir("/").output().unwrap()
}

/// A sleeping process of another user, killed when dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start(of: u32) -> Self {
        Self(Command::new("sleep").arg("60").uid(of).gid(of).current_dir("/").stdin(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn run_repair_prints_the_remedy_once_and_runs_the_program() {
    let Some(fixture) = SharingFixture::new().filter(|_| can_be_tried()) else { return };
    let output = as_nobody(&["run", "--repair", "--", "sh", "-c", "echo it ran; exit 42"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(42), &b"it ran\n"[..]), "{}", stderr(&output));
    assert_eq!(stderr(&output).matches(REMEDY).count(), 1, "{}", stderr(&output));
    assert!(stderr(&output).contains("runs without a repair"), "{}", stderr(&output));

    fs::set_permissions(fixture.path("."), fs::Permissions::from_mode(0o777)).unwrap();
    let file = fixture.path("stats.json");
    let file = file.to_str().unwrap();
    let output = as_nobody(&["run", "--repair", "--stats", file, "--", "true"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = fieldstone(&["report", file]).output().unwrap();
    let report = String::from_utf8_lossy(&report.stdout);
    assert!(report.contains("outcome of the repairer: not started: ") && report.contains(REMEDY), "{report}");
}

#[test]
fn repair_without_the_right_is_refused_before_sampling() {
    if !can_be_tried() {
        return;
    }
    let sleeper = Sleeper::start(NOBODY);
    let by_nobody = as_nobody(&["attach", "--repair", &sleeper.pid()]);
    let by_root = fieldstone(&["attach", "--repair", &sleeper.pid()]).output().unwrap();
    for (output, remedy) in [(by_nobody, REMEDY), (by_root, &REMEDY.replace("sudo ", ""))] {
        assert!(output.status.code() == Some(2) && stderr(&output).contains(remedy), "{}", stderr(&output));
        assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn a_second_repair_of_a_process_is_refused_before_a_page_is_moved() {
    let sleeper = Sleeper::start(0);
    let repair = || fieldstone(&["attach", "--repair", &sleeper.pid()]);
    let mut first = repair().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let files = format!("/proc/{}/fd", first.id());
    let is_lock = |entry: fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|file| file.ends_with("coredump_filter"));
    let has_lock = || fs::read_dir(&files).is_ok_and(|mut files| files.any(|entry| entry.is_ok_and(is_lock)));
    while !has_lock() && first.try_wait().unwrap().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    if first.try_wait().unwrap().is_some() {
        let message = stderr(&first.wait_with_output().unwrap());
        assert!(is_forbidden(&message), "{message}");
        return;
    }
    let second = repair().output().unwrap();
    let expected = format!("process {0} repairs it already\ntry: kill {0}", first.id());
    assert!(second.status.code() == Some(2) && stderr(&second).contains(&expected), "{}", stderr(&second));
    interrupt(first.id());
    assert!(first.wait_with_output().unwrap().status.success());
}

#[test]
fn sharing_reports_that_the_repair_is_unavailable() {
    let Some(fixture) = SharingFixture::new().filter(|_| can_be_tried()) else { return };
    fs::set_permissions(fixture.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    let program = fixture.build("counters", &["-g", "-O1"]);
    let program = program.to_str().unwrap();
    for _ in 0..4 {
        let output = as_nobody(&["sharing", "--", program, "--iterations", "300000000"]);
        if stderr(&output).contains("perf_event_paranoid") {
            println!("SKIP other processes may not be looked into: {}", stderr(&output).trim());
            return;
        }
        if ran_together(&stderr(&output)) {
            let report = String::from_utf8_lossy(&output.stdout);
            let advised = report.find("fieldstone run --repair --").unwrap_or_else(|| panic!("{report}"));
            assert!(report[advised..].contains("is unavailable to this user"), "{report}");
            assert!(report.contains(REMEDY), "{report}");
            return;
        }
    }
    did_not_run_together(program.as_ref());
}

#[test]
fn the_start_of_sampling_and_how_to_end_it_are_reported() {
    for (command, part) in [
        ("sharing --duration 0.2 --pid", "is sampled for 0.2 s; Ctrl-C ends the sampling"),
        ("attach --repair", "(sleep) is sampled for false sharing, and what is found is repaired; Ctrl-C or SIGTERM"),
    ] {
        let mut sleeper = Sleeper::start(0);
        let arguments: Vec<&str> = command.split(' ').collect();
        let pid = sleeper.pid();
        let mut sampling = fieldstone(&[&arguments[..], &[pid.as_str()]].concat());
        let sampling = sampling.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        sleeper.0.kill().unwrap();
        sleeper.0.wait().unwrap();
        let output = sampling.wait_with_output().unwrap();
        if stderr(&output).contains("is unavailable to this user") || stderr(&output).contains("cannot sample") {
            println!("SKIP {}", stderr(&output).trim());
        } else {
            assert!(stderr(&output).contains(part), "{command}: {}", stderr(&output));
        }
    }
}

#[test]
fn a_program_that_ends_at_once_has_statistics() {
    let output = fieldstone(&["run", "--repair", "--stats", "-", "--", "true"]).output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{message}");
    assert!(message.contains("- samples: 0 of 0 analysed") && message.contains("- pages moved: 0"), "{message}");
    assert!(
        message.contains("nothing was repaired: no sample was taken") || message.contains("not started"),
        "{message}"
    );
}
