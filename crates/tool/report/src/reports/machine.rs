//! Facts on the machine that measured.

use crate::profile::MachineRecord;
use crate::quantity::{bytes, plural};

/// The processor and memory, and the kernel: names and values.
pub(super) fn facts(machine: &MachineRecord) -> [(&'static str, String); 2] {
    let has_memory = machine.memory_bytes > 0;
    let hardware = [
        Some(machine.cpu.clone()),
        (machine.cpus > 0).then(|| plural(machine.cpus.into(), "processor")),
        has_memory.then(|| format!("{} of memory", bytes(machine.memory_bytes))),
        has_memory.then(|| format!("{} of swap", bytes(machine.swap_bytes))),
        machine.virtual_machine.then(|| "virtual machine".to_owned()),
    ];
    let thp = Some(&machine.thp_enabled).filter(|mode| !mode.is_empty());
    let kernel = [
        Some(format!("{} {}", machine.kernel, machine.architecture)),
        thp.map(|mode| format!("transparent huge pages: {mode}")),
    ];
    [("Machine", joined(&hardware)), ("Kernel", joined(&kernel))]
}

fn joined(facts: &[Option<String>]) -> String {
    let known = facts.iter().flatten().filter(|fact| !fact.trim().is_empty());
    known.cloned().collect::<Vec<_>>().join(", ")
}
