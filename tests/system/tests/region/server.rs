//! A real server whose background save forks during writes: the hardest case for hugetlb pages.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::common::{ReservedPool, kill, wait_until};
use crate::fixture::region;

/// A redis-server, killed if the test fails.
pub(crate) struct Server {
    pub(crate) running: Child,
    port: u16,
    directory: tempfile::TempDir,
}

/// A connection with a protocol of lines.
pub(crate) struct LineConnection(BufReader<TcpStream>);

impl LineConnection {
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).unwrap();
        self.next()
    }

    pub(crate) fn next(&mut self) -> String {
        let mut answer = String::new();
        self.0.read_line(&mut answer).unwrap();
        answer
    }
}

impl Server {
    /// Starts it in a region.
    fn start(options: &str) -> Option<Self> {
        Self::by(|program| region(options, program))
    }

    /// Starts it by a command of the caller.
    pub(crate) fn by(command: impl FnOnce(&[&str]) -> Command) -> Option<Self> {
        if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIP redis is not installed");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let directory = tempfile::tempdir().unwrap();
        let (number, path) = (port.to_string(), directory.path().to_str().unwrap());
        let program = ["redis-server", "--port", &number, "--dir", path, "--save", "", "--bind", "127.0.0.1"];
        let running = command(&program).stdout(Stdio::null()).spawn().unwrap();
        let this = Self { running, port, directory };
        wait_until("the port", || TcpStream::connect(("127.0.0.1", this.port)).ok());
        Some(this)
    }

    pub(crate) fn line(&self) -> LineConnection {
        LineConnection(BufReader::new(TcpStream::connect(("127.0.0.1", self.port)).unwrap()))
    }

    pub(crate) fn has_saved(&self) -> bool {
        self.directory.path().join("dump.rdb").exists()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.running.try_wait().is_ok_and(|ended| ended.is_none()) {
            kill("TERM", &self.running.id().to_string());
            let _ = self.running.wait();
        }
    }
}

/// Writes all the time while the server saves in the background, twice. Then checks the last value
/// of some keys.
fn saves_under_writes(options: &str) {
    let Some(mut server) = Server::start(options) else { return };
    let saved = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut line = server.line();
            let mut round = 0_u64;
            while !saved.load(SeqCst) || round < 3 {
                for key in 0..400 {
                    // Values large enough for separate mappings.
                    let answer = line.ask(&format!("SETRANGE key{key} {} {round}", 40_000 + key * 100));
                    assert!(answer.starts_with(':'), "{answer}");
                }
                round += 1;
            }
            round - 1
        });
        let mut line = server.line();
        for _ in 0..2 {
            assert!(line.ask("BGSAVE").starts_with('+'));
            wait_until("the save", || {
                line.ask("INFO persistence");
                let mut done = false;
                let mut entry = String::new();
                while entry != "\r\n" {
                    entry.clear();
                    line.0.read_line(&mut entry).unwrap();
                    done |= entry.starts_with("rdb_bgsave_in_progress:0");
                    assert!(!entry.starts_with("rdb_last_bgsave_status:err"), "the child died");
                }
                done.then_some(())
            });
        }
        saved.store(true, SeqCst);
        let last = writer.join().unwrap().to_string();
        for key in [0, 17, 399] {
            let start = 40_000 + key * 100;
            line.ask(&format!("GETRANGE key{key} {start} {}", start + last.len() - 1));
            let mut value = String::new();
            line.0.read_line(&mut value).unwrap();
            assert_eq!(value.trim_end(), last, "key {key}");
        }
    });
    assert!(server.has_saved());
    kill("TERM", &server.running.id().to_string());
    assert_eq!(server.running.wait().unwrap().code(), Some(0));
}

#[test]
fn redis_saves_on_hugetlb_pages() {
    let Some(_pool) = ReservedPool::with_free(200) else { return };
    saves_under_writes("--pages hugetlb");
    saves_under_writes("--pages hugetlb --reserve 100M");
}

#[test]
fn redis_saves_with_an_empty_pool() {
    let Some(_pool) = ReservedPool::with_free(0) else { return };
    saves_under_writes("--pages hugetlb");
}

#[test]
fn redis_saves_on_transparent_pages() {
    saves_under_writes("--pages thp");
}
