//! The auxiliary vector: values that the kernel passes to a process.

#![allow(unsafe_code, reason = "calls the system")]

/// A value of the auxiliary vector (getauxval(3)); 0 if there is none.
pub(crate) fn auxv(key: core::ffi::c_ulong) -> usize {
    // SAFETY: the call returns a number and writes no memory.
    usize::try_from(unsafe { libc::getauxval(key) }).unwrap_or(0)
}
