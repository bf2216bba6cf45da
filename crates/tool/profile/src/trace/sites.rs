//! The record of the program's allocation sites: see [`fieldstone_wire::sites`].

use fieldstone_launch::shared::Shared;
use fieldstone_wire::sites::Sites;

use crate::error::Result;

/// A record that this process made.
#[derive(Debug)]
pub struct SharedSites(Shared<Sites>);

impl SharedSites {
    /// Makes an empty record.
    ///
    /// # Errors
    /// [`Error::Launch`](crate::Error::Launch) without memory or a descriptor.
    pub fn create() -> Result<Self> {
        Ok(Self(Shared::make(|_| ())?))
    }

    /// The record.
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
