//! Which preset is the processor that we run on? Numbers in, machine out: the caller reads CPUID.
//!
//! Families and models are the displayed ones (extended fields added). Where CPUID describes TLBs, its numbers replace
//! the preset's: Intel's leaf 18H, one array a subleaf; AMD's leaves 8000_0005H and 8000_0006H.

use super::{Level, Machine, Rank};
use crate::page::PageSize;

/// What CPUID says: registers in the order EAX, EBX, ECX, EDX.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cpuid {
    /// `GenuineIntel`, `AuthenticAMD`; `ARM` for Arm's own cores.
    pub vendor: String,
    /// Displayed family; the implementer (0x41) on Arm.
    pub family: u32,
    /// Displayed model; the part number on Arm.
    pub model: u32,
    /// Leaf 18H, all its subleaves (Intel).
    pub deterministic: Vec<[u32; 4]>,
    /// Leaf 8000_0005H: first-rank TLBs (AMD).
    pub amd_first: Option<[u32; 4]>,
    /// Leaf 8000_0006H: second-rank TLBs (AMD).
    pub amd_second: Option<[u32; 4]>,
}

/// A TLB as CPUID describes it.
#[derive(Debug, Clone, Copy)]
struct Described {
    fetch: bool,
    data: bool,
    rank: usize,
    /// The smallest page size that it holds, by which the preset's array is found.
    page: PageSize,
    entries: u32,
    /// 0: not told.
    ways: u32,
}

impl Machine {
    /// The preset for a processor, by vendor, displayed family and model (on Arm: implementer and part number).
    #[must_use]
    pub fn for_cpu(vendor: &str, family: u32, model: u32) -> Option<Self> {
        let name = match (vendor, family, model) {
            ("GenuineIntel", 6, 0x1a | 0x1e | 0x1f | 0x2e) => "nehalem",
            ("GenuineIntel", 6, 0x2a | 0x2d | 0x3a | 0x3e) => "sandy-bridge",
            ("GenuineIntel", 6, 0x4e | 0x5e | 0x55 | 0x8e | 0x9e | 0xa5 | 0xa6) => "skylake",
            ("GenuineIntel", 6, 0x97 | 0x9a | 0xb7 | 0xba | 0xbf | 0x8f | 0xcf) => "golden-cove",
            ("AuthenticAMD", 0x19, 0x10..=0x1f | 0x60..=0x7f | 0xa0..=0xaf) => "zen4",
            ("ARM", 0x41, 0xd4f) => "neoverse-v2",
            _ => return None,
        };
        Self::preset(name)
    }

    /// The same, with the entries and ways that CPUID tells where it tells any that make a machine.
    #[must_use]
    pub fn for_cpuid(cpuid: &Cpuid) -> Option<Self> {
        let preset = Self::for_cpu(&cpuid.vendor, cpuid.family, cpuid.model)?;
        let mut machine = preset.clone();
        let intel = cpuid.deterministic.iter().filter_map(intel_tlb);
        let first = cpuid.amd_first.into_iter().flat_map(amd_first);
        let second = cpuid.amd_second.into_iter().flat_map(amd_second);
        for described in intel.chain(first).chain(second) {
            if described.data {
                correct(&mut machine.data, &described);
            }
            if described.fetch {
                correct(&mut machine.instruction, &described);
            }
        }
        if machine != preset {
            machine.source += " Entries corrected by CPUID.";
        }
        Some(machine)
    }
}

/// Puts what CPUID tells into the array that it describes.
fn correct(ranks: &mut [Rank], described: &Described) {
    let Some(rank) = ranks.get_mut(described.rank) else { return };
    let Some(array) = rank.arrays.iter_mut().find(|array| array.pages.contains(&described.page)) else { return };
    let entries = described.entries;
    let sets = array.entries / array.set_ways();
    let ways = match described.ways {
        0 if array.ways == 0 => 0,
        0 => entries / sets,
        told if told == entries => 0,
        told => told,
    };
    let corrected = Level { entries, ways, ..array.clone() };
    if entries > 0 && corrected.set_ways() > 0 && entries.is_multiple_of(corrected.set_ways()) {
        *array = corrected;
    }
}

/// Leaf 18H: EDX has the kind (0 to 4), rank (5 to 7); EBX page sizes (0 to 3) and ways (16 to 31); ECX the sets.
fn intel_tlb(&[_, ebx, ecx, edx]: &[u32; 4]) -> Option<Described> {
    let kind = edx & 0x1f;
    let rank = usize::try_from((edx >> 5 & 7).checked_sub(1)?).ok()?;
    let page = match ebx & 0xf {
        sizes if sizes & 1 != 0 => PageSize::Small4k,
        sizes if sizes & 2 != 0 => PageSize::Large2m,
        sizes if sizes & 8 != 0 => PageSize::Huge1g,
        _ => return None,
    };
    // Kinds: 1 data, 2 instruction, 3 both, 4 loads only, 5 stores only. Stores are not modelled apart.
    let (data, fetch) = (matches!(kind, 1 | 3 | 4), matches!(kind, 2 | 3));
    let ways = ebx >> 16;
    Some(Described { fetch, data, rank, page, entries: ways.checked_mul(ecx)?, ways })
}

/// Leaf 8000_0005H: EBX for 4 KiB pages: fetch entries (0 to 7) and data entries (16 to 23).
fn amd_first([_, ebx, _, _]: [u32; 4]) -> [Described; 2] {
    let described =
        |fetch, entries| Described { fetch, data: !fetch, rank: 0, page: PageSize::Small4k, entries, ways: 0 };
    [described(true, ebx & 0xff), described(false, ebx >> 16 & 0xff)]
}

/// Leaf 8000_0006H: EBX for 4 KiB pages: fetch entries (0 to 11) and data entries (16 to 27). Its four bits of ways have
/// no code for 24, so the preset's number of sets stays instead.
fn amd_second([_, ebx, _, _]: [u32; 4]) -> [Described; 2] {
    let described =
        |fetch, entries| Described { fetch, data: !fetch, rank: 1, page: PageSize::Small4k, entries, ways: 0 };
    [described(true, ebx & 0xfff), described(false, ebx >> 16 & 0xfff)]
}

#[cfg(test)]
mod tests {
    use super::{Cpuid, Machine};

    fn name(vendor: &str, family: u32, model: u32) -> Option<String> {
        Machine::for_cpu(vendor, family, model).map(|machine| machine.name)
    }

    #[test]
    fn processors_are_known_by_their_numbers() {
        assert_eq!(name("GenuineIntel", 6, 0x2d).as_deref(), Some("sandy-bridge"), "E5-2430");
        assert_eq!(name("GenuineIntel", 6, 0x1a).as_deref(), Some("nehalem"), "X5506");
        assert_eq!(name("GenuineIntel", 6, 0x9e).as_deref(), Some("skylake"), "i7-7700");
        assert_eq!(name("AuthenticAMD", 0x19, 0x11).as_deref(), Some("zen4"), "Genoa");
        assert_eq!(name("AuthenticAMD", 0x19, 0x01), None, "Zen 3");
        assert_eq!(name("ARM", 0x41, 0xd4f).as_deref(), Some("neoverse-v2"));
    }

    #[test]
    fn amd_entries_are_corrected_and_sets_stay() {
        let zen = Cpuid { vendor: "AuthenticAMD".into(), family: 0x19, model: 0x61, ..Cpuid::default() };
        // 96 data and 64 fetch entries first; 4000 = 0xfa0 is no multiple of 128 sets, 2048 = 0x800 is.
        let odd =
            Cpuid { amd_first: Some([0, 0xff60_ff40, 0, 0]), amd_second: Some([0, 0x6fa0_6200, 0, 0]), ..zen.clone() };
        let machine = Machine::for_cpuid(&odd).unwrap();
        assert_eq!((machine.data[0].arrays[0].entries, machine.data[0].arrays[0].ways), (96, 0));
        assert_eq!((machine.data[1].arrays[0].entries, machine.data[1].arrays[0].ways), (3072, 24));
        let even = Cpuid { amd_second: Some([0, 0x6800_6200, 0, 0]), ..zen.clone() };
        let machine = Machine::for_cpuid(&even).unwrap();
        assert_eq!((machine.data[1].arrays[0].entries, machine.data[1].arrays[0].ways), (2048, 16));
        assert!(machine.source.contains("CPUID") && machine.check().is_ok());
        assert_eq!(Machine::for_cpuid(&zen), Machine::preset("zen4"), "nothing told, nothing changed");
    }

    #[test]
    fn intel_arrays_are_corrected_one_by_one() {
        // Loads only, rank 1, 4 KiB, 6 ways of 20 sets; unified, rank 2, all sizes, 8 ways of 128 sets.
        let leaves = vec![[0, 6 << 16 | 1, 20, 1 << 5 | 4], [0, 8 << 16 | 0xb, 128, 2 << 5 | 3], [0; 4]];
        let cpuid =
            Cpuid { vendor: "GenuineIntel".into(), family: 6, model: 0x97, deterministic: leaves, ..Cpuid::default() };
        let machine = Machine::for_cpuid(&cpuid).unwrap();
        assert_eq!((machine.data[0].arrays[0].entries, machine.data[0].arrays[0].ways), (120, 6));
        assert_eq!((machine.data[1].arrays[0].entries, machine.data[1].arrays[0].ways), (1024, 8));
        assert_eq!(machine.instruction, Machine::preset("golden-cove").unwrap().instruction);
    }
}
