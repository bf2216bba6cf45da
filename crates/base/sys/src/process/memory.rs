//! Memory of another process, by `/proc/PID/mem`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use fieldstone_wire::Cause;

use crate::error::denial;
use crate::{Error, Result};

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
    /// [`Error::ProcessMemory`] if the user lacks permission or the process is gone.
    pub fn open(pid: u32) -> Result<Self> {
        let file = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"));
        let file = file.map_err(|source| Error::ProcessMemory { pid, operation: "open", source })?;
        Ok(Self { pid, file })
    }

    /// Reads from `address` into `into` up to the first unmapped byte. Returns the number of bytes
    /// read; 0 if the first byte cannot be read.
    #[must_use]
    pub fn read(&self, address: u64, into: &mut [u8]) -> usize {
        self.file.read_at(into, address).unwrap_or(0)
    }

    /// Reads all of `into`.
    ///
    /// # Errors
    /// [`Error::ProcessMemory`] if a part is not mapped.
    pub fn read_exact(&self, address: u64, into: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(into, address).map_err(|source| self.failed("read", source))
    }

    /// The 8-byte word at an address.
    ///
    /// # Errors
    /// As [`Self::read_exact`].
    pub fn word(&self, address: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read_exact(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes all of `from`.
    ///
    /// # Errors
    /// As [`Self::read_exact`].
    pub fn write(&self, address: u64, from: &[u8]) -> Result<()> {
        self.file.write_all_at(from, address).map_err(|source| self.failed("write", source))
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> Error {
        Error::ProcessMemory { pid: self.pid, operation, source }
    }
}

/// The cause of a failed operation that needs permission to trace a process, and its remedy.
#[must_use]
pub fn trace_failure(source: &io::Error) -> String {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => denial(),
        Some(libc::ENOENT | libc::ESRCH) => "it has ended, never existed, or is a kernel thread".to_owned(),
        _ => Cause(source).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::ProcessMemory;
    use crate::Error;

    #[test]
    fn this_process_reads_and_writes_its_own_memory() {
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let word = std::sync::atomic::AtomicU64::new(7);
        let address = word.as_ptr() as u64;
        assert_eq!(memory.word(address).unwrap(), 7);
        memory.write(address, &9_u64.to_le_bytes()).unwrap();
        assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed), 9);
    }

    #[test]
    fn unmapped_memory_is_an_error_that_names_the_process() {
        let pid = std::process::id();
        let memory = ProcessMemory::open(pid).unwrap();
        assert_eq!(memory.read(8, &mut [0; 8]), 0);
        let error = memory.read_exact(8, &mut [0; 8]).unwrap_err();
        assert!(matches!(error, Error::ProcessMemory { .. }), "{error:?}");
        assert!(error.to_string().starts_with(&format!("cannot read the memory of process {pid}: ")), "{error}");
        let gone = ProcessMemory::open(u32::MAX >> 1).unwrap_err();
        assert!(gone.to_string().ends_with("it has ended, never existed, or is a kernel thread"), "{gone}");
    }
}
