//! The servers that save while a load runs: `examples/kv` of `fieldstone-checkpoint`, and Redis.

use std::fs::DirBuilder;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use redis::Connection;

use super::redis_benchmark::{Latencies, RunningLoad, VALUE_BYTES};
use crate::folder::Folder;
use crate::sibling_programs::{Missing, end_with_parent, find, free_port, sibling};

/// Time limit of a start, and of a save.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// The time between two requests for the state of a load or a save.
const POLL: Duration = Duration::from_millis(10);
/// The time from the start of a load or the end of a save to the next save.
const BETWEEN_SAVES: Duration = Duration::from_millis(500);
/// Keys of one request that fills the server.
const PIPELINE: u32 = 500;

/// A program that serves Redis clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    KvCheckpoint,
    KvFork,
    Redis,
}

impl Program {
    pub(super) const ALL: [Self; 3] = [Self::KvCheckpoint, Self::KvFork, Self::Redis];

    /// Its name in ids, and that of its column.
    pub(super) const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::KvCheckpoint => ("kv-checkpoint", "kv, checkpoint"),
            Self::KvFork => ("kv-fork", "kv, fork"),
            Self::Redis => ("redis-server", "redis-server, fork"),
        }
    }

    fn command(self, folder: &Folder, port: u16, heap_bytes: u64) -> Result<Command> {
        let saves = folder.path().join("saves");
        DirBuilder::new().create(&saves).context("cannot create the directory of the saves")?;
        let port = port.to_string();
        let mut command = match self {
            Self::KvCheckpoint | Self::KvFork => {
                let mut command = Command::new(kv()?);
                let method = if self == Self::KvFork { "fork" } else { "checkpoint" };
                command.args(["--save", method, "--memory", &heap_bytes.to_string()]);
                command
            }
            Self::Redis => {
                let mut command = Command::new(find("redis-server", "redis-server")?);
                command.args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--rdbcompression", "no"]);
                command
            }
        };
        command.args(["--port", &port]).arg("--dir").arg(saves);
        Ok(command)
    }
}

/// The example of `fieldstone-checkpoint`.
fn kv() -> Result<std::path::PathBuf> {
    // Beside this program, and beside the folder of a test.
    let mut files = ["examples/kv", "../examples/kv"].into_iter().filter_map(sibling);
    let missing = || {
        let build = "`cargo build --release -p fieldstone-checkpoint --example kv` builds it";
        Missing(format!("no examples/kv beside this program: {build}"))
    };
    Ok(files.find(|file| file.is_file()).ok_or_else(missing)?)
}

/// A save that a client began.
#[derive(Clone, Copy, Debug)]
pub(super) struct BackgroundSave {
    /// From BGSAVE until the server reports the end.
    pub(super) total_s: f64,
    /// The longest time that the server was stopped, as it reports it: the time of fork(2), or the stop of a
    /// checkpoint.
    pub(super) stop_s: f64,
}

/// A server that runs.
pub(super) struct Server {
    process: Child,
    connection: Connection,
    port: u16,
}

impl Server {
    /// # Errors
    /// [`Missing`] without the program.
    pub(super) fn start(program: Program, folder: &Folder, heap_bytes: u64) -> Result<Self> {
        let port = free_port()?;
        let mut command = program.command(folder, port, heap_bytes)?;
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let name = program.names().0;
        let process = end_with_parent(&mut command).spawn().with_context(|| format!("cannot start {name}"))?;
        let mut process = Ending(Some(process));
        let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
        let since = Instant::now();
        let connection = loop {
            match client.get_connection_with_timeout(Duration::from_secs(5)) {
                Ok(connection) => break connection,
                Err(error) => ensure!(since.elapsed() < TIME_LIMIT, "cannot connect to {name}: {error}"),
            }
            if let Some(status) = process.0.as_mut().map(Child::try_wait).transpose()?.flatten() {
                anyhow::bail!("cannot run {name}: {status}");
            }
            sleep(POLL);
        };
        let process = process.0.take().context("the server was started")?;
        Ok(Self { process, connection, port })
    }

    /// Sets all keys of a load.
    pub(super) fn fill(&mut self, keys: u32) -> Result<()> {
        let value = "x".repeat(VALUE_BYTES);
        for first in (0..keys).step_by(PIPELINE as usize) {
            let mut pipeline = redis::pipe();
            for key in first..keys.min(first + PIPELINE) {
                pipeline.cmd("SET").arg(format!("key:{key:012}")).arg(&value).ignore();
            }
            pipeline.query::<()>(&mut self.connection).context("cannot fill the server")?;
        }
        Ok(())
    }

    /// Number of keys.
    pub(super) fn keys(&mut self) -> Result<u32> {
        Ok(redis::cmd("DBSIZE").query(&mut self.connection)?)
    }

    /// The latencies of a load without saves.
    pub(super) fn load(&mut self, folder: &Folder, requests: u32, keys: u32) -> Result<Latencies> {
        let mut load = RunningLoad::start(folder, self.port, requests, keys)?;
        loop {
            if let Some(latencies) = load.latencies()? {
                return Ok(latencies);
            }
            sleep(POLL);
        }
    }

    /// The latencies of a load during which the server saves, and the saves.
    pub(super) fn load_with_saves(
        &mut self,
        folder: &Folder,
        requests: u32,
        keys: u32,
    ) -> Result<(Latencies, Vec<BackgroundSave>)> {
        let mut load = RunningLoad::start(folder, self.port, requests, keys)?;
        let mut saves = Vec::new();
        let mut next = Instant::now() + BETWEEN_SAVES;
        loop {
            if let Some(latencies) = load.latencies()? {
                return Ok((latencies, saves));
            }
            sleep(POLL.min(next.saturating_duration_since(Instant::now())));
            if Instant::now() >= next {
                saves.push(self.save()?);
                next = Instant::now() + BETWEEN_SAVES;
            }
        }
    }

    /// Saves in the background, and waits for the end.
    pub(super) fn save(&mut self) -> Result<BackgroundSave> {
        let since = Instant::now();
        redis::cmd("BGSAVE").query::<String>(&mut self.connection).context("cannot begin a save")?;
        loop {
            sleep(POLL);
            let info = Info(redis::cmd("INFO").query(&mut self.connection).context("cannot read INFO")?);
            if info.get("rdb_bgsave_in_progress") == Some("0") {
                ensure!(info.get("rdb_last_bgsave_status") == Some("ok"), "the server could not save: {}", info.0);
                let stop_s = info.stop_s().context("INFO has no time of a stop")?;
                return Ok(BackgroundSave { total_s: since.elapsed().as_secs_f64(), stop_s });
            }
            ensure!(since.elapsed() < TIME_LIMIT, "a save takes longer than {TIME_LIMIT:?}");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// Ends a server whose start failed.
struct Ending(Option<Child>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end);
    }
}

fn end(process: &mut Child) {
    // Both fail if it has ended already.
    let _ = process.kill();
    let _ = process.wait();
}

/// The reply of INFO: lines of `name:value`.
struct Info(String);

impl Info {
    fn get(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines().filter_map(|line| line.split_once(':'));
        lines.find_map(|(field, value)| (field == name).then(|| value.trim()))
    }

    fn stop_s(&self) -> Option<f64> {
        let names = ["latest_fork_usec", "last_save_stop_us", "last_save_longest_wait_us"];
        let times = names.iter().filter_map(|name| self.get(name)?.parse::<f64>().ok());
        times.reduce(f64::max).map(|micros| micros / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stop_of_a_server_is_the_longest_time_in_its_info() {
        let kv = Info("# Persistence\r\nlast_save_stop_us:1200\r\nlast_save_longest_wait_us:4100\r\n".to_owned());
        assert_eq!((kv.stop_s(), kv.get("last_save_stop_us")), (Some(0.0041), Some("1200")));
        assert_eq!(Info("# Stats\r\nlatest_fork_usec:800\r\n".to_owned()).stop_s(), Some(0.0008));
        assert_eq!(Info("# Stats\r\n".to_owned()).stop_s(), None);
    }
}
