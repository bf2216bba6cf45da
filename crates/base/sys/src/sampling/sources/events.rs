//! Perf events of a process: the clock's samples and those of the sampling hardware
//! ([`crate::sampling::hardware`]).
//!
//! Hardware samples are optional: hardware that cannot be opened, or fails later, is left out.

use perf_event::data::{self, MemOp, MemSnoop};

use super::perf;
use super::rings::{Rings, Sampled};
use crate::Result;
use crate::process::threads;
use crate::sampling::hardware::{HardwareSample, HardwareSource, MemoryAccess};
use crate::sampling::{Drained, Sample, SampleSource};

/// Size of a hardware ring. It may overflow; the clock's rings need most of the memory that a user
/// may lock.
const HARDWARE_RING_BYTES: usize = 32 << 10;
/// Largest product of threads and CPUs with hardware samples: each kind takes that many
/// descriptors. Later threads take none.
const MAX_HARDWARE_EVENTS: usize = 192;
/// First address of the kernel's half.
const KERNEL: u64 = 1 << 63;

impl Sampled for HardwareSample {
    /// Needs an address or branches, in the program's half.
    fn of(record: &data::Sample<'_>) -> Option<Self> {
        let ip = record.ip().filter(|ip| *ip < KERNEL)?;
        let access = record.addr().filter(|address| (1..KERNEL).contains(address)).map(|address| MemoryAccess {
            address,
            is_contended: record
                .data_src()
                .is_some_and(|from| from.mem_op().contains(MemOp::LOAD) && from.mem_snoop().contains(MemSnoop::HITM)),
        });
        let jumps: Vec<_> = record.lbr().into_iter().flatten().map(|jump| (jump.from(), jump.to())).collect();
        (access.is_some() || !jumps.is_empty()).then_some(Self {
            tid: record.tid()?,
            time_ns: record.time()?,
            ip,
            access,
            jumps,
        })
    }

    fn tid(&self) -> u32 {
        self.tid
    }
}

/// Perf-event samples of all threads of a process.
pub(super) struct Events {
    pid: u32,
    hertz: u32,
    clock: Rings<Sample>,
    /// Hardware that could be opened.
    kinds: Vec<HardwareSource>,
    /// Open hardware; empty during a pause.
    hardware: Vec<(HardwareSource, Rings<HardwareSample>)>,
}

impl Events {
    /// # Errors
    /// As [`perf::open`], for the clock.
    pub(super) fn open(pid: u32, hertz: u32) -> Result<Self> {
        let clock = perf::open(pid, &perf::clock(hertz), perf::RING_BYTES)?;
        let mut this = Self { pid, hertz, clock, kinds: HardwareSource::ALL.to_vec(), hardware: Vec::new() };
        if this.open_hardware() {
            this.kinds = this.hardware_sources();
        }
        Ok(this)
    }

    /// Opens the hardware; returns whether there were few enough threads for it.
    fn open_hardware(&mut self) -> bool {
        let is_few = |threads: Vec<u32>| threads.len() * perf::online_cpus().len() <= MAX_HARDWARE_EVENTS;
        let are_few = !self.kinds.is_empty() && threads(self.pid).is_ok_and(is_few);
        let open = |kind: &HardwareSource| {
            Some((*kind, perf::open(self.pid, &kind.kinds(self.hertz), HARDWARE_RING_BYTES).ok()?))
        };
        self.hardware = if are_few { self.kinds.iter().filter_map(open).collect() } else { Vec::new() };
        are_few
    }
}

impl SampleSource for Events {
    fn drain(&mut self, samples: &mut Vec<Sample>) -> Result<Drained> {
        self.clock.drain(samples)
    }

    fn drain_hardware_samples(&mut self, samples: &mut Vec<HardwareSample>) {
        self.hardware.retain_mut(|(_, rings)| rings.drain(samples).is_ok());
    }

    fn hardware_sources(&self) -> Vec<HardwareSource> {
        self.hardware.iter().map(|(kind, _)| *kind).collect()
    }

    fn pause(&mut self) -> Result<bool> {
        let pauses = self.clock.pause()?;
        if pauses {
            self.hardware.clear();
        }
        Ok(pauses)
    }

    fn resume(&mut self) -> Result<()> {
        self.clock.resume()?;
        if self.hardware.is_empty() {
            self.open_hardware();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::{Duration, Instant};

    use perf_event::data::Record;
    use perf_event::data::endian::Little;
    use perf_event::data::parse::{ParseConfig, Parser};
    use perf_event::events::{Breakpoint, Software};
    use perf_event::{Builder, SampleFlag};

    use super::super::perf::IDENTITY;
    use super::*;
    use crate::sampling::hardware::ACCESS_FIELDS;

    /// Parses a sample record with these words after its header, as an event with these fields has
    /// it.
    fn parsed(fields: SampleFlag, words: &[u64]) -> Option<HardwareSample> {
        const SAMPLE: u64 = 9;
        const USER: u64 = 2;
        let bytes = (words.len() as u64 + 1) * 8;
        let words: Vec<u64> = [SAMPLE | USER << 32 | bytes << 48].iter().chain(words).copied().collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut kind = Builder::new(Software::DUMMY);
        kind.sample(IDENTITY | fields);
        let config = ParseConfig::<Little>::from(*kind.attrs());
        match Parser::new(&bytes[..], config).parse::<Record<'_>>().unwrap() {
            Record::Sample(sample) => HardwareSample::of(&sample),
            other => panic!("{other:?}"),
        }
    }

    const IP: u64 = 0x40_1000;
    const TID: u64 = 7 << 32 | 5;

    #[test]
    fn addresses_and_hits_on_modified_lines_are_read() {
        // ip, pid and tid, time, address, id, cpu, data source: a load or a store, its snoop in
        // bits 19 and up.
        let (load, store, hit, hit_modified) = (2, 4, 4 << 19, 16 << 19);
        let of = |address, source| parsed(ACCESS_FIELDS, &[IP, TID, 11, address, 3, 1, source]);
        let with = |address, is_contended| {
            Some(HardwareSample {
                tid: 7,
                time_ns: 11,
                ip: IP,
                access: Some(MemoryAccess { address, is_contended }),
                jumps: vec![],
            })
        };
        assert_eq!(of(0x7f00_0040, load | hit_modified), with(0x7f00_0040, true));
        assert_eq!(of(0x7f00_0040, load | hit), with(0x7f00_0040, false));
        assert_eq!(of(0x7f00_0048, store), with(0x7f00_0048, false));
        assert_eq!(of(0, load), None, "an operation without an access");
        assert_eq!(of(u64::MAX - 63, load), None, "a kernel address");
        assert_eq!(parsed(ACCESS_FIELDS, &[u64::MAX - 63, TID, 11, 64, 3, 1, load]), None, "kernel code");
    }

    #[test]
    fn branches_are_read() {
        let found =
            parsed(SampleFlag::BRANCH_STACK, &[IP, TID, 11, 3, 1, 2, 0x40_2000, 0x40_1000, 0, 0x40_1010, 0x40_2000, 0])
                .unwrap();
        assert_eq!((found.tid, found.access), (7, None));
        assert_eq!(found.jumps, [(0x40_2000, 0x40_1000), (0x40_1010, 0x40_2000)]);
    }

    static WATCHED: AtomicU64 = AtomicU64::new(0);

    fn touch() {
        for _ in 0..100 {
            WATCHED.fetch_add(1, Relaxed);
        }
    }

    /// End to end from the kernel, with an event that virtual machines support too: a breakpoint on
    /// a word.
    #[test]
    fn addresses_of_a_real_event_are_read() {
        let address = WATCHED.as_ptr().expose_provenance() as u64;
        let mut kind = Builder::new(Breakpoint::write(address, 8));
        kind.sample_period(10).inherit_thread(true).sample(ACCESS_FIELDS);
        let mut rings: Rings<HardwareSample> = match perf::open(std::process::id(), &[kind], HARDWARE_RING_BYTES) {
            Ok(rings) => rings,
            Err(error) => {
                println!("SKIP no breakpoints by perf: {error}");
                return;
            }
        };
        let (limit, mut samples) = (Instant::now() + Duration::from_secs(20), Vec::new());
        while samples.is_empty() && Instant::now() < limit {
            touch();
            rings.drain(&mut samples).unwrap();
        }
        let tid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let access = Some(MemoryAccess { address, is_contended: false });
        assert!(!samples.is_empty() && samples.iter().all(|one| (one.tid, one.access) == (tid, access)), "{samples:?}");
    }

    /// The probe and a real sampler agree on the available hardware.
    #[test]
    fn available_hardware_is_used() {
        let mut events = match Events::open(std::process::id(), 100) {
            Ok(events) => events,
            Err(error) => {
                println!("SKIP no perf events: {error}");
                return;
            }
        };
        let available: Vec<_> = HardwareSource::ALL.into_iter().filter(|kind| kind.probe().is_available()).collect();
        assert_eq!(events.hardware_sources(), available);
        assert!(events.pause().unwrap() && events.hardware_sources().is_empty());
        events.resume().unwrap();
        assert_eq!(events.hardware_sources(), available);
    }
}
