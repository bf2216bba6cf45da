//! Addresses and cache hits from hardware samples, kept until the analysis of a clock sample needs
//! them.
//!
//! An instruction keeps the last address that a thread accessed with it, if two hardware samples in
//! a row are on the same line. An instruction that strides through memory cannot be predicted from
//! an old address. A line keeps the number of sampled loads that found it modified in the cache of
//! another processor (HITM).

use std::collections::HashMap;

use fieldstone_sys::sampling::{HardwareSample, MemoryAccess};

use crate::tuning::{MAX_ADDRESS_AGE_NS, MAX_HARDWARE_ENTRIES};

/// The recent hardware samples of a process. At most [`MAX_HARDWARE_ENTRIES`] instructions and as
/// many lines are kept.
#[derive(Debug, Default)]
pub(crate) struct HardwareSamples {
    /// By thread and instruction. Cleared when it is full.
    addresses: HashMap<(u32, u64), LastAddress>,
    /// HITM loads by line. Further lines are not counted when it is full.
    contended: HashMap<u64, u64>,
}

/// The last address that an instruction accessed.
#[derive(Clone, Copy, Debug)]
struct LastAddress {
    address: u64,
    line: u64,
    at_ns: u64,
    /// Whether the sample before was on the same line.
    is_steady: bool,
}

impl HardwareSamples {
    /// Adds a sample. `line_of` returns the line of an address.
    pub(crate) fn record(&mut self, sample: &HardwareSample, line_of: impl FnOnce(u64) -> u64) {
        let Some(MemoryAccess { address, is_contended }) = sample.access else { return };
        let (line, at_ns) = (line_of(address), sample.time_ns);
        if self.addresses.len() >= MAX_HARDWARE_ENTRIES {
            self.addresses.clear();
        }
        let before = self.addresses.get(&(sample.tid, sample.ip));
        let is_steady = before.is_some_and(|last| last.line == line);
        self.addresses.insert((sample.tid, sample.ip), LastAddress { address, line, at_ns, is_steady });
        let has_place = self.contended.len() < MAX_HARDWARE_ENTRIES || self.contended.contains_key(&line);
        if is_contended && has_place {
            *self.contended.entry(line).or_default() += 1;
        }
    }

    /// The address that a thread's instruction accesses around this time. `None` if it is unknown,
    /// too old, or not steady.
    pub(crate) fn address(&self, tid: u32, ip: u64, at_ns: u64) -> Option<u64> {
        let last = self.addresses.get(&(tid, ip)).filter(|last| last.is_steady)?;
        (last.at_ns.abs_diff(at_ns) <= MAX_ADDRESS_AGE_NS).then_some(last.address)
    }

    /// Number of sampled loads that found the line modified in the cache of another processor.
    pub(crate) fn contended(&self, line: u64) -> u64 {
        self.contended.get(&line).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(tid: u32, ip: u64, address: u64, is_contended: bool) -> HardwareSample {
        HardwareSample { tid, time_ns: 1_000, ip, access: Some(MemoryAccess { address, is_contended }), jumps: vec![] }
    }

    fn line_of(address: u64) -> u64 {
        address / 64
    }

    #[test]
    fn an_address_is_known_while_it_stays_on_its_line() {
        let mut samples = HardwareSamples::default();
        for (tid, address) in [(1, 0x100), (2, 0x200)] {
            samples.record(&sample(tid, 7, address, false), line_of);
            assert_eq!(samples.address(tid, 7, 2_000), None, "one sample does not show a steady address");
            samples.record(&sample(tid, 7, address + 8, false), line_of);
        }
        assert_eq!((samples.address(1, 7, 2_000), samples.address(2, 7, 0)), (Some(0x108), Some(0x208)));
        assert_eq!((samples.address(1, 8, 2_000), samples.address(3, 7, 2_000)), (None, None));
        assert_eq!(samples.address(1, 7, MAX_ADDRESS_AGE_NS + 1_001), None, "too old");
        samples.record(&sample(1, 7, 0x140, false), line_of);
        assert_eq!(samples.address(1, 7, 2_000), None, "another line");
    }

    #[test]
    fn the_number_of_entries_is_bounded() {
        let mut samples = HardwareSamples::default();
        let most = MAX_HARDWARE_ENTRIES;
        (0..=most as u64).for_each(|number| samples.record(&sample(1, number, number * 64, true), line_of));
        assert_eq!((samples.addresses.len(), samples.contended.len()), (1, most));
        samples.record(&sample(1, 0, 0, true), line_of);
        assert_eq!(samples.contended(0), 2, "a known line is still counted");
    }

    #[test]
    fn hits_on_modified_lines_are_counted_by_line() {
        let mut samples = HardwareSamples::default();
        for (address, is_contended) in [(0x100, true), (0x138, true), (0x140, true), (0x100, false)] {
            samples.record(&sample(1, 7, address, is_contended), line_of);
        }
        assert_eq!([4, 5, 6].map(|line| samples.contended(line)), [2, 1, 0]);
        samples
            .record(&HardwareSample { access: None, ..sample(1, 7, 0, true) }, |_| panic!("the sample has no address"));
    }
}
