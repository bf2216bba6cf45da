//! The argument and environment vectors of a program that is started, exactly as `execve` gets them.
//!
//! `std::process::Command` sorts an environment that it changes. A program can see the order, and those that write
//! their title over their arguments and environment (Redis, PostgreSQL) need it unbroken. So ours goes to the end,
//! where the agent takes it away without leaving a hole.

#![allow(unsafe_code, reason = "the call between fork and exec that does not return")]

use std::ffi::{CString, OsStr, OsString, c_char};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A file to execute, with its vectors. Nothing is allocated after it is made.
#[derive(Debug)]
pub(crate) struct Vectors {
    file: CString,
    arguments: Vector,
    environment: Vector,
}

/// C strings, and the pointers to them that end in null.
#[derive(Debug)]
struct Vector {
    _strings: Vec<CString>,
    pointers: Vec<*const c_char>,
}

// SAFETY: the pointers lead to the heap memory of the strings beside them, which nobody changes.
unsafe impl Send for Vectors {}
// SAFETY: as above.
unsafe impl Sync for Vectors {}

impl Vectors {
    /// Our environment without `without`, then `added`, each `NAME=value`.
    ///
    /// # Errors
    /// `InvalidInput` for text with a zero in it.
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
            arguments: Vector::new(arguments.iter().cloned())?,
            environment: Vector::new(entries.chain(added))?,
        })
    }

    /// The file that is executed.
    pub(crate) fn file(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(self.file.as_bytes()))
    }

    /// Becomes the program. Returns only when the kernel refuses.
    pub(crate) fn execute(&self) -> io::Error {
        // SAFETY: C strings, and vectors of them that end in null; all live in `self`.
        unsafe {
            libc::execve(self.file.as_ptr(), self.arguments.pointers.as_ptr(), self.environment.pointers.as_ptr());
        }
        io::Error::last_os_error()
    }
}

impl Vector {
    fn new(strings: impl Iterator<Item = OsString>) -> io::Result<Self> {
        let strings = strings.map(|text| CString::new(text.into_vec())).collect::<Result<Vec<_>, _>>()?;
        let pointers = strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(Self { _strings: strings, pointers })
    }
}
