//! What shall live on cache lines of its own, told to a repairer that may be looking on: `include/fieldstone/remap.h`.

#![allow(unsafe_code, reason = "exports symbols")]

use std::ffi::{c_int, c_void};

use fieldstone_wire::isolation::IsolationTable;

/// The table that a repairer looks for by this name.
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
    let was_asked = !address.is_null() && bytes > 0 && fieldstone_isolated.restore(address.addr() as u64, bytes as u64);
    if was_asked { 0 } else { libc::ENOENT }
}
