//! Intel: leaf 2 holds up to fifteen descriptors, each a row of a table; descriptor 0xfe refers to
//! leaf 0x18, which encodes the TLBs in fields.
//!
//! ```text
//!   leaf 0x18, per sub-leaf   EBX [ways 16 .. ][partitions][1G 4M 2M 4K]   ECX sets
//!                             EDX [ .. full 8][level 7:5][kind 4:0]        EAX of sub-leaf 0: last
//! ```

use super::TlbUse::{All, Data, Instructions};
use super::Ways::{Full, Of, Unknown};
use super::{Leaf, PAGE_1G as G, PAGE_2M as M, PAGE_4K as K, Tlb, TlbUse, Ways};

const DESCRIPTORS: u32 = 2;
const TRANSLATION: u32 = 0x18;
/// The descriptor that refers to leaf 0x18.
const SEE_TRANSLATION: u8 = 0xfe;

pub(super) fn tlbs(last_leaf: u32, leaf: &impl Fn(u32, u32) -> Leaf) -> Vec<Tlb> {
    if last_leaf < DESCRIPTORS {
        return Vec::new();
    }
    let descriptors = descriptors(leaf(DESCRIPTORS, 0));
    if descriptors.contains(&SEE_TRANSLATION) && last_leaf >= TRANSLATION {
        let last = leaf(TRANSLATION, 0).eax;
        // CPUs have about ten sub-leaves; a much larger number is invalid.
        return (0..=last.min(63)).filter_map(|sub_leaf| translation(leaf(TRANSLATION, sub_leaf))).collect();
    }
    descriptors.into_iter().flat_map(by_descriptor).collect()
}

/// The bytes of the valid registers; the lowest byte of EAX is no descriptor.
fn descriptors(leaf: Leaf) -> Vec<u8> {
    let registers = [leaf.eax & !0xff, leaf.ebx, leaf.ecx, leaf.edx];
    let valid = registers.into_iter().filter(|register| register >> 31 == 0);
    valid.flat_map(u32::to_le_bytes).filter(|byte| *byte != 0).collect()
}

/// Parses a sub-leaf of leaf 0x18.
fn translation(leaf: Leaf) -> Option<Tlb> {
    let serves = match leaf.edx & 0x1f {
        1 => Data,
        2 => Instructions,
        3 => All,
        4 => TlbUse::Loads,
        5 => TlbUse::Stores,
        _ => return None,
    };
    let sizes = [(1, K), (2, M), (8, G)];
    let pages = sizes.iter().filter(|(bit, _)| leaf.ebx & bit != 0).map(|(_, bytes)| *bytes).collect();
    let ways = leaf.ebx >> 16;
    let full = leaf.edx >> 8 & 1 == 1;
    let level = u8::try_from(leaf.edx >> 5 & 7).unwrap_or(0);
    let reported_ways = if full { Full } else { Of(ways) };
    Some(Tlb { level, serves, pages, entries: ways * leaf.ecx, ways: reported_ways })
}

/// A descriptor of leaf 2: byte, level, accesses, page sizes, entries and ways.
type DescriptorRow = (u8, u8, TlbUse, &'static [u64], u32, Ways);

/// The TLB descriptors, except those of 4 MiB pages, which 64-bit programs do not have. Two
/// descriptors have two rows.
///
/// The manual gives the level of shared TLBs only ("second level"). For 0x64, 0x6b to 0x6d and
/// 0xb4, the CPUs that had them show a smaller TLB in front.
#[rustfmt::skip]
const TABLE: [DescriptorRow; 37] = [
    (0x01, 1, Instructions, &[K], 32, Of(4)),
    (0x03, 1, Data, &[K], 64, Of(4)),
    (0x4f, 1, Instructions, &[K], 32, Unknown),
    (0x50, 1, Instructions, &[K, M], 64, Unknown),
    (0x51, 1, Instructions, &[K, M], 128, Unknown),
    (0x52, 1, Instructions, &[K, M], 256, Unknown),
    (0x55, 1, Instructions, &[M], 7, Full),
    (0x57, 1, Data, &[K], 16, Of(4)),
    (0x59, 1, Data, &[K], 16, Full),
    (0x5a, 1, Data, &[M], 32, Of(4)),
    (0x5b, 1, Data, &[K, M], 64, Unknown),
    (0x5c, 1, Data, &[K, M], 128, Unknown),
    (0x5d, 1, Data, &[K, M], 256, Unknown),
    (0x61, 1, Instructions, &[K], 48, Full),
    (0x63, 1, Data, &[M], 32, Of(4)),
    (0x63, 1, Data, &[G], 4, Of(4)),
    (0x64, 2, Data, &[K], 512, Of(4)),
    (0x6a, 1, Data, &[K], 64, Of(8)),
    (0x6b, 2, Data, &[K], 256, Of(8)),
    (0x6c, 2, Data, &[M], 128, Of(8)),
    (0x6d, 2, Data, &[G], 16, Full),
    (0x76, 1, Instructions, &[M], 8, Full),
    (0xa0, 1, Data, &[K], 32, Full),
    (0xb0, 1, Instructions, &[K], 128, Of(4)),
    (0xb1, 1, Instructions, &[M], 8, Of(4)),
    (0xb2, 1, Instructions, &[K], 64, Of(4)),
    (0xb3, 1, Data, &[K], 128, Of(4)),
    (0xb4, 2, Data, &[K], 256, Of(4)),
    (0xb5, 1, Instructions, &[K], 64, Of(8)),
    (0xb6, 1, Instructions, &[K], 128, Of(8)),
    (0xba, 1, Data, &[K], 64, Of(4)),
    (0xc1, 2, All, &[K, M], 1024, Of(8)),
    (0xc2, 1, Data, &[K, M], 16, Of(4)),
    (0xc3, 2, All, &[K, M], 1536, Of(6)),
    (0xc3, 2, All, &[G], 16, Of(4)),
    (0xc4, 1, Data, &[M], 32, Of(4)),
    (0xca, 2, All, &[K], 512, Of(4)),
];

fn by_descriptor(descriptor: u8) -> impl Iterator<Item = Tlb> {
    let rows = TABLE.iter().filter(move |row| row.0 == descriptor);
    rows.map(|&(_, level, serves, pages, entries, ways)| Tlb { level, serves, pages: pages.to_vec(), entries, ways })
}
