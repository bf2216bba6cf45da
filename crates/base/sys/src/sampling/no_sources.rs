//! Other architectures than x86-64: no source of samples.

use super::{SampleSource, SamplingMethod};
use crate::{Error, Result};

/// Fails: the registers of a sample are those of x86-64.
pub(super) fn open(method: SamplingMethod, pid: u32, _: u32) -> Result<Box<dyn SampleSource>> {
    Err(Error::NotSampled { pid, method, why: "sampling needs x86-64".into() })
}
