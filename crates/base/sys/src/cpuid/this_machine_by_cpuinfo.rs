//! Other architectures: the CPU of this machine, by `/proc/cpuinfo`.

use super::{Cpu, arm};
use crate::kernel_file;

/// The first CPU of the table.
pub(super) fn cpu() -> Cpu {
    arm::read(&kernel_file::text("/proc/cpuinfo").unwrap_or_default())
}
