//! The record of the program's allocation sites: see [`fieldstone_wire::sites`].

#![allow(unsafe_code, reason = "vouches for the shape of the record")]

use fieldstone_wire::MAGIC;
use fieldstone_wire::sites::{BUILD, Sites};

use crate::error::Result;
use fieldstone_launch::shared::{Shared, Signed};

/// A record that this process made.
pub type SharedSites = Shared<Sites>;

// SAFETY: the record is made of numbers and atomics, for which zero is a value.
unsafe impl Signed for Sites {
    const NAME: &str = "fieldstone-sites";

    fn sign(&mut self) {
        (self.build, self.magic) = (BUILD, MAGIC);
    }
}

impl SharedSites {
    /// Makes a record.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) where there is no memory or no descriptor.
    pub fn create() -> Result<Self> {
        Self::make(|_| ())
    }
}
