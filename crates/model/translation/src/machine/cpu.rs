//! Which preset is the processor that we run on? Numbers in, machine out: the caller asks the processor.
//!
//! Families and models are the displayed ones (extended fields added). What a processor tells of its TLBs replaces the
//! preset's numbers. One that no preset is of is taken for the nearest that one is of, so corrected, and called so.

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
    /// Whether other page sizes that the same array holds are told apart. Then its ways are shared out among them, and the preset's stay.
    pub is_a_part: bool,
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
            ("AuthenticAMD", 0x19, 0x00..=0x0f | 0x20..=0x5f) => "zen3",
            ("AuthenticAMD", 0x19, 0x10..=0x1f | 0x60..=0x7f | 0xa0..=0xaf) => "zen4",
            ("ARM", 0x41, 0xd4f) => "neoverse-v2",
            _ => return None,
        };
        Self::preset(name)
    }

    /// The preset that is nearest to a processor that none is of, called `like-` it.
    #[must_use]
    pub fn nearest_to_cpu(vendor: &str, family: u32, model: u32) -> Option<Self> {
        let name = match (vendor, family, model) {
            // Haswell and Broadwell.
            ("GenuineIntel", 6, 0x3c | 0x3d | 0x3f | 0x45 | 0x46 | 0x47 | 0x4f | 0x56) => "skylake",
            ("GenuineIntel", ..) => "golden-cove",
            ("AuthenticAMD", ..=0x18, _) | ("HygonGenuine", ..) => "zen3",
            ("AuthenticAMD", ..) => "zen4",
            ("ARM", ..) => "neoverse-v2",
            _ => return None,
        };
        let mut near = Self::preset(name)?;
        near.name = format!("like-{name}");
        near.source =
            format!("No preset is of {vendor} family {family}, model {model}: this is {name}. {}", near.source);
        Some(near)
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
    let is_shared_out = described.is_a_part && array.pages.len() > 1;
    let ways = match if is_shared_out { 0 } else { described.ways } {
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
        assert_eq!(name("AuthenticAMD", 0x19, 0x01).as_deref(), Some("zen3"), "Milan");
        assert_eq!(name("AuthenticAMD", 0x1a, 0x02), None, "Turin");
        assert_eq!(name("ARM", 0x41, 0xd4f).as_deref(), Some("neoverse-v2"));
    }

    fn told(data: bool, rank: usize, page: PageSize, entries: u32, ways: u32) -> Told {
        Told { fetch: !data, data, rank, page, entries, ways, is_a_part: false }
    }

    #[test]
    fn an_unknown_processor_is_taken_for_the_nearest_and_called_so() {
        let turin = Machine::nearest_to_cpu("AuthenticAMD", 0x1a, 0x02).unwrap();
        assert_eq!((turin.name.as_str(), turin.check().is_ok()), ("like-zen4", true));
        assert!(turin.source.contains("AuthenticAMD family 26, model 2"), "{}", turin.source);
        assert_eq!(turin.data, Machine::preset("zen4").unwrap().data);
        for (vendor, family, model, name) in [
            ("GenuineIntel", 6, 0x3f, "like-skylake"),
            ("GenuineIntel", 6, 0x6a, "like-golden-cove"),
            ("AuthenticAMD", 0x17, 0x31, "like-zen3"),
            ("ARM", 0x41, 0xd0c, "like-neoverse-v2"),
        ] {
            assert_eq!(Machine::nearest_to_cpu(vendor, family, model).unwrap().name, name);
        }
        assert_eq!(Machine::nearest_to_cpu("CentaurHauls", 6, 15), None);
    }

    /// As EPYC 7003 does: 2048 entries, of which 8 ways of a set are for 4 KiB and 4 for 2 MiB.
    #[test]
    fn what_is_told_of_a_part_leaves_the_ways() {
        let zen = Machine::preset("zen3").unwrap();
        let part = |page, ways| Told { is_a_part: true, ..told(true, 1, page, 2048, ways) };
        assert_eq!(zen.clone().corrected(&[part(PageSize::Small4k, 8), part(PageSize::Large2m, 4)]), zen);
        let half = Told { entries: 1024, ..part(PageSize::Small4k, 8) };
        let corrected = zen.corrected(&[half]);
        assert_eq!((corrected.data[1].arrays[0].entries, corrected.data[1].arrays[0].ways), (1024, 8));
        let intel = Machine::preset("golden-cove").unwrap();
        let alone = Told { is_a_part: true, ..told(true, 0, PageSize::Small4k, 64, 4) };
        assert_eq!(intel.corrected(&[alone]).data[0].arrays[0].ways, 4, "it holds one size alone");
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
