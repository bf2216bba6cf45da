//! Events of page walks by CPU: those of loads and those of stores, to be added.
//!
//! Source: the vendors' event lists in Linux (tools/perf/pmu-events). Intel: DTLB_LOAD_MISSES and
//! DTLB_STORE_MISSES with WALK_COMPLETED and WALK_DURATION or WALK_ACTIVE. AMD:
//! ls_l1_d_tlb_miss.all_l2_miss. Arm: DTLB_WALK, the common event 0x34. Limits: none was tested on
//! hardware. Intel's hybrid CPUs are missing, because their two kinds of core have separate
//! counting units.

use crate::cpuid::Cpu;

/// Raw configurations for perf_event_open(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkEvents {
    /// Events that count walks.
    pub walks: &'static [u64],
    /// Events that count cycles with a walk in progress; empty if the CPU has none.
    pub walk_cycles: &'static [u64],
}

/// Encodes event, unit mask and counter mask as in Intel's and AMD's registers.
const fn raw(event: u64, unit_mask: u64, counter_mask: u64) -> u64 {
    event | unit_mask << 8 | counter_mask << 24
}

/// 06_2A, 06_2D: Sandy Bridge.
const SANDY_BRIDGE: WalkEvents = WalkEvents {
    walks: &[raw(0x08, 0x02, 0), raw(0x49, 0x02, 0)],
    walk_cycles: &[raw(0x08, 0x04, 0), raw(0x49, 0x04, 0)],
};
/// This generation renamed loads to "demand loads".
const IVY_BRIDGE: WalkEvents = WalkEvents {
    walks: &[raw(0x08, 0x82, 0), raw(0x49, 0x02, 0)],
    walk_cycles: &[raw(0x08, 0x84, 0), raw(0x49, 0x04, 0)],
};
/// One walker: its busy cycles are the sum of the walks' durations.
const HASWELL: WalkEvents = WalkEvents {
    walks: &[raw(0x08, 0x0e, 0), raw(0x49, 0x0e, 0)],
    walk_cycles: &[raw(0x08, 0x10, 0), raw(0x49, 0x10, 0)],
};
/// Several walkers: cycles with at least one active.
const SKYLAKE: WalkEvents = WalkEvents {
    walks: &[raw(0x08, 0x0e, 0), raw(0x49, 0x0e, 0)],
    walk_cycles: &[raw(0x08, 0x10, 1), raw(0x49, 0x10, 1)],
};
const GOLDEN_COVE: WalkEvents = WalkEvents {
    walks: &[raw(0x12, 0x0e, 0), raw(0x13, 0x0e, 0)],
    walk_cycles: &[raw(0x12, 0x10, 1), raw(0x13, 0x10, 1)],
};
const ZEN: WalkEvents = WalkEvents { walks: &[raw(0x45, 0xf0, 0)], walk_cycles: &[] };
const ARM: WalkEvents = WalkEvents { walks: &[0x34], walk_cycles: &[] };

/// The events of page walks on a CPU; `None` if this table has none.
#[must_use]
pub fn walk_events(cpu: &Cpu) -> Option<WalkEvents> {
    match (cpu.vendor.as_str(), cpu.family) {
        ("GenuineIntel", 6) => intel(cpu.model),
        ("AuthenticAMD", 0x17 | 0x19 | 0x1a) => Some(ZEN),
        ("0x41", _) => Some(ARM),
        _ => None,
    }
}

const fn intel(model: u32) -> Option<WalkEvents> {
    Some(match model {
        0x2a | 0x2d => SANDY_BRIDGE,
        0x3a | 0x3e => IVY_BRIDGE,
        // Haswell and Broadwell.
        0x3c | 0x3f | 0x45 | 0x46 | 0x3d | 0x47 | 0x4f | 0x56 => HASWELL,
        // Skylake to Comet Lake; Ice, Tiger and Rocket Lake.
        0x4e | 0x5e | 0x55 | 0x8e | 0x9e | 0xa5 | 0xa6 | 0x6a | 0x6c | 0x7d | 0x7e | 0x8c | 0x8d | 0xa7 => SKYLAKE,
        // Sapphire, Emerald and Granite Rapids.
        0x8f | 0xcf | 0xad | 0xae => GOLDEN_COVE,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(vendor: &str, family: u32, model: u32) -> Option<WalkEvents> {
        let mut cpu = Cpu::default();
        (cpu.vendor, cpu.family, cpu.model) = (vendor.to_owned(), family, model);
        walk_events(&cpu)
    }

    #[test]
    fn configurations_have_the_layout_of_perf() {
        // From the top: counter mask, flags, unit mask, event.
        assert_eq!(raw(0x12, 0x10, 1), 0x0100_1012);
        assert_eq!(raw(0x45, 0xf0, 0), 0xf045);
    }

    #[test]
    fn each_cpu_has_its_events() {
        assert_eq!(events("GenuineIntel", 6, 0x55), Some(SKYLAKE));
        assert_eq!(events("GenuineIntel", 6, 0xcf), Some(GOLDEN_COVE));
        assert_eq!(events("GenuineIntel", 6, 0x9a), None, "a hybrid");
        assert_eq!(events("AuthenticAMD", 0x19, 0x11), Some(ZEN));
        assert_eq!(events("AuthenticAMD", 0x10, 2), None);
        assert_eq!(events("0x41", 0, 0xd4f), Some(ARM));
        assert_eq!(events("", 0, 0), None);
    }
}
