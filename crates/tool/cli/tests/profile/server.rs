//! Servers under a load, with Redis in the role.

use std::net::TcpListener;
use std::process::Command;

use fieldstone_report::{Finding, Metric};

use crate::common::kill;
use crate::stage::{Stage, start_until};

/// A Redis to be started on a port of its own.
pub(crate) struct Redis {
    pub(crate) port: u16,
    command: Vec<String>,
}

impl Redis {
    /// `None`, told as a skip, where it is not installed.
    pub(crate) fn new(stage: &Stage) -> Option<Self> {
        if Command::new("redis-server").arg("--version").output().is_err() {
            println!("SKIP redis-server not installed");
            return None;
        }
        let port = free_port();
        let room = stage.room.path().display();
        let line = format!("redis-server --port {port} --bind 127.0.0.1 --save --appendonly no --dir {room}");
        let mut command: Vec<String> = line.split(' ').map(str::to_owned).collect();
        command.insert(command.iter().position(|word| word == "--save").unwrap() + 1, String::new());
        Some(Self { port, command })
    }

    pub(crate) fn command(&self) -> Vec<&str> {
        self.command.iter().map(String::as_str).collect()
    }

    /// The same, below a shell that hears no SIGTERM.
    fn deaf(&self) -> Vec<String> {
        let quoted: Vec<_> = self.command.iter().map(|word| format!("'{word}'")).collect();
        ["sh".to_owned(), "-c".to_owned(), format!("trap '' TERM; {} & wait", quoted.join(" "))].to_vec()
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// `--load` and what else takes words with spaces comes before the other options.
fn with_load(stage: &Stage, load: &str, port: u16, options: &str, program: &[&str]) -> Command {
    let plain = stage.command(&format!("--ready {port} {options}"), program);
    let mut command = Command::new(plain.get_program());
    let mut arguments = plain.get_args();
    command.arg(arguments.next().unwrap()).args(["--load", load]).args(arguments);
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(std::process::Stdio::null());
    command
}

fn refused(stage: &Stage, load: &str, port: u16, options: &str, program: &[&str]) -> String {
    let output = with_load(stage, load, port, options, program).output().unwrap();
    stage.check_nothing_left();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    said
}

#[test]
fn a_server_is_loaded_and_stopped() {
    let Some(stage) = Stage::new() else { return };
    let Some(redis) = Redis::new(&stage) else { return };
    let file = stage.path("profile.json");
    let load = format!("redis-benchmark -q -p {} -n 3000 -r 1000 -d 64 -t set,get", redis.port);
    let options = format!("--runs 1 --pages thp --requests 6000 --json {}", file.display());
    let output = with_load(&stage, &load, redis.port, &options, &redis.command()).output().unwrap();
    stage.check_nothing_left();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = crate::stage::load(&file);
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
fn a_server_that_hears_no_sigterm_is_measured_and_killed() {
    let Some(stage) = Stage::new() else { return };
    let Some(redis) = Redis::new(&stage) else { return };
    let program = redis.deaf();
    let program: Vec<_> = program.iter().map(String::as_str).collect();
    let load = format!("redis-cli -p {} ping", redis.port);
    let output = with_load(&stage, &load, redis.port, "--runs 1 --pages thp --timeout 1.5", &program).output().unwrap();
    stage.check_nothing_left();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_port_that_somebody_has_is_told() {
    let Some(stage) = Stage::new() else { return };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let said = refused(&stage, "true", port, "", &["odd", "hang"]);
    assert!(said.contains(&format!("port {port} is open before the program has started")), "{said}");
}

#[test]
fn a_port_that_is_never_opened_is_told() {
    let Some(stage) = Stage::new() else { return };
    let said = refused(&stage, "true", free_port(), "--timeout 0.5", &["odd", "ignore-sigterm"]);
    assert!(said.contains("was not opened within") && said.contains("the program runs"), "{said}");
    let said = refused(&stage, "true", free_port(), "", &["sh", "-c", "echo the reason >&2"]);
    assert!(said.contains("must stay in the foreground") && said.contains("the reason"), "{said}");
}

#[test]
fn a_load_that_fails_is_told_with_its_last_words() {
    let Some(stage) = Stage::new() else { return };
    let Some(redis) = Redis::new(&stage) else { return };
    let said = refused(&stage, "echo the load broke >&2; exit 3", redis.port, "", &redis.command());
    assert!(said.contains("ended with exit 3") && said.contains("the load broke"), "{said}");
    let said = refused(&stage, "sleep 1000", redis.port, "--timeout 0.5", &redis.command());
    assert!(said.contains("stopped after 0.5 s"), "{said}");
}

#[test]
fn a_load_that_fails_under_the_tracer_alone_costs_no_measurement() {
    let Some(stage) = Stage::new().filter(|_| crate::traced::has_tracer()) else { return };
    let Some(redis) = Redis::new(&stage) else { return };
    let (runs, file) = (stage.path("runs"), stage.path("profile.json"));
    let load = format!("echo >>{0}; echo too slow >&2; [ $(wc -l <{0}) -lt 3 ]", runs.display());
    let options = format!("--trace --runs 1 --pages 4k --json {}", file.display());
    let output = with_load(&stage, &load, redis.port, &options, &redis.command()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = crate::stage::load(&file);
    let [Finding::NotTraced { why }] = profile.findings.as_slice() else { panic!("{:?}", profile.findings) };
    assert!(why.contains("exit 1") && why.contains("too slow"), "{why}");
    assert_eq!(profile.samples.len(), 1);
    assert!(String::from_utf8_lossy(&output.stdout).contains("No page walks are reported"));
}

#[test]
fn a_server_that_dies_under_its_load_is_told() {
    let Some(stage) = Stage::new() else { return };
    let Some(redis) = Redis::new(&stage) else { return };
    let port = redis.port;
    let load =
        format!("redis-cli -p {port} shutdown nosave; while redis-cli -p {port} ping; do :; done; sleep 0.5; false");
    let said = refused(&stage, &load, port, "", &redis.command());
    assert!(said.contains("exit 0 during the load"), "{said}");
}

#[test]
fn an_interrupt_during_the_load_ends_server_and_load() {
    let Some(stage) = Stage::new() else { return };
    let Some(redis) = Redis::new(&stage) else { return };
    for whole_group in [false, true] {
        let mut command = with_load(&stage, "sleep 1000", redis.port, "--pages thp", &redis.command());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = start_until(&mut command, "warm-up");
        stage.wait_for("sleep");
        kill("INT", &format!("{}{}", if whole_group { "-" } else { "" }, child.id()));
        assert_eq!(child.code(), Some(130));
        stage.check_nothing_left();
    }
}
