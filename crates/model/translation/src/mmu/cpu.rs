//! Chooses the preset of a processor. The caller reads the processor's identification.
//!
//! Families and models are the displayed ones (with extended fields added). A processor's own
//! description of its TLBs replaces the preset's numbers. A processor without a preset gets the
//! nearest one, corrected and named `like-…`.

use super::{Mmu, TlbArray, TlbLevel};
use crate::page::PageSize;

/// A TLB as the processor describes it (CPUID).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TlbDescription {
    /// Whether instruction fetches use it.
    pub fetch: bool,
    /// Whether loads and stores use it.
    pub data: bool,
    /// The level, 0 for the nearest.
    pub level: usize,
    /// The smallest page size that it holds, which identifies the preset's array.
    pub page: PageSize,
    /// Translations that it holds.
    pub entries: u32,
    /// Translations per set; 0 if not described.
    pub ways: u32,
    /// Whether the array's other page sizes are described separately. The array's ways are then
    /// partitioned, and the preset's kept.
    pub is_partition: bool,
}

impl Mmu {
    /// The preset for a processor, by vendor, displayed family and model (on Arm: implementer and
    /// part number).
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

    /// The preset nearest to a processor without one, named `like-` it.
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
        let mut nearest = Self::preset(name)?;
        nearest.name = format!("like-{name}");
        nearest.source = format!(
            "There is no preset of {vendor} family {family}, model {model}: this is {name}. {}",
            nearest.source
        );
        Some(nearest)
    }

    /// The MMU with entries and ways corrected from the processor's descriptions, where the result
    /// is consistent.
    #[must_use]
    pub fn corrected(mut self, descriptions: &[TlbDescription]) -> Self {
        let preset = self.clone();
        for description in descriptions {
            if description.data {
                correct(&mut self.data, description);
            }
            if description.fetch {
                correct(&mut self.instruction, description);
            }
        }
        if self != preset {
            self.source += " Entries corrected from the processor's description.";
        }
        self
    }
}

/// Applies a description to its array.
fn correct(levels: &mut [TlbLevel], described: &TlbDescription) {
    let Some(level) = levels.get_mut(described.level) else { return };
    let Some(array) = level.arrays.iter_mut().find(|array| array.pages.contains(&described.page)) else { return };
    let entries = described.entries;
    let sets = array.entries / array.set_ways();
    let is_partitioned = described.is_partition && array.pages.len() > 1;
    let ways = match if is_partitioned { 0 } else { described.ways } {
        0 if array.ways == 0 => 0,
        0 => entries / sets,
        ways if ways == entries => 0,
        ways => ways,
    };
    let corrected = TlbArray { entries, ways, ..array.clone() };
    // The check refuses direct-mapped arrays.
    if entries > 0 && corrected.set_ways() > 1 && entries.is_multiple_of(corrected.set_ways()) {
        *array = corrected;
    }
}

#[cfg(test)]
mod tests {
    use super::{Mmu, PageSize, TlbDescription};

    fn name(vendor: &str, family: u32, model: u32) -> Option<String> {
        Mmu::for_cpu(vendor, family, model).map(|machine| machine.name)
    }

    #[test]
    fn processors_are_identified_by_family_and_model() {
        assert_eq!(name("GenuineIntel", 6, 0x2d).as_deref(), Some("sandy-bridge"), "E5-2430");
        assert_eq!(name("GenuineIntel", 6, 0x1a).as_deref(), Some("nehalem"), "X5506");
        assert_eq!(name("GenuineIntel", 6, 0x9e).as_deref(), Some("skylake"), "i7-7700");
        assert_eq!(name("AuthenticAMD", 0x19, 0x11).as_deref(), Some("zen4"), "Genoa");
        assert_eq!(name("AuthenticAMD", 0x19, 0x01).as_deref(), Some("zen3"), "Milan");
        assert_eq!(name("AuthenticAMD", 0x1a, 0x02), None, "Turin");
        assert_eq!(name("ARM", 0x41, 0xd4f).as_deref(), Some("neoverse-v2"));
    }

    fn description(data: bool, level: usize, page: PageSize, entries: u32, ways: u32) -> TlbDescription {
        TlbDescription { fetch: !data, data, level, page, entries, ways, is_partition: false }
    }

    #[test]
    fn an_unknown_processor_gets_the_nearest_preset() {
        let turin = Mmu::nearest_to_cpu("AuthenticAMD", 0x1a, 0x02).unwrap();
        assert_eq!((turin.name.as_str(), turin.check().is_ok()), ("like-zen4", true));
        assert!(turin.source.contains("AuthenticAMD family 26, model 2"), "{}", turin.source);
        assert_eq!(turin.data, Mmu::preset("zen4").unwrap().data);
        for (vendor, family, model, name) in [
            ("GenuineIntel", 6, 0x3f, "like-skylake"),
            ("GenuineIntel", 6, 0x6a, "like-golden-cove"),
            ("AuthenticAMD", 0x17, 0x31, "like-zen3"),
            ("ARM", 0x41, 0xd0c, "like-neoverse-v2"),
        ] {
            assert_eq!(Mmu::nearest_to_cpu(vendor, family, model).unwrap().name, name);
        }
        assert_eq!(Mmu::nearest_to_cpu("CentaurHauls", 6, 15), None);
    }

    /// The values of EPYC 7003: 2048 entries, of which 8 ways of a set are for 4 KiB and 4 for 2
    /// MiB.
    #[test]
    fn a_partition_keeps_the_ways_of_the_preset() {
        let zen = Mmu::preset("zen3").unwrap();
        let part = |page, ways| TlbDescription { is_partition: true, ..description(true, 1, page, 2048, ways) };
        assert_eq!(zen.clone().corrected(&[part(PageSize::Small4k, 8), part(PageSize::Large2m, 4)]), zen);
        let half = TlbDescription { entries: 1024, ..part(PageSize::Small4k, 8) };
        let corrected = zen.corrected(&[half]);
        assert_eq!((corrected.data[1].arrays[0].entries, corrected.data[1].arrays[0].ways), (1024, 8));
        let intel = Mmu::preset("golden-cove").unwrap();
        let alone = TlbDescription { is_partition: true, ..description(true, 0, PageSize::Small4k, 64, 4) };
        assert_eq!(intel.corrected(&[alone]).data[0].arrays[0].ways, 4, "the array holds one size only");
    }

    #[test]
    fn entries_are_corrected_and_sets_stay() {
        let zen = || Mmu::preset("zen4").unwrap();
        // 4000 is no multiple of 128 sets, 2048 is.
        let odd = zen().corrected(&[
            description(true, 0, PageSize::Small4k, 96, 0),
            description(true, 1, PageSize::Small4k, 4000, 0),
        ]);
        assert_eq!((odd.data[0].arrays[0].entries, odd.data[0].arrays[0].ways), (96, 0));
        assert_eq!((odd.data[1].arrays[0].entries, odd.data[1].arrays[0].ways), (3072, 24));
        let even = zen().corrected(&[description(true, 1, PageSize::Small4k, 2048, 0)]);
        assert_eq!((even.data[1].arrays[0].entries, even.data[1].arrays[0].ways), (2048, 16));
        assert!(even.source.contains("corrected") && even.check().is_ok());
        let single = [description(true, 0, PageSize::Small4k, 1, 0), description(true, 1, PageSize::Small4k, 2048, 1)];
        assert_eq!(zen().corrected(&single), zen(), "direct-mapped ones cannot be traced");
        assert_eq!(zen().corrected(&[]), zen(), "no description, no change");
        assert_eq!(zen().corrected(&[description(true, 7, PageSize::Small4k, 64, 4)]), zen(), "there is no such level");
    }

    #[test]
    fn arrays_are_corrected_separately() {
        let all = |data| description(data, 1, PageSize::Small4k, 1024, 8);
        let machine = Mmu::preset("golden-cove").unwrap();
        let corrected = machine.clone().corrected(&[description(true, 0, PageSize::Small4k, 120, 6), all(true)]);
        assert_eq!((corrected.data[0].arrays[0].entries, corrected.data[0].arrays[0].ways), (120, 6));
        assert_eq!((corrected.data[1].arrays[0].entries, corrected.data[1].arrays[0].ways), (1024, 8));
        assert_eq!(corrected.instruction, machine.instruction);
    }
}
