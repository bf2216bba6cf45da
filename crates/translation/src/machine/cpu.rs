//! Which preset is the processor that we run on? Numbers in, machine out: the caller asks the processor.
//!
//! Families and models are the displayed ones (extended fields added). What a processor tells of its TLBs replaces the
//! preset's numbers.

use super::{Level, Machine, Rank};
use crate::page::PageSize;

/// A TLB as a processor tells of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// Whether fetches are looked up there.
    pub fetch: bool,
    /// Whether loads are.
    pub data: bool,
    /// 0 for the nearest.
    pub rank: usize,
    /// The smallest page size that it holds, by which the preset's array is found.
    pub page: PageSize,
    /// Translations that it holds.
    pub entries: u32,
    /// Translations in a set; 0 where that is not told.
    pub ways: u32,
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

    /// The same machine with the entries and ways that the processor tells, where they make a machine.
    #[must_use]
    pub fn corrected(mut self, told: &[Told]) -> Self {
        let preset = self.clone();
        for told in told {
            if told.data {
                correct(&mut self.data, told);
            }
            if told.fetch {
                correct(&mut self.instruction, told);
            }
        }
        if self != preset {
            self.source += " Entries corrected by what the processor tells.";
        }
        self
    }
}

/// Puts what is told into the array that it is about.
fn correct(ranks: &mut [Rank], described: &Told) {
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
    // A direct-mapped one would be refused.
    if entries > 0 && corrected.set_ways() > 1 && entries.is_multiple_of(corrected.set_ways()) {
        *array = corrected;
    }
}

#[cfg(test)]
mod tests {
    use super::{Machine, PageSize, Told};

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

    fn told(data: bool, rank: usize, page: PageSize, entries: u32, ways: u32) -> Told {
        Told { fetch: !data, data, rank, page, entries, ways }
    }

    #[test]
    fn entries_are_corrected_and_sets_stay() {
        let zen = || Machine::preset("zen4").unwrap();
        // 4000 is no multiple of 128 sets, 2048 is.
        let odd =
            zen().corrected(&[told(true, 0, PageSize::Small4k, 96, 0), told(true, 1, PageSize::Small4k, 4000, 0)]);
        assert_eq!((odd.data[0].arrays[0].entries, odd.data[0].arrays[0].ways), (96, 0));
        assert_eq!((odd.data[1].arrays[0].entries, odd.data[1].arrays[0].ways), (3072, 24));
        let even = zen().corrected(&[told(true, 1, PageSize::Small4k, 2048, 0)]);
        assert_eq!((even.data[1].arrays[0].entries, even.data[1].arrays[0].ways), (2048, 16));
        assert!(even.source.contains("corrected") && even.check().is_ok());
        let single = [told(true, 0, PageSize::Small4k, 1, 0), told(true, 1, PageSize::Small4k, 2048, 1)];
        assert_eq!(zen().corrected(&single), zen(), "direct-mapped ones cannot be traced");
        assert_eq!(zen().corrected(&[]), zen(), "nothing told, nothing changed");
        assert_eq!(zen().corrected(&[told(true, 7, PageSize::Small4k, 64, 4)]), zen(), "there is no such rank");
    }

    #[test]
    fn arrays_are_corrected_one_by_one() {
        let all = |data| told(data, 1, PageSize::Small4k, 1024, 8);
        let machine = Machine::preset("golden-cove").unwrap();
        let corrected = machine.clone().corrected(&[told(true, 0, PageSize::Small4k, 120, 6), all(true)]);
        assert_eq!((corrected.data[0].arrays[0].entries, corrected.data[0].arrays[0].ways), (120, 6));
        assert_eq!((corrected.data[1].arrays[0].entries, corrected.data[1].arrays[0].ways), (1024, 8));
        assert_eq!(corrected.instruction, machine.instruction);
    }
}
