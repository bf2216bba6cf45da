//! Where saves go.

use crate::error::Result;

/// A place for saves.
pub trait Sink: Send + Sync {
    /// Begins the save `id`, which counts once it is finished. One that is dropped before leaves nothing.
    ///
    /// # Errors
    /// If it cannot be written there.
    fn begin(&self, id: u64) -> Result<Box<dyn SinkWriter>>;

    /// The id and the digest of the last save, if a save may continue it.
    ///
    /// # Errors
    /// If it cannot be read.
    fn continued(&self) -> Result<Option<(u64, u64)>>;
}

/// A save that is being written.
pub trait SinkWriter: Send {
    /// Appends bytes.
    ///
    /// # Errors
    /// If they cannot be written.
    fn write(&mut self, bytes: &[u8]) -> Result<()>;

    /// Appends the manifest, makes the save durable, and then the last one.
    ///
    /// # Errors
    /// If it is not durable; the save before stays the last one.
    fn finish(self: Box<Self>, manifest: &[u8]) -> Result<()>;
}
