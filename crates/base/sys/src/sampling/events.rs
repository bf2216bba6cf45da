//! The clock's samples of a process, and beside them what its processors tell ([`super::hardware`]): both by perf events.
//!
//! What processors tell only adds: what of it cannot be opened, or fails later, is left out.

use perf_event::data::{self, MemOp, MemSnoop};

use super::hardware::{Hardware, Told, Touched};
use super::rings::{Rings, Sampled};
use super::{Drained, Sample, Source, perf};
use crate::Result;
use crate::process::threads;

/// A ring of what is told. Some of it may be lost; the clock's rings are to have room among what a user may lock.
const TOLD_BYTES: usize = 32 << 10;
/// Threads times CPUs with which anything is told at most: that is how many descriptors each kind takes. Threads that are made later take none.
const MOST_TOLD: usize = 192;
/// Where the kernel's half begins.
const KERNEL: u64 = 1 << 63;

impl Sampled for Told {
    /// Needs an address, or jumps; in the program's half.
    fn of(record: &data::Sample<'_>) -> Option<Self> {
        let ip = record.ip().filter(|ip| *ip < KERNEL)?;
        let touched = record.addr().filter(|address| (1..KERNEL).contains(address)).map(|address| Touched {
            address,
            is_contended: record
                .data_src()
                .is_some_and(|from| from.mem_op().contains(MemOp::LOAD) && from.mem_snoop().contains(MemSnoop::HITM)),
        });
        let jumps: Vec<_> = record.lbr().into_iter().flatten().map(|jump| (jump.from(), jump.to())).collect();
        (touched.is_some() || !jumps.is_empty()).then_some(Self {
            tid: record.tid()?,
            time_ns: record.time()?,
            ip,
            touched,
            jumps,
        })
    }

    fn tid(&self) -> u32 {
        self.tid
    }
}

/// Samples of all threads of a process by perf events.
pub(super) struct Events {
    pid: u32,
    hertz: u32,
    clock: Rings<Sample>,
    /// What may be told by here.
    kinds: Vec<Hardware>,
    /// What is; nothing in a pause.
    told: Vec<(Hardware, Rings<Told>)>,
}

impl Events {
    /// # Errors
    /// As [`perf::open`], of the clock.
    pub(super) fn open(pid: u32, hertz: u32) -> Result<Self> {
        let clock = perf::open(pid, &perf::clock(hertz), perf::RING_BYTES)?;
        let mut this = Self { pid, hertz, clock, kinds: Hardware::ALL.to_vec(), told: Vec::new() };
        if this.open_told() {
            this.kinds = this.told_by();
        }
        Ok(this)
    }

    /// Opens what is told by; whether there were few enough threads for it.
    fn open_told(&mut self) -> bool {
        let is_few = |threads: Vec<u32>| threads.len() * perf::online_cpus().len() <= MOST_TOLD;
        let are_few = !self.kinds.is_empty() && threads(self.pid).is_ok_and(is_few);
        let open = |kind: &Hardware| Some((*kind, perf::open(self.pid, &kind.kinds(self.hertz), TOLD_BYTES).ok()?));
        self.told = if are_few { self.kinds.iter().filter_map(open).collect() } else { Vec::new() };
        are_few
    }
}

impl Source for Events {
    fn drain(&mut self, samples: &mut Vec<Sample>) -> Result<Drained> {
        self.clock.drain(samples)
    }

    fn drain_told(&mut self, told: &mut Vec<Told>) {
        self.told.retain_mut(|(_, rings)| rings.drain(told).is_ok());
    }

    fn told_by(&self) -> Vec<Hardware> {
        self.told.iter().map(|(kind, _)| *kind).collect()
    }

    fn pause(&mut self) -> Result<bool> {
        let pauses = self.clock.pause()?;
        if pauses {
            self.told.clear();
        }
        Ok(pauses)
    }

    fn resume(&mut self) -> Result<()> {
        self.clock.resume()?;
        if self.told.is_empty() {
            self.open_told();
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

    use super::super::hardware::TOUCHED;
    use super::super::perf::IDENTITY;
    use super::*;

    /// A record of a sample with these words behind its header, as an event with these fields has it.
    fn told(fields: SampleFlag, words: &[u64]) -> Option<Told> {
        const SAMPLE: u64 = 9;
        const USER: u64 = 2;
        let bytes = (words.len() as u64 + 1) * 8;
        let words: Vec<u64> = [SAMPLE | USER << 32 | bytes << 48].iter().chain(words).copied().collect();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut kind = Builder::new(Software::DUMMY);
        kind.sample(IDENTITY | fields);
        let config = ParseConfig::<Little>::from(*kind.attrs());
        match Parser::new(&bytes[..], config).parse::<Record<'_>>().unwrap() {
            Record::Sample(sample) => Told::of(&sample),
            other => panic!("{other:?}"),
        }
    }

    const IP: u64 = 0x40_1000;
    const TID: u64 = 7 << 32 | 5;

    #[test]
    fn addresses_and_hits_on_modified_lines_are_read() {
        // ip, pid and tid, time, address, id, cpu, data source: a load or a store, its snoop from bit 19 on.
        let (load, store, hit, hit_modified) = (2, 4, 4 << 19, 16 << 19);
        let of = |address, source| told(TOUCHED, &[IP, TID, 11, address, 3, 1, source]);
        let with = |address, is_contended| {
            Some(Told { tid: 7, time_ns: 11, ip: IP, touched: Some(Touched { address, is_contended }), jumps: vec![] })
        };
        assert_eq!(of(0x7f00_0040, load | hit_modified), with(0x7f00_0040, true));
        assert_eq!(of(0x7f00_0040, load | hit), with(0x7f00_0040, false));
        assert_eq!(of(0x7f00_0048, store), with(0x7f00_0048, false));
        assert_eq!(of(0, load), None, "an operation that touched nothing");
        assert_eq!(of(u64::MAX - 63, load), None, "the kernel's own");
        assert_eq!(told(TOUCHED, &[u64::MAX - 63, TID, 11, 64, 3, 1, load]), None, "by the kernel");
    }

    #[test]
    fn jumps_are_read() {
        let found =
            told(SampleFlag::BRANCH_STACK, &[IP, TID, 11, 3, 1, 2, 0x40_2000, 0x40_1000, 0, 0x40_1010, 0x40_2000, 0])
                .unwrap();
        assert_eq!((found.tid, found.touched), (7, None));
        assert_eq!(found.jumps, [(0x40_2000, 0x40_1000), (0x40_1010, 0x40_2000)]);
    }

    static WATCHED: AtomicU64 = AtomicU64::new(0);

    fn touch() {
        for _ in 0..100 {
            WATCHED.fetch_add(1, Relaxed);
        }
    }

    /// The whole way from the kernel on, by an event with addresses that virtual machines have too: a breakpoint on a word.
    #[test]
    fn what_an_event_tells_of_addresses_arrives() {
        let address = WATCHED.as_ptr().expose_provenance() as u64;
        let mut kind = Builder::new(Breakpoint::write(address, 8));
        kind.sample_period(10).inherit_thread(true).sample(TOUCHED);
        let mut rings: Rings<Told> = match perf::open(std::process::id(), &[kind], TOLD_BYTES) {
            Ok(rings) => rings,
            Err(error) => {
                println!("SKIP no breakpoints by perf: {error}");
                return;
            }
        };
        let (limit, mut told) = (Instant::now() + Duration::from_secs(20), Vec::new());
        while told.is_empty() && Instant::now() < limit {
            touch();
            rings.drain(&mut told).unwrap();
        }
        let tid = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let touched = Some(Touched { address, is_contended: false });
        assert!(!told.is_empty() && told.iter().all(|one| (one.tid, one.touched) == (tid, touched)), "{told:?}");
    }

    /// What is said to be there opens for a process as for the trial, and the other way round.
    #[test]
    fn what_is_there_is_used() {
        let mut events = match Events::open(std::process::id(), 100) {
            Ok(events) => events,
            Err(error) => {
                println!("SKIP no perf events: {error}");
                return;
            }
        };
        let available: Vec<_> = Hardware::ALL.into_iter().filter(|kind| kind.tried().is_available()).collect();
        assert_eq!(events.told_by(), available);
        assert!(events.pause().unwrap() && events.told_by().is_empty());
        events.resume().unwrap();
        assert_eq!(events.told_by(), available);
    }
}
