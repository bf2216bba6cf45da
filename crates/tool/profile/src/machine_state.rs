//! Describe the machine for a report, and detect conditions that make timings unreliable.

use std::fs;

use fieldstone_report::MachineRecord;
use fieldstone_sys::{huge_pages, limits, machine, pagemap};

/// The kernel, the processor and the memory of this machine.
#[must_use]
pub fn describe() -> MachineRecord {
    let facts = machine::machine();
    let limits = limits::limits();
    let limit = limits.cgroup.and_then(|group| group.limit_bytes).unwrap_or(u64::MAX);
    MachineRecord {
        kernel: format!("Linux {}", facts.kernel),
        architecture: facts.architecture,
        cpu: facts.cpu,
        cpus: u32::try_from(facts.cpus).unwrap_or(u32::MAX),
        memory_bytes: facts.memory_bytes.min(limit),
        swap_bytes: limits.swap_total_bytes,
        thp_enabled: huge_pages::transparent().global.map(|mode| mode.name().to_owned()).unwrap_or_default(),
        virtual_machine: facts.virtual_machine,
    }
}

/// Conditions that make timings unreliable, one sentence each. Call it before the first run, which
/// is itself load.
pub(super) fn warnings() -> Vec<String> {
    let cpus = machine::machine().cpus;
    let load = fs::read_to_string("/proc/loadavg").ok().and_then(|text| first_number(&text));
    // `available_parallelism` includes the control group's quota; the affinity mask does not.
    let quota = std::thread::available_parallelism().map_or(cpus, usize::from);
    let frames = (!pagemap::frames_visible()).then(|| {
        "smaps does not distinguish folios below 2 MiB from 4 KiB pages: run as root for exact page kinds".to_owned()
    });
    [load.and_then(|load| load_warning(load, cpus)), quota_warning(quota, cpus), frames].into_iter().flatten().collect()
}

fn first_number(text: &str) -> Option<f64> {
    text.split_ascii_whitespace().next()?.parse().ok()
}

fn load_warning(load: f64, cpus: usize) -> Option<String> {
    let count = u32::try_from(cpus).map_or(f64::INFINITY, f64::from);
    (load > count).then(|| {
        format!("other programs were running at the start: load average {load:.1} on {cpus} processors; times vary")
    })
}

fn quota_warning(quota: usize, cpus: usize) -> Option<String> {
    (quota < cpus).then(|| {
        format!("the control group limits the program to the time of {quota} of the {cpus} processors: with more threads it is throttled, and times vary")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaded_or_throttled_machine_gives_a_warning() {
        assert_eq!(first_number("3.10 2.00 1.00 2/345 6789\n"), Some(3.1));
        assert!(load_warning(3.1, 2).unwrap().contains("load average 3.1 on 2 processors"));
        assert_eq!((load_warning(2.0, 2), quota_warning(2, 2)), (None, None));
        assert!(quota_warning(1, 4).unwrap().contains("1 of the 4"));
    }

    #[test]
    fn the_machine_has_a_name_and_memory() {
        let machine = describe();
        assert!(machine.kernel.starts_with("Linux ") && machine.cpus > 0 && machine.memory_bytes > 0);
    }
}
