//! The presets. Each is a TOML file whose `source` distinguishes documented numbers from recalled ones.

use super::Mmu;

const TEXTS: [&str; 7] = [
    include_str!("../../presets/nehalem.toml"),
    include_str!("../../presets/sandy-bridge.toml"),
    include_str!("../../presets/skylake.toml"),
    include_str!("../../presets/golden-cove.toml"),
    include_str!("../../presets/zen3.toml"),
    include_str!("../../presets/zen4.toml"),
    include_str!("../../presets/neoverse-v2.toml"),
];

/// A test parses every preset, so none is omitted here.
pub(super) fn all() -> Vec<Mmu> {
    TEXTS.iter().filter_map(|text| Mmu::from_toml(text).ok()).collect()
}

pub(super) fn text(name: &str) -> Option<&'static str> {
    TEXTS.into_iter().find(|text| Mmu::from_toml(text).is_ok_and(|machine| machine.name == name))
}

#[cfg(test)]
mod tests {
    use super::{Mmu, TEXTS};

    #[test]
    fn every_preset_parses_and_names_its_source() {
        for text in TEXTS {
            let machine = Mmu::from_toml(text).unwrap();
            assert!(machine.source.len() > 40, "{}: {}", machine.name, machine.source);
            assert_eq!(Mmu::preset_text(&machine.name), Some(text));
            assert_eq!(Mmu::preset(&machine.name), Some(machine));
        }
        assert_eq!(Mmu::preset("pentium"), None);
    }
}
