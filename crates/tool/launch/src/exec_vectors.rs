//! The argument and environment vectors for execve(2), in the caller's order.
//!
//! `std::process::Command` sorts an environment that it changes. A program can observe the order.
//! Programs that write their title over arguments and environment (Redis, PostgreSQL) need
//! contiguous strings. So variables are added at the end, where the agent removes them without
//! leaving a gap.

#![allow(unsafe_code, reason = "calls execve with pointers")]

use std::ffi::{CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A file to execute, with its vectors. [`Self::execute`] does not allocate.
#[derive(Debug)]
pub(crate) struct ExecVectors {
    file: CString,
    arguments: CStringVector,
    environment: CStringVector,
}

/// C strings, and a null-terminated array of pointers to them.
#[derive(Debug)]
struct CStringVector {
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

// SAFETY: the pointers refer to heap memory of the strings in the same struct, which moves with it.
unsafe impl Send for ExecVectors {}
// SAFETY: no method changes the strings or the pointers, so threads only read them.
unsafe impl Sync for ExecVectors {}

impl ExecVectors {
    /// The environment is that of this process without the variables `without`, then `added`, each
    /// `NAME=value`.
    ///
    /// # Errors
    /// `InvalidInput` for a string with a zero byte.
    pub(crate) fn new(file: &Path, arguments: &[OsString], without: &[&str], added: Vec<OsString>) -> io::Result<Self> {
        let kept =
            std::env::vars_os().filter(|(name, _)| !without.iter().any(|other| name.as_os_str() == OsStr::new(other)));
        let entries = kept.map(|(mut entry, value)| {
            entry.push("=");
            entry.push(value);
            entry
        });
        Ok(Self {
            file: CString::new(file.as_os_str().as_bytes())?,
            arguments: CStringVector::new(arguments.iter().cloned())?,
            environment: CStringVector::new(entries.chain(added))?,
        })
    }

    /// The file that is executed.
    pub(crate) fn file(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(self.file.as_bytes()))
    }

    /// Replaces this process by the program. Returns only if the kernel refuses.
    pub(crate) fn execute(&self) -> io::Error {
        // SAFETY: `file` is a C string, and both arrays of pointers to C strings end in null.
        // `self` owns all of them.
        unsafe {
            libc::execve(self.file.as_ptr(), self.arguments.pointers.as_ptr(), self.environment.pointers.as_ptr());
        }
        io::Error::last_os_error()
    }
}

impl CStringVector {
    fn new(strings: impl Iterator<Item = OsString>) -> io::Result<Self> {
        let strings = strings.map(|text| CString::new(text.into_vec())).collect::<Result<Vec<_>, _>>()?;
        let pointers = strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(Self { _strings: strings, pointers })
    }
}
