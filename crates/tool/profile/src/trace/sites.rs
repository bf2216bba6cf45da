//! The shared record of the program's allocation sites: see [`fieldstone_wire::sites`].

#![allow(unsafe_code, reason = "implements an unsafe marker trait for the record")]

use fieldstone_launch::shared::{Shared, Signed};
use fieldstone_wire::MAGIC;
use fieldstone_wire::sites::{BUILD, Sites};

use crate::error::Result;

/// A record of sites that this process created.
pub type SharedSites = Shared<Sites>;

// SAFETY: `Sites` consists of integers and atomics, for which all-zero bytes are valid; only
// atomics change after `sign`.
unsafe impl Signed for Sites {
    const NAME: &str = "fieldstone-sites";

    fn sign(&mut self) {
        (self.build, self.magic) = (BUILD, MAGIC);
    }
}

impl SharedSites {
    /// Creates an empty record.
    ///
    /// # Errors
    /// [`Error::Launch`](crate::Error::Launch) without memory or a descriptor.
    pub fn create() -> Result<Self> {
        Self::make(|_| ())
    }
}
