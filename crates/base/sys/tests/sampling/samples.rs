//! A sampler of the program, and the results of all its drains.

use std::ops::Range;
use std::time::{Duration, Instant};

use fieldstone_sys::Error;
use fieldstone_sys::sampling::{Drained, Sample, Sampler, SamplingMethod};

use crate::program::Spinner;

/// Opens a sampler, or prints the reason.
pub(crate) fn open(method: SamplingMethod, pid: u32, hertz: u32) -> Option<Sampler> {
    match Sampler::open_by(method, pid, hertz) {
        Ok(sampler) => Some(sampler),
        Err(Error::NotSampled { method, why, .. }) => {
            println!("SKIP no sampling by {method}: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The results of all drains.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    pub(crate) samples: Vec<Sample>,
    pub(crate) exited: Vec<u32>,
    pub(crate) ended: bool,
}

impl Samples {
    /// Drains until `enough`, for at most 20 s.
    pub(crate) fn until(sampler: &mut Sampler, enough: impl Fn(&Self) -> bool) -> Self {
        let mut sampled = Self::default();
        let limit = Instant::now() + Duration::from_secs(20);
        while !enough(&sampled) && Instant::now() < limit {
            sampled.ended = sampler.wait(Duration::from_millis(20)).unwrap();
            let first = sampled.samples.len();
            let Drained { exited, ended, .. } = sampler.drain(&mut sampled.samples).unwrap();
            assert!(sampled.samples[first..].is_sorted_by_key(|sample| sample.time_ns));
            sampled.exited.extend(exited);
            sampled.ended |= ended;
            if sampled.ended {
                break;
            }
        }
        sampled
    }

    pub(crate) fn of(&self, tid: u32) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.tid == tid)
    }

    pub(crate) fn in_loop(&self, spinner: Spinner, code: &Range<u64>) -> usize {
        self.of(spinner.tid).filter(|sample| code.contains(&sample.registers.rip)).count()
    }
}

pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
}
