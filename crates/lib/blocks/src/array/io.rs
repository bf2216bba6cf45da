//! Arrays of bytes as files are used: written at the end, and handed to the kernel leaf by leaf.

use std::io::{self, IoSlice, Write};

use super::{Tree, TreeArray};

impl Tree<u8> {
    /// The bytes as the slices that `write_vectored` takes, one a leaf.
    #[must_use]
    pub fn io_slices(&self) -> Vec<IoSlice<'_>> {
        self.leaves().map(IoSlice::new).collect()
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// As `to` says.
    pub fn write_to(&self, to: &mut impl Write) -> io::Result<()> {
        self.leaves().try_for_each(|leaf| to.write_all(leaf))
    }
}

/// Appends; without memory it is an error of kind `OutOfMemory`, and nothing is appended.
impl Write for TreeArray<u8> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.try_extend_from_slice(bytes).map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
