//! Pages on a Redis cluster of one server.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fieldstone_paging::{Paged, Redis};
use tempfile::TempDir;

use crate::fixture::{MIB, build, pass_through_store};

/// A server that is killed at the end.
struct Server {
    running: Child,
    port: u16,
    _directory: TempDir,
}

impl Server {
    /// A cluster of one server; `None`, with a SKIP line, without Redis.
    fn start() -> Option<Self> {
        // The server also listens at the port 10,000 above.
        let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let port = std::iter::repeat_with(free).find(|&port| port < 50_000).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--cluster-enabled", "yes", "--save", "", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        let Ok(running) = command.arg("--dir").arg(directory.path()).stdout(Stdio::null()).spawn() else {
            println!("SKIP redis is not installed");
            return None;
        };
        let server = Self { running, port, _directory: directory };
        let start = Instant::now();
        server.ask_until("CLUSTER ADDSLOTSRANGE 0 16383", "+OK", start);
        server.ask_until("SET x 1", "+OK", start);
        server.ask_until("DEL x", ":1", start);
        Some(server)
    }

    fn ask_until(&self, command: &str, expected: &str, start: Instant) {
        while self.ask(command).as_deref() != Some(expected) {
            assert!(start.elapsed() < Duration::from_secs(60), "{command}: {:?}", self.ask(command));
            sleep(Duration::from_millis(20));
        }
    }

    fn ask(&self, command: &str) -> Option<String> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(connection, "{command}\r\n").ok()?;
        let mut answer = String::new();
        BufReader::new(connection).read_line(&mut answer).ok()?;
        Some(answer.trim_end().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.running.kill();
        let _ = self.running.wait();
    }
}

#[test]
fn pages_come_back_from_a_cluster_and_are_deleted_there_at_the_end() {
    let Some(server) = Server::start() else { return };
    let url = format!("redis+cluster://127.0.0.1:{}", server.port);
    let store = Redis::open(&url, Duration::from_secs(5)).unwrap();
    let Some(memory) = build(Paged::builder(8 * MIB).resident(MIB).store(store)) else { return };
    pass_through_store(&memory, "redis");
    assert_ne!(server.ask("DBSIZE"), Some(":0".to_owned()));
    drop(memory);
    assert_eq!(server.ask("DBSIZE"), Some(":0".to_owned()));
}
