//! Servers under a bounded load over the loopback: commands and ports.

use std::path::Path;

use anyhow::Result;

use crate::sibling_programs::{find, free_port};

/// A program to profile, and its load if it is a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProfiledCommand {
    pub(super) command: Vec<String>,
    pub(super) load: Option<Load>,
}

/// The values of `--load` and `--ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) command: String,
    pub(super) port: u16,
}

/// The configuration of memcaslap: keys of 16 bytes, values of 1 KiB, as many sets as gets.
const REQUESTS: &str = "key\n16 16 1\nvalue\n1024 1024 1\ncmd\n0 0.5\n1 0.5\n";

/// memcached with two threads. memcaslap requests 50 keys at once, because otherwise most of the
/// time would be in the kernel.
pub(super) fn memcached(folder: &Path, operations: u32) -> Result<ProfiledCommand> {
    find("memcached", "memcached")?;
    find("memcaslap", "libmemcached-tools")?;
    let port = free_port()?;
    let mut command = format!("memcached -l 127.0.0.1 -p {port} -U 0 -m 1024 -t 2");
    if is_root() {
        // It refuses to run as root.
        command += " -u nobody";
    }
    let requests = folder.join("requests");
    std::fs::write(&requests, REQUESTS)?;
    let requests = requests.display();
    let load = format!("memcaslap -s 127.0.0.1:{port} -T 2 -c 16 -w 100k -d 50 -F {requests} -x {operations}");
    Ok(ProfiledCommand {
        command: command.split(' ').map(str::to_owned).collect(),
        load: Some(Load { command: load, port }),
    })
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
