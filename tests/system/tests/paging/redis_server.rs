//! A redis-server: the place of pages, or the program with a bound.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

use crate::fixture::{paged, record};
use crate::wait::wait_until;

/// Commands that are sent before their answers are read.
const PIPELINE: usize = 500;

/// A server; killed at the end.
pub(crate) struct RedisServer {
    running: Option<Child>,
    port: u16,
    directory: TempDir,
    options: &'static str,
    /// The options of `fieldstone run`; `None` for a server that runs alone.
    run: Option<String>,
}

impl RedisServer {
    /// One that runs alone, and keeps its keys when it is killed. `None`, printed as a skip, without Redis.
    pub(crate) fn start(options: &'static str) -> Option<Self> {
        Self::start_with(options, None)
    }

    /// One under `fieldstone run` with these options.
    pub(crate) fn start_paged(run: &str) -> Option<Self> {
        Self::start_with("", Some(run.to_owned()))
    }

    fn start_with(options: &'static str, run: Option<String>) -> Option<Self> {
        if Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_err() {
            println!("SKIP redis is not installed");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let directory = tempfile::tempdir().unwrap();
        let mut server = Self { running: None, port, directory, options, run };
        server.start_again();
        Some(server)
    }

    /// Starts it at the same port.
    pub(crate) fn start_again(&mut self) {
        let (port, path) = (self.port.to_string(), self.directory.path().to_str().unwrap());
        let persistent = if self.run.is_some() { "no" } else { "yes" };
        let fixed = ["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", persistent, "--dir", path];
        let program: Vec<_> = std::iter::once("redis-server").chain(fixed).collect();
        let mut command = match &self.run {
            Some(run) => paged(run, &program),
            None => {
                let mut command = Command::new(program[0]);
                command.args(&program[1..]);
                command
            }
        };
        // A group of its own, so that the server ends with the command.
        command.args(self.options.split_whitespace()).process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
        self.running = Some(command.spawn().unwrap());
        wait_until("the server answers", || self.ask("PING").filter(|answer| answer == "+PONG"));
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// The answer to a command; `None` if the server cannot be reached.
    pub(crate) fn ask(&self, command: &str) -> Option<String> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        write!(connection, "{command}\r\n").ok()?;
        let mut answer = String::new();
        BufReader::new(connection).read_line(&mut answer).ok()?;
        Some(answer.trim_end().to_owned())
    }

    pub(crate) fn keys(&self) -> u64 {
        self.ask("DBSIZE").and_then(|answer| answer.strip_prefix(':')?.parse().ok()).unwrap_or(0)
    }

    /// Sets keys to values of 1 KiB.
    pub(crate) fn fill(&self, keys: std::ops::Range<u32>) {
        self.exchange(keys, |key| (format!("SET value:{key} "), record(key)), |_, answer| assert_eq!(answer, b"+OK"));
    }

    /// Reads all these keys, and checks their values.
    pub(crate) fn verify(&self, keys: std::ops::Range<u32>) {
        let is_right = |key: u32, value: &[u8]| assert!(value == record(key), "value {key}");
        self.exchange(keys, |key| (format!("GET value:{key}"), Vec::new()), is_right);
    }

    /// Sends a command and its last argument for each key, and passes the answer.
    fn exchange(
        &self,
        keys: std::ops::Range<u32>,
        command: impl Fn(u32) -> (String, Vec<u8>),
        check: impl Fn(u32, &[u8]),
    ) {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut answers = BufReader::new(connection.try_clone().unwrap());
        let all: Vec<u32> = keys.collect();
        for keys in all.chunks(PIPELINE) {
            let mut request = Vec::new();
            for &key in keys {
                let (words, last) = command(key);
                request.extend([words.as_bytes(), &last, b"\r\n"].concat());
            }
            connection.write_all(&request).unwrap();
            for &key in keys {
                check(key, &read_answer(&mut answers));
            }
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            // The server itself, too, if the command has started it.
            let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", running.id())]).status();
            running.wait().unwrap();
        }
    }

    /// Ends the server; the output of its command.
    pub(crate) fn shut_down(mut self) -> Output {
        self.ask("SHUTDOWN NOSAVE");
        self.running.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A status line, or the value of a string.
fn read_answer(answers: &mut impl BufRead) -> Vec<u8> {
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    let line = line.trim_end();
    match line.strip_prefix('$').map(str::parse::<usize>) {
        Some(Ok(length)) => {
            let mut value = vec![0; length + 2];
            answers.read_exact(&mut value).unwrap();
            value.truncate(length);
            value
        }
        _ => line.as_bytes().to_vec(),
    }
}
