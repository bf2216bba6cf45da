//! What the processors told of a program's accesses ([`Told`]), where they tell: kept until a walk wants it.
//!
//! An instruction of a thread is known by the address that it touched last, for as long as that says something; a line by how often a load of it
//! found it modified in another processor's cache.

use std::collections::HashMap;

use fieldstone_sys::sampling::{Told, Touched};

/// An address that was told longer ago says nothing of now.
const LATELY_NS: u64 = 250_000_000;
/// Addresses, and lines, that are kept: when there are more, all begins anew.
const MOST: usize = 1 << 16;

#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Address and time, by thread and instruction.
    touched: HashMap<(u32, u64), (u64, u64)>,
    /// By line.
    contended: HashMap<u64, u64>,
}

impl Heard {
    /// `line_of` says which line an address is on.
    pub(super) fn hear(&mut self, told: &Told, line_of: impl FnOnce(u64) -> u64) {
        let Some(Touched { address, is_contended }) = told.touched else { return };
        if self.touched.len() >= MOST || self.contended.len() >= MOST {
            *self = Self::default();
        }
        self.touched.insert((told.tid, told.ip), (address, told.time_ns));
        if is_contended {
            *self.contended.entry(line_of(address)).or_default() += 1;
        }
    }

    /// What this instruction of a thread touched when that was told, around that time.
    pub(super) fn address(&self, tid: u32, ip: u64, at_ns: u64) -> Option<u64> {
        let (address, told_ns) = self.touched.get(&(tid, ip))?;
        (told_ns.abs_diff(at_ns) <= LATELY_NS).then_some(*address)
    }

    /// Loads of a line that found it modified in another processor's cache, of those that were told.
    pub(super) fn contended(&self, line: u64) -> u64 {
        self.contended.get(&line).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(tid: u32, ip: u64, address: u64, is_contended: bool) -> Told {
        Told { tid, time_ns: 1_000, ip, touched: Some(Touched { address, is_contended }), jumps: vec![] }
    }

    #[test]
    fn the_last_address_of_a_threads_instruction_is_known_for_a_while() {
        let mut heard = Heard::default();
        for (tid, address) in [(1, 0x100), (2, 0x200), (1, 0x140)] {
            heard.hear(&told(tid, 7, address, false), |address| address);
        }
        assert_eq!((heard.address(1, 7, 2_000), heard.address(2, 7, 0)), (Some(0x140), Some(0x200)));
        assert_eq!((heard.address(1, 8, 2_000), heard.address(3, 7, 2_000)), (None, None));
        assert_eq!(heard.address(1, 7, LATELY_NS + 1_001), None, "long ago");
    }

    #[test]
    fn hits_on_modified_lines_are_counted_by_line() {
        let mut heard = Heard::default();
        for (address, is_contended) in [(0x100, true), (0x138, true), (0x140, true), (0x100, false)] {
            heard.hear(&told(1, 7, address, is_contended), |address| address / 64);
        }
        assert_eq!([4, 5, 6].map(|line| heard.contended(line)), [2, 1, 0]);
        heard.hear(&Told { touched: None, ..told(1, 7, 0, true) }, |_| panic!("it touched nothing"));
    }
}
