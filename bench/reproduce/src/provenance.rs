//! The origin of numbers: machine, kernel, commit, noise, command line, date. Saved with each
//! session.

use std::time::{SystemTime, UNIX_EPOCH};

use fieldstone_sys::{huge_pages, machine};
use fieldstone_workloads::random::SplitMix64;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The origin of a session's samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Its start, in seconds since 1970.
    pub began_at_unix_s: u64,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The output of `git describe` at build time, or the version.
    pub commit: String,
    /// The kernel release.
    pub kernel: String,
    /// The architecture, such as `x86_64`.
    pub architecture: String,
    /// The name of the processor.
    pub cpu: String,
    /// Number of processors.
    pub cpus: usize,
    /// Memory of the machine.
    pub memory_bytes: u64,
    /// Available memory at the start.
    pub memory_available_bytes: u64,
    /// Whether the machine is virtual.
    pub virtual_machine: bool,
    /// The mode of transparent huge pages.
    pub thp: String,
    /// Whether the kernel randomises address spaces.
    pub randomised: bool,
    /// Typical difference between two runs of a fixed loop, as a share of its time.
    pub noise: f64,
    /// Whether it used the sizes and rounds of `--quick`.
    pub quick: bool,
}

impl Provenance {
    /// The origin of this process, at this time. Takes 0.25 s to measure the noise.
    #[must_use]
    pub fn here(quick: bool) -> Self {
        let machine = machine::machine();
        Self {
            began_at_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
            command: std::env::args().collect(),
            commit: env!("FIELDSTONE_COMMIT").to_owned(),
            kernel: machine.kernel,
            architecture: machine.architecture,
            cpu: machine.cpu,
            cpus: machine.cpus,
            memory_bytes: machine.memory_bytes,
            memory_available_bytes: machine.memory_available_bytes,
            virtual_machine: machine.virtual_machine,
            thp: thp_mode(),
            randomised: std::fs::read_to_string("/proc/sys/kernel/randomize_va_space")
                .is_ok_and(|mode| mode.trim() != "0"),
            noise: noise(),
            quick,
        }
    }
}

fn thp_mode() -> String {
    let modes = std::fs::read_to_string(huge_pages::global_mode_path()).unwrap_or_default();
    let chosen = modes.split(['[', ']']).nth(1);
    chosen.unwrap_or("none").to_owned()
}

/// The noise of a fixed loop of about ten milliseconds, in twenty runs.
fn noise() -> f64 {
    let run = |_| {
        let start = thread_cpu_s();
        let mut random = SplitMix64::new(1);
        let sum = (0..4_000_000).fold(0_u64, |sum, _| sum ^ random.draw());
        std::hint::black_box(sum);
        thread_cpu_s() - start
    };
    let times: Vec<f64> = (0..20).map(run).collect();
    fieldstone_stats::noise(&times).unwrap_or(0.0)
}

/// CPU time of this thread, in seconds.
#[must_use]
pub fn thread_cpu_s() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

/// The time of a clock, in seconds.
pub(crate) fn seconds(clock: ClockId) -> f64 {
    let now = clock_gettime(clock);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}
