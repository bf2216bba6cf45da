//! A paged run while it runs: its memory over time, and where it waits for pages.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fieldstone_heap_errors::{ProcessMaps, StackNames};
use fieldstone_launch::shared_record::SharedRecord;
use fieldstone_report::heap_error::StackFrame;
use fieldstone_report::paging::{FaultFunction, PagingSample};
use fieldstone_sys::signals::spawn_without_signals;
use fieldstone_wire::paging::{PagingProcess, PagingSession, ProcessState};

use crate::run::paged::PAGE;

/// The time between the first samples.
const INTERVAL: Duration = Duration::from_millis(20);
/// With more samples, each second one is dropped and the interval doubled.
const CAPACITY: usize = 600;

/// Where the sources of the standard libraries of Rust and C++ are.
const STANDARD: [&str; 2] = ["/rustc/", "/usr/include/"];
/// The time between two readings of the mappings of one process.
const MAPS_INTERVAL: Duration = Duration::from_millis(500);

/// A thread that samples the record.
pub(super) struct Sampler {
    stop: Sender<()>,
    thread: JoinHandle<Watched>,
}

/// What the thread has seen.
#[derive(Default)]
pub(super) struct Watched {
    /// All processes together, over time.
    pub(super) samples: Vec<PagingSample>,
    /// The mappings of each process, by its index in the record.
    maps: HashMap<usize, ProcessMaps>,
}

impl Sampler {
    /// Starts it; `None` if no thread can be started.
    pub(super) fn start(record: Arc<SharedRecord<PagingSession>>) -> Option<Self> {
        let (stop, stopped) = channel();
        let watch = move || {
            let start = Instant::now();
            let (mut looked, mut interval, mut watched) = (start, INTERVAL, Watched::default());
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
                watched.samples.push(sample(record.record(), start.elapsed()));
                if watched.samples.len() > CAPACITY {
                    watched.samples = watched.samples.into_iter().step_by(2).collect();
                    interval *= 2;
                }
                let again = looked.elapsed() > MAPS_INTERVAL;
                if again {
                    looked = Instant::now();
                }
                watched.read_maps(record.record(), again);
            }
            watched
        };
        Some(Self { stop, thread: spawn_without_signals("samples", watch).ok()? })
    }

    /// Ends it; what it has seen.
    pub(super) fn finish(self) -> Watched {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

impl Watched {
    /// Reads the mappings of processes that wait at instructions of unknown files: of those it has
    /// not seen, and with `again` of all. A short program ends soon after its first faults.
    fn read_maps(&mut self, session: &PagingSession, again: bool) {
        for (index, process) in session.processes.iter().enumerate().take(session.claimed()) {
            let known = self.maps.get(&index);
            if known.is_some() && !again {
                continue;
            }
            let is_known = |(address, _)| known.is_some_and(|maps| maps.contains(address));
            if process.state.load(Relaxed) == ProcessState::Running as u32 && !process.sites.counted().all(is_known) {
                self.maps.insert(index, ProcessMaps::read(process.pid.load(Relaxed)));
            }
        }
    }

    /// The functions of a process that waited for pages, those with the most faults first.
    pub(super) fn waits(&self, index: usize, process: &PagingProcess, names: &mut StackNames) -> Vec<FaultFunction> {
        let nothing = ProcessMaps::default();
        let maps = self.maps.get(&index).unwrap_or(&nothing);
        let mut instructions: Vec<_> = process.sites.counted().collect();
        instructions.sort_by_key(|&(_, faults)| Reverse(faults));
        let of_faults = instructions.iter().map(|(_, faults)| faults).sum::<u64>() + process.sites.others.load(Relaxed);
        let mut functions: Vec<FaultFunction> = Vec::new();
        for (address, faults) in instructions {
            let Some(frame) = of_program(names.name(maps, &[address], true)) else { continue };
            match functions.iter_mut().find(|known| known.function == frame.function) {
                Some(known) => known.faults += faults,
                None => {
                    let place = match (frame.file, frame.line) {
                        (Some(file), Some(line)) => format!("{file}:{line}"),
                        _ => frame.module,
                    };
                    functions.push(FaultFunction { function: frame.function, place, faults, of_faults });
                }
            }
        }
        functions.sort_by_key(|function| Reverse(function.faults));
        functions
    }
}

/// The innermost function that is not inlined from a standard library; otherwise the outermost one.
fn of_program(mut frames: Vec<StackFrame>) -> Option<StackFrame> {
    let is_standard = |file: &str| STANDARD.iter().any(|folder| file.starts_with(folder));
    let is_own = |frame: &StackFrame| frame.file.as_deref().is_some_and(|file| !is_standard(file));
    let at = frames.iter().position(is_own).or_else(|| frames.len().checked_sub(1))?;
    Some(frames.swap_remove(at))
}

fn sample(session: &PagingSession, elapsed: Duration) -> PagingSample {
    let mut sample =
        PagingSample { t_ms: elapsed.as_millis().try_into().unwrap_or(u64::MAX), ..PagingSample::default() };
    for process in session.claimed_processes() {
        let counters = &process.counters;
        sample.faults += counters.faults.load(Relaxed);
        if process.state.load(Relaxed) != ProcessState::Ended as u32 {
            sample.resident_bytes += (counters.resident.load(Relaxed) + process.unpaged.load(Relaxed)) * PAGE;
            sample.stored_bytes += counters.store_bytes.iter().map(|bytes| bytes.load(Relaxed)).sum::<u64>();
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_named_by_the_code_of_the_program() {
        let frame = |function: &str, file: Option<&str>| StackFrame {
            function: function.to_owned(),
            file: file.map(str::to_owned),
            line: None,
            module: "a".to_owned(),
        };
        let name = |frames: &[StackFrame]| of_program(frames.to_vec()).map(|frame| frame.function);
        let inlined =
            [frame("write", Some("/rustc/1/ptr.rs")), frame("fill", Some("src/a.rs")), frame("main", Some("src/a.rs"))];
        assert_eq!(name(&inlined).as_deref(), Some("fill"));
        let foreign = [frame("copy", Some("/usr/include/c++/12/bits/algo.h")), frame("memcpy+0x10", None)];
        assert_eq!(name(&foreign).as_deref(), Some("memcpy+0x10"));
        assert_eq!(name(&[]), None);
    }
}
