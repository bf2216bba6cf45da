//! Servers under a load; Redis is the example.

use std::net::TcpListener;
use std::process::Command;

use fieldstone_report::{Finding, Metric};

use crate::common::kill;
use crate::fixture::{Fixture, start_until};

/// A Redis server on its own port.
pub(crate) struct Redis {
    pub(crate) port: u16,
    command: Vec<String>,
}

impl Redis {
    /// `None`, printed as a skip, if it is not installed.
    pub(crate) fn new(fixture: &Fixture) -> Option<Self> {
        if Command::new("redis-server").arg("--version").output().is_err() {
            println!("SKIP redis-server not installed");
            return None;
        }
        let port = free_port();
        let directory = fixture.directory.path().display();
        let line = format!("redis-server --port {port} --bind 127.0.0.1 --save --appendonly no --dir {directory}");
        let mut command: Vec<String> = line.split(' ').map(str::to_owned).collect();
        command.insert(command.iter().position(|word| word == "--save").unwrap() + 1, String::new());
        Some(Self { port, command })
    }

    pub(crate) fn command(&self) -> Vec<&str> {
        self.command.iter().map(String::as_str).collect()
    }

    /// The same, below a shell that ignores SIGTERM.
    fn ignoring_sigterm(&self) -> Vec<String> {
        let quoted: Vec<_> = self.command.iter().map(|word| format!("'{word}'")).collect();
        ["sh".to_owned(), "-c".to_owned(), format!("trap '' TERM; {} & wait", quoted.join(" "))].to_vec()
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// `--load`, whose value has spaces, comes before the other options.
fn with_load(fixture: &Fixture, load: &str, port: u16, options: &str, program: &[&str]) -> Command {
    let plain = fixture.command(&format!("--ready {port} {options}"), program);
    let mut command = Command::new(plain.get_program());
    let mut arguments = plain.get_args();
    command.arg(arguments.next().unwrap()).args(["--load", load]).args(arguments);
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(std::process::Stdio::null());
    command
}

fn refused(fixture: &Fixture, load: &str, port: u16, options: &str, program: &[&str]) -> String {
    let output = with_load(fixture, load, port, options, program).output().unwrap();
    fixture.check_nothing_left();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{message}");
    message
}

#[test]
fn a_server_is_loaded_and_stopped() {
    let Some(fixture) = Fixture::new() else { return };
    let Some(redis) = Redis::new(&fixture) else { return };
    let file = fixture.path("profile.json");
    let load = format!("redis-benchmark -q -p {} -n 3000 -r 1000 -d 64 -t set,get", redis.port);
    let options = format!("--runs 1 --pages thp --requests 6000 --json {}", file.display());
    let output = with_load(&fixture, &load, redis.port, &options, &redis.command()).output().unwrap();
    fixture.check_nothing_left();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = crate::fixture::load(&file);
    assert_eq!((profile.metric, profile.program.ready_port), (Metric::Throughput, Some(redis.port)));
    assert_eq!((profile.program.load.as_ref(), profile.program.requests), (Some(&load), Some(6000)));
    assert_eq!(profile.program.primary, "redis-server");
    for sample in &profile.samples {
        assert!(
            sample.value > 0.0 && sample.user_s + sample.system_s > 0.0 && sample.outcome == "exit 0",
            "{sample:?}"
        );
    }
    assert!(String::from_utf8_lossy(&output.stdout).contains("a request"));
}

#[test]
fn a_server_that_ignores_sigterm_is_measured_and_killed() {
    let Some(fixture) = Fixture::new() else { return };
    let Some(redis) = Redis::new(&fixture) else { return };
    let program = redis.ignoring_sigterm();
    let program: Vec<_> = program.iter().map(String::as_str).collect();
    let load = format!("redis-cli -p {} ping", redis.port);
    let output =
        with_load(&fixture, &load, redis.port, "--runs 1 --pages thp --timeout 1.5", &program).output().unwrap();
    fixture.check_nothing_left();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_port_in_use_is_reported() {
    let Some(fixture) = Fixture::new() else { return };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let message = refused(&fixture, "true", port, "", &["odd", "hang"]);
    assert!(message.contains(&format!("port {port} is open before the program has started")), "{message}");
}

#[test]
fn a_port_that_is_never_opened_is_reported() {
    let Some(fixture) = Fixture::new() else { return };
    let message = refused(&fixture, "true", free_port(), "--timeout 0.5", &["odd", "ignore-sigterm"]);
    assert!(message.contains("was not opened within") && message.contains("the program runs"), "{message}");
    let message = refused(&fixture, "true", free_port(), "", &["sh", "-c", "echo the reason >&2"]);
    assert!(message.contains("must stay in the foreground") && message.contains("the reason"), "{message}");
}

#[test]
fn a_failed_load_is_reported_with_its_last_output() {
    let Some(fixture) = Fixture::new() else { return };
    let Some(redis) = Redis::new(&fixture) else { return };
    let message = refused(&fixture, "echo the load broke >&2; exit 3", redis.port, "", &redis.command());
    assert!(message.contains("ended with exit 3") && message.contains("the load broke"), "{message}");
    let message = refused(&fixture, "sleep 1000", redis.port, "--timeout 0.5", &redis.command());
    assert!(message.contains("stopped after 0.5 s"), "{message}");
}

#[test]
fn a_load_that_fails_under_the_tracer_only_keeps_the_measurement() {
    let Some(fixture) = Fixture::new().filter(|_| crate::trace::has_tracer()) else { return };
    let Some(redis) = Redis::new(&fixture) else { return };
    let (runs, file) = (fixture.path("runs"), fixture.path("profile.json"));
    let load = format!("echo >>{0}; echo too slow >&2; [ $(wc -l <{0}) -lt 3 ]", runs.display());
    let options = format!("--trace --runs 1 --pages 4k --json {}", file.display());
    let output = with_load(&fixture, &load, redis.port, &options, &redis.command()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = crate::fixture::load(&file);
    let [Finding::NotTraced { why }] = profile.findings.as_slice() else { panic!("{:?}", profile.findings) };
    assert!(why.contains("exit 1") && why.contains("too slow"), "{why}");
    assert_eq!(profile.samples.len(), 1);
    assert!(String::from_utf8_lossy(&output.stdout).contains("No page walks are reported"));
}

#[test]
fn a_server_that_ends_during_its_load_is_reported() {
    let Some(fixture) = Fixture::new() else { return };
    let Some(redis) = Redis::new(&fixture) else { return };
    let port = redis.port;
    let load =
        format!("redis-cli -p {port} shutdown nosave; while redis-cli -p {port} ping; do :; done; sleep 0.5; false");
    let message = refused(&fixture, &load, port, "", &redis.command());
    assert!(message.contains("exit 0 during the load"), "{message}");
}

#[test]
fn an_interrupt_during_the_load_ends_server_and_load() {
    let Some(fixture) = Fixture::new() else { return };
    let Some(redis) = Redis::new(&fixture) else { return };
    for whole_group in [false, true] {
        let mut command = with_load(&fixture, "sleep 1000", redis.port, "--pages thp", &redis.command());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = start_until(&mut command, "warm-up");
        fixture.wait_for("sleep");
        kill("INT", &format!("{}{}", if whole_group { "-" } else { "" }, child.id()));
        assert_eq!(child.code(), Some(130));
        fixture.check_nothing_left();
    }
}
