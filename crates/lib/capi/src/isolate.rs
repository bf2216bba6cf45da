//! Requests for separate cache lines, which a repairer reads from outside:
//! `include/fieldstone/remap.h`.

#![allow(unsafe_code, reason = "exports symbols")]

use std::ffi::{c_int, c_void};

use fieldstone_wire::isolation::IsolationTable;

/// The table that a repairer finds by this symbol name.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "its name in C")]
static fieldstone_isolated: IsolationTable = IsolationTable::new();

#[unsafe(no_mangle)]
extern "C" fn remapper_isolate(address: *const c_void, bytes: usize) -> c_int {
    if address.is_null() || bytes == 0 {
        return libc::EINVAL;
    }
    if fieldstone_isolated.isolate(address.addr() as u64, bytes as u64) { 0 } else { libc::ENOSPC }
}

#[unsafe(no_mangle)]
extern "C" fn remapper_restore(address: *const c_void, bytes: usize) -> c_int {
    let is_removed =
        !address.is_null() && bytes > 0 && fieldstone_isolated.restore(address.addr() as u64, bytes as u64);
    if is_removed { 0 } else { libc::ENOENT }
}
