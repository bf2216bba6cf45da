//! redis-server with half its memory resident: GET and SET by redis-benchmark.
//!
//! ```text
//! load 235,000 values of 1 KiB → lower the limit → GET → SET → compare every value
//! ```
//! A value is 64 units of 16 bytes: a number of 12 digits and four letters, which compress 1.7 to 1.
//! The numbers follow from the key. redis-benchmark replaces `__rand_int__` by random numbers in
//! the same form, with other letters.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fieldstone_launch::Program;
use fieldstone_reproduce::compression_paging::{BoundMethod, BoundedProgram};
use fieldstone_workloads::random::{mix, scale};
use tempfile::TempDir;

use super::peers::{PeerCell, compare};
use crate::cell::GoalCell;
use crate::goals::Goal;

const KEYS: u64 = 235_000;
const UNITS: u64 = 64;
const VALUE_BYTES: usize = 1024;
/// Requests of one kind in a run.
const REQUESTS: u64 = 150_000;
const CLIENTS: &str = "50";
/// Requests that are sent before their replies are read.
const BATCH: u64 = 500;
/// Time without a reply after which the server hangs.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest difference of the share of changed values from the expected one.
const SHARE_TOLERANCE: f64 = 0.01;

/// Measures the cells whose names `wanted` selects.
pub(super) fn measure(
    zram: &Goal,
    swap_file: &Goal,
    limit: Duration,
    wanted: &dyn Fn(Vec<PeerCell>) -> Vec<PeerCell>,
    show: &mut dyn FnMut(GoalCell),
) -> Result<()> {
    let cells = |value, request: &str| {
        let of_swap_file = PeerCell::new(swap_file.clone(), format!("redis {request}"), BoundMethod::SwapFile);
        let of_zram = PeerCell::new(zram.clone(), request.to_owned(), BoundMethod::Zram);
        [of_zram, of_swap_file].map(|cell| cell.of_value(value))
    };
    let cells = wanted(cells(0, "GET").into_iter().chain(cells(1, "SET")).collect());
    if cells.is_empty() {
        return Ok(());
    }
    let lacking = ["redis-server", "redis-benchmark"].into_iter().find(|name| Program::find(&[name.into()]).is_err());
    if let Some(name) = lacking {
        let why = format!("there is no {name}: make packages");
        cells.iter().for_each(|cell| show(cell.skipped(&why)));
        return Ok(());
    }
    let bound_bytes = resident_bytes()? / 2;
    let run = |method| {
        let times = RedisRun::start(method, bound_bytes)?.measure(REQUESTS)?;
        Ok(times.into())
    };
    compare(BoundMethod::PagedLz4, cells, limit, run)?.into_iter().for_each(show);
    Ok(())
}

/// Resident bytes of a loaded server without a bound.
fn resident_bytes() -> Result<u64> {
    let mut run = RedisRun::start(BoundMethod::Unbounded, 0)?;
    let mut client = run.load(KEYS)?;
    let status = std::fs::read_to_string(format!("/proc/{}/status", run.server.pid()))?;
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    let kilobytes: u64 = kilobytes.context("a process has resident memory")?.parse()?;
    client.shut_down()?;
    run.server.wait()?;
    Ok(kilobytes << 10)
}

/// A server in a directory of its own.
struct RedisRun {
    server: BoundedProgram,
    directory: TempDir,
}

impl RedisRun {
    fn start(method: BoundMethod, bound_bytes: u64) -> Result<Self> {
        let directory = TempDir::new()?;
        let mut words =
            ["redis-server", "--port", "0", "--save", "", "--appendonly", "no"].map(OsString::from).to_vec();
        words.extend(["--dir".into(), directory.path().into()]);
        words.extend(["--unixsocket".into(), directory.path().join("socket").into()]);
        let mut server = BoundedProgram::start(method, bound_bytes, &words)?;
        let socket = directory.path().join("socket");
        server.wait_until(|_| Ok(UnixStream::connect(&socket).is_ok()))?;
        Ok(Self { server, directory })
    }

    fn load(&mut self, keys: u64) -> Result<RedisClient> {
        let mut client = RedisClient::connect(&self.directory.path().join("socket"))?;
        client.load(keys).map(|()| client)
    }

    /// The seconds of `requests` GETs and of as many SETs.
    fn measure(mut self, requests: u64) -> Result<[f64; 2]> {
        let result = self.load(KEYS);
        let mut client = self.or_failure(result)?;
        self.server.lower_limit()?;
        let mut seconds = [0.0; 2];
        for (value, seconds) in [None, Some(benchmark_value())].into_iter().zip(&mut seconds) {
            let result = self.benchmark(requests, value);
            *seconds = self.or_failure(result)?;
        }
        self.server.remove_limit()?;
        let result = client.verify(KEYS);
        let changed = self.or_failure(result)? as f64 / KEYS as f64;
        let expected = 1.0 - (-(requests as f64) / KEYS as f64).exp();
        ensure!((changed - expected).abs() < SHARE_TOLERANCE, "{changed} of the values changed, expected {expected}");
        let _ = client.shut_down();
        self.server.wait()?;
        Ok(seconds)
    }

    /// `result`; of an error the cause, if the server ended.
    fn or_failure<T>(&mut self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            let since = std::time::Instant::now();
            self.server.wait_until(|_| Ok(since.elapsed() > Duration::from_secs(1)))?;
        }
        result
    }

    /// The seconds of `requests` GETs, or SETs of a value.
    fn benchmark(&mut self, requests: u64, value: Option<String>) -> Result<f64> {
        let mut command = Command::new("redis-benchmark");
        command.arg("-s").arg(self.directory.path().join("socket")).args(["-c", CLIENTS, "--csv"]);
        command.args(["-n", &requests.to_string(), "-r", &KEYS.to_string()]);
        match value {
            None => command.args(["GET", "key:__rand_int__"]),
            Some(value) => command.args(["SET", "key:__rand_int__", &value]),
        };
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = KilledOnDrop(child.context("cannot start redis-benchmark")?);
        // Its output is far smaller than a pipe.
        self.server.wait_until(|_| Ok(child.0.try_wait()?.is_some()))?;
        let mut output = String::new();
        child.0.stdout.take().context("its output is piped")?.read_to_string(&mut output)?;
        let rate = requests_per_second(&output).with_context(|| format!("redis-benchmark printed {output:?}"))?;
        Ok(requests as f64 / rate)
    }
}

struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The second field of the last line: `"GET key:…","81234.50",…`.
fn requests_per_second(output: &str) -> Option<f64> {
    output.lines().last()?.split("\",\"").nth(1)?.parse().ok()
}

/// The argument that redis-benchmark makes a value of.
fn benchmark_value() -> String {
    "__rand_int__xxxx".repeat(usize::try_from(UNITS).unwrap_or(0))
}

/// The first value of a key.
fn value(key: u64) -> String {
    // Formatted once: loading and checking take most of a run otherwise.
    static PARTS: LazyLock<Vec<String>> =
        LazyLock::new(|| (0..4096).map(|part| format!("{:012}yyyy", mix(part) % KEYS)).collect());
    (0..UNITS).map(|unit| PARTS[scale(mix(key * UNITS + unit), PARTS.len())].as_str()).collect()
}

/// Whether redis-benchmark wrote a value.
fn is_of_benchmark(value: &[u8]) -> bool {
    let is_unit = |unit: &[u8]| {
        let number = std::str::from_utf8(&unit[..12]).ok().and_then(|number| number.parse::<u64>().ok());
        number.is_some_and(|number| number < KEYS) && &unit[12..] == b"xxxx"
    };
    value.len() == VALUE_BYTES && value.chunks(16).all(is_unit)
}

fn key_name(key: u64) -> String {
    format!("key:{key:012}")
}

/// A connection.
struct RedisClient(BufReader<UnixStream>);

impl RedisClient {
    fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends batches of commands; calls `reply` for each.
    fn batches(
        &mut self,
        keys: u64,
        command: impl Fn(u64) -> String,
        mut reply: impl FnMut(&mut Self, u64) -> Result<()>,
    ) -> Result<()> {
        for first in (0..keys).step_by(usize::try_from(BATCH)?) {
            let batch = first..keys.min(first + BATCH);
            let text: String = batch.clone().map(&command).collect();
            self.0.get_mut().write_all(text.as_bytes())?;
            for key in batch {
                reply(self, key)?;
            }
        }
        Ok(())
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn load(&mut self, keys: u64) -> Result<()> {
        let command = |key| format!("SET {} {}\r\n", key_name(key), value(key));
        self.batches(keys, command, |client, _| {
            let line = client.line()?;
            ensure!(line == "+OK", "the server replied {line:?} to SET");
            Ok(())
        })
    }

    /// Compares all values. Returns how many were changed by redis-benchmark.
    fn verify(&mut self, keys: u64) -> Result<u64> {
        let mut changed = 0;
        self.batches(
            keys,
            |key| format!("GET {}\r\n", key_name(key)),
            |client, key| {
                let line = client.line()?;
                ensure!(line == format!("${VALUE_BYTES}"), "the server replied {line:?} to GET");
                let mut found = vec![0; VALUE_BYTES + 2];
                client.0.read_exact(&mut found)?;
                found.truncate(VALUE_BYTES);
                if found == value(key).as_bytes() {
                    return Ok(());
                }
                if !is_of_benchmark(&found) {
                    bail!("wrong value of {}: {}", key_name(key), String::from_utf8_lossy(&found));
                }
                changed += 1;
                Ok(())
            },
        )?;
        Ok(changed)
    }

    fn shut_down(&mut self) -> Result<()> {
        Ok(self.0.get_mut().write_all(b"SHUTDOWN NOSAVE\r\n")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_a_form_that_shows_their_writer() {
        let first = value(7);
        assert_eq!(first.len(), VALUE_BYTES);
        assert!(!is_of_benchmark(first.as_bytes()) && value(8) != first);
        let written = first.replace('y', "x");
        assert!(is_of_benchmark(written.as_bytes()));
        assert!(!is_of_benchmark(&written.as_bytes()[16..]) && !is_of_benchmark(&[0; VALUE_BYTES]));
        assert_eq!(benchmark_value().len(), VALUE_BYTES);
    }

    #[test]
    fn the_rate_is_in_the_last_line() {
        let output = "\"test\",\"rps\",\"avg\"\n\"GET key:__rand_int__\",\"81234.50\",\"0.4\"\n";
        assert_eq!(requests_per_second(output), Some(81234.5));
        assert_eq!(requests_per_second("Could not connect"), None);
    }

    #[test]
    fn a_wrong_value_is_found() {
        if Program::find(&["redis-server".into()]).is_err() {
            println!("SKIP redis-server is not installed");
            return;
        }
        let mut run = RedisRun::start(BoundMethod::Unbounded, 0).unwrap();
        let mut client = run.load(1200).unwrap();
        assert_eq!(client.verify(1200).unwrap(), 0);
        let set = |client: &mut RedisClient, value: &str| {
            client.0.get_mut().write_all(format!("SET {} {value}\r\n", key_name(1100)).as_bytes()).unwrap();
            assert_eq!(client.line().unwrap(), "+OK");
        };
        set(&mut client, &value(1100).replace('y', "x"));
        assert_eq!(client.verify(1200).unwrap(), 1, "redis-benchmark could have written it");
        set(&mut client, &value(1099));
        assert!(client.verify(1200).unwrap_err().to_string().contains("key:000000001100"));
        client.shut_down().unwrap();
        run.server.wait().unwrap();
    }
}
