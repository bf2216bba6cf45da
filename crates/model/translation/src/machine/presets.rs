//! Machines that come along. Each is a TOML file whose `source` says which numbers are documented and which recalled.

use super::Machine;

const TEXTS: [&str; 7] = [
    include_str!("../../presets/nehalem.toml"),
    include_str!("../../presets/sandy-bridge.toml"),
    include_str!("../../presets/skylake.toml"),
    include_str!("../../presets/golden-cove.toml"),
    include_str!("../../presets/zen3.toml"),
    include_str!("../../presets/zen4.toml"),
    include_str!("../../presets/neoverse-v2.toml"),
];

/// A test reads them all: none is ever left out.
pub(super) fn all() -> Vec<Machine> {
    TEXTS.iter().filter_map(|text| Machine::from_toml(text).ok()).collect()
}

pub(super) fn text(name: &str) -> Option<&'static str> {
    TEXTS.into_iter().find(|text| Machine::from_toml(text).is_ok_and(|machine| machine.name == name))
}

#[cfg(test)]
mod tests {
    use super::{Machine, TEXTS};

    #[test]
    fn every_preset_can_be_read_and_says_where_it_comes_from() {
        for text in TEXTS {
            let machine = Machine::from_toml(text).unwrap();
            assert!(machine.source.len() > 40, "{}: {}", machine.name, machine.source);
            assert_eq!(Machine::preset_text(&machine.name), Some(text));
            assert_eq!(Machine::preset(&machine.name), Some(machine));
        }
        assert_eq!(Machine::preset("pentium"), None);
    }
}
