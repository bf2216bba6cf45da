//! `fs_slots` and `fs_finding`: `include/fieldstone/guard.h`.

#![allow(unsafe_code, reason = "exports symbols; frees objects of C programs")]

use std::alloc::Layout;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};

use fieldstone_guard::{Finding, Kind, Side, Slots};

use crate::result::{CallError, OutHandle, create, non_null, run_call, run_call_in_handler};

/// The alignment that malloc promises.
const DEFAULT_ALIGNMENT: usize = 16;

/// `fs_slots_options`: zero is the default.
#[repr(C)]
struct SlotsOptions {
    memory: usize,
    quarantine: usize,
    side: c_uint,
}

/// `fs_finding`.
#[repr(C)]
struct CFinding {
    kind: c_uint,
    address: *mut c_void,
    object: *mut c_void,
    object_bytes: usize,
    offset: isize,
    allocated_thread: u32,
    freed_thread: u32,
}

impl From<Finding> for CFinding {
    fn from(finding: Finding) -> Self {
        Self {
            kind: finding.kind as c_uint,
            address: std::ptr::with_exposed_provenance_mut(finding.address),
            object: std::ptr::with_exposed_provenance_mut(finding.object.start),
            object_bytes: finding.object.bytes,
            offset: finding.offset,
            allocated_thread: finding.allocated.thread,
            freed_thread: finding.freed.map_or(0, |freed| freed.thread),
        }
    }
}

fn side(number: c_uint) -> Result<Side, CallError> {
    match number {
        0 => Ok(Side::Both),
        1 => Ok(Side::Right),
        2 => Ok(Side::Left),
        _ => Err(CallError::Argument("the side is not one of enum fs_side")),
    }
}

#[unsafe(no_mangle)]
extern "C" fn fs_slots_open(options: Option<&SlotsOptions>, slots: OutHandle<'_, Slots>) -> c_int {
    run_call(|| {
        create(slots, || {
            let mut builder = Slots::builder();
            if let Some(options) = options {
                builder = builder.side(side(options.side)?);
                if options.memory != 0 {
                    builder = builder.memory(options.memory);
                }
                if options.quarantine != 0 {
                    builder = builder.quarantine(options.quarantine);
                }
            }
            Ok(builder.build()?)
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_slots_free(slots: Option<Box<Slots>>) {
    drop(slots);
}

#[unsafe(no_mangle)]
extern "C" fn fs_slots_alloc(slots: Option<&Slots>, bytes: usize, alignment: usize) -> *mut c_void {
    let mut object = null_mut();
    run_call(|| {
        let alignment = if alignment == 0 { DEFAULT_ALIGNMENT } else { alignment };
        if !alignment.is_power_of_two() {
            return Err(CallError::Argument("the alignment is not a power of two"));
        }
        let refused = fieldstone_guard::Error::Full { bytes };
        let layout = Layout::from_size_align(bytes, alignment).map_err(|_| refused)?;
        object = non_null(slots)?.alloc(layout).ok_or(refused)?.as_ptr().cast();
        Ok(())
    });
    object
}

#[unsafe(no_mangle)]
extern "C" fn fs_slots_free_object(slots: Option<&Slots>, object: *mut c_void) -> c_int {
    run_call(|| {
        let slots = non_null(slots)?;
        let Some(object) = NonNull::new(object.cast()) else { return Ok(()) };
        // SAFETY: the header requires that the program does not use the object any more.
        unsafe { slots.free(object) }.map_err(CallError::Finding)
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_slots_owns(slots: Option<&Slots>, address: *const c_void) -> bool {
    slots.is_some_and(|slots| slots.owns(address.addr()))
}

#[unsafe(no_mangle)]
extern "C" fn fs_slots_explain(
    slots: Option<&Slots>,
    address: *const c_void,
    finding: Option<&mut MaybeUninit<CFinding>>,
) -> c_int {
    run_call_in_handler(|| {
        let found = non_null(slots)?.explain(address.addr()).ok_or(CallError::NotExplained)?;
        finding.map(|place| place.write(found.into()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_finding_name(kind: c_uint) -> *const c_char {
    const NAMES: [(Kind, &CStr); 5] = [
        (Kind::HeapBufferOverflow, c"heap-buffer-overflow"),
        (Kind::HeapBufferUnderflow, c"heap-buffer-underflow"),
        (Kind::UseAfterFree, c"use-after-free"),
        (Kind::DoubleFree, c"double-free"),
        (Kind::InvalidFree, c"invalid-free"),
    ];
    NAMES.iter().find(|(known, _)| *known as c_uint == kind).map_or(c"unknown", |entry| entry.1).as_ptr()
}
