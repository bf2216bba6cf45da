//! AMD: two levels, each with arrays for instructions and data; each page size has its own
//! register.
//!
//! ```text
//!   0x8000_0005   EAX 2M, EBX 4K      [data ways 8][data 8][instruction ways 8][instructions 8]
//!   0x8000_0006   EAX 2M, EBX 4K      [data ways 4][data 12][instruction ways 4][instructions 12]
//!   0x8000_0019   EAX level 1, EBX level 2, both 1G, as 0x8000_0006
//! ```

use super::{Leaf, PAGE_1G, PAGE_2M, PAGE_4K, Tlb, TlbUse, Ways};

const LEVEL_1: u32 = 0x8000_0005;
const LEVEL_2: u32 = 0x8000_0006;
const GIBIBYTE: u32 = 0x8000_0019;

pub(super) fn tlbs(leaf: &impl Fn(u32, u32) -> Leaf) -> Vec<Tlb> {
    let last = leaf(0x8000_0000, 0).eax;
    let leaf_or_zeros = |number| if number <= last { leaf(number, 0) } else { Leaf::default() };
    let (first, second, large) = (leaf_or_zeros(LEVEL_1), leaf_or_zeros(LEVEL_2), leaf_or_zeros(GIBIBYTE));
    let mut tlbs = Vec::new();
    for (page, register) in [(PAGE_4K, first.ebx), (PAGE_2M, first.eax)] {
        let half = |half: u32| (half & 0xff, ways_by_number(half >> 8 & 0xff));
        push(&mut tlbs, 1, page, half(register), half(register >> 16));
    }
    push_coded(&mut tlbs, 1, PAGE_1G, large.eax);
    push_coded(&mut tlbs, 2, PAGE_4K, second.ebx);
    push_coded(&mut tlbs, 2, PAGE_2M, second.eax);
    push_coded(&mut tlbs, 2, PAGE_1G, large.ebx);
    tlbs
}

fn push_coded(tlbs: &mut Vec<Tlb>, level: u8, page: u64, register: u32) {
    let half = |half: u32| (half & 0xfff, ways_by_code(half >> 12 & 0xf));
    push(tlbs, level, page, half(register), half(register >> 16));
}

/// Adds the arrays for instructions and for data; an absent one has no ways or no entries.
fn push(tlbs: &mut Vec<Tlb>, level: u8, page: u64, instructions: (u32, Option<Ways>), data: (u32, Option<Ways>)) {
    for (serves, (entries, ways)) in [(TlbUse::Instructions, instructions), (TlbUse::Data, data)] {
        if let (1.., Some(ways)) = (entries, ways) {
            tlbs.push(Tlb { level, serves, pages: vec![page], entries, ways });
        }
    }
}

const fn ways_by_number(number: u32) -> Option<Ways> {
    match number {
        0 => None,
        0xff => Some(Ways::Full),
        number => Some(Ways::Of(number)),
    }
}

/// The four-bit encoding of the second level.
const fn ways_by_code(code: u32) -> Option<Ways> {
    Some(match code {
        0 => return None,
        1..=4 => Ways::Of(code),
        5 => Ways::Of(6),
        6 => Ways::Of(8),
        8 => Ways::Of(16),
        0xa => Ways::Of(32),
        0xb => Ways::Of(48),
        0xc => Ways::Of(64),
        0xd => Ways::Of(96),
        0xe => Ways::Of(128),
        0xf => Ways::Full,
        _ => Ways::Unknown,
    })
}
