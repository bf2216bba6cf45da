//! The load `redis-benchmark`: SET of random keys, with the latencies that it prints.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::folder::Folder;
use crate::sibling_programs::{end_with_parent, find};

/// Bytes of a value.
pub(super) const VALUE_BYTES: usize = 1024;
/// Connections. The next request of each is sent after the reply.
pub(super) const CONNECTIONS: u32 = 50;

/// What the load measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Latencies {
    pub(super) requests_per_s: f64,
    /// Milliseconds: 50 %, 99 %, 99.9 % and 100 % of the requests took at most as long.
    pub(super) ms: [f64; 4],
}

/// The names of [`Latencies::ms`].
pub(super) const PERCENTILES: [&str; 4] = ["p50", "p99", "p99.9", "maximum"];

/// A load that runs.
pub(super) struct RunningLoad {
    process: Child,
    output: std::path::PathBuf,
}

impl RunningLoad {
    /// Starts `requests` SETs of random keys, of `keys` different ones.
    ///
    /// # Errors
    /// [`crate::Missing`] without the program.
    pub(super) fn start(folder: &Folder, port: u16, requests: u32, keys: u32) -> Result<Self> {
        let program = find("redis-benchmark", "redis-tools")?;
        let output = folder.path().join("redis-benchmark");
        let file = File::create(&output).context("cannot create the file of the latencies")?;
        let mut command = Command::new(program);
        command.args(["-h", "127.0.0.1", "-t", "set", "--precision", "3"]);
        let numbers = [("-p", u32::from(port)), ("-n", requests), ("-r", keys), ("-c", CONNECTIONS)];
        numbers.iter().for_each(|(option, number)| _ = command.args([*option, &number.to_string()]));
        command.args(["-d", &VALUE_BYTES.to_string()]);
        command.stdin(Stdio::null()).stderr(file.try_clone()?).stdout(file);
        let process = end_with_parent(&mut command).spawn().context("cannot start redis-benchmark")?;
        Ok(Self { process, output })
    }

    /// Its latencies, if it has ended.
    ///
    /// # Errors
    /// If it failed.
    pub(super) fn latencies(&mut self) -> Result<Option<Latencies>> {
        let Some(status) = self.process.try_wait()? else { return Ok(None) };
        let printed = read(&self.output)?;
        ensure!(status.success(), "cannot run redis-benchmark: {}; {status}", printed.trim());
        Latencies::parse(&printed).map(Some)
    }
}

impl Drop for RunningLoad {
    fn drop(&mut self) {
        // Both fail if it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn read(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl Latencies {
    /// Reads the output of `redis-benchmark`.
    ///
    /// # Errors
    /// If it has no throughput or no latencies.
    pub(super) fn parse(printed: &str) -> Result<Self> {
        let words = |line: &'static str| {
            let found = printed.lines().find_map(|of| of.trim().strip_prefix(line));
            found.map(|rest| rest.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<f64>>())
        };
        let throughput = words("throughput summary:").and_then(|numbers| numbers.first().copied());
        let requests_per_s = throughput.context("redis-benchmark printed no throughput")?;
        let after_heading = printed.split_once("Latency by percentile distribution:").map(|(_, after)| after);
        let lines = after_heading.context("redis-benchmark printed no latencies")?.lines().skip(1);
        // Ascending percentages, not each of which is a round number.
        let steps: Vec<(f64, f64)> = lines.map_while(percentile).collect();
        let [mut ms, percentages] = [[0.0; 4], [50.0, 99.0, 99.9, 100.0]];
        for (ms, wanted) in ms.iter_mut().zip(percentages) {
            let Some((_, latency)) = steps.iter().find(|(percent, _)| *percent >= wanted) else {
                bail!("redis-benchmark printed no latency of {wanted} % of the requests");
            };
            *ms = *latency;
        }
        Ok(Self { requests_per_s, ms })
    }
}

/// A line such as `99.902% <= 8.415 milliseconds (cumulative count 49952)`: percent and milliseconds.
fn percentile(line: &str) -> Option<(f64, f64)> {
    let (percent, rest) = line.split_once("% <= ")?;
    Some((percent.parse().ok()?, rest.split_once(" milliseconds")?.0.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of redis-benchmark 7.0.15.
    const PRINTED: &str = " \rSET: rps=0.0 (overall: -nan) avg_msec=-nan (overall: -nan)\r====== SET ======
  50000 requests completed in 1.11 seconds
  50 parallel clients

Latency by percentile distribution:
0.000% <= 0.183 milliseconds (cumulative count 2)
50.000% <= 0.575 milliseconds (cumulative count 25204)
98.438% <= 3.847 milliseconds (cumulative count 49221)
99.219% <= 4.231 milliseconds (cumulative count 49611)
99.805% <= 5.631 milliseconds (cumulative count 49903)
99.902% <= 8.415 milliseconds (cumulative count 49952)
100.000% <= 9.007 milliseconds (cumulative count 50000)

Cumulative distribution of latencies:
0.000% <= 0.103 milliseconds (cumulative count 0)
99.900% <= 6.103 milliseconds (cumulative count 49950)

Summary:
  throughput summary: 45004.50 requests per second
  latency summary (msec):
          avg       min       p50       p95       p99       max
        0.730     0.176     0.575     2.223     4.087     9.007
";

    #[test]
    fn percentiles_and_throughput_are_read() {
        let latencies = Latencies::parse(PRINTED).unwrap();
        assert_eq!(latencies, Latencies { requests_per_s: 45004.5, ms: [0.575, 4.231, 8.415, 9.007] });
        for (without, complaint) in
            [("throughput", "no throughput"), ("Latency by", "no latencies"), ("100.000%", "100 %")]
        {
            let error = Latencies::parse(&PRINTED.replace(without, "")).unwrap_err();
            assert!(error.to_string().contains(complaint), "{error}");
        }
    }
}
