//! Memory of another process, by `/proc/PID/mem`.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::error::{Error, Result};

/// The memory of a process. Writes succeed on read-only pages and code too; the kernel gives the
/// process a private copy of such a page. After an exec, all accesses fail.
#[derive(Debug)]
pub struct ProcessMemory {
    pid: u32,
    file: File,
}

impl ProcessMemory {
    /// Opens the memory of process `pid`.
    ///
    /// # Errors
    /// [`Error::Process`] if the user lacks permission or the process is gone.
    pub fn open(pid: u32) -> Result<Self> {
        let file = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        let file = file.map_err(|source| Error::Process { pid, operation: "open the memory of", source })?;
        Ok(Self { pid, file })
    }

    /// Reads all of `into`.
    ///
    /// # Errors
    /// [`Error::Process`] if a part is not mapped.
    pub fn read_exact(&self, address: u64, into: &mut [u8]) -> Result<()> {
        let failed = |source| Error::Process { pid: self.pid, operation: "read the memory of", source };
        self.file.read_exact_at(into, address).map_err(failed)
    }

    /// The 8-byte word at an address.
    ///
    /// # Errors
    /// As [`Self::read_exact`].
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn word(&self, address: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read_exact(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes all of `from`.
    ///
    /// # Errors
    /// As [`Self::read_exact`].
    pub fn write(&self, address: u64, from: &[u8]) -> Result<()> {
        let failed = |source| Error::Process { pid: self.pid, operation: "write the memory of", source };
        self.file.write_all_at(from, address).map_err(failed)
    }
}

impl fieldstone_rewrite::Memory for ProcessMemory {
    fn read(&self, address: u64, into: &mut [u8]) -> usize {
        self.file.read_at(into, address).unwrap_or(0)
    }
}
