//! The server as a process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::client::Client;

pub(crate) const METHODS: [&str; 2] = ["checkpoint", "fork"];

/// A server, which is killed when it is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
}

impl Server {
    /// Starts a server that has loaded the last save of a folder.
    pub(crate) fn start(folder: &Path, method: &str, memory: &str) -> Self {
        let test = std::env::current_exe().unwrap();
        let program = test.ancestors().nth(2).unwrap().join("examples/kv");
        assert!(program.exists(), "build the examples: cargo build -p fieldstone-checkpoint --examples");
        let mut process = Command::new(program)
            .args(["--port", "0", "--save", method, "--memory", memory, "--dir"])
            .arg(folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        // listening at 127.0.0.1:PORT, with …
        let port = line.split([':', ',']).nth(1).and_then(|port| port.parse().ok());
        Self { process, port: port.unwrap_or_else(|| panic!("the server did not start: {line:?}")) }
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.port)
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Waits for its end; whether it succeeded.
    pub(crate) fn wait(&mut self) -> bool {
        self.process.wait().unwrap().success()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Pseudorandom numbers (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ mixed >> 31) >> 1).unwrap() % limit
    }
}
