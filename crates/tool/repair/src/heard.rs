//! What the processors told of a program's accesses ([`HardwareSample`]), where they tell: kept until a walk wants it.
//!
//! An instruction of a thread is known by the address that it touched last, while it stays on one line and for a few windows of time: then it does so
//! all the while. What goes along memory is not known by where it once was. A line is known by how often a sampled load of it found it modified in
//! another processor's cache.

use std::collections::HashMap;

use fieldstone_sys::sampling::{HardwareSample, MemoryAccess};

/// An address that was told longer ago says nothing of now.
const LATELY_NS: u64 = 20_000_000;
/// Instructions that are kept: when there are more, all begin anew. Lines that are: others are not counted.
const MOST: usize = 1 << 14;

#[derive(Debug, Default)]
pub(super) struct Heard {
    /// By thread and instruction.
    touched: HashMap<(u32, u64), Last>,
    /// By line.
    contended: HashMap<u64, u64>,
}

/// What an instruction touched last.
#[derive(Clone, Copy, Debug)]
struct Last {
    address: u64,
    line: u64,
    at_ns: u64,
    /// The time before, too.
    stays: bool,
}

impl Heard {
    /// `line_of` says which line an address is on.
    pub(super) fn hear(&mut self, told: &HardwareSample, line_of: impl FnOnce(u64) -> u64) {
        let Some(MemoryAccess { address, is_contended }) = told.access else { return };
        let (line, at_ns) = (line_of(address), told.time_ns);
        if self.touched.len() >= MOST {
            self.touched.clear();
        }
        let before = self.touched.get(&(told.tid, told.ip));
        let stays = before.is_some_and(|last| last.line == line);
        self.touched.insert((told.tid, told.ip), Last { address, line, at_ns, stays });
        if is_contended && (self.contended.len() < MOST || self.contended.contains_key(&line)) {
            *self.contended.entry(line).or_default() += 1;
        }
    }

    /// What this instruction of a thread touches around that time.
    pub(super) fn address(&self, tid: u32, ip: u64, at_ns: u64) -> Option<u64> {
        let last = self.touched.get(&(tid, ip)).filter(|last| last.stays)?;
        (last.at_ns.abs_diff(at_ns) <= LATELY_NS).then_some(last.address)
    }

    /// Sampled loads of a line that found it modified in another processor's cache.
    pub(super) fn contended(&self, line: u64) -> u64 {
        self.contended.get(&line).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(tid: u32, ip: u64, address: u64, is_contended: bool) -> HardwareSample {
        HardwareSample { tid, time_ns: 1_000, ip, access: Some(MemoryAccess { address, is_contended }), jumps: vec![] }
    }

    fn line_of(address: u64) -> u64 {
        address / 64
    }

    #[test]
    fn the_last_address_of_a_threads_instruction_is_known_for_a_while() {
        let mut heard = Heard::default();
        for (tid, address) in [(1, 0x100), (2, 0x200)] {
            heard.hear(&told(tid, 7, address, false), line_of);
            assert_eq!(heard.address(tid, 7, 2_000), None, "once may be on the way to anywhere");
            heard.hear(&told(tid, 7, address + 8, false), line_of);
        }
        assert_eq!((heard.address(1, 7, 2_000), heard.address(2, 7, 0)), (Some(0x108), Some(0x208)));
        assert_eq!((heard.address(1, 8, 2_000), heard.address(3, 7, 2_000)), (None, None));
        assert_eq!(heard.address(1, 7, LATELY_NS + 1_001), None, "long ago");
        heard.hear(&told(1, 7, 0x140, false), line_of);
        assert_eq!(heard.address(1, 7, 2_000), None, "it has moved on");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut heard = Heard::default();
        (0..=MOST as u64).for_each(|number| heard.hear(&told(1, number, number * 64, true), line_of));
        assert_eq!((heard.touched.len(), heard.contended.len()), (1, MOST));
        heard.hear(&told(1, 0, 0, true), line_of);
        assert_eq!(heard.contended(0), 2, "what is counted goes on to be");
    }

    #[test]
    fn hits_on_modified_lines_are_counted_by_line() {
        let mut heard = Heard::default();
        for (address, is_contended) in [(0x100, true), (0x138, true), (0x140, true), (0x100, false)] {
            heard.hear(&told(1, 7, address, is_contended), line_of);
        }
        assert_eq!([4, 5, 6].map(|line| heard.contended(line)), [2, 1, 0]);
        heard.hear(&HardwareSample { access: None, ..told(1, 7, 0, true) }, |_| panic!("it touched nothing"));
    }
}
