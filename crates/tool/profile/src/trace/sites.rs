//! The shared record of the program's allocation sites: see [`fieldstone_wire::sites`].

use fieldstone_launch::shared_record::SharedRecord;
use fieldstone_wire::sites::Sites;

use crate::error::Result;

/// A record of sites that this process created.
#[derive(Debug)]
pub struct SharedSites(SharedRecord<Sites>);

impl SharedSites {
    /// Creates an empty record.
    ///
    /// # Errors
    /// [`Error::Launch`](crate::Error::Launch) without memory or a descriptor.
    pub fn create() -> Result<Self> {
        Ok(Self(SharedRecord::create_with(|_| ())?))
    }

    /// The mapped record.
    #[must_use]
    pub fn record(&self) -> &Sites {
        self.0.record()
    }

    /// The path by which another process of this user can open the record.
    #[must_use]
    pub fn path(&self) -> String {
        self.0.path()
    }
}
