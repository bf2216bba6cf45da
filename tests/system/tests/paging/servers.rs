//! Servers with a part of their data resident keep every value.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use fieldstone_report::paging::PagedProcess;
use tempfile::TempDir;

use crate::fixture::{can_page, largest, load_stats, paged, record, stderr, with_new_memory};
use crate::redis_server::RedisServer;
use crate::wait::{kill, wait_until};

/// Values of 1 KiB: some 50 MiB in a server.
const VALUES: Range<u32> = 0..40_000;

/// The counts of a run that has ended.
struct Counts(TempDir);

impl Counts {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn option(&self) -> String {
        format!("--stats {}", self.0.path().join("stats").display())
    }

    /// The counts of the server, which held no more than `bound` bytes of pages in memory.
    fn check(&self, bound_mib: u64) -> PagedProcess {
        let stats = load_stats(&self.0.path().join("stats"));
        let process = largest(&stats);
        assert!(process.peak_resident_bytes <= with_new_memory(bound_mib), "{process:?}");
        assert!(process.stores.iter().map(|store| store.loaded_pages).sum::<u64>() > 1000, "{process:?}");
        process.clone()
    }
}

#[test]
fn redis_keeps_every_value_with_half_and_a_quarter_of_its_data_resident() {
    for bound_mib in [26, 13] {
        if !can_page() {
            return;
        }
        let counts = Counts::new();
        let options = format!("--resident {bound_mib}M {}", counts.option());
        let Some(server) = RedisServer::start_paged(&options) else { return };
        server.fill(VALUES);
        let port = server.port().to_string();
        let load = ["-p", &port, "-t", "set,get,lpush,incr", "-n", "5000", "-r", "5000", "-d", "1000", "-q"];
        let load = Command::new("redis-benchmark").args(load).output().unwrap();
        assert!(load.status.success() && !stderr(&load).contains("rror"), "{}", stderr(&load));
        server.verify(VALUES);
        let output = server.shut_down();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        counts.check(bound_mib);
    }
}

#[test]
fn redis_keeps_every_value_while_the_server_of_its_pages_is_killed_and_started_again() {
    if !can_page() {
        return;
    }
    let Some(mut pages) = RedisServer::start("") else { return };
    let counts = Counts::new();
    let options = format!("--resident 26M --page-store {} {}", pages.url(), counts.option());
    let server = RedisServer::start_paged(&options).unwrap();
    server.fill(VALUES);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| server.verify(VALUES));
        pages.kill();
        sleep(Duration::from_millis(300));
        pages.start_again();
        reader.join().unwrap();
    });
    server.verify(VALUES);
    assert_eq!(server.shut_down().status.code(), Some(0));
    let process = counts.check(26);
    assert_eq!(process.stores.iter().filter(|store| store.loaded_pages > 0).count(), 1, "{process:?}");
    assert_eq!(pages.keys(), 0);
}

#[test]
fn memcached_keeps_every_value_with_half_and_a_quarter_of_its_data_resident() {
    if Command::new("memcached").arg("-V").stdout(Stdio::null()).status().is_err() {
        println!("SKIP memcached is not installed");
        return;
    }
    for bound_mib in [26, 13] {
        if !can_page() {
            return;
        }
        let counts = Counts::new();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let number = port.to_string();
        let program = ["memcached", "-l", "127.0.0.1", "-p", &number, "-m", "128", "-t", "2", "-u", "root"];
        let options = format!("--resident {bound_mib}M {}", counts.option());
        let running = paged(&options, &program).stderr(Stdio::piped()).spawn().unwrap();
        let connection = wait_until("the server listens", || TcpStream::connect(("127.0.0.1", port)).ok());
        connection.set_nodelay(true).unwrap();
        let mut answers = BufReader::new(connection.try_clone().unwrap());
        set(&connection, &mut answers);
        verify(&connection, &mut answers);
        kill("TERM", &running.id().to_string());
        let output = running.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        counts.check(bound_mib);
    }
}

/// Sets all values of a memcached.
fn set(mut connection: &TcpStream, answers: &mut impl BufRead) {
    for key in VALUES {
        let value = record(key);
        let request = [format!("set value:{key} 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
        connection.write_all(&request).unwrap();
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        assert_eq!(line, "STORED\r\n", "value {key}");
    }
}

/// Reads all values of a memcached, and checks them.
fn verify(mut connection: &TcpStream, answers: &mut impl BufRead) {
    for key in VALUES {
        connection.write_all(format!("get value:{key}\r\n").as_bytes()).unwrap();
        let (mut line, value) = (String::new(), record(key));
        answers.read_line(&mut line).unwrap();
        assert_eq!(line, format!("VALUE value:{key} 0 {}\r\n", value.len()));
        let mut got = vec![0; value.len() + "\r\nEND\r\n".len()];
        answers.read_exact(&mut got).unwrap();
        assert!(got == [&value[..], b"\r\nEND\r\n"].concat(), "value {key}");
    }
}
