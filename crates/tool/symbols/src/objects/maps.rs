//! The mappings of a process at one moment.

use std::ops::Range;

use fieldstone_sys::smaps::{self, Mapping};

use crate::error::{Error, Result};

/// The mappings, ordered by address.
#[derive(Debug, Default)]
pub(super) struct Maps(pub(super) Vec<Mapping>);

impl Maps {
    /// Reads `/proc/PID/maps`. The kernel walks no page tables for it, so resident sizes are 0.
    pub(super) fn read(pid: u32) -> Result<Self> {
        let failed = |source| Error::Mappings { pid, source };
        let mappings = smaps::read_addresses(pid).map_err(failed)?;
        if mappings.is_empty() { Err(fieldstone_sys::Error::NoSuchProcess { pid }.into()) } else { Ok(Self(mappings)) }
    }

    /// The mapping that contains `address`.
    pub(super) fn at(&self, address: u64) -> Option<&Mapping> {
        self.0.get(self.index_of(address)?)
    }

    /// The contiguous range around `address` whose mappings satisfy `is_kind`. One heap consists of
    /// several mappings if a part of it has other flags. `None` if the mapping at `address` does
    /// not satisfy it.
    pub(super) fn span(&self, address: u64, is_kind: fn(&Mapping) -> bool) -> Option<Range<u64>> {
        let index = self.index_of(address)?;
        let own = self.0.get(index).filter(|mapping| is_kind(mapping))?;
        let (mut start, mut end) = (own.start, own.end);
        for mapping in self.0[..index].iter().rev().take_while(|mapping| is_kind(mapping)) {
            if mapping.end != start {
                break;
            }
            start = mapping.start;
        }
        for mapping in self.0[index + 1..].iter().take_while(|mapping| is_kind(mapping)) {
            if mapping.start != end {
                break;
            }
            end = mapping.end;
        }
        Some(start..end)
    }

    /// Whether an inaccessible mapping directly precedes the one at `address`, as with a stack's
    /// guard.
    pub(super) fn is_guarded(&self, address: u64) -> bool {
        let Some(before) = self.index_of(address).and_then(|index| index.checked_sub(1)) else { return false };
        let permissions = self.0[before].permissions;
        self.0[before].end == self.0[before + 1].start && !permissions.read && !permissions.write
    }

    fn index_of(&self, address: u64) -> Option<usize> {
        let index = self.0.partition_point(|mapping| mapping.end <= address);
        self.0.get(index).is_some_and(|mapping| mapping.start <= address).then_some(index)
    }
}

/// Whether the mapping belongs to the brk(2) heap.
pub(super) fn is_heap(mapping: &Mapping) -> bool {
    mapping.name == "[heap]" && mapping.is_read_write()
}

/// Whether the mapping is private anonymous read-write memory of mmap(2).
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
    fn adjacent_mappings_of_one_kind_are_one_span() {
        let maps = Maps(smaps::parse(TEXT).unwrap());
        for address in [0x100_0000, 0x100_1fff, 0x100_2000, 0x100_4fff] {
            assert_eq!(maps.span(address, is_heap), Some(0x100_0000..0x100_5000), "{address:#x}");
        }
        assert_eq!(maps.span(0x100_5000, is_heap), None);
        assert_eq!(maps.span(0x7f00_0000_1000, is_mapped), Some(0x7f00_0000_0000..0x7f00_0000_2000));
        assert_eq!(maps.span(0x7f00_0000_2000, is_mapped), None, "inaccessible");
        assert_eq!(maps.span(0x7f00_0000_3000, is_mapped), Some(0x7f00_0000_3000..0x7f00_0000_4000), "a gap follows");
        assert!(
            maps.is_guarded(0x7f00_0000_3fff) && !maps.is_guarded(0x7f00_0000_1000) && !maps.is_guarded(0x100_2000)
        );
        assert!(!maps.is_guarded(0x40_0000), "the first mapping");
        assert!(maps.at(0x45_2000).is_none() && maps.at(0x45_1fff).is_some_and(|found| found.inode == 17));
    }
}
