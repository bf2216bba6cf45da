//! Large programs produce the same output with the recorder, and are recorded.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::fixture::Recording;

/// Compares the output of a program with and without the recorder. Returns the record; `None` if it
/// is not installed.
fn same(program: &str, arguments: &[&str]) -> Option<Recording> {
    let Ok(plain) = Command::new(program).args(arguments).output() else {
        println!("SKIP {program} is not installed");
        return None;
    };
    assert!(plain.status.success(), "{}", String::from_utf8_lossy(&plain.stderr));
    let recording = Recording::new();
    let output = recording.command(program).args(arguments).output().unwrap();
    assert_eq!(output.status, plain.status, "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&plain.stdout));
    assert_eq!(String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&plain.stderr));
    Some(recording)
}

fn allocations(recording: &Recording) -> u64 {
    recording.sites().sites().map(|(_, site)| site.allocations.load(Relaxed)).sum()
}

#[test]
fn sqlite_prints_the_same() {
    let script = "create table t(a, b); with recursive n(i) as (select 1 union all select i + 1 from n where i < 2000) \
        insert into t select i, hex(i * 7919 % 1000) from n; create index x on t(b); \
        select b, count(*), sum(a) from t group by b order by 2 desc, 1 limit 20;";
    if let Some(recording) = same("sqlite3", &[":memory:", script]) {
        assert!(allocations(&recording) > 500, "{}", allocations(&recording));
    }
}

#[test]
fn python_prints_the_same() {
    let script = "import json, threading, decimal\n\
        def work(): return json.loads(json.dumps({str(i): [i] * 5 for i in range(3000)}))\n\
        threads = [threading.Thread(target=work) for _ in range(4)]\n\
        [t.start() for t in threads]; [t.join() for t in threads]\n\
        print(sum(map(len, work().values())), decimal.Decimal(2).sqrt())";
    if let Some(recording) = same("/usr/bin/python3", &["-c", script]) {
        assert!(allocations(&recording) > 1000, "{}", allocations(&recording));
        assert_eq!(recording.sites().programs.load(Relaxed), 1);
    }
}

#[test]
fn a_server_answers_the_same() {
    let server = "redis-server";
    if Command::new(server).arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("SKIP {server} is not installed");
        return;
    }
    let recording = Recording::new();
    let plain = conversation(&mut Command::new(server));
    let recorded = conversation(&mut recording.command(server));
    assert_eq!(plain, recorded);
    assert!(plain.ends_with("+PONG\r\n"), "{plain}");
    assert!(allocations(&recording) > 1000, "{}", allocations(&recording));
}

/// Starts a server on a free port, sends requests, and ends it. Returns the answers.
fn conversation(command: &mut Command) -> String {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let directory = tempfile::tempdir().unwrap();
    command.args(["--save", "", "--appendonly", "no", "--port", &port.to_string(), "--dir"]).arg(directory.path());
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let answers = send_requests(port);
    child.kill().unwrap();
    child.wait().unwrap();
    answers.unwrap()
}

fn send_requests(port: u16) -> std::io::Result<String> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut script = String::new();
    for key in 0..2000 {
        script +=
            &format!("SET key:{key} {}\r\nAPPEND key:{key} more\r\nLPUSH list {key}\r\n", "v".repeat(key % 300 + 1));
    }
    script += "LLEN list\r\nSTRLEN key:1999\r\nSORT list LIMIT 0 3\r\nFLUSHALL\r\nPING\r\n";
    let mut writer = stream.try_clone()?;
    let writing = std::thread::spawn(move || writer.write_all(script.as_bytes()));
    let mut answers = Vec::new();
    while !answers.ends_with(b"+PONG\r\n") {
        let mut some = [0; 4096];
        match stream.read(&mut some)? {
            0 => break,
            read => answers.extend_from_slice(&some[..read]),
        }
    }
    writing.join().expect("the writer ends")?;
    Ok(String::from_utf8_lossy(&answers).into_owned())
}
