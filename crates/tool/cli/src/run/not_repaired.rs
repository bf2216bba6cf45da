//! `fieldstone run --repair` on other architectures than x86-64.

use anyhow::bail;

use super::Arguments;

/// Fails: a repair rewrites x86-64 code.
pub(super) fn run(_: &Arguments) -> anyhow::Result<u8> {
    bail!("cannot repair a program on this machine: --repair rewrites x86-64 code only")
}
