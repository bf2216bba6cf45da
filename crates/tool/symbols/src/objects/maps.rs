//! The mappings of a process, as they were at one moment.

use std::fs::File;
use std::io::BufReader;
use std::ops::Range;

use fieldstone_sys::smaps::{Mapping, parse};

use crate::error::{Error, Result};

/// The mappings, by address.
#[derive(Debug, Default)]
pub(super) struct Maps(pub(super) Vec<Mapping>);

impl Maps {
    /// Those of process `pid`, without what lies on them: no walk of its page tables.
    pub(super) fn read(pid: u32) -> Result<Self> {
        let failed = |source| Error::Mappings { pid, source };
        let file = File::open(format!("/proc/{pid}/maps")).map_err(failed)?;
        let mappings = parse(BufReader::new(file)).map_err(failed)?;
        if mappings.is_empty() { Err(fieldstone_sys::Error::NoSuchProcess { pid }.into()) } else { Ok(Self(mappings)) }
    }

    /// The mapping that has `address`.
    pub(super) fn at(&self, address: u64) -> Option<&Mapping> {
        self.0.get(self.place(address)?)
    }

    /// The addresses around `address` that belong together: mappings like its own without a gap between them. One piece of memory is
    /// several mappings where a part of it was advised or protected in another way.
    pub(super) fn span(&self, address: u64, like: fn(&Mapping) -> bool) -> Option<Range<u64>> {
        let place = self.place(address)?;
        let own = self.0.get(place).filter(|mapping| like(mapping))?;
        let (mut start, mut end) = (own.start, own.end);
        for mapping in self.0[..place].iter().rev().take_while(|mapping| like(mapping)) {
            if mapping.end != start {
                break;
            }
            start = mapping.start;
        }
        for mapping in self.0[place + 1..].iter().take_while(|mapping| like(mapping)) {
            if mapping.start != end {
                break;
            }
            end = mapping.end;
        }
        Some(start..end)
    }

    /// Whether the mapping that has `address` begins where one ends that nobody may touch: as a stack does.
    pub(super) fn is_guarded(&self, address: u64) -> bool {
        let Some(before) = self.place(address).and_then(|place| place.checked_sub(1)) else { return false };
        let permissions = self.0[before].permissions;
        self.0[before].end == self.0[before + 1].start && !permissions.read && !permissions.write
    }

    fn place(&self, address: u64) -> Option<usize> {
        let place = self.0.partition_point(|mapping| mapping.end <= address);
        self.0.get(place).is_some_and(|mapping| mapping.start <= address).then_some(place)
    }
}

/// What brk(2) gave.
pub(super) fn is_heap(mapping: &Mapping) -> bool {
    mapping.name == "[heap]" && mapping.is_read_write()
}

/// What mmap(2) gave to this process alone.
pub(super) fn is_mapped(mapping: &Mapping) -> bool {
    mapping.is_private_anonymous() && mapping.name != "[heap]" && mapping.is_read_write()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
00400000-00452000 r-xp 00000000 fe:01 17                             /usr/bin/program
01000000-01002000 rw-p 00000000 00:00 0                              [heap]
01002000-01005000 rw-p 00000000 00:00 0                              [heap]
7f0000000000-7f0000002000 rw-p 00000000 00:00 0 
7f0000002000-7f0000003000 ---p 00000000 00:00 0 
7f0000003000-7f0000004000 rw-p 00000000 00:00 0 
7f0000005000-7f0000006000 rw-p 00000000 00:00 0 
";

    #[test]
    fn mappings_that_belong_together_are_one_span() {
        let maps = Maps(parse(TEXT).unwrap());
        for address in [0x100_0000, 0x100_1fff, 0x100_2000, 0x100_4fff] {
            assert_eq!(maps.span(address, is_heap), Some(0x100_0000..0x100_5000), "{address:#x}");
        }
        assert_eq!(maps.span(0x100_5000, is_heap), None);
        assert_eq!(maps.span(0x7f00_0000_1000, is_mapped), Some(0x7f00_0000_0000..0x7f00_0000_2000));
        assert_eq!(maps.span(0x7f00_0000_2000, is_mapped), None, "not to be read");
        assert_eq!(maps.span(0x7f00_0000_3000, is_mapped), Some(0x7f00_0000_3000..0x7f00_0000_4000), "a gap behind");
        assert!(
            maps.is_guarded(0x7f00_0000_3fff) && !maps.is_guarded(0x7f00_0000_1000) && !maps.is_guarded(0x100_2000)
        );
        assert!(!maps.is_guarded(0x40_0000), "the first");
        assert!(maps.at(0x45_2000).is_none() && maps.at(0x45_1fff).is_some_and(|found| found.inode == 17));
    }
}
