//! Arm: the kernel shows the fields of the main ID register; no register describes the TLBs.

use super::Cpu;
use crate::kernel_file;

/// Parses the first core of `/proc/cpuinfo`.
pub fn read(cpuinfo: &str) -> Cpu {
    let field = |name| kernel_file::field(cpuinfo, name).unwrap_or_default();
    let part = field("CPU part").trim_start_matches("0x");
    let model = u32::from_str_radix(part, 16).unwrap_or(0);
    Cpu { vendor: field("CPU implementer").to_owned(), model, ..Cpu::default() }
}
