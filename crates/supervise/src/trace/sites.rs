//! The record of the program's allocation sites: see [`fieldstone_wire::sites`].

#![allow(unsafe_code, reason = "vouches for the shape of the record")]

use fieldstone_wire::MAGIC;
use fieldstone_wire::sites::{BUILD, Sites};

use crate::error::Result;
use crate::shared::Shared;

/// A record that this process made.
#[derive(Debug)]
pub struct SharedSites(Shared<Sites>);

impl SharedSites {
    /// Makes a record.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) where there is no memory or no descriptor.
    pub fn create() -> Result<Self> {
        // SAFETY: the record is made of numbers and atomics, for which zero is a value; build and magic number are not changed
        // again.
        let shared = unsafe {
            Shared::create("fieldstone-sites", |sites: &mut Sites| {
                sites.build = BUILD;
                sites.magic = MAGIC;
            })
        };
        shared.map(Self)
    }

    /// The shared record.
    #[must_use]
    pub fn record(&self) -> &Sites {
        self.0.record()
    }

    /// The path by which another process of this user opens it.
    #[must_use]
    pub fn path(&self) -> String {
        self.0.path()
    }
}
