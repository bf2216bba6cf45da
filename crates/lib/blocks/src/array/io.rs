//! Byte arrays as files: `Write` appends, and `write_vectored` takes one slice per leaf.

use std::io::{self, IoSlice, Write};

use super::{Tree, TreeArray};

impl Tree<u8> {
    /// The bytes as slices for `write_vectored`, one per leaf.
    #[must_use]
    pub fn io_slices(&self) -> Vec<IoSlice<'_>> {
        self.leaves().map(IoSlice::new).collect()
    }

    /// Writes all bytes to `to`.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        self.leaves().try_for_each(|leaf| to.write_all(leaf))
    }
}

/// Appends. Without memory, returns an error of kind `OutOfMemory` and appends nothing.
impl Write for TreeArray<u8> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.try_extend_from_slice(bytes).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
