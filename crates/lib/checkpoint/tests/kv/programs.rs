//! redis-benchmark and redis-cli as clients.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use crate::process::{METHODS, Server};

fn is_installed(program: &str) -> bool {
    let is_installed = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !is_installed {
        println!("SKIP {program} is not installed");
    }
    is_installed
}

/// Begins saves until `is_done`; how many were whole.
fn save(server: &Server, is_done: &AtomicBool) -> u32 {
    let mut client = server.client();
    let mut saves = 0;
    while !is_done.load(Relaxed) {
        client.words("BGSAVE");
        client.wait_for_save();
        assert_eq!(client.info_text("rdb_last_bgsave_status"), "ok");
        saves += 1;
        thread::sleep(Duration::from_millis(50));
    }
    saves
}

#[test]
fn redis_benchmark_runs_while_the_server_saves() {
    if !is_installed("redis-benchmark") {
        return;
    }
    for method in METHODS {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path(), method, "64M");
        for pipeline in ["1", "16"] {
            let is_done = AtomicBool::new(false);
            let (output, saves) = thread::scope(|scope| {
                let saver = scope.spawn(|| save(&server, &is_done));
                let output = Command::new("timeout")
                    .args(["60", "redis-benchmark", "-p", &server.port.to_string(), "-t", "set,get,incr,lpush"])
                    .args(["-n", "4000", "-r", "2000", "-q", "-P", pipeline])
                    .output()
                    .unwrap();
                is_done.store(true, Relaxed);
                (output, saver.join().unwrap())
            });
            let text =
                format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{text}");
            let lower = text.to_lowercase();
            assert!(!lower.contains("err") && !lower.contains("warn"), "{text}");
            let results = text.split(['\r', '\n']).filter(|line| line.contains("requests per second")).count();
            assert_eq!(results, 4, "{text}");
            assert!(saves > 0);
        }
    }
}

#[test]
fn redis_cli_prints_replies() {
    if !is_installed("redis-cli") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "checkpoint", "16M");
    let mut cli = Command::new("timeout")
        .args(["20", "redis-cli", "-p", &server.port.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let commands = "ping\nset name \"two words\"\nget name\nincr count\nlpush list a b c\nlrange list 0 -1\n\
                    dbsize\nget list\nset name x EX 10\nincr name\nnone\nget\nsave\nflushall\nget name\n";
    cli.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    let output = String::from_utf8(cli.wait_with_output().unwrap().stdout).unwrap();
    let lines: Vec<_> = output.lines().filter(|line| !line.is_empty()).collect();
    let expected = [
        "PONG",
        "OK",
        "two words",
        "1",
        "3",
        "c",
        "b",
        "a",
        "3",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "ERR SET takes a key and a value; options such as EX and NX are not supported",
        "ERR value is not an integer or out of range",
        "ERR unknown command 'NONE'",
        "ERR wrong number of arguments for 'get' command",
        "OK",
        "OK",
    ];
    assert_eq!(lines, expected, "{output}");
}
