//! Memory of an agent that the paging agent leaves resident.
//!
//! An agent that has such memory exports a function with the type [`Function`] and the name
//! [`NAME`]; the paging agent calls it before it pages anything.

use core::ffi::CStr;

/// The name of the function.
pub const NAME: &CStr = c"fieldstone_unpaged_range";

/// The type of the function.
pub type Function = extern "C" fn() -> AddressRange;

/// A range of addresses.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    /// The first address.
    pub start: usize,
    /// The address behind the last.
    pub end: usize,
}
