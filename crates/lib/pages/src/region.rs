//! A region: a controlled range of memory and the handler of its faults.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use fieldstone_sys::userfault::Modes;

use crate::controlled_range::ControlledRange;
use crate::fault::{Fault, Outcome};
use crate::mechanism::{Mechanism, Watch};

pub(crate) type Handler = Arc<dyn Fn(&Fault<'_>) -> Outcome + Send + Sync>;

pub(crate) struct Region {
    pub(crate) controlled: ControlledRange,
    pub(crate) handler: Handler,
    /// Running handlers, counted by the registry.
    pub(crate) pins: AtomicUsize,
}

impl Deref for Region {
    type Target = ControlledRange;

    #[inline]
    fn deref(&self) -> &ControlledRange {
        &self.controlled
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.controlled.fmt(f)
    }
}

/// The configuration of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionConfig {
    pub(crate) mechanism: Mechanism,
    pub(crate) watch: Watch,
    pub(crate) modes: Modes,
}
